"""Tables that cannot be learned: the error names row, column and value, and the model is what it was before."""

import contextlib
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchtagi as tagi
from torchtagi.checks import as_numbers

N = 40
KINDS = ("diagonal", "full", "predicted", "classes", "names")


def inputs() -> torch.Tensor:
    return torch.randn(N, 3, generator=torch.Generator().manual_seed(0))


def targets(kind: str) -> Any:
    y = inputs() @ torch.tensor([1.0, -2.0, 0.5])
    if kind == "classes":
        return (y > 0).long()
    return ["low" if value < 0 else "high" for value in y.tolist()] if kind == "names" else y


def model(kind: str, horizon: float | None = None) -> Any:
    torch.manual_seed(1)
    labels = {"classes": 2, "names": ["low", "high"]}
    outputs = 2 if kind in labels else 1
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, outputs))
    if kind in labels:
        return tagi.Classifier(net, labels[kind], horizon=horizon)
    if kind == "predicted":
        return tagi.Regressor(net, noise="predicted", horizon=horizon)
    return tagi.Regressor(net, covariance=kind, horizon=horizon)


def with_entry(table: torch.Tensor, index: Any, value: float) -> torch.Tensor:
    changed = table.clone()
    changed[index] = value
    return changed


def content(of: Any, folder: Path) -> bytes:
    """All that a model is."""
    of.save(folder / "state")
    return (folder / "state").read_bytes()


class Frame:
    """What a data frame has that matters here."""

    def __init__(self, values: Any, columns: list[str]) -> None:
        self.values, self.columns = values, columns

    def __len__(self) -> int:
        return len(self.values)

    def to_numpy(self) -> Any:
        return self.values


