"""The deep ensemble: the mixture's moments, its members apart from each other, what it learns."""

import itertools

import pytest
import torch
from torch.nn import functional

from torchtagi.experiments.uci.methods import ENSEMBLE, Problem, by_ensemble, first_weights, mixture, outputs


def test_moments_of_a_mixture_by_hand():
    mean, var = mixture(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor([[0.5, 0.1], [1.5, 0.3]]))
    assert mean.tolist() == [2.0, 2.0]
    assert var.tolist() == pytest.approx([1.0 + 1.0, 0.2])


def test_moments_of_a_mixture_against_samples():
    generator = torch.Generator().manual_seed(0)
    means, variances = torch.randn(5, 1, generator=generator), torch.rand(5, 1, generator=generator)
    draws = means + variances.sqrt() * torch.randn(5, 200_000, generator=generator)
    mean, var = mixture(means, variances)
    assert draws.mean().item() == pytest.approx(mean.item(), abs=6 * (var.item() / 1e6) ** 0.5)
    assert draws.var().item() == pytest.approx(var.item(), rel=0.01)


def test_stacked_members_are_ordinary_perceptrons():
    torch.manual_seed(0)
    layers = [first_weights(3, *ends) for ends in itertools.pairwise((4, 6, 2))]
    x = torch.randn(3, 7, 4)
    means, variances = outputs(layers, x)
    assert means.shape == variances.shape == (3, 7)
    for member in range(3):
        (weight, bias), (last_weight, last_bias) = [[part[member] for part in layer] for layer in layers]
        z = functional.linear(
            torch.relu(functional.linear(x[member], weight.T, bias[0])), last_weight.T, last_bias[0]
        )
        torch.testing.assert_close(means[member], z[:, 0])
        torch.testing.assert_close(variances[member], functional.softplus(z[:, 1]) + 1e-6)
    assert not torch.equal(means[0], means[1])
    assert layers[0][0].abs().max() <= 0.5
    assert layers[1][0].abs().max() <= 6**-0.5


def test_it_learns_a_noise_that_depends_on_the_input():
    torch.manual_seed(0)
    x = torch.rand(300, 1) * 2 - 1
    std = torch.where(x[:, 0] > 0, 0.5, 0.05)
    x_new = torch.tensor([[-0.5], [0.5]])
    problem = Problem(x, x[:, 0] + std * torch.randn(300), x_new, hidden=20, seed=0)
    mean, var = by_ensemble(problem, **ENSEMBLE | {"members": 2, "epochs": 60, "learning_rate": 0.02})
    assert mean.tolist() == pytest.approx([-0.5, 0.5], abs=0.15)
    assert var[0].item() == pytest.approx(0.05**2, rel=2.0)
    assert var[1].item() == pytest.approx(0.5**2, rel=0.5)
