"""Pseudo-labels of real images: equal shares, the likeliest such assignment, and who learns from it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from small_gans import ONE, SPACE, changed, real, small_gan, state
from test_gan_training import small

from torchtagi.experiments.gan.pseudo_labels import BLOCK, PseudoLabels, balanced_classes
from torchtagi.experiments.gan.step import Heads
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
    common = torch.tensor([9.0, 0.0, 0.0, -4.0, 1.0])
    assert torch.equal(balanced_classes(found), balanced_classes(found + common))
    assert torch.equal(balanced_classes(found), balanced_classes(1e-5 * found + common))


def test_images_that_do_not_differ_and_too_few_images_have_classes_too():
    assert balanced_classes(torch.zeros(7, 3)).shape == (7,)
    assert balanced_classes(log_probs(1, 10)).shape == (1,)
    with pytest.raises(ValueError, match=r"must have shape \(images, classes\), got \(4,\)"):
        balanced_classes(torch.zeros(4))


def test_a_block_is_given_out_batch_by_batch():
    labels = PseudoLabels(batch_size=16, codes=1)
    assert [batch for batch in range(100) if labels.begins_at(batch)] == [0, 40, 80]
    found = log_probs(100, 10)  # a last block that is shorter
    labels.assign([found])
    parts = [labels.of_batch(batch, n) for batch, n in zip(range(80, 87), [16] * 6 + [4], strict=True)]
    assert torch.equal(torch.cat(parts)[:, 0], balanced_classes(found))
    assert PseudoLabels(batch_size=1000, codes=2).classes.shape == (1001, 2)
    labels.assign([log_probs(BLOCK + 1, 10)])  # with the one that is left over at an epoch's end
    assert labels.of_batch(39, 17).shape == (17, 1)


def test_dnet_and_qnet_learn_pseudo_labels_and_nothing_else_does():
    gan = small_gan(pseudo_label_noise_std=1.0)
    heads = gan.pseudo_label_heads.double()
    discriminator = gan.networks.discriminator
    before, generator = state(discriminator), state(gan.networks.generator)
    classes = torch.tensor([[0], [1], [2], [1], [0]])

    def loss():
        with torch.no_grad():
            return heads.class_loss(discriminator(real()).codes, classes)

    earlier = loss()
    for _ in range(3):
        gan.pseudo_label_step(real(), classes)
    assert loss() < earlier
    assert not changed(generator, gan.networks.generator)
    for part, learns in (("dnet", True), ("pnet", False), ("qnet", True)):
        assert bool(changed(before, discriminator, part)) is learns, part


def test_continuous_codes_of_real_images_are_not_observed():
    z = small_gan().networks.discriminator(real()).codes
    mean = z.mean.detach().requires_grad_()
    codes = Gaussian(mean, z.variance.detach())
    Heads(SPACE, ONE).double().class_loss(codes, torch.zeros(5, 1, dtype=torch.long)).backward()
    width = SPACE.category_widths[0]
    assert mean.grad[:, :width].abs().sum() > 0
    assert mean.grad[:, width:].abs().sum() == 0


@pytest.mark.parametrize("method", ["tagi", "adam"])
def test_pseudo_labels_are_qnets_classes_of_the_next_images(digits, method):
    training = GanTraining(small(method=method), sets=digits)
    gan = training.gan
    next(training.events())
    block = training.train.images
    torch.manual_seed(4)
    gan.assign_pseudo_labels(block)
    with torch.no_grad():
        gan.networks.eval()
        torch.manual_seed(4)
        codes = gan.networks.discriminator(gan.noisy(block)).codes
        expected = balanced_classes(gan.class_log_probs(codes)[0])
    assert torch.equal(gan.pseudo_labels.of_batch(0, 16)[:, 0], expected[:16])
    assert torch.equal(gan.pseudo_labels.of_batch(1, 8)[:, 0], expected[16:])


def test_classes_are_read_with_the_noise_of_pseudo_labels_whatever_the_epoch(digits):
    """Not with that of generated images' codes, with which all classes look alike."""
    gan = GanTraining(small(), sets=digits).gan
    gan.networks.eval()
    with torch.no_grad():
        codes = gan.networks.discriminator(digits.test.images[:20]).codes
    read = []
    for epoch in (0, 9):
        gan.begin_epoch(epoch)
        read.append(gan.class_log_probs(codes)[0])
    assert torch.equal(*read)
    assert (read[0].exp().amax(1) - 0.1).max() > 0.03, "classes differ"
    assert (gan.heads.class_log_probs(codes)[0].exp().amax(1) - 0.1).max() < 0.02
