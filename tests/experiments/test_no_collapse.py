"""The default rule learns at every noise and batch, from few digits, where the paper's collapses."""

import pytest
import torch

import torchtagi as tagi
from torchtagi import metrics
from torchtagi.experiments.networks import mnist_cnn
from torchtagi.fitting import epoch_order

TESTED = 500


def learned(digits, noise_std, batch, samples, rule="coherent"):
    """The network's error in %, negative log-likelihood and smallest variance after one pass, every batch taken
    whole, in one step."""
    torch.manual_seed(0)
    net = mnist_cnn().to(memory_format=torch.channels_last)
    images = digits.train.images.to(memory_format=torch.channels_last)
    order = epoch_order(len(images), 0, 0)[:samples]
    tagi.calibrate_prior(net, images[order[:16]])
    likelihood = tagi.HierarchicalClassification(10, noise_std)
    posterior = tagi.Update(net, rule)
    for rows in order.split(batch):
        tagi.condition(net, likelihood, posterior, images[rows], digits.train.labels[rows], batch)
    with torch.no_grad():
        probs = torch.cat([likelihood.predict(net(x)).probs for x in digits.test.images[:TESTED].split(250)])
    labels = digits.test.labels[:TESTED]
    smallest = min(float(value.detach().min()) for name, value in net.named_parameters() if name.endswith(".var"))
    return 100 * metrics.error_rate(probs, labels), metrics.nll(probs, labels), smallest


@pytest.mark.parametrize(
    ("noise_std", "batch", "samples", "limit"),
    [(0.03, 1, 400, 45.0), (0.03, 16, 1500, 30.0), (1.0, 64, 2000, 40.0), (0.03, 256, 2560, 75.0)],
)
def test_learns_without_collapse(digits, noise_std, batch, samples, limit):
    error, nll, smallest_var = learned(digits, noise_std, batch, samples)
    assert smallest_var > 0
    assert nll < 3, "chance is ln 10 = 2.3"
    assert error < limit


def test_the_paper_rule_does_collapse(digits):
    """What the default rule is measured against: the same cell, observations taken as independent."""
    error, _, _ = learned(digits, 0.03, 64, 1280, "paper")
    assert error > 60
