"""A noise predicted by its logarithm: what an error says of it, and whether it is found."""

import math

import pytest
import torch
from torch import nn

import torchtagi as tagi
from torchtagi.heads import last_layer, outputs_of
from torchtagi.inference.joint import NOISE_FLOOR
from torchtagi.likelihoods.relative_noise import FURTHEST, LARGEST, NOISE, interleaved


def outputs(rows: int = 7, targets: int = 2, seed: int = 0) -> tuple[tagi.Gaussian, torch.Tensor]:
    """Pairs of outputs, and targets near their means."""
    generator = torch.Generator().manual_seed(seed)
    mean = 0.5 * torch.randn(rows, 2 * targets, generator=generator, dtype=torch.float64)
    z = tagi.Gaussian(mean, 0.3 * torch.rand(rows, 2 * targets, generator=generator, dtype=torch.float64))
    return z, mean[:, ::2] + torch.randn(rows, targets, generator=generator, dtype=torch.float64)


def likelihood(targets: int = 2) -> tagi.likelihoods.RelativeNoise:
    return tagi.likelihoods.RelativeNoise([0.01] * targets, learn_noise=True).double()


NOISE_VAR = torch.tensor([0.4, 0.7], dtype=torch.float64)
ONE = torch.ones(7, 1, dtype=torch.float64)


@pytest.mark.parametrize("known", [False, True])
def test_a_certain_means_error_sends_the_derivative_of_the_log_likelihood(known: bool) -> None:
    z, _ = outputs()
    certain = tagi.Gaussian(z.mean, torch.zeros_like(z.mean))
    log = z.mean[:, 1::2].clone().requires_grad_()
    std = (NOISE_VAR * log.exp()).sqrt()
    y = z.mean[:, ::2] + std.detach() * torch.linspace(0.4, 2.9, 14, dtype=torch.float64).view(7, 2)
    torch.distributions.Normal(z.mean[:, ::2], std).log_prob(y).sum().backward()
    told, noise_var, precision = likelihood().sites(certain, y, NOISE_VAR, ONE, known)
    torch.testing.assert_close((told[:, 1::2] - log) / noise_var[:, 1::2], log.grad)
    torch.testing.assert_close(told[:, ::2], y)
    torch.testing.assert_close(noise_var[:, ::2], std.square())
    torch.testing.assert_close(precision[:, ::2] * noise_var[:, ::2], NOISE_VAR.expand(7, 2))
    torch.testing.assert_close(precision[:, 1::2] * noise_var[:, 1::2], torch.full_like(y, NOISE))
    best = ((y - z.mean[:, ::2]).square() / NOISE_VAR).log()
    if not known:
        torch.testing.assert_close(told[:, 1::2], best)


def test_an_error_is_known_by_conditioning_on_what_was_observed() -> None:
    """E[e²] given y = z + e, by draws of z and e that are weighted with how near to y they come."""
    z, y = outputs(rows=1, targets=1)
    found = likelihood(1).sites(z, y, NOISE_VAR[:1], ONE[:1], known=False)[0][0, 1] - z.mean[0, 1]
    noise_var = (NOISE_VAR[0] * z.mean[0, 1].exp()).item()
    e = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    density = (-e.square() / (2 * noise_var) - (y[0, 0] - e - z.mean[0, 0]).square() / (2 * z.var[0, 0])).softmax(0)
    torch.testing.assert_close(found.exp(), (density * e.square()).sum() / noise_var)


