"""What the hyperparameters of IVON mean to the package that it comes from."""

import pytest
import torch
from torch.nn import functional

from torchtagi.experiments.baselines.ivon import Ivon
from torchtagi.experiments.baselines.methods import configure_baseline


def learner(images, **changes):
    return Ivon(configure_baseline("mnist", "ivon", hyperparameters=changes, batch_size=16), images)


@pytest.mark.parametrize("images", [100, 60_000])
def test_drawn_weights_have_the_first_precision_and_the_priors(images):
    ivon = learner(images, first_precision=900.0, prior_precision=100.0)
    before = [parameter.clone() for parameter in ivon.net.parameters()]
    with ivon.optimizer.sampled_params():
        away = torch.cat([(p - b).flatten() for p, b in zip(ivon.net.parameters(), before, strict=True)])
    assert away.var().item() == pytest.approx(1 / 1000, rel=6 * (2 / len(away)) ** 0.5)
    assert all(torch.equal(p, b) for p, b in zip(ivon.net.parameters(), before, strict=True))


@pytest.mark.parametrize("images", [100, 60_000])
def test_a_rate_means_the_same_for_any_number_of_images(images):
    """Of weights that are known well the first step is SGD's: the rate times the gradient."""
    ivon = learner(images, learning_rate=0.2, prior_precision=1e-6, first_precision=1e14)
    x, y = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
    before = [parameter.detach().clone() for parameter in ivon.net.parameters()]
    grads = torch.autograd.grad(functional.cross_entropy(ivon.net(x), y), list(ivon.net.parameters()))
    ivon.learn(x, y)
    for parameter, mean, grad in zip(ivon.net.parameters(), before, grads, strict=True):
        torch.testing.assert_close(parameter.detach() - mean, -0.2 * grad, rtol=1e-2, atol=1e-5)


def test_without_its_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"ivon needs .* pip install 'torchtagi\[baselines\]'"):
        learner(100)
