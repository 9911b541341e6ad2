"""The step of Figures 1 and 2: who learns from what, and who stays as they are."""

import copy

import pytest
import torch
from small_games import SPACE, game, latents, players, real, same, state

import torchtagi as tagi
from torchtagi.experiments.gan.freezing import frozen
from torchtagi.experiments.gan.game import Game, generate, step, teach_discriminator, teach_generator
from torchtagi.experiments.gan.heads import FAKE, REAL
from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.gaussian import cat

PLAIN = LatentSpace(3)


@pytest.mark.parametrize("space", [SPACE, PLAIN], ids=["infogan", "gan"])
@pytest.mark.parametrize("running", [True, False], ids=["running", "batch"])
@pytest.mark.parametrize("count_frozen", [True, False])
@pytest.mark.parametrize("rule", ["coherent", "paper", "capped"])
def test_the_generators_part_changes_the_generator_alone(space, running, count_frozen, rule):
    g = game(space, running, count_frozen=count_frozen, rule=rule)
    points = latents(space)
    images = generate(g, points)
    teach_discriminator(g, real(), images, points)
    discriminator, generator = state(g.players.discriminator), state(g.players.generator)
    teach_generator(g, images, points)
    assert same(discriminator, state(g.players.discriminator)), "running statistics included"
    assert not same(generator, state(g.players.generator))
    assert g.players.discriminator.training
    assert all(p.requires_grad for p in g.players.parameters())
    assert all(p.grad is None for p in g.players.parameters())


@pytest.mark.parametrize("joint", [False, True])
def test_the_discriminators_part_leaves_the_generator_alone(joint):
    g = game(joint=joint)
    points = latents()
    images = generate(g, points)
    before, generator = state(g.players.discriminator), state(g.players.generator)
    teach_discriminator(g, real(), images, points)
    assert same(generator, state(g.players.generator))
    after = state(g.players.discriminator)
    for part in ("trunk", "reality", "codes"):
        changed = [k for k in before if k.startswith(part) and not torch.equal(before[k], after[k])]
        assert changed, part