def test_what_was_learned_is_corrected_for_its_leverage() -> None:
    """A linear model of two weights, learned from seven observations with noises of their own: squared errors
    over 1 − h have the noises for their means."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    log = 0.5 * torch.randn(7, 1, generator=generator, dtype=torch.float64)
    noise = 0.4 * log.exp()
    covariance = torch.linalg.inv(rows.T @ (rows / noise))
    y = rows @ torch.ones(2, 20_000, dtype=torch.float64)
    y += noise.sqrt() * torch.randn(7, 20_000, generator=generator, dtype=torch.float64)
    mean = rows @ covariance @ (rows.T @ (y / noise))
    var = ((rows @ covariance) * rows).sum(1, keepdim=True)
    z = tagi.Gaussian(interleaved(mean, log.expand_as(mean)), interleaved(var.expand_as(y), torch.zeros_like(y)))
    each = tagi.likelihoods.RelativeNoise([0.01] * 20_000, learn_noise=True).double()
    told, noise_var, precision = each.sites(z, y, NOISE_VAR[:1], ONE, known=True)
    assert ((told[:, 1::2] - log).mean(1).abs() < 0.1).all(), "of χ² − 1, those cut off at 8 apart"
    torch.testing.assert_close(precision[:, 1::2], (1 - var / noise).expand_as(y))
    torch.testing.assert_close(noise_var[:, 1::2] * precision[:, 1::2], torch.full_like(y, NOISE))


def test_a_weight_is_so_many_equal_observations() -> None:
    z, y = outputs()
    told, noise_var, precision = likelihood().sites(z, y, NOISE_VAR, 3 * ONE, known=True)
    once = likelihood().sites(z, y, NOISE_VAR, ONE, known=True)
    torch.testing.assert_close(told, once[0])
    torch.testing.assert_close(noise_var, once[1] / 3)
    torch.testing.assert_close(precision, 3 * once[2])


def test_a_missing_target_says_nothing_of_either_output_and_a_wild_one_little() -> None:
    z, y = outputs()
    y[1, 0], y[2, 1] = math.nan, 1e6
    each = likelihood()
    told = each.sites(z, y, NOISE_VAR, ONE, known=True)[0]
    assert told[2, 3] - z.mean[2, 3] == FURTHEST - 1
    still, alone = each.as_it_is(told, z), each.of_noise(told)
    for found in (told, still):
        assert torch.isnan(found).nonzero().tolist() == [[1, 0], [1, 1]]
    assert still[2, 3] == z.mean[2, 3]
    assert bool(torch.isnan(alone[:, ::2]).all())
    torch.testing.assert_close(alone[:, 1::2], told[:, 1::2], equal_nan=True)
    each.observes = False
    assert bool(torch.isnan(each.sites(z, y, NOISE_VAR, ONE, known=True)[0][:, 1::2]).all())


def test_held_out_targets_have_the_density_of_mean_and_noise() -> None:
    z, y = outputs()
    each, spread = likelihood(), z.var[:, 1::2] / 2
    var = z.var[:, ::2] + each.predictive_noise_var * (z.mean[:, 1::2] + spread).exp()
    expected = torch.distributions.Normal(z.mean[:, ::2], var.sqrt()).log_prob(y)
    torch.testing.assert_close(each.log_prob(z, y), expected.sum(1))
    y[0, 1] = math.nan
    assert each.log_prob(z, y)[0] == pytest.approx(expected[0, 0].item())
    with pytest.raises(ValueError, match=r"z must have shape \(N, 6\)"):
        each.log_prob(z, torch.cat([y, y[:, :1]], 1))


def test_while_noise_is_not_observed_its_messages_are_those_of_one_noise_for_all() -> None:
    z, y = outputs()
    z = tagi.Gaussian(interleaved(z.mean[:, ::2], torch.zeros_like(y)), z.var)
    each, one = likelihood(), tagi.Regression([0.01] * 2, learn_noise=True).double()
    each.observes = False
    for _ in range(3):
        message, expected = each.message(z, y), one.message(z[:, ::2], y)
        torch.testing.assert_close(message.gradient, interleaved(expected.gradient, torch.zeros_like(y)))
        torch.testing.assert_close(message.curvature, interleaved(expected.curvature, torch.zeros_like(y)))
        torch.testing.assert_close(each.residual_var, one.residual_var)
    torch.testing.assert_close(message.loss, expected.loss)


def test_repeats_leave_the_noise_for_all_to_what_is_said_of_each() -> None:
    z, y = outputs()
    each = likelihood()
    each.message(z, y)
    before = each.learned_noise_var.clone()
    each.repeats = True
    message = each.message(z, 5 * y)
    assert torch.equal(each.learned_noise_var, before)
    assert (message.gradient[:, 1::2] < 0).any(), "larger errors raise it"
    y[0, 1] = math.nan
    message = each.message(z, y)
    assert not message.gradient[0, 2:].any()
    assert not message.curvature[0, 2:].any()


def curve(rows: int, slope: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A line, its noise's standard deviation 0.5 exp(slope x/2), and the targets."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(rows, 1, generator=generator) - 1
    std = 0.5 * (slope * x[:, 0] / 2).exp()
    return x, std, 3 * x[:, 0] + std * torch.randn(rows, generator=generator)


@pytest.mark.parametrize("epochs", [None, 1, 2, 5, 20])
def test_a_noise_that_grows_is_found_and_the_line_with_it(epochs: int | None) -> None:
    """In a stream, and by fits of so many epochs."""
    torch.manual_seed(0)
    x, std, y = curve(2000, slope=3.0)
    models = [tagi.Regressor(nn.Linear(1, 1), noise=noise) for noise in ("predicted", "learned")]
    for model in models:
        assert model.joint is not None
        if epochs is None:
            for rows in torch.arange(2000).split(20):
                model.update(x[rows], y[rows])
        else:
            model.fit((x, y), epochs=epochs, batch_size=64, progress=False, seed=0)
    found = models[0].predict(x).aleatoric.sqrt()
    assert (found / std).log().abs().max() < 0.35, "of factors up to 4.5"
    new = curve(2000, slope=3.0, seed=1)
    scores = [model.evaluate(new[0], new[2]) for model in models]
    assert scores[0]["nll"] < scores[1]["nll"] - 0.2
    assert scores[0]["coverage_95"] == pytest.approx(0.95, abs=0.02)
    wrong = [(model.predict(x).mean - 3 * x[:, 0]).square().mean().sqrt().item() for model in models]
    assert wrong[0] < max(wrong[1], 0.02), "what is noisy counts less"


@pytest.mark.parametrize("noise", ["learned", "predicted"])
@pytest.mark.parametrize("epochs", [None, 1])
def test_weights_of_new_observations_are_rows_that_come_again(noise: str, epochs: int | None) -> None:
    x, std, y = curve(300, slope=1.0)
    found = []
    for times, weight in ((4, 1.0), (1, 4.0)):
        torch.manual_seed(0)
        model = tagi.Regressor(nn.Linear(1, 1), noise=noise)
        weights = torch.full((300,), weight)
        if epochs is None:
            for row in range(300):
                for _ in range(times):
                    model.update(x[row : row + 1], y[row : row + 1], weights[row : row + 1])
        else:
            columns = (part.repeat_interleave(times, 0) for part in (x, y, weights))
            model.fit(tuple(columns), progress=False, seed=0)
        prediction = model.predict(x)
        assert (prediction.aleatoric.sqrt() / std).log().abs().max() < 1
        found.append(prediction)
    assert (found[0].mean - found[1].mean).abs().max() < 0.3 * std.mean()


def test_far_from_the_data_and_before_any_the_noise_stays_a_number() -> None:
    x, _, y = curve(300, slope=3.0)
    model = tagi.Regressor(nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 1)), noise="predicted")
    model.fit((x, y), epochs=20, progress=False, seed=0)
    far = tagi.Gaussian(torch.tensor([[-1e3], [0.0], [1e3]]), torch.tensor([[0.0], [1e4], [0.0]]))
    noise = model.predict(far).aleatoric
    assert (noise <= LARGEST * y.var() * 1.01).all()
    assert (noise >= (NOISE_FLOOR * y.std()).square() * 0.99).all()
    stream = tagi.Regressor(nn.Linear(3, 1), noise="predicted")
    stream.update(torch.tensor([[1e3, -1e3, 0.0]]), torch.tensor([1.0]))
    assert stream.predict(torch.randn(5, 3)).variance.isfinite().all()


def test_a_stream_that_changes_is_learned_again_and_not_taken_for_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(600, 1, generator=generator) - 2
    sign = torch.where(torch.arange(600) < 300, 1.0, -1.0)
    y = sign * 2 * x[:, 0] + 0.2 * torch.randn(600, generator=generator)
    model = tagi.Regressor(nn.Linear(1, 1), noise="predicted", horizon="auto")
    for rows in torch.arange(600).split(5):
        model.update(x[rows], y[rows])
    assert (model.predict(x).mean + 2 * x[:, 0]).square().mean().sqrt() < 0.3


def test_where_the_noise_is_one_it_is_predicted_as_one() -> None:
    x, std, y = curve(2000, slope=0.0)
    model = tagi.Regressor(nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 1)), noise="predicted")
    model.fit((x, y), epochs=20, batch_size=64, progress=False, seed=0)
    assert (model.predict(x).aleatoric.sqrt() / std).log().abs().max() < 0.15


def test_each_target_has_a_noise_and_a_prior_of_its_own() -> None:
    x, std, y = curve(2000, slope=3.0)
    flat = y[torch.randperm(2000, generator=torch.Generator().manual_seed(2))]  # nothing but noise
    model = tagi.Regressor(nn.Linear(1, 2), noise="predicted")
    model.fit((x, torch.stack([y, 10 * flat], 1)), epochs=20, batch_size=64, progress=False, seed=0)
    found = model.predict(x).aleatoric.sqrt()
    assert (found[:, 0] / std).log().abs().max() < 0.15
    assert (found[:, 1] / (10 * flat.std())).log().abs().max() < 0.15


@pytest.mark.parametrize(("options", "outputs"), [({}, 4), ({"targets": 1}, 2)])
def test_a_network_written_with_both_outputs_says_how_many_targets_there_are(options: dict, outputs: int) -> None:
    model = tagi.Regressor(nn.Linear(2, 2), noise="predicted", **options)
    assert 2 * model.targets == outputs
    assert outputs_of(last_layer(model.net)[1]) == outputs


@pytest.mark.parametrize(
    ("outputs", "options"), [(3, {"noise": "predicted", "targets": 1}), (2, {"noise": "learned", "targets": 1})]
)
def test_outputs_that_are_not_the_targets_are_named(outputs: int, options: dict) -> None:
    with pytest.raises(ValueError, match=f"targets is 1, but the network has {outputs} outputs"):
        tagi.Regressor(nn.Linear(2, outputs), **options)


@pytest.mark.parametrize("epochs", [None, 2, 20])
@pytest.mark.parametrize("weight", [1.0, 10.0])
def test_a_diagonal_covariance_finds_it_too(epochs: int | None, weight: float) -> None:
    """In a stream of single rows, and by fits of so many epochs; samples may count for several."""
    x, _, y = curve(1000, slope=3.0)
    new, scores = curve(1000, slope=3.0, seed=1), {}
    for noise in ("predicted", "learned"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 1))
        model = tagi.Regressor(net, noise=noise, covariance="diagonal")
        weights = torch.full((1000,), weight)
        if epochs is None:
            for row in range(400):
                model.update(x[row : row + 1], y[row : row + 1], weights[row : row + 1])
        else:
            model.fit((x, y, weights), epochs=epochs, progress=False, seed=0)
        scores[noise] = model.evaluate(new[0], new[2])
    assert scores["predicted"]["nll"] < scores["learned"]["nll"] - 0.05
    assert 0.85 < scores["predicted"]["coverage_95"] < 0.995
