"""The joint covariance against dense conditioning written out, autograd's Jacobians, Hamiltonian Monte Carlo and
its own file."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

import torchtagi as tagi
from torchtagi.inference import joint


def small_net(*sizes: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linear_data(rows: int, inputs: int = 3, noise: float = 0.3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator)
    weight = torch.arange(1.0, inputs + 1)
    return x, x @ weight + 0.5 + noise * torch.randn(rows, generator=generator)


def curve(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(rows, 2, generator=generator) - 2
    return x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(rows, generator=generator)


def dense_posterior(
    x: torch.Tensor, y: torch.Tensor, noise_var: torch.Tensor, mean: torch.Tensor, var: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of y = [x, 1] w + e, e ~ N(0, noise_var), by its normal equations."""
    rows = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    precision = torch.diag(1 / var) + rows.T @ (rows / noise_var[:, None])
    covariance = torch.linalg.inv(precision)
    return covariance @ (mean / var + rows.T @ (y.double() / noise_var)), covariance


def standardised(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) / x.std(0)


def start_of(model: tagi.Regressor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance that the model begins with at these data."""
    model.observe(x, y)
    model.scale_of_x.settled = model.scale_of_y.settled = True
    model.calibrate(model.prepared(x))
    assert model.joint is not None
    return model.joint.flat("mean"), model.joint.flat("var")


@pytest.mark.parametrize("batch", [1, 7, 200])
def test_new_observations_give_the_dense_posterior_of_a_linear_model(batch: int) -> None:
    x, y = linear_data(50)
    model = tagi.Regressor(nn.Linear(3, 1), noise=30.0)  # so large that no batch surprises
    prior = start_of(model, x, y)
    for start in range(0, len(x), batch):
        model.update(x[start : start + batch], y[start : start + batch])
    noise_var = torch.full((50,), (30.0 / float(y.std())) ** 2, dtype=torch.float64)
    mean, covariance = dense_posterior(standardised(x), standardised(y), noise_var, *prior)
    assert model.joint is not None
    torch.testing.assert_close(model.joint.flat("mean"), mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.joint.covariance, covariance, atol=1e-6, rtol=1e-4)


def test_weights_are_repeated_observations_and_missing_ones_are_none() -> None:
    x, y = linear_data(20)
    y = torch.stack([y, 2 * y - x[:, 0]], 1)
    models = [tagi.Regressor(nn.Sequential(nn.Linear(3, 2)), noise=30.0) for _ in range(3)]
    for model in models[1:]:
        model.net.load_state_dict(models[0].net.state_dict())
    for model in models:
        start_of(model, x, y)
    weights = torch.ones(20)
    weights[:5] = 2
    models[0].update(x, y, weights)
    models[1].update(torch.cat([x, x[:5]]), torch.cat([y, y[:5]]))
    assert models[0].joint is not None
    assert models[1].joint is not None
    torch.testing.assert_close(models[0].joint.flat("mean"), models[1].joint.flat("mean"), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(models[0].joint.covariance, models[1].joint.covariance, atol=1e-9, rtol=1e-6)
    holes = y.clone()
    holes[:, 1] = math.nan
    before = models[2].joint.covariance.clone() if models[2].joint is not None else None
    models[2].update(x, holes)
    assert models[2].joint is not None
    after, parts = models[2].joint.covariance, [slice(3, 6), slice(7, 8)]  # the second target's weights and bias
    assert before is not None
    for part in parts:
        diagonal = torch.diag(models[2].joint.prior_var)  # has the same zeros as what it began with
        assert torch.equal(after[part, part] != 0, diagonal[part, part] != 0)
    assert (after.diagonal()[:3] < models[2].joint.prior_var[:3]).all()


@pytest.mark.parametrize(("batch_size", "bound"), [(16, 0.1), (60, 0.01)])
def test_epochs_of_a_linear_model_end_at_its_posterior(batch_size: int, bound: float) -> None:
    """Sites replaced by the same sites: noise and prior apart, which are learned, it is the posterior of one
    pass. Means that move with each batch are off by what the last ones said, in posterior standard deviations."""
    x, y = linear_data(60, noise=1.0)
    model = tagi.Regressor(nn.Linear(3, 1))
    model.fit((x, y), epochs=60, batch_size=batch_size, progress=False, seed=0)
    assert model.joint is not None
    noise_var = model.likelihood.learned_noise_var.double().expand(60)
    zeros = torch.zeros(4, dtype=torch.float64)
    mean, covariance = dense_posterior(standardised(x), standardised(y), noise_var, zeros, model.joint.prior_var)
    torch.testing.assert_close(model.joint.covariance, covariance, atol=1e-8, rtol=1e-4)
    error = (model.joint.flat("mean") - mean).abs() / covariance.diagonal().sqrt()
    assert error.max() < bound
    determined = 4 - (covariance.diagonal() / model.joint.prior_var).sum()
    rows = torch.cat([standardised(x), torch.ones(60, 1)], 1).double()
    residual = standardised(y).double() - rows @ model.joint.flat("mean")
    expected = residual.square().sum() / (60 - determined)
    torch.testing.assert_close(noise_var[0], expected, atol=0, rtol=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_one_epoch_of_a_linear_model_is_enough_whatever_its_prior_draws(seed: int) -> None:
    x, y = linear_data(2000, noise=1.0)
    torch.manual_seed(seed)
    model = tagi.Regressor(nn.Linear(3, 1))
    model.fit((x, y), batch_size=16, progress=False, seed=0)
    columns = torch.cat([x, torch.ones(2000, 1)], 1)
    fitted = columns @ torch.linalg.lstsq(columns, y[:, None]).solution[:, 0]
    uncertainty = math.sqrt(4 / 2000)  # of the fit, in the mean
    assert (model.predict(x).mean - fitted).square().mean().sqrt() < uncertainty
    assert model.predict(x).aleatoric.sqrt().mean().item() == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("targets", [1, 3])
def test_linearisation_is_autograds(targets: int) -> None:
    net = tagi.convert(small_net(4, 6, 5, targets))
    x = torch.randn(7, 4)
    mean, jacobian, input_var = joint.linearised(net, tagi.Gaussian(x, torch.full_like(x, 0.1)))
    parts = joint.ordered_parameters(net)
    sizes = [part.mean.numel() for part in parts]

    def outputs(flat: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        pieces = [piece.view_as(part.mean) for piece, part in zip(flat.split(sizes), parts, strict=True)]
        for layer in range(3):
            inputs = inputs @ pieces[2 * layer].T + pieces[2 * layer + 1]
            inputs = inputs.relu() if layer < 2 else inputs
        return inputs

    flat = torch.cat([part.mean.detach().flatten() for part in parts])
    torch.testing.assert_close(mean, outputs(flat, x))
    expected = torch.autograd.functional.jacobian(lambda flat: outputs(flat, x), flat)
    torch.testing.assert_close(jacobian, expected, atol=1e-6, rtol=1e-5)
    for row in range(7):
        slopes = torch.autograd.functional.jacobian(lambda one: outputs(flat, one), x[row])
        torch.testing.assert_close(input_var[row], 0.1 * slopes.square().sum(1), atol=1e-6, rtol=1e-5)


def test_predicted_variance_is_that_of_hamiltonian_monte_carlo() -> None:
    """A network that is not linear, at all of its weights; sampled in the coordinates in which the posterior that
    is tested would be the standard normal."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(150, 1, generator=generator) - 2
    y = torch.sin(1.5 * x[:, 0]) + 0.3 * torch.randn(150, generator=generator)
    torch.manual_seed(0)
    model = tagi.Regressor(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)), noise=0.3)
    model.fit((x, y), epochs=20, batch_size=50, progress=False, seed=0)
    at = torch.linspace(-2, 2, 21)[:, None]
    predicted = model.predict(at)
    assert model.joint is not None
    state, mean = model.joint, model.joint.flat("mean")
    root = torch.linalg.cholesky(state.covariance)
    inputs, targets = model.prepared(x).double(), model.scale_of_y(y[:, None].double())[:, 0]
    noise_var = float(model.likelihood.learned_noise_var)

    def outputs(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        first, bias, second, last = weights.split([4, 4, 4, 1], 1)
        return (torch.tanh(x.T[..., None] * first[:, None] + bias[:, None]) * second[:, None]).sum(-1) + last

    def energy(whitened: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whitened = whitened.detach().requires_grad_()
        weights = mean + whitened @ root.T
        misfit = (targets - outputs(weights, inputs)).square().sum(1) / noise_var
        value = (misfit + ((weights - state.prior_mean).square() / state.prior_var).sum(1)) / 2
        return value.detach(), torch.autograd.grad(value.sum(), whitened)[0]

    whitened, step = torch.zeros(100, len(mean), dtype=torch.float64), 0.02
    draws, accepted = [], []
    for sample in range(120):
        momentum = torch.randn(whitened.shape, generator=generator, dtype=torch.float64)
        (value, slope), place = energy(whitened), whitened
        before = value + momentum.square().sum(1) / 2
        for _ in range(20):
            momentum = momentum - step / 2 * slope
            place = place + step * momentum
            value, slope = energy(place)
            momentum = momentum - step / 2 * slope
        after = value + momentum.square().sum(1) / 2
        accept = torch.rand(100, generator=generator, dtype=torch.float64) < (before - after).exp()
        whitened = torch.where(accept[:, None], place, whitened)
        if sample >= 40:
            accepted.append(accept.double().mean())
            draws.append(outputs(mean + whitened @ root.T, model.prepared(at).double()))
    assert torch.stack(accepted).mean() > 0.6
    drawn = torch.cat(draws) * float(model.scale_of_y.std)
    ratio = predicted.epistemic.sqrt().double() / drawn.std(0)
    assert 0.85 < float(ratio.mean()) < 1.15
    assert float(ratio.min()) > 0.7
    assert float(ratio.max()) < 1.4


def test_ten_thousand_steps_leave_a_covariance() -> None:
    model = tagi.Regressor(small_net(2, 10, 1))
    x, y = curve(10_000)
    model.update(x[:100], y[:100])
    for row in range(100, 10_000):
        model.update(x[row : row + 1], y[row : row + 1])
    assert model.joint is not None
    covariance = model.joint.covariance
    torch.testing.assert_close(covariance, covariance.T, atol=1e-12, rtol=1e-9)
    assert torch.linalg.eigvalsh(covariance).min() > 0
    assert model.evaluate(*curve(500, seed=1))["rmse"] < 0.13  # the noise is 0.1


def test_horizon_bounds_the_covariance_by_the_prior() -> None:
    model = tagi.Regressor(nn.Linear(3, 1), horizon=50)
    x, y = linear_data(20)
    x[:, 2] = 0.0  # says nothing of the third weight
    for _ in range(60):
        model.update(x, y)
    assert model.joint is not None
    var, prior = model.joint.covariance.diagonal(), model.joint.prior_var
    assert 0.7 < float(var[2] / prior[2]) < 1.4
    assert (var[:2] < 0.05 * prior[:2]).all()


def test_resumed_to_the_bit_and_loaded(tmp_path) -> None:
    x, y = curve(200)
    path = tmp_path / "model.safetensors"

    def model() -> tagi.Regressor:
        return tagi.Regressor(small_net(2, 15, 1))

    whole = model()
    whole.fit((x, y), epochs=5, batch_size=64, progress=False, seed=3)
    stopped, seen = model(), 0

    def stop_in_the_middle(batch: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        if seen == 6:
            raise KeyboardInterrupt
        return batch

    with pytest.raises(KeyboardInterrupt):
        stopped.fit(
            (x, y), epochs=5, batch_size=64, progress=False, seed=3, checkpoint=path, augment=stop_in_the_middle
        )
    resumed = model()
    resumed.fit((x, y), epochs=5, batch_size=64, progress=False, seed=3, checkpoint=path, resume=True)
    assert whole.joint is not None
    assert resumed.joint is not None
    for name, tensor in whole.joint.state_dict().items():
        assert torch.equal(resumed.joint.state_dict()[name], tensor), name
    loaded = tagi.load(path)
    assert torch.equal(loaded.predict(x).mean, whole.predict(x).mean)
    assert torch.equal(loaded.predict(x).epistemic, whole.predict(x).epistemic)
    assert loaded.update(x[:3], y[:3]) == whole.update(x[:3], y[:3])
    assert torch.equal(loaded.predict(x).mean, whole.predict(x).mean)


@pytest.mark.parametrize(
    ("net", "options", "words"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1)), {}, "other layers than Linear"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1)), {"noise": "predicted"}, "other layers"),
        (nn.Linear(2, 1), {"covariance": "dense"}, "covariance must be"),
    ],
)
def test_what_has_no_joint_covariance_is_refused(net: nn.Module, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tagi.Regressor(net, **{"covariance": "full", **options})


def test_auto_goes_by_size() -> None:
    assert tagi.Regressor(nn.Linear(3, 1)).joint is not None
    assert tagi.Regressor(nn.Linear(3, 1), covariance="diagonal").joint is None
    assert tagi.Regressor(nn.Linear(joint.LARGEST, 1)).joint is None
    assert tagi.Regressor(nn.Linear(joint.LARGEST, 1), covariance="full").joint is not None


# ---- streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 25])
def test_a_learned_noise_and_the_covariance_are_the_conjugate_posterior_of_a_linear_model(batch: int) -> None:
    """Normal–inverse-gamma in closed form: S = rᵀ(I + X V Xᵀ)⁻¹r adds to the sum of squares."""
    x, y = linear_data(50, noise=1.5)
    model = tagi.Regressor(nn.Linear(3, 1))
    mean, var = start_of(model, x, y)
    for start in range(0, len(x), batch):
        model.update(x[start : start + batch], y[start : start + batch])
    rows = torch.cat([standardised(x), torch.ones(50, 1)], 1).double()
    error = standardised(y).double() - rows @ mean
    total = torch.eye(50).double() + rows @ torch.diag(var) @ rows.T  # the first guess of the noise is 1
    noise_var = (joint.GUESS + error @ torch.linalg.solve(total, error)) / (joint.GUESS + 50)
    ones = torch.ones(50, dtype=torch.float64)
    expected, covariance = dense_posterior(standardised(x), standardised(y), ones, mean, var)
    assert model.joint is not None
    assert float(model.likelihood.learned_noise_var) == pytest.approx(float(noise_var), rel=1e-4)
    torch.testing.assert_close(model.joint.flat("mean"), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.joint.covariance, covariance * noise_var, atol=1e-7, rtol=1e-3)


def test_each_target_of_a_stream_has_a_noise_of_its_own_and_missing_ones_say_nothing() -> None:
    x, y = linear_data(400, noise=0.5)
    y = torch.stack([y, x[:, 0] + 0.1 * torch.randn(400, generator=torch.Generator().manual_seed(1))], 1)
    model = tagi.Regressor(nn.Linear(3, 2))
    for row in range(400):
        model.update(x[row : row + 1], y[row : row + 1])
    noise = model.measures()["noise_std"]
    for found, true, spread in zip(noise, (0.5, 0.1), y.std(0).tolist(), strict=True):
        expected = ((joint.GUESS * spread**2 + 400 * true**2) / (joint.GUESS + 400)) ** 0.5
        assert found == pytest.approx(expected, rel=0.2)
    holes = y[:8].clone()
    holes[:, 1] = math.nan
    model.update(x[:8], holes)
    assert model.measures()["noise_std"][1] == noise[1]


def test_a_stream_of_single_rows_is_predicted_with_its_noise() -> None:
    """A noise guessed too small while little is known must not freeze what is learned."""
    x, y = curve(700)
    torch.manual_seed(0)
    model = tagi.Regressor(small_net(2, 20, 1))
    errors, likelihoods = [], []
    for row in range(700):
        one, target = x[row : row + 1], y[row : row + 1]
        if row >= 500:
            prediction = model.predict(one)
            error, var = float(prediction.mean - target), float(prediction.variance)
            errors.append(error**2)
            likelihoods.append(-0.5 * (math.log(2 * math.pi * var) + error**2 / var))
        model.update(one, target)
    assert (sum(errors) / 200) ** 0.5 < 0.14  # the noise is 0.1
    assert sum(likelihoods) / 200 > 0.4  # of the true function with its noise: 0.88


def test_an_outlier_moves_little() -> None:
    x, y = linear_data(100)
    model = tagi.Regressor(nn.Linear(3, 1), noise=0.3)
    model.update(x, y)
    assert model.joint is not None
    before, spread = model.joint.flat("mean"), model.joint.covariance.diagonal().sqrt()
    report = model.update(x[:1], y[:1] + 1000.0)
    assert report["innovation"] > 1e4
    assert ((model.joint.flat("mean") - before).abs() < 10 * spread).all()


def drifting(rows: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A slope that turns its sign in the middle."""
    x, y = linear_data(rows, seed=seed)
    signs = torch.where(torch.arange(rows) < rows // 2, 1.0, -1.0)
    return x, (y - 0.5) * signs


def streamed(x: torch.Tensor, y: torch.Tensor, horizon: float | str | None) -> tuple[tagi.Regressor, list[float]]:
    """A linear model, and its squared errors before each row is learned."""
    torch.manual_seed(0)
    model, errors = tagi.Regressor(nn.Linear(x.shape[1], 1), horizon=horizon), []
    for row in range(len(x)):
        one, target = x[row : row + 1], y[row : row + 1]
        errors.append(float(model.predict(one).mean - target) ** 2)
        model.update(one, target)
    return model, errors


def test_the_slope_in_the_gain_is_that_of_larger_gains() -> None:
    """Against the means under all gains larger by a little, the covariances as they were."""
    x, y = drifting(60)
    model = tagi.Regressor(nn.Linear(3, 1), noise=1.0, horizon="auto")
    start_of(model, x, y)
    assert model.joint is not None
    inputs, targets = standardised(x).double(), standardised(y).double()
    noise_var = float(model.likelihood.noise_var)
    small = 1e-6
    means = {0.0: model.joint.flat("mean"), small: model.joint.flat("mean")}
    numerator = denominator = 0.0
    for row in range(60):
        features = torch.cat([inputs[row], torch.ones(1, dtype=torch.float64)])
        joint_var = model.joint.covariance if model.joint.started else torch.diag(model.joint.flat("var"))
        gain = joint_var @ features
        total = float(features @ gain) + noise_var
        slope = (means[small] - means[0.0]) / small
        error = float(targets[row] - features @ means[0.0])
        inflated = max(total, error**2 / (1 + joint.CHANCE))
        numerator = numerator * (1 - 1 / joint.STEPS) + error * float(features @ slope) / inflated
        denominator = denominator * (1 - 1 / joint.STEPS) + float(features @ slope) ** 2 / inflated
        for more, mean in means.items():
            own = float(targets[row] - features @ mean)
            means[more] = mean + (1 + more) * gain * own / inflated
        model.update(x[row : row + 1], y[row : row + 1])
    assert model.joint.gain_slope is not None
    assert model.joint.whiteness is not None
    torch.testing.assert_close(model.joint.gain_slope, slope_of(means, small), atol=1e-4, rtol=1e-3)
    assert model.joint.whiteness.tolist() == pytest.approx([numerator, denominator], rel=2e-3, abs=1e-3)


def slope_of(means: dict[float, torch.Tensor], small: float) -> torch.Tensor:
    return (means[small] - means[0.0]) / small


def test_a_horizon_from_the_innovations_follows_a_drift_and_costs_nothing_without_one() -> None:
    x, y = drifting()
    after = {horizon: sum(streamed(x, y, horizon)[1][200:]) for horizon in (None, "auto")}
    assert after["auto"] < 0.75 * after[None]
    still = {horizon: sum(streamed(*linear_data(300), horizon)[1][20:]) for horizon in (None, "auto")}
    assert still["auto"] < 1.03 * still[None]


def test_a_horizon_from_the_innovations_is_saved(tmp_path) -> None:
    x, y = drifting(120)
    model, _ = streamed(x, y, "auto")
    model.save(tmp_path / "model.safetensors")
    loaded = tagi.load(tmp_path / "model.safetensors")
    assert isinstance(loaded, tagi.Regressor)
    assert model.joint is not None
    assert loaded.joint is not None
    assert model.joint.drifted() > 0
    assert loaded.joint.drifted() == model.joint.drifted()
    for each in (model, loaded):
        each.update(x, y)
    assert torch.equal(loaded.predict(x).variance, model.predict(x).variance)


@pytest.mark.parametrize(
    ("net", "options", "words"),
    [
        (nn.Linear(2, 1), {"covariance": "diagonal"}, 'give covariance="full" or a number of samples'),
        (nn.Linear(joint.LARGEST, 1), {}, 'more than 1,500 weights.*give covariance="full" or a number'),
        (nn.Linear(2, 1), {"horizon": "hourly"}, "horizon must be a number of samples, at least 1, got hourly"),
    ],
)
def test_a_horizon_that_cannot_be_found_is_refused(net: nn.Module, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tagi.Regressor(net, **{"horizon": "auto", **options})


@pytest.mark.parametrize(("horizon", "steps"), [(None, 500), (1e6, 500), (3200, 100), (20, 1), ("auto", 1)])
def test_an_average_does_not_lag_behind_what_drifts(horizon: float | str | None, steps: int) -> None:
    model = tagi.Regressor(nn.Linear(3, 1), horizon=horizon)
    assert model.average is not None
    assert model.average.steps == steps


@pytest.mark.parametrize("noise", ["learned", "predicted"])
@pytest.mark.parametrize(("wave", "samples", "noise_std"), [(torch.sin, 50, 0.05), (torch.square, 25, 0.1)])
def test_a_curve_of_few_points_is_not_taken_for_noise(
    noise: str, wave: Callable[[torch.Tensor], torch.Tensor], samples: int, noise_std: float
) -> None:
    torch.manual_seed(0)
    x = 4 * torch.rand(samples + 200, 1) - 2
    y = wave(2 * x) + noise_std * torch.randn(samples + 200, 1)
    model = tagi.Regressor(small_net(1, 50, 1), noise=noise)
    model.fit((x[:samples], y[:samples]), epochs=40, batch_size=64, progress=False, seed=0)
    scores = model.evaluate(x[samples:], y[samples:])
    assert scores["rmse"] < 0.2 * y.std(), "a straight line has an RMSE of about its standard deviation"
    assert scores["coverage_95"] > 0.85