def messages(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def test_the_trunks_message_is_the_sum_of_both_heads():
    g = game()
    g.players.discriminator.eval()  # so that three passes see the same statistics
    points, images = latents(), real()
    found = []
    for heads in (("reality",), ("codes",), ("reality", "codes")):
        g.zero_grad()
        verdict = g.players.discriminator(images)
        evidence = 0.0
        if "reality" in heads:
            evidence = evidence + g.heads.label(verdict.reality, FAKE)
        if "codes" in heads:
            evidence = evidence + g.heads.codes(verdict.codes, points)
        evidence.backward()
        found.append(messages(g.players.discriminator.trunk))
    label, code, both = found
    assert both
    for name in both:
        assert torch.allclose(both[name], label[name] + code[name], rtol=1e-9, atol=1e-12)
        assert label[name].abs().sum() > 0
        assert code[name].abs().sum() > 0


def test_parts_one_and_two_by_hand():
    """Without a Game: two ordinary updates of an ordinary network with two heads."""
    g, points = game(), latents()
    images = generate(g, points)
    opinions = teach_discriminator(g, real(), images, points)

    theirs = game()
    by_hand = theirs.players.discriminator
    update = tagi.Update(by_hand)
    verdict = by_hand(real())
    assert opinions[0] == pytest.approx(verdict.reality.mean.mean().item())
    tagi.Binary(1.0)(verdict.reality, torch.full((5, 1), -1.0)).backward()
    update.step()
    update.zero_grad()
    verdict = by_hand(theirs.players.generator(SPACE.encode(points)).detach())
    assert opinions[1] == pytest.approx(verdict.reality.mean.mean().item())
    tagi.Binary(1.0)(verdict.reality, torch.full((5, 1), 1.0)).backward(retain_graph=True)
    tagi.HierarchicalClassification(3, 1.0)(verdict.codes[:, :3], points.categories[:, 0]).backward(
        retain_graph=True
    )
    tagi.Regression(1.0)(verdict.codes[:, 3:], points.continuous).backward()
    # three backward passes note three entries each, where one pass of the sum notes the same sums
    update.step()
    for name, value in by_hand.state_dict().items():
        assert torch.allclose(value, g.players.discriminator.state_dict()[name], rtol=1e-7, atol=1e-9), name


def test_a_generators_part_by_hand():
    """The message to the images, applied to the generator by hand with the step's own α."""
    g, points = game(rule="paper"), latents()
    before = state(g.players.generator)
    images = generate(g, points)
    with frozen(g.players.discriminator):
        verdict = g.players.discriminator(images)
        (g.heads.label(verdict.reality, REAL) + g.heads.codes(verdict.codes, points)).backward()
    sent = messages(g.players.generator)
    g.zero_grad()
    teach_generator(g, generate(g, points), points)
    for name, message in sent.items():
        var = before[name.removesuffix("mean") + "var"] if name.endswith("mean") else before[name]
        step_ = var * message if name.endswith("mean") else var.square() * message
        assert torch.allclose(state(g.players.generator)[name], before[name] + step_, rtol=1e-9, atol=1e-12)


def test_joint_learns_from_both_batches_at_once():
    """With statistics that stand still one batch of both is the sum of two micro-batches."""
    g, points = game(joint=True), latents()
    g.players.discriminator.eval()
    images = generate(g, points)
    teach_discriminator(g, real(), images, points)
    theirs = game()
    discriminator, update = theirs.players.discriminator.eval(), theirs.discriminator_update
    theirs.heads.label(discriminator(real(), codes_from=None).reality, REAL).backward()
    verdict = discriminator(generate(theirs, points).detach())
    (theirs.heads.label(verdict.reality, FAKE) + theirs.heads.codes(verdict.codes, points)).backward()
    update.step()
    for name, value in discriminator.state_dict().items():
        assert torch.allclose(value, g.players.discriminator.state_dict()[name], rtol=1e-9, atol=1e-12), name


def test_joint_normalises_both_kinds_of_images_by_what_they_have_in_common():
    g, points = game(joint=True), latents()
    images = generate(g, points)
    convolution, norm = copy.deepcopy(g.players.discriminator.trunk[0]), g.players.discriminator.trunk[2]
    teach_discriminator(g, real(), images, points)
    z = tagi.nn.LeakyReLU(0.2)(convolution(tagi.cat([tagi.Gaussian(real()), images.detach()])))
    assert torch.allclose(norm.running_mean, z.mean.mean((0, 2, 3)))  # the first batch is copied
    assert norm.num_batches_tracked.item() == 1


def test_images_enter_the_discriminator_with_their_variance():
    g, points = game(), latents()
    g.players.discriminator.eval()
    images = generate(g, points)
    assert images.var is not None
    with torch.no_grad():
        certain = g.players.discriminator(images.mean)
        uncertain = g.players.discriminator(images)
    assert (uncertain.reality.var > certain.reality.var).all()


def test_a_step_reports_what_happened():
    g = game()
    report = step(g, real(), latents())
    assert 0 < report.generator_alpha <= 1
    assert 0 < report.discriminator_alpha <= 1
    assert 0 <= report.code_error <= 1
    assert report.largest_pixel > 0
    assert g.heads.lead.item() == pytest.approx((report.fake - report.real) / 2)


def test_a_step_without_the_discriminators_part():
    g = game()
    before = state(g.players.discriminator)
    report = step(g, real(), latents(), discriminates=False)
    assert same(before, state(g.players.discriminator))
    assert report.real != report.real
    assert 0 < report.generator_alpha <= 1


def test_a_discriminator_ahead_hears_codes_but_no_labels():
    g, points = game(lead=0.5), latents()
    g.heads.lead.fill_(0.9)
    before = state(g.players.discriminator)
    teach_discriminator(g, real(), generate(g, points), points)
    after = state(g.players.discriminator)
    assert all(torch.equal(before[k], after[k]) for k in before if k.startswith("reality"))
    assert any(not torch.equal(before[k], after[k]) for k in before if k.startswith("codes"))
    assert g.heads.lead.item() < 0.5, "measured anew"
    teach_discriminator(g, real(), generate(g, points), points)
    assert any(not torch.equal(after[k], v) for k, v in state(g.players.discriminator).items() if "reality" in k)


def test_a_gan_without_codes_that_is_ahead_rests():
    g, points = game(PLAIN, lead=0.5), latents(PLAIN)
    g.heads.lead.fill_(0.9)
    weights = [p.clone() for p in g.players.discriminator.parameters()]
    teach_discriminator(g, real(), generate(g, points), points)
    assert all(torch.equal(a, b) for a, b in zip(weights, g.players.discriminator.parameters(), strict=True))


def test_label_noise_lies_about_its_share():
    g = game(label_noise=0.25)
    seen = []
    g.heads.reality.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    torch.manual_seed(0)
    z = tagi.Gaussian(torch.zeros(4000, 1).double(), torch.ones(4000, 1).double())
    g.label(z, REAL)
    assert set(seen[0].unique().tolist()) == {-1.0, 1.0}
    assert (seen[0] == FAKE).float().mean().item() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("joint", [False, True])
def test_grain_is_on_every_image_that_d_sees_and_passes_messages_on(joint):
    g, points = game(grain=0.5, joint=joint), latents()
    images = generate(g, points)
    seen = []
    g.players.discriminator.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    teach_discriminator(g, real(), images, points)
    before = [p.clone() for p in g.players.generator.parameters()]
    teach_generator(g, images, points)
    kinds = [cat([tagi.Gaussian(real()), images]), images] if joint else [tagi.Gaussian(real()), images, images]
    assert len(seen) == len(kinds)
    noises = [(shown.mean - image.mean).detach() for shown, image in zip(seen, kinds, strict=True)]
    assert torch.cat([noise.flatten() for noise in noises]).std().item() == pytest.approx(0.5, rel=0.1)
    assert not torch.equal(noises[-1], noises[-2][-len(images) :])
    assert any(not torch.equal(a, b) for a, b in zip(before, g.players.generator.parameters(), strict=True))


def test_frozen_restores_even_after_a_failure():
    net = players().discriminator
    before = state(net)

    def fail():
        net(real())
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), frozen(net):
        fail()
    assert same(before, state(net))
    assert net.training
    assert all(part.training for part in net.modules())
    assert all(p.requires_grad for p in net.parameters())


def test_bad_games_are_refused():
    with pytest.raises(ValueError, match="label_noise"):
        game(label_noise=0.5)
    with pytest.raises(ValueError, match="Qnet"):
        Game(players(PLAIN), SPACE, game().heads)