X = inputs()
AGES = ["age", "height", "weight"]
READ_ONLY = X.numpy().copy()
READ_ONLY.flags.writeable = False
BAD_INPUTS: dict[str, tuple[Any, str]] = {
    "nan": (with_entry(X, (37, 1), math.nan), r"x must be finite; got nan at row 37, column 1"),
    "inf": (with_entry(X, (37, 1), -math.inf), r"got -inf at row 37, column 1"),
    "large for its dtype": (with_entry(X.double(), (37, 1), 1e300), r"got 1e\+300 at row 37, column 1, .*float32"),
    "frame": (Frame(with_entry(X, (3, 2), math.nan).numpy(), AGES), r"nan at row 3, column 2 \('weight'\)"),
    "text in a frame": (Frame(np.array([[1.0, "old", 2.0]] * N, dtype=object), AGES), r"'old' .*1 \('height'\)"),
    "text": ([[1.0, 2.0, 3.0], [1.0, "a", 3.0]] * (N // 2), r"must hold numbers, got 'a' at row 1, column 1"),
    "none": ([[1.0, 2.0, None]] * N, r"got None at row 0, column 2"),
    "ragged": ([*X.tolist()[:-1], [1.0]], r"row 0 has 3, row 39 has 1"),
    "integers": (X.long(), r"floating dtype, got torch.int64"),
    "complex": (X.to(torch.complex64), r"floating dtype, got torch.complex64"),
    "dates": (np.zeros((N, 3), "datetime64[D]"), r"got datetime64"),
    "no rows": (X[:0], r"x is empty, shape \(0, 3\)"),
    "no columns": (X[:, :0], r"x is empty, shape \(40, 0\)"),
    "a vector": (X[:, 0], r"a row for each sample, got shape \(40,\)"),
    "too narrow": (X[:, :1], r"must have 3 .*got shape"),
    "too wide": (torch.cat([X, X], 1), r"must have 3 .*got shape"),
    "nothing": (None, r"a list of numbers, got NoneType"),
    "a generator": (iter(X), r"a list of numbers, got generator|got .*iterator"),
    "sparse": (X.to_sparse(), r"must be dense"),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("what", BAD_INPUTS)
@pytest.mark.parametrize("kind", ["diagonal", "classes"])
def test_bad_inputs_are_named_and_leave_nothing_behind(tmp_path, kind, what) -> None:
    x, match = BAD_INPUTS[what]
    refused = pytest.raises((TypeError, ValueError), match=match)
    fresh, learned = model(kind), model(kind)
    learned.fit((X, targets(kind)), seed=0)
    for of in (fresh, learned):
        before = content(of, tmp_path)
        with refused:
            of.fit((x, targets(kind)), epochs=2)
        with refused:
            of.update(x, targets(kind))
        assert content(of, tmp_path) == before
    with refused:
        learned.predict(x)


Y = targets("diagonal")
BAD_TARGETS: dict[str, dict[str, tuple[Any, str]]] = {
    "diagonal": {
        "inf": (with_entry(Y, 37, math.inf), r"y must be finite, or NaN .*; got inf at row 37"),
        "large for its dtype": (with_entry(Y.double(), 37, 1e300), r"got 1e\+300 at row 37"),
        "text": (["a"] * N, r"y must hold numbers, got 'a' at row 0"),
        "none": ([*Y.tolist()[:-1], None], r"got None at row 39"),
        "two columns": (torch.stack([Y, Y], 1), r"y must have shape \(N, 1\), .*got \(40, 2\)"),
        "short": (Y[:-1], r"as many entries as x, 40, got 39"),
        "complex": (Y.to(torch.complex64), r"real numbers"),
    },
    "classes": {
        "too high": (with_entry(targets("classes"), 37, 5), r"labels must lie in 0..1, got 5 at row 37"),
        "negative": (with_entry(targets("classes"), 37, -1), r"got -1 at row 37"),
        "numbers": (targets("classes").float(), r"integer dtype, got torch.float32"),
        "text": (targets("names"), r"classes=\[\.\.\.\]"),
        "one-hot": (torch.eye(2).long()[targets("classes")], r"one class a sample, got \(40, 2\)"),
        "short": (targets("classes")[:-1], r"40.* got \(?39"),
    },
    "names": {
        "unknown": ([*targets("names")[:37], "middle", "low", "low"], r"'middle' is not among .*row 37"),
        "none": ([*targets("names")[:-1], None], r"None is not among .*row 39"),
        "lists": ([["low"]] * N, r"\['low'\] is not among .*row 0"),
    },
}


@pytest.mark.parametrize(("kind", "what"), [(kind, what) for kind, cases in BAD_TARGETS.items() for what in cases])
def test_bad_targets_are_named_and_leave_nothing_behind(tmp_path, kind, what) -> None:
    y, match = BAD_TARGETS[kind][what]
    of = model(kind)
    before = content(of, tmp_path)
    with pytest.raises((TypeError, ValueError), match=match):
        of.fit((X, y), epochs=2)
    with pytest.raises((TypeError, ValueError), match=match):
        of.update(X, y)
    with pytest.raises((TypeError, ValueError), match=f"validation: .*{match}"):
        of.fit((X, targets(kind)), validation=(X, y))
    assert content(of, tmp_path) == before
    with pytest.raises((TypeError, ValueError), match=match):
        of.evaluate(X, y)


@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", ["full", "classes"])
def test_bad_weights_are_named_by_row(tmp_path, kind, value) -> None:
    of, weights = model(kind), with_entry(torch.ones(N), 37, value)
    before = content(of, tmp_path)
    for learn in (lambda: of.fit((X, targets(kind), weights)), lambda: of.update(X, targets(kind), weights)):
        with pytest.raises(ValueError, match=f"weights must be positive and finite, got {value} at row 37"):
            learn()
    assert content(of, tmp_path) == before


def test_targets_are_never_turned_on_their_side() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    of = tagi.Regressor(net)
    y = torch.stack([Y, 2 * Y], 1)
    of.fit((X, y))
    with pytest.raises(ValueError, match=r"shape \(N, 2\)"):
        of.evaluate(X, y.T)
    with pytest.raises(ValueError, match="nothing to score"):
        of.evaluate(X, y * math.nan)


# ---- what fails while it learns --------------------------------------------------------------------------------


def loader(kind: str) -> DataLoader:
    """Bad in its third batch."""
    y = targets(kind)
    return DataLoader(TensorDataset(with_entry(X, (20, 1), math.nan), y), batch_size=8)


LATE_FAILURES = {
    "augmented to another width": (lambda kind: {"augment": lambda x: x[:, :2]}, ValueError, "epoch 2, batch 1: "),
    "augmented to nothing": (lambda kind: {"augment": lambda x: None}, TypeError, "epoch 2, batch 1: .*NoneType"),
    "an error of the user": (lambda kind: {"stop": lambda row: 1 / 0}, ZeroDivisionError, None),
}


@pytest.mark.parametrize("failure", LATE_FAILURES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_fails_late_has_not_been(tmp_path, kind, failure) -> None:
    options, error, match = LATE_FAILURES[failure]
    data = X, targets(kind)
    horizon = 50 if failure == "an error of the user" else None
    of, never = model(kind, horizon), model(kind, horizon)
    before = content(of, tmp_path)
    with pytest.raises(error, match=match):
        of.fit(data, epochs=2, seed=0, **options(kind))
    assert content(of, tmp_path) == before
    of.fit(data, epochs=2, seed=0)
    never.fit(data, epochs=2, seed=0)
    assert content(of, tmp_path) == content(never, tmp_path)
    before = content(of, tmp_path)
    with pytest.raises(error):
        of.fit(data, epochs=2, seed=0, **options(kind))
    assert content(of, tmp_path) == before
    of.update(*data)
    never.update(*data)
    assert content(of, tmp_path) == content(never, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_fit_has_learned_so_far(kind) -> None:
    """The step at which Ctrl-C comes is finished first."""
    data = X, targets(kind)

    def interrupt(x: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        return x

    of, once = model(kind), model(kind)
    with pytest.raises(KeyboardInterrupt):
        of.fit(data, epochs=3, seed=0, batch_size=N, augment=interrupt)
    seen: list[Any] = []
    once.fit(data, epochs=3, seed=0, batch_size=N, stop=lambda row: bool(seen.append(row)) or len(seen) == 2)
    assert not of.net.training
    for interrupted, stopped in zip(of.posterior.parameters, once.posterior.parameters, strict=True):
        assert torch.equal(interrupted.mean, stopped.mean)


def test_a_bad_batch_of_a_loader_is_named_by_batch_and_row(tmp_path) -> None:
    of = model("classes")
    of.update(X, targets("classes"))  # so that the first inputs are not looked at beforehand
    before = content(of, tmp_path)
    with pytest.raises(ValueError, match=r"epoch 1, batch 3: x must be finite; got nan at row 4, column 1"):
        of.fit(loader("classes"))
    assert content(of, tmp_path) == before


@pytest.mark.parametrize("rows", [1, N])
@pytest.mark.parametrize("kind", ["diagonal", "classes", "full"])
def test_numbers_that_run_off_are_named_and_leave_nothing_behind(tmp_path, kind, rows) -> None:
    of = model(kind)
    of.fit((X, targets(kind)), seed=0)
    before = content(of, tmp_path)
    x = with_entry(X[:rows], (0, 1), 1e30) if kind != "full" else 1e30 * X[:rows]
    survives = kind == "full" and rows == 1  # in float64 a single row far out is no trouble
    refused = pytest.raises(FloatingPointError, match=r"the furthest out: x = \S*e\+30 at row \d+, column \d")
    with contextlib.nullcontext() if survives else refused:
        of.update(x, targets(kind)[:rows])
    assert (content(of, tmp_path) == before) != survives


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("kind", ["diagonal", "full", "predicted"])
def test_scales_do_not_matter_to_a_regressor(kind, scale) -> None:
    of, plain = model(kind), model(kind)
    of.fit((scale * X, scale * Y), epochs=2, seed=0)
    plain.fit((X, Y), epochs=2, seed=0)
    assert torch.allclose(of.predict(scale * X).mean / scale, plain.predict(X).mean, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_row_and_columns_that_do_not_vary_are_learned(kind) -> None:
    constant = with_entry(X, (slice(None), 1), 3.0)
    y = targets(kind)
    for x, labels in ((X[:1], y[:1]), (constant, y), (constant, y[:1] * N if kind == "names" else y[:1].repeat(N))):
        of = model(kind)
        of.fit((x, labels), epochs=2, seed=0)
        prediction = of.predict(X)
        values = prediction.mean if kind not in ("classes", "names") else prediction.probs
        assert torch.isfinite(values).all()


# ---- tables of all kinds ---------------------------------------------------------------------------------------

TABLES = {
    "float64": X.double(),
    "array": X.numpy(),
    "read-only array": READ_ONLY,
    "reversed array": X.numpy()[::-1][::-1],
    "big-endian array": X.numpy().astype(">f4"),
    "frame": Frame(X.numpy(), AGES),
    "frame of objects": Frame(X.double().numpy().astype(object), AGES),
    "lists": X.tolist(),
    "tuples": [tuple(row) for row in X.tolist()],
    "list of tensors": list(X),
    "list of arrays": list(X.numpy()),
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_may_be_anything_with_numbers(table) -> None:
    assert torch.equal(as_numbers("x", TABLES[table]).float(), X)
    models = [model("diagonal"), model("diagonal")]
    models[0].fit((TABLES[table], Y.tolist()), seed=0)
    models[1].fit((X.double(), Y.double()), seed=0)
    predictions = [models[0].predict(TABLES[table]), models[1].predict(X)]
    assert torch.allclose(predictions[0].mean, predictions[1].mean, atol=1e-5)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("table.csv", "data must be a pair .*got str"),
        (X, "data must be a pair .*got Tensor"),
        (Frame(X.numpy(), AGES), "data must be a pair .*got Frame"),
        ((X, Y, Y, Y), "must be a pair"),
        ([X, Y, Y], "must be a pair"),
        ([], "empty"),
        (DataLoader([{"x": 1.0, "y": 2.0}] * 8, 4), "must be a pair .*got dict"),
        (DataLoader(list(range(8)), 4), "must be a pair .*got Tensor"),
    ],
)
def test_data_that_are_none_are_refused(tmp_path, data, match) -> None:
    of = model("diagonal")
    before = content(of, tmp_path)
    with pytest.raises((TypeError, ValueError), match=match):
        of.fit(data)
    with pytest.raises((TypeError, ValueError), match=f"validation: .*{match}"):
        of.fit((X, Y), validation=data)
    assert content(of, tmp_path) == before


# ---- files -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_written_is_refused_before_learning(tmp_path) -> None:
    of = model("diagonal")
    before = content(of, tmp_path)
    (tmp_path / "file").write_bytes(b"")
    for path, error in ((tmp_path, IsADirectoryError), (tmp_path / "file" / "fit", OSError)):
        with pytest.raises(error, match=re_escaped(tmp_path)):
            of.fit((X, Y), checkpoint=path, stop=lambda row: pytest.fail("an epoch was learned"))
    assert content(of, tmp_path) == before
    of.fit((X, Y), checkpoint=tmp_path / "new" / "folder" / "fit")
    assert (tmp_path / "new" / "folder" / "fit").is_file()


@pytest.mark.parametrize("kept", [0, 8, 0.5])
def test_a_truncated_file_is_refused_and_changes_nothing(tmp_path, kept) -> None:
    of = model("full")
    whole = content(of, tmp_path)
    (tmp_path / "cut").write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(tagi.CheckpointError, match="cut"):
        tagi.load(tmp_path / "cut")
    with pytest.raises(tagi.CheckpointError, match="cut"):
        of.fit((X, Y), checkpoint=tmp_path / "cut", resume=True)
    assert content(of, tmp_path) == whole


def test_an_interrupt_within_a_step_keeps_the_last_whole_epoch(tmp_path, monkeypatch) -> None:
    """What is written goes on to the bit; a step under way would not."""
    data, path = (X, Y), tmp_path / "fit"
    whole, interrupted, resumed = model("diagonal"), model("diagonal"), model("diagonal")
    whole.fit(data, epochs=3, seed=0)
    follow, calls = interrupted.average.follow, 0

    def follow_until_stopped() -> None:
        nonlocal calls
        calls += 1
        if calls == 8:  # the second step of the third epoch
            raise KeyboardInterrupt
        follow()

    monkeypatch.setattr(interrupted.average, "follow", follow_until_stopped)
    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(data, epochs=3, seed=0, checkpoint=path)
    assert [row["epoch"] for row in resumed.fit(data, epochs=3, seed=0, checkpoint=path, resume=True)] == [1, 2, 3]
    assert content(resumed, tmp_path) == content(whole, tmp_path)


# ---- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda net: tagi.Regressor(net, noise=-1.0), "noise .*-1"),
        (lambda net: tagi.Regressor(net, noise=None), "noise .*None"),
        (lambda net: tagi.Regressor(net, noise=[1.0]), r"noise .*\[1.0\]"),
        (lambda net: tagi.Regressor(net, covariance="wide"), "covariance .*'wide'"),
        (lambda net: tagi.Regressor(net, horizon=0), "horizon .*0"),
        (lambda net: tagi.Regressor(net, horizon="long"), "horizon .*long"),
        (lambda net: tagi.Classifier(net, classes=2, noise=None), "noise .*None"),
        (lambda net: tagi.Classifier(net, classes=2, noise=-1), "noise .*-1"),
        (lambda net: tagi.Classifier(net, classes="ab"), "classes .*'ab'"),
        (lambda net: tagi.Classifier(net, classes=2.0), "classes .*2.0"),
        (lambda net: tagi.Classifier(net, classes=None), "classes .*None"),
        (lambda net: tagi.Classifier(net, classes=np.float64(2)), "classes .*2.0"),
        (lambda net: tagi.Regressor(net, noise=np.float32(-1)), "noise .*-1"),
        (lambda net: tagi.Classifier(net, classes=[["a"], ["b"]]), r"classes .*\['a'\]"),
    ],
)
def test_arguments_are_named(build, match) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        build(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))


@pytest.mark.parametrize("seed", ["a", 1.5])
def test_a_seed_is_a_whole_number(seed) -> None:
    with pytest.raises(TypeError, match="seed must be a whole number"):
        model("diagonal").fit((X, Y), seed=seed)


def re_escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\")
