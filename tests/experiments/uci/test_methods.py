"""What is compared: each method on a small problem in units of its own."""

from dataclasses import replace

import pytest
import torch

from torchtagi.experiments.data import check_installed
from torchtagi.experiments.uci.methods import METHODS, Problem, standardised

SHORT = {"tagi": {"epochs": 5}, "ensemble": {"epochs": 60}, "mlp": {"epochs": 1500}}
NOISE = 0.2


def plane(rows: int = 80, seed: int = 0) -> tuple[Problem, torch.Tensor]:
    """y = 1 + 2 a − b with noise; the true values at the new inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows + 40, 2, generator=generator)
    y = 1 + 2 * x[:, 0] - x[:, 1]
    noise = NOISE * torch.randn(rows, generator=generator)
    return Problem(x[:rows], y[:rows] + noise, x[rows:], hidden=8, seed=3), y[rows:]


def predicted(name: str, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    method = METHODS[name]
    torch.manual_seed(0)
    mean, var = method.predict(problem, **method.setting | SHORT.get(name, {}))
    return mean.double(), var.double()


@pytest.mark.parametrize("name", METHODS)
def test_it_predicts_a_plane_with_its_noise(name):
    pytest.importorskip(METHODS[name].package or "torch")
    problem, truth = plane()
    mean, var = predicted(name, problem)
    assert mean.shape == var.shape == (40,)
    assert (mean - truth).square().mean().sqrt() < 1.5 * NOISE
    assert 0.5 * NOISE < var.mean().sqrt() < 2.5 * NOISE
    assert (var > 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_units_do_not_matter(name):
    """Inputs and targets in other units are predicted the same, in those units."""
    pytest.importorskip(METHODS[name].package or "torch")
    problem, _ = plane(60)
    mean, var = predicted(name, problem)
    scale = torch.tensor([32.0, 0.125])  # powers of two leave a float's digits alone
    other = replace(problem, x=problem.x * scale, x_new=problem.x_new * scale, y=problem.y * 64)
    other_mean, other_var = predicted(name, other)
    torch.testing.assert_close(other_mean / 64, mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(other_var / 64**2, var, rtol=5e-3, atol=1e-4)


def test_a_method_for_standardised_data_gets_them_and_answers_in_units():
    x, y = torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([10.0, 30.0])
    seen = {}

    def predict(problem, setting):
        seen.update(x=problem.x.tolist(), y=problem.y.tolist(), x_new=problem.x_new.tolist(), setting=setting)
        return torch.tensor([2.0]), torch.tensor([0.25])

    problem = Problem(x, y, torch.tensor([[2.0, 6.0]]), hidden=1, seed=0)
    mean, var = standardised(predict)(problem, setting="a setting")
    half = 0.5**0.5  # two values are a standard deviation of √2 times half their distance apart
    assert seen["x"] == [pytest.approx([-half, 0.0]), pytest.approx([half, 0.0])]
    assert seen["y"] == pytest.approx([-half, half])
    assert seen["x_new"] == [pytest.approx([0.0, 1.0])], "by the scale of the rows to learn from"
    assert seen["setting"] == "a setting"
    assert mean.tolist() == pytest.approx([20 + 2 * 200**0.5])
    assert var.tolist() == pytest.approx([0.25 * 200])


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"gp needs scikit-learn: pip install 'torchtagi\[sklearn\]'"):
        check_installed("gp", METHODS["gp"].package)
    check_installed("tagi", METHODS["tagi"].package)
