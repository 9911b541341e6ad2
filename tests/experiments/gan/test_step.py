"""The steps of Figures 1 and 2: who learns from what, and who stays as they are."""

import copy

import pytest
import torch
from small_gans import SPACE, changed, generate, latents, networks, real, small_gan, state

import torchtagi as tagi
from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.experiments.gan.networks import frozen, scale_prior
from torchtagi.experiments.gan.step import FAKE, REAL, decayed
from torchtagi.experiments.gan.tasks import Noises
from torchtagi.gaussian import cat

PLAIN = LatentSpace(3)


@pytest.mark.parametrize("space", [SPACE, PLAIN], ids=["infogan", "gan"])
@pytest.mark.parametrize("paper", [False, True])
def test_each_step_changes_its_own_network_alone(space, paper):
    gan, points = small_gan(space, paper=paper), latents(space)
    discriminator, generator = gan.networks.discriminator, gan.networks.generator
    images = generate(gan, points)
    before, drawing = state(discriminator), state(generator)
    gan.discriminator_step(real(), images.detach(), points)
    assert not changed(drawing, generator)
    for part in ("dnet", "pnet", *(["qnet"] if space.has_codes else [])):
        assert changed(before, discriminator, part), part
    before = state(discriminator)
    gan.generator_step(images, points)
    assert not changed(before, discriminator), "running statistics included"
    assert changed(drawing, generator)
    assert all(part.training for part in discriminator.modules())
    assert all(p.requires_grad and p.grad is None for p in gan.networks.parameters())


def messages(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def test_the_message_to_dnet_is_the_sum_of_both_heads():
    gan, points, images = small_gan(), latents(), real()
    gan.networks.discriminator.eval()  # so that three passes see the same statistics
    found = []
    for heads in (("labels",), ("codes",), ("labels", "codes")):
        gan.discriminator_update.zero_grad()
        gan.generator_update.zero_grad()
        output = gan.networks.discriminator(images)
        loss = 0.0
        if "labels" in heads:
            loss = loss + gan.heads.label_loss(output.labels, FAKE)
        if "codes" in heads:
            loss = loss + gan.heads.code_loss(output.codes, points)
        loss.backward()
        found.append(messages(gan.networks.discriminator.dnet))
    label, code, both = found
    assert both
    for name in both:
        assert torch.allclose(both[name], label[name] + code[name], rtol=1e-9, atol=1e-12)
        assert label[name].abs().sum() > 0
        assert code[name].abs().sum() > 0


def test_the_papers_discriminator_step_by_hand():
    """Two ordinary updates of an ordinary network with two heads."""
    gan, points = small_gan(paper=True), latents()
    report = gan.discriminator_step(real(), generate(gan, points).detach(), points)

    theirs = networks()
    by_hand = theirs.discriminator
    update = tagi.Update(by_hand, "paper")
    output = by_hand(real())
    assert report["real"] == pytest.approx(output.labels.mean.mean().item())
    tagi.Binary(1.0)(output.labels, torch.full((5, 1), -1.0)).backward()
    update.step()
    update.zero_grad()
    output = by_hand(theirs.generator(SPACE.encode(points)).detach())
    assert report["fake"] == pytest.approx(output.labels.mean.mean().item())
    tagi.Binary(1.0)(output.labels, torch.full((5, 1), 1.0)).backward(retain_graph=True)
    classes = tagi.HierarchicalClassification(3, 1.0)
    classes(output.codes[:, :3], points.categories[:, 0]).backward(retain_graph=True)
    read = classes.predict(output.codes[:, :3]).labels
    assert report["code_error"] == pytest.approx((read != points.categories[:, 0]).double().mean().item())
    tagi.Regression(1.0)(output.codes[:, 3:], points.continuous).backward()
    update.step()
    for name, value in by_hand.state_dict().items():
        assert torch.allclose(value, gan.networks.discriminator.state_dict()[name], rtol=1e-7, atol=1e-9), name


def test_our_discriminator_step_learns_from_both_batches_at_once():
    """With statistics that stand still one batch of both is the sum of two micro-batches."""
    gan, points = small_gan(), latents()
    gan.networks.discriminator.eval()
    gan.discriminator_step(real(), generate(gan, points).detach(), points)
    theirs = small_gan()
    discriminator = theirs.networks.discriminator.eval()
    theirs.heads.label_loss(discriminator(real(), codes_from=None).labels, REAL).backward()
    output = discriminator(generate(theirs, points).detach())
    (theirs.heads.label_loss(output.labels, FAKE) + theirs.heads.code_loss(output.codes, points)).backward()
    theirs.discriminator_update.step()
    for name, value in discriminator.state_dict().items():
        assert torch.allclose(value, gan.networks.discriminator.state_dict()[name], rtol=1e-9, atol=1e-12), name


def test_our_discriminator_step_normalises_by_what_both_kinds_of_images_have_in_common():
    gan, points = small_gan(), latents()
    images = generate(gan, points).detach()
    convolution, norm = copy.deepcopy(gan.networks.discriminator.dnet[0]), gan.networks.discriminator.dnet[2]
    gan.discriminator_step(real(), images, points)
    z = tagi.nn.LeakyReLU(0.2)(convolution(tagi.cat([tagi.Gaussian(real()), images])))
    assert torch.allclose(norm.running_mean, z.mean.mean((0, 2, 3)))  # the first batch is copied
    assert norm.num_batches_tracked.item() == 1


def test_the_papers_generator_step_by_hand():
    """The message that passes the frozen discriminator, applied to the generator by hand."""
    gan, points = small_gan(paper=True), latents()
    before = state(gan.networks.generator)
    with frozen(gan.networks.discriminator):
        output = gan.networks.discriminator(generate(gan, points))
        (gan.heads.label_loss(output.labels, REAL) + gan.heads.code_loss(output.codes, points)).backward()
    sent = messages(gan.networks.generator)
    gan.discriminator_update.zero_grad()
    gan.generator_update.zero_grad()
    gan.generator_step(generate(gan, points), points)
    for name, message in sent.items():
        var = before[name.removesuffix("mean") + "var"] if name.endswith("mean") else before[name]
        step_ = var * message if name.endswith("mean") else var.square() * message
        after = gan.networks.generator.state_dict()[name]
        assert torch.allclose(after, before[name] - step_, rtol=1e-9, atol=1e-12)


def test_the_generator_step_counts_the_discriminators_uncertainty():
    """As if only G could be wrong, the same message would be applied further."""
    points, alphas = latents(n=40), []
    for counted in (True, False):
        gan = small_gan()
        discriminator, generator = gan.networks.discriminator, gan.networks.generator
        discriminator(real())  # running statistics
        if not counted:
            gan.generator_update = tagi.Update(generator, outputs=discriminator)
        alphas.append(gan.generator_step(generate(gan, points), points)["generator_alpha"])
    assert 0 < alphas[0] < 0.9 * alphas[1]


def test_images_enter_the_discriminator_with_their_variance():
    gan, points = small_gan(), latents()
    gan.networks.discriminator.eval()
    images = generate(gan, points)
    with torch.no_grad():
        certain = gan.networks.discriminator(images.mean)
        uncertain = gan.networks.discriminator(images)
    assert (uncertain.labels.var > certain.labels.var).all()


def test_a_whole_step_reports_what_happened():
    gan = small_gan()
    gan.heads.float(), gan.generator_heads.float(), gan.networks.float()
    report = gan.step(real().float(), 0)
    assert 0 < report["generator_alpha"] <= 1
    assert 0 < report["discriminator_alpha"] <= 1
    assert 0 <= report["code_error"] <= 1
    assert report["largest_pixel"] > 0


@pytest.mark.parametrize("paper", [False, True])
def test_instance_noise_is_on_every_image_that_d_sees_and_passes_messages_on(paper):
    gan, points = small_gan(instance_noise=0.5, paper=paper), latents()
    images = generate(gan, points)
    seen = []
    gan.networks.discriminator.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    gan.discriminator_step(real(), images.detach(), points)
    before = state(gan.networks.generator)
    gan.generator_step(images, points)
    assert changed(before, gan.networks.generator)
    kinds = [tagi.Gaussian(real()), images, images] if paper else [cat([tagi.Gaussian(real()), images]), images]
    noises = [(shown.mean - image.mean).detach() for shown, image in zip(seen, kinds, strict=True)]
    assert torch.cat([noise.flatten() for noise in noises]).std().item() == pytest.approx(0.5, rel=0.1)
    assert not torch.equal(noises[-1], noises[-2][-len(images) :])


def test_frozen_restores_even_after_a_failure():
    net = networks().discriminator
    before = state(net)

    def fail():
        net(real())
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), frozen(net):
        fail()
    assert not changed(before, net)
    assert all(part.training for part in net.modules())
    assert all(p.requires_grad for p in net.parameters())


