"""Classifier and Regressor: they learn from whatever holds data, say what they do not know, and come back from
files."""

import contextlib
import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, TensorDataset

import torchtagi as tagi
from torchtagi.classifier import TreeClassifier
from torchtagi.fitting import Batches, epoch_order
from torchtagi.inference.conditioning import condition
from torchtagi.inference.prior import calibrate_prior
from torchtagi.standardising import Standardiser


def blobs(n: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes of points in four dimensions that touch each other."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=generator)
    centres = torch.tensor([[2.0, 0, 0, 1], [0, 2, 0, -1], [-1, -1, 2, 0]])
    return centres[y] + torch.randn(n, 4, generator=generator) * 0.7, y


def lines(n: int = 400, seed: int = 0, noise: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """y = 100 + 20 x₁ − 10 x₂ on inputs of very different scales."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    y = 100 + 20 * x[:, 0] - 10 * x[:, 1] + noise * torch.randn(n, generator=generator)
    return x * torch.tensor([1000.0, 0.01]) + torch.tensor([5e4, 3.0]), y


def small_net(inputs: int = 4, outputs: int = 3, layers=tagi.nn) -> torch.nn.Module:
    return layers.Sequential(layers.Linear(inputs, 32), layers.ReLU(), layers.Linear(32, outputs))


def classifier(classes=3) -> tagi.Classifier:
    torch.manual_seed(0)
    return tagi.Classifier(small_net(), classes=classes)


def state(model) -> dict[str, torch.Tensor]:
    parts = {"net": model.net, "predicting": model.predicting, "likelihood": model.likelihood, "link": model.link}
    return {
        f"{part}.{key}": value.clone()
        for part, module in parts.items()
        for key, value in module.state_dict().items()
    }


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# ---- learning ------------------------------------------------------------------------------------------------


def test_five_lines_learn_from_an_ordinary_torch_network() -> None:
    x, y = blobs()
    torch.manual_seed(0)
    net = small_net(layers=torch.nn)
    model = tagi.Classifier(net, classes=3)
    history = model.fit((x[:200], y[:200]), epochs=5, validation=(x[200:], y[200:]))
    assert [row["epoch"] for row in history] == [1, 2, 3, 4, 5]
    assert history[-1]["error"] < 8
    assert history[-1]["train_error"] < history[0]["train_error"]
    assert model.evaluate(x[200:], y[200:])["error"] == history[-1]["error"]
    assert not any(isinstance(part, tagi.GaussianParameter) for part in net.modules()), (
        "the user's network is left alone"
    )


def test_a_prediction_says_what_it_does_not_know() -> None:
    x, y = blobs()
    model = classifier()
    model.fit((x, y), epochs=3)
    near, far = model.predict(x[:50]), model.predict(x[:50] * 0 + torch.tensor([0.5, 0.5, 0.5, 0.0]))
    assert torch.allclose(near.probs.sum(1), torch.ones(50), atol=1e-5)
    assert torch.allclose(near.epistemic + near.aleatoric, near.probs * (1 - near.probs), atol=1e-6)
    assert far.entropy.mean() > near.entropy.mean(), "between the classes it is less sure"
    assert near.confidence.shape == near.labels.shape == (50,)


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return iter(zip(self.x, self.y, strict=True))


SOURCES = {
    "pair": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "tensor data set": TensorDataset,
    "own data set": Pairs,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True),
    "iterable": Stream,
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_data_come_in_any_form(source) -> None:
    x, y = blobs()
    model = classifier()
    history = model.fit(SOURCES[source](x, y), epochs=2, validation=SOURCES[source](x, y))
    assert history[-1]["error"] < 8
    assert model.average.count == 2 * math.ceil(300 / 16) or source == "loader"


def test_a_data_set_learns_what_its_tensors_learn() -> None:
    x, y = blobs()
    models = [classifier(), classifier()]
    models[0].fit((x, y), epochs=2, seed=3)
    models[1].fit(TensorDataset(x, y), epochs=2, seed=3)
    assert same(state(models[0]), state(models[1]))


@pytest.mark.parametrize("batch_size", [1, 16, 33, 300])
def test_a_batch_of_any_size_learns_as_well(batch_size) -> None:
    x, y = blobs(600)
    model = classifier()
    model.fit((x[:300], y[:300]), epochs=2, batch_size=batch_size)
    assert model.evaluate(x[300:], y[300:])["error"] < 9


def test_whole_batches_are_learned_in_chunks_to_the_bit() -> None:
    x, y = blobs(96)
    models = [classifier(), classifier()]
    models[0].fit((x, y), batch_size=16, seed=1)
    models[1].fit((x, y), batch_size=96, seed=1)
    assert same(state(models[0]), state(models[1]))


def test_fit_is_the_lower_floors_own_steps() -> None:
    """The first epoch is calibrate_prior and condition, nothing else."""
    x, y = blobs(64)
    model = classifier()
    torch.manual_seed(0)
    net = small_net(outputs=3)
    net.load_state_dict(model.net.state_dict())
    order = epoch_order(64, 5, 0)
    calibrate_prior(net, x[order[:16]])
    likelihood = tagi.OneVsRest(3, noise_std=0.01, learn_noise=True)
    update = tagi.Update(net)
    for rows in order.split(16):
        condition(net, likelihood, update, x[rows], y[rows])
    model.fit((x, y), seed=5)
    for mine, theirs in zip(model.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_update_learns_a_stream_one_by_one() -> None:
    x, y = blobs(500)
    model = classifier()
    for row in range(400):
        report = model.update(x[row : row + 1], y[row : row + 1])
    assert report["innovation"] >= 0
    assert model.evaluate(x[400:], y[400:])["error"] < 10
    assert model.average.count == 400


def test_augmentation_begins_with_the_second_epoch_and_gets_whole_batches() -> None:
    x, y = blobs(64)
    seen = []

    def shifted(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return batch + 0.1

    classifier().fit((x, y), epochs=3, batch_size=32, augment=shifted)
    assert seen == [32] * 4


def test_seeds_decide_everything() -> None:
    x, y = blobs(100)
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        model = tagi.Classifier(small_net(), classes=3)
        model.fit((x, y), epochs=2)
        results.append(state(model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


# ---- labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [["ash", "birch", "oak"], [7, 100, -3], ["1", "0", "2"]], ids=["strings", "integers", "digits as text"]
)
def test_labels_may_be_anything(names) -> None:
    x, y = blobs()
    labels = [names[place] for place in y.tolist()]
    if isinstance(names[0], int):
        labels = torch.tensor(labels)
    model = classifier(names)
    model.fit((x, labels), epochs=2)
    plain = classifier()
    torch.manual_seed(0)
    assert model.evaluate(x, labels)["error"] < 8
    predicted = model.predict(x).labels
    assert set(predicted if isinstance(predicted, list) else predicted.tolist()) == set(names)
    plain.net.load_state_dict(model.net.state_dict())
    with pytest.raises(ValueError, match=r"label 'elm' is not among the classes"):
        model.update(x[:2], ["elm", names[0]])


def test_labels_out_of_range_are_named() -> None:
    x, y = blobs(32)
    with pytest.raises(ValueError, match=r"labels must lie in 0..2, got 3 at row 0"):
        classifier().fit((x, y.clamp_min(3)))


@pytest.mark.parametrize("classes", [["a", "a"], [1.5, 2.5], 1, 0])
def test_classes_are_checked(classes) -> None:
    with pytest.raises((TypeError, ValueError), match="classes"):
        tagi.Classifier(small_net(), classes=classes)


def test_two_classes_and_many() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 4, generator=generator)
    for classes, outputs in ((2, 2), (40, 40)):
        y = ((x[:, 0] * 3).floor().long() % classes).clamp(0, classes - 1)
        model = tagi.Classifier(small_net(outputs=outputs), classes=classes)
        model.fit((x, y), epochs=2)
        assert model.predict(x).probs.shape == (400, classes)


def test_the_last_layer_must_fit_the_classes() -> None:
    with pytest.raises(ValueError, match="has 7 outputs, but there are 3 classes"):
        tagi.Classifier(small_net(outputs=7), classes=3)


# ---- regression ----------------------------------------------------------------------------------------------


def regressor(noise="learned", outputs: int = 1) -> tagi.Regressor:
    torch.manual_seed(0)
    return tagi.Regressor(small_net(2, outputs), noise=noise)


@pytest.mark.parametrize("noise", ["learned", "predicted", 0.5])
def test_regression_is_in_the_targets_units(noise) -> None:
    x, y = lines(800, noise=2.0)
    model = regressor(2.0 if noise == 0.5 else noise)
    history = model.fit((x[:600], y[:600]), epochs=20)
    scores = model.evaluate(x[600:], y[600:])
    assert scores["rmse"] < 2.8, "the noise is 2"
    assert 0.88 <= scores["coverage_95"] <= 1
    prediction = model.predict(x[600:])
    assert prediction.mean.shape == (200,)
    assert torch.allclose(prediction.std.square(), prediction.epistemic + prediction.aleatoric)
    assert prediction.aleatoric.sqrt().mean() == pytest.approx(2.0, rel=0.3)
    low, high = prediction.interval(0.5)
    assert ((low < y[600:]) & (y[600:] < high)).float().mean() == pytest.approx(0.5, abs=0.2)
    assert history[-1]["train_error"] == pytest.approx(2.0, rel=0.4)


def test_each_target_has_a_noise_of_its_own() -> None:
    x, y = lines(600, noise=0.0)
    generator = torch.Generator().manual_seed(3)
    targets = torch.stack([y, y], 1) + torch.tensor([0.5, 8.0]) * torch.randn(600, 2, generator=generator)
    model = regressor(outputs=2)
    model.fit((x, targets), epochs=20)
    noise = model.predict(x).aleatoric.sqrt().mean(0)
    assert noise[1] == pytest.approx(8.0, rel=0.15)
    assert noise[0] < 2.5
    assert model.predict(x).mean.shape == (600, 2)


@pytest.mark.parametrize("noise", ["learned", "predicted"])
def test_missing_targets_say_nothing(noise) -> None:
    x, y = lines(600)
    targets = torch.stack([y, -y], 1)
    generator = torch.Generator().manual_seed(1)
    targets[torch.rand(600, 2, generator=generator) < 0.4] = math.nan
    model = regressor(noise, outputs=2)
    model.fit((x, targets), epochs=15)
    scores = model.evaluate(x, torch.stack([y, -y], 1))
    assert scores["rmse"] < 3
    assert math.isfinite(model.evaluate(x, targets)["nll"])


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_an_epoch_is_judged_by_the_targets_that_are_there(covariance, outputs) -> None:
    """Batches without any target among others have the row that these alone have, but for their own samples."""
    x, y = lines(64)
    y = torch.stack([y, y], 1)[:, :outputs]
    y[::3, 0] = math.nan
    empty = torch.full((16, outputs), math.nan)
    rows = []
    for batches in ([(x, y)], [(x[:32], y[:32]), (x[:16], empty), (x[32:], y[32:])]):
        torch.manual_seed(0)
        model = tagi.Regressor(small_net(2, outputs), covariance=covariance)
        model.update(x, y)
        parts = [
            TensorDataset(*(part[at : at + 16] for part in pair)) for pair in batches for at in (0, 16, 32, 48)
        ]
        rows.append(model.fit(DataLoader(ConcatDataset([part for part in parts if len(part)]), 16))[0])
    for name in ("train_error", "innovation"):
        assert rows[1][name] == pytest.approx(rows[0][name], rel=1e-6)
    assert len(rows[1]["train_curve"]) == len(rows[0]["train_curve"])


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_missing_target_makes_no_error(covariance) -> None:
    x, y = lines(400)
    model = tagi.Regressor(small_net(2, 1), covariance=covariance, noise=2.0)
    model.fit((x, y), epochs=10)
    thinned = y.clone()
    thinned[torch.rand(400, generator=torch.Generator().manual_seed(0)) < 0.8] = math.nan
    there = ~torch.isnan(thinned)
    expected = model.evaluate(x[there], y[there])["rmse"]
    assert model.fit((x, thinned))[0]["train_error"] == pytest.approx(expected, rel=0.1)


def test_a_row_without_any_target_changes_nothing() -> None:
    x, y = lines(64)
    model = regressor()
    model.fit((x, y))
    before = [parameter.clone() for parameter in model.net.parameters()]
    model.update(x[:1], torch.tensor([math.nan]))
    assert all(torch.equal(a, b) for a, b in zip(before, model.net.parameters(), strict=True))


def test_uncertain_inputs_make_uncertain_predictions() -> None:
    x, y = lines(400)
    model = regressor()
    model.fit((x, y), epochs=10)
    blurred = tagi.Gaussian(x[:50], torch.tensor([300.0**2, 0.003**2]).expand(50, 2).contiguous())
    sharp, wide = model.predict(x[:50]), model.predict(blurred)
    slope = math.sqrt((20 * 0.3) ** 2 + (10 * 0.3) ** 2)
    assert torch.allclose(sharp.aleatoric, wide.aleatoric)
    gained = (wide.epistemic - sharp.epistemic).clamp_min(0).sqrt().mean()
    assert gained == pytest.approx(slope, rel=0.35)
    model.fit((blurred, y[:50]))  # and they can be learned from


def test_a_regressor_in_a_stream_finds_its_scale() -> None:
    x, y = lines(600)
    model = regressor()
    for row in range(500):
        model.update(x[row : row + 1], y[row : row + 1])
    assert model.evaluate(x[500:], y[500:])["rmse"] < 6, "targets spread by 22"


def test_images_are_standardised_by_channel() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 2, 6, 6, generator=generator) * torch.tensor([5.0, 0.1])[:, None, None] + 7
    net = tagi.nn.Sequential(tagi.nn.Conv2d(2, 4, 3), tagi.nn.ReLU(), tagi.nn.Flatten(), tagi.nn.Linear(64, 1))
    model = tagi.Regressor(net)
    model.fit((x, x[:, 0].mean((1, 2)) * 3), epochs=5)
    assert model.scale_of_x.std.tolist() == pytest.approx([5.0, 0.1], rel=0.1)
    assert model.evaluate(x, x[:, 0].mean((1, 2)) * 3)["rmse"] < 1.5


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 10**6))
def test_a_scale_learned_in_pieces_is_that_of_the_whole(sizes, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (
        torch.randn(sum(sizes) + 2, 3, generator=generator, dtype=torch.float64) * torch.tensor([1e-3, 1.0, 1e5])
        + 10
    )
    x[torch.rand(x.shape, generator=generator) < 0.2] = math.nan
    scale = Standardiser()
    for part in x.split([*sizes, 2]):
        scale.observe(part)
    for column in range(3):
        seen = x[:, column][~torch.isnan(x[:, column])]
        if len(seen) > 1:
            assert scale.mean[column].item() == pytest.approx(seen.mean().item(), rel=1e-9)
            assert scale.std[column].item() == pytest.approx(seen.std().item(), rel=1e-9)
    whole = x.nan_to_num(1.0)
    assert torch.allclose(scale.undo(scale(whole)), whole)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("whole", [False, True])
def test_offsets_that_single_precision_does_not_hold_are_no_loss(tmp_path, covariance, whole) -> None:
    """Unix timestamps as inputs, targets that vary in their last digits alone."""
    at = torch.linspace(0, 6, 200, dtype=torch.float64)[:, None]
    y = (1000 * at[:, 0].sin()).round() if whole else at[:, 0].sin()
    x, far = 1.7e9 + at, (y + 1e12 * (1 if whole else 1e-3)).to(torch.int64 if whole else torch.float64)
    torch.manual_seed(0)
    model, near = (tagi.Regressor(small_net(1, 1), covariance=covariance) for _ in range(2))
    near.net.load_state_dict(model.net.state_dict())
    model.fit((x, far), epochs=5, seed=0)
    near.fit((at, y), epochs=5, seed=0)
    scores, expected = model.evaluate(x, far), near.evaluate(at, y)
    assert scores["rmse"] == pytest.approx(expected["rmse"], rel=0.02)
    assert scores["nll"] == pytest.approx(expected["nll"], rel=0.02)
    assert model.predict(x).mean.dtype == torch.float64
    assert near.predict(at).mean.dtype == torch.float32, "it is enough for these"
    model.save(tmp_path / "model")
    assert torch.equal(tagi.load(tmp_path / "model").predict(x).mean, model.predict(x).mean)
    rounded = tagi.RegressionPrediction(*(part.float() for part in parts_of(model.predict(x))))
    assert model.scores(rounded, far)["rmse"] > 3 * scores["rmse"], "lost digits show"


def parts_of(prediction) -> tuple[torch.Tensor, ...]:
    return prediction.mean, prediction.epistemic, prediction.aleatoric


def test_single_precision_stays_what_it_is() -> None:
    x, y = lines(64)
    model = regressor()
    model.fit((x, y + 1e5))
    assert model.predict(x).mean.dtype == torch.float32


@pytest.mark.parametrize("factor", [1e-5, 0.3, 1.0, 1e5])
@pytest.mark.parametrize("size", [1, 7, 1200])
def test_a_factor_that_all_weights_share_does_not_change_a_scale(factor, size) -> None:
    """But for the one that a divisor is less than the number of rows, where weights above 1 are counts of them."""
    x = 5 + 3 * torch.randn(1200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.rand(1200, generator=torch.Generator().manual_seed(1)) + 1e-3
    scale, scaled, alike, plain = (Standardiser() for _ in range(4))
    seen = 0
    for rows in torch.arange(1200).split(size):
        seen += len(rows)
        tolerance = 1e-5 if factor <= 1 else 2 / seen
        scale.observe(x[rows], weights[rows])
        scaled.observe(x[rows], factor * weights[rows])
        alike.observe(x[rows], torch.full((len(rows),), factor))
        plain.observe(x[rows])
        if seen > 1:
            assert torch.allclose(scaled.std, scale.std, rtol=tolerance)
            assert torch.allclose(alike.std, plain.std, rtol=tolerance)
        else:
            assert scaled.std.tolist() == alike.std.tolist() == [1.0, 1.0]
        assert scaled.settled == scale.settled
    assert torch.allclose(plain.std, x.std(0), rtol=1e-12)
    assert plain.settled
    again = Standardiser()
    again.read_json(scaled.as_json())
    assert torch.equal(again.std, scaled.std)


def test_weights_below_one_do_not_change_the_targets_scale() -> None:
    x, y = lines(300)
    models = [regressor(), regressor()]
    models[0].fit((x, y, torch.full((300,), 1e-5)), seed=0)
    models[1].fit((x, y), seed=0)
    assert torch.allclose(models[0].scale_of_y.std, models[1].scale_of_y.std, rtol=1e-9)


@pytest.mark.parametrize("noise", ["guessed", 0.0, -1.0, math.inf])
def test_a_noise_that_is_none_is_refused(noise) -> None:
    with pytest.raises(ValueError, match="noise"):
        tagi.Regressor(small_net(2, 1), noise=noise)


def test_targets_of_another_width_are_refused() -> None:
    x, y = lines(32)
    with pytest.raises(ValueError, match=r"y must have shape \(N, 1\)"):
        regressor().fit((x, torch.stack([y, y], 1)))


# ---- stopping and going on -----------------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize("source", ["pair", "tensor data set", "loader", "pair, some kept back", "regression"])
def test_a_fit_that_was_stopped_goes_on_to_the_bit(tmp_path, source) -> None:
    x, y = lines(160) if source == "regression" else blobs(5200 if "kept" in source else 160)
    path = tmp_path / "fit.safetensors"
    build = classifier if source != "regression" else regressor
    steps = math.ceil(len(x) / 16)

    def fit(model, stop_after=None, resume=False):
        calls = 0

        def jitter(batch):
            nonlocal calls
            calls += 1
            if calls == stop_after:
                raise KeyboardInterrupt
            return batch + 0.05 * torch.randn_like(batch)

        torch.manual_seed(7)
        return model.fit(
            SOURCES.get(source, SOURCES["pair"])(x, y),
            epochs=4,
            batch_size=16,
            augment=jitter,
            checkpoint=path,
            resume=resume,
            seed=2,
        )

    whole = build()
    expected = fit(whole)
    path.unlink()
    with pytest.raises(KeyboardInterrupt):
        fit(build(), stop_after=3 if source == "loader" else steps + 4)
    resumed = build()
    if source == "regression":  # one that starts from other weights has the prior of the file
        for part in resumed.net.modules():
            if isinstance(part, tagi.GaussianParameter):
                part.mean.data.normal_()
    history = fit(resumed, resume=True)
    assert same(state(resumed), state(whole))
    timeless = [{k: v for k, v in row.items() if "second" not in k} for row in history]
    assert timeless == [{k: v for k, v in row.items() if "second" not in k} for row in expected]


def test_resume_without_a_file_begins_and_without_a_name_is_refused(tmp_path) -> None:
    x, y = blobs(32)
    assert len(classifier().fit((x, y), checkpoint=tmp_path / "new.safetensors", resume=True)) == 1
    with pytest.raises(ValueError, match="resume=True needs checkpoint"):
        classifier().fit((x, y), resume=True)
    model = classifier()
    model.fit((x, y))
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(tagi.CheckpointError, match="no fit to go on with"):
        classifier().fit((x, y), checkpoint=tmp_path / "model.safetensors", resume=True)


@pytest.mark.parametrize("kind", ["classifier", "full"])
def test_a_fit_that_is_done_goes_on_to_more_epochs(tmp_path, kind) -> None:
    """As a second fit with the same seed does."""
    x, y = blobs(64) if kind == "classifier" else lines(64)
    build, path = {"classifier": classifier, "full": regressor}[kind], tmp_path / "fit"
    first = build()
    first.fit((x, y), epochs=1, seed=0)  # not one of those that the file's fit counts
    first.fit((x, y), epochs=2, seed=1, checkpoint=path)
    for epochs in (2, 6, 6):
        longer = build()
        history = longer.fit((x, y), epochs=epochs, seed=1, checkpoint=path, resume=True)
        assert [row["epoch"] for row in history] == list(range(2, epochs + 2))
        assert longer.epochs == epochs + 1
        if epochs == 2:
            assert same(state(longer), state(first))
    first.fit((x, y), epochs=4, seed=1)
    assert same(state(longer), state(first))
    other = build()
    before = state(other)
    with pytest.raises(ValueError, match=r"a fit of 6 epochs, 6 of them learned.*epochs=3.*epochs=6"):
        other.fit((x, y), epochs=3, checkpoint=path, resume=True)
    assert same(state(other), before)


def test_a_fit_that_was_stopped_keeps_its_number_of_epochs(tmp_path) -> None:
    (x, y), path = blobs(64), tmp_path / "fit"
    classifier().fit((x, y), epochs=4, checkpoint=path, stop=lambda row: row["epoch"] == 2)
    for epochs in (2, 3, 6):
        with pytest.raises(ValueError, match=rf"a fit of 4 epochs, 2 of them learned.*epochs={epochs}.*epochs=4"):
            classifier().fit((x, y), epochs=epochs, checkpoint=path, resume=True)
    assert len(classifier().fit((x, y), epochs=4, checkpoint=path, resume=True)) == 4


def test_epochs_add_up_over_fits() -> None:
    x, y = blobs(48)
    model = classifier()
    assert [row["epoch"] for row in model.fit((x, y), epochs=2) + model.fit((x, y), epochs=1)] == [1, 2, 3]


# ---- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classifier", "names", "learned", "predicted", "number", "not fitted"])
def test_a_saved_model_comes_back_ready(tmp_path, kind) -> None:
    x, y = blobs(64) if kind in ("classifier", "names", "not fitted") else lines(64)
    model = {
        "classifier": classifier,
        "not fitted": classifier,
        "names": lambda: classifier(["x", "y", "z"]),
        "learned": regressor,
        "predicted": lambda: regressor("predicted"),
        "number": lambda: regressor(3.0),
    }[kind]()
    if kind == "names":
        y = ["xyz"[label] for label in y.tolist()]
    if kind != "not fitted":
        model.fit((x, y), epochs=2)
    path = tmp_path / "model.safetensors"
    model.save(path)
    before = torch.get_rng_state()
    again = tagi.load(path)
    assert torch.equal(before, torch.get_rng_state()), "loading draws nothing"
    assert type(again) is type(model)
    assert not again.predicting.training
    assert not again.net.training
    old, new = model.predict(x), again.predict(x)
    for name in ("probs", "mean", "epistemic", "aleatoric"):
        if hasattr(old, name):
            assert torch.equal(getattr(old, name), getattr(new, name))
    if kind == "names":
        assert new.labels == old.labels
    if kind != "not fitted":
        model.update(x[:16], y[:16])
        again.update(x[:16], y[:16])
        assert same(state(model), state(again)), "it learns on as the first one does"
    else:
        again.fit((x, y))


NUMBERS = {"numpy": (np.int64, np.float32), "array": (np.array, np.array), "tensor": (torch.tensor, torch.tensor)}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_may_be_of_any_kind(tmp_path, kind) -> None:
    """They are Python's in a file, and decide what Python's do."""
    whole, real = NUMBERS[kind]
    x, y = blobs(40)
    options = {"epochs": whole(2), "batch_size": whole(8), "seed": whole(3)}
    pairs = []
    for count, number, fit in ((int, float, {"epochs": 2, "batch_size": 8, "seed": 3}), (whole, real, options)):
        for build, targets in (
            (lambda c, n: tagi.Classifier(small_net(), c(3), noise=n(0.5), horizon=c(500)), y),
            (lambda c, n: tagi.Regressor(small_net(4, 1), noise=n(0.5), horizon=c(500), targets=c(1)), x[:, 0]),
        ):
            torch.manual_seed(0)
            model = build(count, number)
            model.fit((x, targets), **fit)
            model.save(tmp_path / "model")
            pairs.append(tagi.load(tmp_path / "model"))
    for plain, other in zip(pairs[:2], pairs[2:], strict=True):
        assert same(state(plain), state(other))
        assert plain.description() == other.description()
    assert tagi.Update(small_net(), horizon=whole(500), repeats=whole(9)).horizon == 500


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("kind", ["fresh", "classifier", "own", "diagonal", "full", "predicted", "horizon", "tree"])
def test_a_copy_of_a_model_is_one_of_its_own(tmp_path, kind, copied) -> None:
    labels = kind in ("fresh", "classifier", "own", "tree")
    x, y = blobs(64) if labels else lines(64)
    torch.manual_seed(0)
    model = {
        "own": lambda: tagi.Classifier(Own(), classes=3),
        "tree": lambda: TreeClassifier(small_net(), classes=3),
        "diagonal": lambda: tagi.Regressor(small_net(2, 1), covariance="diagonal"),
        "full": lambda: tagi.Regressor(small_net(2, 1), horizon="auto"),
        "predicted": lambda: regressor("predicted"),
        "horizon": lambda: tagi.Regressor(small_net(2, 1), covariance="diagonal", horizon=50),
    }.get(kind, classifier)()
    if kind != "fresh":
        model.fit((x, y), epochs=2)
        model.update(x[:5], y[:5])
    before, random = state(model), torch.get_rng_state()
    again = copied(model)
    assert torch.equal(random, torch.get_rng_state())
    assert same(state(again), before)
    for learner in (again, model):  # neither learns with the other
        assert same(state(learner), before)
        learner.update(x[5:40], y[5:40])
        learner.fit((x, y), epochs=2, seed=1)
    assert not same(state(model), before)
    assert same(state(model), state(again))
    model.save(tmp_path / "model")
    again.save(tmp_path / "again")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "again").read_bytes()
    assert copy.copy(model).net is model.net


class Own(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = tagi.nn.Linear(4, 8), tagi.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_a_network_of_ones_own_is_filled(tmp_path) -> None:
    x, y = blobs(64)
    model = tagi.Classifier(Own(), classes=3)
    model.fit((x, y), epochs=2)
    model.save(tmp_path / "own.safetensors")
    with pytest.raises(tagi.CheckpointError, match="Own"):
        tagi.load(tmp_path / "own.safetensors")
    again = tagi.load(tmp_path / "own.safetensors", net=Own())
    assert torch.equal(again.predict(x).probs, model.predict(x).probs)


def test_a_file_of_a_network_is_no_model(tmp_path) -> None:
    from torchtagi import checkpoint

    checkpoint.save(tmp_path / "net.safetensors", small_net())
    with pytest.raises(tagi.CheckpointError, match="no Classifier or Regressor"):
        tagi.load(tmp_path / "net.safetensors")


def test_a_model_moves_to_another_dtype_and_goes_on() -> None:
    x, y = blobs(64)
    model = classifier()
    model.fit((x, y))
    model.net.double()
    model.fit((x, y))
    assert next(model.predicting.parameters()).dtype == torch.float64
    assert model.predict(x).probs.dtype == torch.float64


@pytest.mark.parametrize("kind", ["classifier", "diagonal", "full"])
def test_all_of_a_model_moves_to_another_device(kind) -> None:
    x, y = blobs(64) if kind == "classifier" else lines(64)
    model = (
        tagi.Classifier(small_net(), classes=3, horizon=100)
        if kind == "classifier"
        else tagi.Regressor(small_net(2, 1), covariance=kind, horizon=100)
    )
    model.fit((x, y))
    model.to("cpu").update(x, y)
    assert model.to("meta") is model
    parts = (model.predicting, model.link, model.net, model.likelihood, *model.learning_parts().values())
    tensors = [tensor for part in parts for tensor in part.state_dict().values()]
    tensors += [tensor for prior in model.posterior.state.values() for tensor in prior.values()]
    assert model.posterior.state
    assert {tensor.device.type for tensor in tensors} == {"meta"}


# ---- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ((torch.zeros(3, 4), torch.zeros(2).long()), "as many entries"),
        ((torch.zeros(0, 4), torch.zeros(0).long()), "at least one"),
        (torch.zeros(3, 4), "pair"),
        (None, "pair"),
        ((torch.zeros(3, 4).long(), torch.zeros(3).long()), "floating"),
        ((torch.full((3, 4), math.nan), torch.zeros(3).long()), "finite"),
        ((torch.zeros(3, 5), torch.zeros(3).long()), "4 features"),
    ],
)
def test_bad_data_are_named(data, match) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        classifier().fit(data)


@pytest.mark.parametrize("option", [{"epochs": 0}, {"epochs": 1.5}, {"batch_size": 0}])
def test_bad_options_are_named(option) -> None:
    x, y = blobs(8)
    with pytest.raises(ValueError, match=next(iter(option))):
        classifier().fit((x, y), **option)


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="net must be a torch module"):
        tagi.Classifier("resnet18", classes=3)


def test_progress_is_silent_in_a_pipe(capfd) -> None:
    x, y = blobs(64)
    classifier().fit((x, y), epochs=2)
    assert capfd.readouterr() == ("", "")


class Viewing(torch.nn.Module):
    """A network as of torch's tutorials, which relies on the layout in memory."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(2, 4, 3), torch.nn.Linear(4 * 4 * 4 + 72, outputs)

    def forward(self, x):
        seen = torch.relu(self.conv(x))
        return self.head(torch.cat([seen.view(seen.size(0), -1), x.view(x.size(0), -1)], 1))


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_images_may_be_viewed_as_rows(kind) -> None:
    x = torch.randn(40, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    if kind == "classifier":
        model, y = tagi.Classifier(Viewing(2), classes=2), (x[:, 0, 0, 0] > 0).long()
    else:
        model, y = tagi.Regressor(Viewing(1)), x[:, 0, 0, 0]
    model.fit((x, y), epochs=2)
    model.update(x[:1], y[:1])
    assert math.isfinite(model.evaluate(x, y)["nll"])


def test_ordinary_layers_in_front_stay_as_they_are() -> None:
    x, y = blobs(100)
    trunk = torch.nn.Linear(4, 16)
    net = torch.nn.Sequential(trunk, torch.nn.ReLU(), tagi.nn.Linear(16, 3))
    before = trunk.weight.clone()
    model = tagi.Classifier(net, classes=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit((x, y), epochs=2)
    assert torch.equal(trunk.weight, before)
    assert model.evaluate(x, y)["error"] < 15


def test_samples_kept_back_are_shown_at_the_end_of_whole_epochs_alone() -> None:
    x = torch.arange(200)
    batches = Batches((x, x), 16, seed=3)
    batches.keep_back(0.1, 100)
    assert not batches.kept_back, "too few"
    batches.keep_back(0.1, 20)
    kept = set(batches.kept(0, 20)[0].tolist())
    assert len(kept) == 20
    assert batches.kept(15, 10)[0].tolist() == [*batches.kept(15, 5)[0].tolist(), *batches.kept(0, 5)[0].tolist()]
    for epoch, last in ((0, False), (1, False), (2, True)):
        shown = torch.cat([inputs for inputs, _ in batches.epoch(epoch, whole=last)]).tolist()
        assert len(shown) == batches.length(last) == 180 + 20 * last
        assert set(shown[:180]) == set(x.tolist()) - kept
        assert set(shown[180:]) == (kept if last else set())
    loader = Batches(DataLoader(TensorDataset(x, x)), 16, seed=3)
    loader.keep_back(0.1, 20)
    assert not loader.kept_back, "nobody can choose from a loader"


@pytest.mark.parametrize(
    ("samples", "size", "sizes"),
    [(17, 16, [17]), (33, 16, [16, 17]), (34, 16, [16, 16, 2]), (3, 1, [1, 1, 1]), (1, 16, [1])],
)
def test_a_single_sample_left_over_joins_the_batch_before(samples, size, sizes) -> None:
    x = torch.arange(samples)
    batches = Batches((x, x), size, seed=3)
    shown = [inputs for inputs, _ in batches.epoch(0)]
    assert [len(part) for part in shown] == sizes
    assert sorted(torch.cat(shown).tolist()) == x.tolist()
    seen = 0
    for number, part in enumerate(shown):
        assert torch.equal(torch.cat([inputs for inputs, _ in batches.epoch(0, seen)]), torch.cat(shown[number:]))
        seen += len(part)
    assert not list(batches.epoch(0, samples))


def test_a_batch_norm_learns_any_number_of_samples() -> None:
    x, y = blobs(33)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    events: list = []
    model = tagi.Classifier(net, classes=3)
    model.fit((x, y), epochs=2, stop=lambda row: events.append(row["train_curve"][-1][0]))
    assert events == [33, 33]
    assert model.observations == 33


def test_a_classifier_of_many_images_judges_its_link_by_those_kept_back() -> None:
    """Labels at random: what was learned by heart must not make predictions certain."""
    torch.manual_seed(0)
    x, y = torch.randn(5000, 40), torch.randint(0, 2, (5000,))
    model = tagi.Classifier(small_net(40, 2), classes=2)
    model.fit((x, y), epochs=6, batch_size=64)
    assert model.evaluate(torch.randn(2000, 40), torch.randint(0, 2, (2000,)))["nll"] < 0.7


def test_a_horizon_follows_a_world_that_drifts(tmp_path) -> None:
    """After 3,200 rows the slope turns round; who never forgets is slow to believe it."""
    errors = {}
    for horizon in (None, 200):
        torch.manual_seed(0)
        model = tagi.Regressor(small_net(1, 1), horizon=horizon)
        for step in range(220):
            x = torch.randn(16, 1)
            y = (1 if step < 200 else -1) * x[:, 0] + 0.1 * torch.randn(16)
            errors[horizon] = (model.predict(x).mean - y).square().mean().item()
            model.update(x, y)
            if step == 60:
                model.save(tmp_path / "model.safetensors")
                model = tagi.load(tmp_path / "model.safetensors")
    assert errors[200] < 0.5 * errors[None]


def test_many_epochs_of_little_data_leave_intervals_honest() -> None:
    torch.manual_seed(0)
    covered, noises = [], []
    for seed in range(4):
        x, y = lines(550, seed, noise=20.0)
        model = tagi.Regressor(small_net(2, 1))
        model.fit((x[:50], y[:50]), epochs=100)
        covered.append(model.evaluate(x[50:], y[50:])["coverage_95"])
        noises.append(model.predict(x[50:]).aleatoric.sqrt().mean().item())
    assert 0.9 < sum(covered) / 4 < 0.99
    assert sum(noises) / 4 == pytest.approx(20, rel=0.25)


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone() -> None:
    x = torch.arange(10)
    batches = [Batches((x, x), 4, seed=3) for _ in range(2)]
    assert [b[0].tolist() for b in batches[0].epoch(1)] == [b[0].tolist() for b in batches[1].epoch(1)]
    shown = torch.cat([b[0] for b in batches[0].epoch(0)])
    assert sorted(shown.tolist()) == x.tolist()
    assert shown.tolist() != torch.cat([b[0] for b in batches[0].epoch(1)]).tolist()
    rest = torch.cat([b[0] for b in batches[0].epoch(0, samples=4)])
    assert rest.tolist() == shown.tolist()[4:]


@pytest.mark.parametrize("kind", ["classifier", "diagonal", "full"])
def test_autocast_does_nothing_to_a_model(kind) -> None:
    x, y = blobs(100) if kind == "classifier" else lines(100)
    outcomes = []
    for enabled in (False, True):
        torch.manual_seed(0)
        model = classifier() if kind == "classifier" else tagi.Regressor(small_net(2, 1), covariance=kind)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            history = model.fit((x[:60], y[:60]), epochs=2, validation=(x, y), seed=0)
            model.update(x[60:], y[60:])
            prediction = model.predict(x)
            assert torch.is_autocast_enabled("cpu") == enabled
        values = prediction.probs if kind == "classifier" else prediction.mean
        outcomes.append((history[-1]["nll"], values))
    assert outcomes[0][0] == outcomes[1][0]
    assert torch.equal(outcomes[0][1], outcomes[1][1])


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["classifier", "diagonal", "full", "image"])
def test_a_model_learns_where_gradients_are_off(kind, around) -> None:
    x, y = blobs(100) if kind == "classifier" else lines(100)
    if kind == "image":
        x = x[:, :, None, None] * torch.ones(2, 6, 6)
    outcomes = []
    for surroundings in (contextlib.nullcontext, around):
        torch.manual_seed(0)
        net = {"classifier": small_net, "image": lambda: Viewing(1)}.get(kind, lambda: small_net(2, 1))()
        of = {"classifier": 3}.get(kind)
        covariance = {"image": "auto"}.get(kind, kind)
        model = tagi.Classifier(net, of) if of else tagi.Regressor(net, covariance=covariance)
        with surroundings():
            mode = torch.is_grad_enabled()
            model.fit((x[:60], y[:60]), epochs=2, seed=0, augment=lambda batch: batch + 0.1)
            model.update(x[60:], y[60:])
            assert torch.is_grad_enabled() == mode
        model.update(x, y)
        outcomes.append(state(model))
    assert same(*outcomes)


def test_a_prior_that_the_user_has_calibrated_stays() -> None:
    x, y = blobs(64)
    net = small_net(outputs=3)
    tagi.calibrate_prior(net, x[:16], target_var=4.0)
    kept = copy.deepcopy(net)
    model = tagi.Classifier(net, classes=3)
    assert model.calibrated
    model.update(x[:1], y[:1])
    head, before = list(net.parameters())[-1], list(kept.parameters())[-1]
    assert 0.5 < float((head / before).detach().mean()) <= 1, "learned from a single sample"


def test_classes_in_a_tree_are_saved_and_loaded(tmp_path) -> None:
    x, y = blobs(64)
    model = TreeClassifier(small_net(outputs=3), classes=3)
    model.fit((x, y), epochs=2, progress=False)
    model.save(tmp_path / "tree.safetensors")
    loaded = tagi.load(tmp_path / "tree.safetensors")
    assert isinstance(loaded, TreeClassifier)
    assert torch.equal(loaded.predict(x).probs, model.predict(x).probs)
