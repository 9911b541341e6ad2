"""Classes for real images: equal shares, the likeliest such assignment, and who learns from it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from small_games import SPACE, game, real, same, state

from torchtagi.experiments.gan.game import teach_classes
from torchtagi.experiments.gan.grouping import BLOCK, Grouping, balanced_classes, distorted
from torchtagi.experiments.gan.training import GanTraining
from torchtagi.gaussian import Gaussian


def log_probs(n, classes, scale=1.0, seed=0):
    return (scale * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed))).log_softmax(1)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(5, 40), st.floats(1e-6, 30), st.integers(0, 99))
def test_every_class_is_given_about_equally_often(classes, each, scale, seed):
    given_to = torch.bincount(balanced_classes(log_probs(classes * each, classes, scale, seed)), minlength=classes)
    assert given_to.sum() == classes * each
    assert (given_to - each).abs().max() <= max(2, each // 3)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_nearly_the_likeliest_of_all_balanced_assignments(seed):
    found = log_probs(120, 6, 2.0, seed)
    rows, seats = linear_sum_assignment(-np.repeat(found.numpy(), 20, axis=1))
    best = found.numpy()[rows, seats // 20].sum()
    chosen = balanced_classes(found)
    ours = found.gather(1, chosen[:, None]).sum().item()
    free = found.amax(1).sum().item()
    assert abs(ours - best) < 0.1 * abs(best)
    assert ours < free, "being balanced has a price"
    assert (chosen.numpy() == seats[np.argsort(rows)] // 20).mean() > 0.85


def test_what_all_images_have_in_common_does_not_count():
    found = log_probs(200, 5).double()
    fashion = torch.tensor([9.0, 0.0, 0.0, -4.0, 1.0])
    assert torch.equal(balanced_classes(found), balanced_classes(found + fashion))
    assert torch.equal(balanced_classes(found), balanced_classes(1e-5 * found + fashion))


def test_images_that_do_not_differ_and_too_few_images_have_classes_too():
    assert balanced_classes(torch.zeros(7, 3)).shape == (7,)
    assert balanced_classes(log_probs(1, 10)).shape == (1,)
    with pytest.raises(ValueError, match=r"must have shape \(images, classes\), got \(4,\)"):
        balanced_classes(torch.zeros(4))


def test_a_block_is_given_out_batch_by_batch():
    grouping = Grouping(batch_size=16, codes=1)
    assert len(grouping.classes) == BLOCK
    assert [batch for batch in range(100) if grouping.begins_at(batch)] == [0, 40, 80]
    found = log_probs(100, 10)  # a last block that is shorter
    grouping.set([found])
    parts = [grouping.of(batch, n) for batch, n in zip(range(80, 87), [16] * 6 + [4], strict=True)]
    assert torch.equal(torch.cat(parts)[:, 0], balanced_classes(found))
    assert Grouping(batch_size=1000, codes=2).classes.shape == (1000, 2)


def test_trunk_and_qnet_learn_classes_and_nobody_else():
    g = game()
    before, generator = state(g.players.discriminator), state(g.players.generator)
    classes = torch.tensor([[0], [1], [2], [1], [0]])
    with torch.no_grad():
        earlier = g.heads.codes.of_classes(g.players.discriminator(real()).codes, classes)
    for _ in range(3):
        teach_classes(g, real(), classes)
    with torch.no_grad():
        later = g.heads.codes.of_classes(g.players.discriminator(real()).codes, classes)
    after = state(g.players.discriminator)
    assert later < earlier
    assert same(generator, state(g.players.generator))
    for part, learns in (("trunk", True), ("reality", False), ("codes", True)):
        assert any(k.startswith(part) and not torch.equal(before[k], after[k]) for k in before) is learns, part


def test_continuous_codes_of_real_images_are_not_observed():
    g = game()
    z = g.players.discriminator(real()).codes
    classes = torch.zeros(5, 1, dtype=torch.long)
    message = Gaussian(z.mean.detach().requires_grad_(), z.variance.detach())
    g.heads.codes.of_classes(message, classes).backward()
    width = SPACE.category_widths[0]
    assert message.mean.grad[:, :width].abs().sum() > 0
    assert message.mean.grad[:, width:].abs().sum() == 0


@pytest.mark.parametrize("method", ["tagi", "adam"])
def test_classes_are_what_qnet_reads_of_the_next_images(digits, method):
    from test_gan_training import small

    training = GanTraining(small(method=method, grain=0.0), sets=digits)
    engine = training.engine
    next(training.events())
    block = training.train.images[:30]
    engine.read_ahead(block)
    with torch.no_grad():
        engine.players.eval()
        expected = balanced_classes(engine.class_log_probs(engine.players.discriminator(block).codes)[0])
    assert torch.equal(engine.grouping.of(0, 16)[:, 0], expected[:16])
    assert torch.equal(engine.grouping.of(1, 14)[:, 0], expected[16:])


def test_real_codes_have_a_noise_of_their_own_that_decays(digits):
    from test_gan_training import small

    config = small(real_code_noise_std=2.0, code_noise_std=1.0, noise_decay=0.5, noise_floor=0.1)
    engine = GanTraining(config, sets=digits).engine
    found = []
    for epoch in range(2):
        engine.begin_epoch(epoch)
        found.append(engine.real_codes.categories[0].noise_std.item())
    assert found == [2.0, 1.0]
    assert engine.heads.codes.categories[0].noise_std.item() == 0.5


def test_classes_are_read_with_the_noise_of_real_codes(digits):
    """Not with that of generated images, through which all look alike; nor does reading change with the epochs."""
    from test_gan_training import small

    read = []
    for noise, epoch in ((20.0, 0), (2.0, 0), (20.0, 9)):
        engine = GanTraining(small(code_noise_std=noise), sets=digits).engine
        engine.begin_epoch(epoch)
        engine.players.eval()
        with torch.no_grad():
            read.append(engine.class_log_probs(engine.players.discriminator(digits.test.images[:20]).codes)[0])
    assert torch.equal(read[0], read[1])
    assert torch.equal(read[0], read[2])
    assert (read[0].exp().max(1).values - 0.1).max() > 0.03, "classes differ"


def test_the_paper_reads_no_real_images(digits):
    from test_gan_training import small

    for task in ("infogan-mnist", "gan-mnist"):
        training = GanTraining(small(task, paper=True), sets=digits)
        assert training.engine.grouping is None
        next(training.events())


def test_distorted_copies_follow_the_seed(digits):
    images = digits.train.images[:8]
    torch.manual_seed(1)
    first = distorted(images)
    torch.manual_seed(1)
    assert torch.equal(first, distorted(images))
    assert not torch.equal(first, distorted(images))
    assert first.shape == images.shape