def test_noises_decay_each_epoch_to_a_floor_that_does_not_raise_them():
    assert [decayed(3.0, epoch) for epoch in (0, 1, 1000)] == pytest.approx([3.0, 2.925, 0.3])
    assert decayed(0.1, 0) == decayed(0.1, 9) == 0.1
    gan = small_gan(
        discriminator=Noises(4.0, 3.0, 0.5), generator=Noises(2.0, 1.0, 0.5), pseudo_label_noise_std=0.8
    )
    gan.begin_epoch(2)
    found = [
        *(
            part.noise_std.item()
            for heads in (gan.heads, gan.generator_heads)
            for part in (heads.labels, heads.classes[0], heads.continuous)
        ),
        gan.pseudo_label_heads.classes[0].noise_std.item(),
    ]
    assert found == pytest.approx([0.975**2 * std for std in (4.0, 3.0, 0.5, 2.0, 1.0, 0.5, 0.8)])


def test_priors_scale_the_codes_weights_and_those_of_deep_networks():
    plain, gained, deep = networks(), networks(), networks()
    scale_prior(gained, SPACE.noise, code_gain=4.0, deep=False)
    first, scaled = plain.generator[0].weight, gained.generator[0].weight
    assert torch.equal(scaled.mean[:, :3], first.mean[:, :3])
    assert torch.equal(scaled.mean[:, 3:], 4 * first.mean[:, 3:])
    assert torch.equal(scaled.var[:, 3:], 16 * first.var[:, 3:])
    scale_prior(deep, SPACE.noise, code_gain=1.0, deep=True)
    for layer, other in (
        (deep.generator[0], plain.generator[0]),
        (deep.discriminator.dnet[0], plain.discriminator.dnet[0]),
        (deep.discriminator.dnet[4], plain.discriminator.dnet[4]),
    ):
        assert torch.allclose(layer.weight.mean, 2**0.5 * other.weight.mean)
        assert torch.equal(layer.weight.var, other.weight.var)
        assert layer.bias.mean.abs().max() == 0
    for layer, other in (
        (deep.generator[2], plain.generator[2]),
        (deep.discriminator.pnet, plain.discriminator.pnet),
        (deep.discriminator.qnet, plain.discriminator.qnet),
    ):
        assert torch.equal(layer.weight.mean, other.weight.mean), "the last of its chain"
