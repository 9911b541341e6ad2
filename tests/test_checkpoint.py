"""Checkpoints: bit-equal round trips, and files that are refused whole."""

import contextlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import torchtagi as tagi
from torchtagi import checkpoint
from torchtagi.models.classifiers import ResidualBlock

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "AvgPool2d": lambda: tagi.nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "BatchNorm1d": lambda: tagi.nn.BatchNorm1d(4, 1e-3, 0.2, correction=1, use_running=True, sync=True),
    "BatchNorm2d": lambda: tagi.nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    "ClosedFormSoftmax": tagi.nn.ClosedFormSoftmax,
    "Conv2d": lambda: tagi.nn.Conv2d(4, 6, (3, 2), 2, (1, 0), groups=2, bias=False, prior="xavier", var_gain=0.5),
    "ConvTranspose2d": lambda: tagi.nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, mean_gain=0.3),
    "EvenExp": tagi.nn.EvenExp,
    "Exp": tagi.nn.Exp,
    "Flatten": lambda: tagi.nn.Flatten(1, 2),
    "Identity": tagi.nn.Identity,
    "LayerNorm": lambda: tagi.nn.LayerNorm((4, 8, 8), 1e-3, channel_affine=True, correction=1),
    "LeakyReLU": lambda: tagi.nn.LeakyReLU(0.3),
    "Linear": lambda: tagi.nn.Linear(8, 5, bias=False, prior="kaiming", mean_gain=2.0, var_gain=0.5),
    "MaxPool2d": lambda: tagi.nn.MaxPool2d(2, 1, stochastic=True),
    "MixtureReLU": tagi.nn.MixtureReLU,
    "MixtureSigmoid": tagi.nn.MixtureSigmoid,
    "MixtureTanh": tagi.nn.MixtureTanh,
    "ReLU": tagi.nn.ReLU,
    "Remax": tagi.nn.Remax,
    "ResidualBlock": lambda: ResidualBlock(4, 6, 2),
    "Sequential": lambda: tagi.nn.Sequential(tagi.nn.Linear(8, 3), tagi.nn.Sequential(tagi.nn.ReLU())),
    "Sigmoid": tagi.nn.Sigmoid,
    "Softplus": lambda: tagi.nn.Softplus(2.0, 10.0),
    "Tanh": tagi.nn.Tanh,
    "Unflatten": lambda: tagi.nn.Unflatten(3, (2, 4)),
    "ZeroPad2d": lambda: tagi.nn.ZeroPad2d((0, 1, 2, 3)),
}

LIKELIHOODS: dict[str, Callable[[], nn.Module]] = {
    "Binary": lambda: tagi.Binary(0.3),
    "HeteroscedasticRegression": tagi.HeteroscedasticRegression,
    "HierarchicalClassification": lambda: tagi.HierarchicalClassification(10, [0.1 * i for i in range(1, 12)]),
    "Regression": lambda: tagi.Regression([0.3, 0.7]),
}
LEARNED: dict[str, Callable[[], nn.Module]] = {
    "Binary, learned": lambda: tagi.Binary(0.3, learn_noise=True),
    "HierarchicalClassification, learned": lambda: tagi.HierarchicalClassification(10, 0.1, learn_noise=True),
    "Regression, learned": lambda: tagi.Regression(0.3, learn_noise=True),
}


def batch_norm_net() -> nn.Sequential:
    return nn.Sequential(
        tagi.nn.Conv2d(2, 4, 3, padding=1),
        tagi.nn.BatchNorm2d(4),
        tagi.nn.ReLU(),
        tagi.nn.Flatten(),
        tagi.nn.Linear(4 * 36, 11),
    )


def trained(net: nn.Module) -> nn.Module:
    """A few steps, so that every tensor has left its prior."""
    posterior, likelihood = tagi.Update(net), tagi.HierarchicalClassification(10, 0.5)
    for _ in range(3):
        likelihood(net(torch.randn(6, 2, 6, 6)), torch.randint(0, 10, (6,))).backward()
        posterior.step()
        posterior.zero_grad()
    return net


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def assert_bit_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value.dtype == other[key].dtype, key
        assert torch.equal(value, other[key]), key


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> None:
    """Change a checkpoint's tensors and header in place."""
    tensors = load_file(path)
    header = read_header(path)
    change(tensors, header)
    save_file(tensors, path, {"torchtagi": json.dumps(header)})


def read_header(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["torchtagi"])
    return header


# ---- round trips ---------------------------------------------------------------------------------------------


def test_every_buildable_kind_has_an_example_here() -> None:
    assert {**LAYERS, **LIKELIHOODS}.keys() == checkpoint.BUILDABLE.keys()


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_rebuilt_with_its_arguments(name: str, tmp_path: Path) -> None:
    layer = LAYERS[name]()
    for key, value in layer.state_dict().items():
        if value.is_floating_point():
            value.uniform_(0.1, 2.0)
        elif key.endswith("num_batches_tracked"):
            value.fill_(7)
    tagi.save(tmp_path / "layer.safetensors", layer)
    rebuilt = tagi.load(tmp_path / "layer.safetensors").net
    assert type(rebuilt) is type(layer)
    assert repr(rebuilt) == repr(layer)
    assert_bit_equal(snapshot(rebuilt), snapshot(layer))
    shape = (3, 4) if name == "BatchNorm1d" else (3, 4, 8, 8)
    x = tagi.Gaussian(torch.randn(shape), torch.rand(shape))
    with torch.no_grad():
        expected, value = layer.eval()(x), rebuilt.eval()(x)
    assert torch.equal(value.mean, expected.mean)
    assert torch.equal(value.variance, expected.variance)


@pytest.mark.parametrize("name", [*LIKELIHOODS, *LEARNED])
def test_every_likelihood_is_rebuilt_with_its_noise(name: str, tmp_path: Path) -> None:
    likelihood = {**LIKELIHOODS, **LEARNED}[name]()
    for noise in likelihood.buffers():
        if noise.is_floating_point() and bool((noise > 0).all()):
            noise.mul_(0.7)  # a decayed noise, not the constructor's
    tagi.save(tmp_path / "a.safetensors", tagi.nn.Linear(2, 2), likelihood)
    rebuilt = tagi.load(tmp_path / "a.safetensors").likelihood
    assert type(rebuilt) is type(likelihood)
    assert_bit_equal(snapshot(rebuilt), snapshot(likelihood))
    assert repr(rebuilt) == repr(likelihood)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_trained_network_comes_back_bit_equal(memory_format: torch.memory_format, tmp_path: Path) -> None:
    net = trained(batch_norm_net().to(memory_format=memory_format)).eval()
    likelihood = tagi.HierarchicalClassification(10, 0.25)
    path, extra = tmp_path / "net.safetensors", {"epoch": 3, "notes": ["é", None, 1.5]}
    tagi.save(path, net, likelihood, extra)
    saved = tagi.load(path)
    assert saved.extra == extra
    assert saved.versions["torchtagi"] == tagi.__version__
    assert saved.versions["torch"] == torch.__version__
    assert_bit_equal(snapshot(saved.net), snapshot(net))
    assert saved.net[1].num_batches_tracked.item() == 3
    assert isinstance(saved.likelihood, tagi.HierarchicalClassification)
    assert_bit_equal(snapshot(saved.likelihood), snapshot(likelihood))
    other = batch_norm_net().to(memory_format=memory_format).eval()
    assert tagi.restore(path, other, tagi.HierarchicalClassification(10, 1.0)) == extra
    assert_bit_equal(snapshot(other), snapshot(net))
    assert other[0].weight.mean.is_contiguous(memory_format=memory_format)
    x = torch.randn(2, 2, 6, 6)
    with torch.no_grad():
        assert torch.equal(other(x).mean, net(x).mean)
        assert torch.equal(other(x).var, net(x).var)
        torch.testing.assert_close(saved.net.eval()(x).mean, net(x).mean)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_network_keeps_its_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    net = nn.Sequential(tagi.nn.Linear(3, 2), tagi.nn.BatchNorm1d(2)).to(dtype)
    for parameter in net.parameters():
        parameter.data.uniform_(0.1, 1.0)
    likelihood = tagi.Regression([0.3, 0.7]).to(dtype)
    likelihood.noise_var.uniform_(0.1, 1.0)
    tagi.save(tmp_path / "a.safetensors", net, likelihood)
    saved = tagi.load(tmp_path / "a.safetensors")
    assert_bit_equal(snapshot(saved.net), snapshot(net))
    assert_bit_equal(snapshot(saved.likelihood), snapshot(likelihood))
    other = nn.Sequential(tagi.nn.Linear(3, 2), tagi.nn.BatchNorm1d(2)).to(dtype)
    tagi.restore(tmp_path / "a.safetensors", other)
    assert_bit_equal(snapshot(other), snapshot(net))


def test_a_network_can_be_restored_without_its_likelihood(tmp_path: Path) -> None:
    net = tagi.nn.Linear(3, 2)
    tagi.save(tmp_path / "a.safetensors", net, tagi.Regression(0.5), {"a": 1})
    other = tagi.nn.Linear(3, 2)
    assert tagi.restore(tmp_path / "a.safetensors", other) == {"a": 1}
    assert_bit_equal(snapshot(other), snapshot(net))


def test_further_modules_are_restored_by_name_and_passed_over_by_load(tmp_path: Path) -> None:
    path = tmp_path / "two.safetensors"
    net, other = small_net(), Residual()
    tagi.save(path, net, tagi.Regression(0.5), other=other)
    assert_bit_equal(snapshot(tagi.load(path).net), snapshot(net))
    again, fresh = small_net(), Residual()
    tagi.restore(path, again, tagi.Regression(0.1), other=fresh)
    assert_bit_equal(snapshot(fresh), snapshot(other))
    before = snapshot(again)
    with pytest.raises(tagi.CheckpointError, match=r"two\.safetensors: missing\..* is missing"):
        tagi.restore(path, again, missing=Residual())
    assert_bit_equal(snapshot(again), before)


def test_saving_makes_folders_and_takes_a_string(tmp_path: Path) -> None:
    net = tagi.nn.Linear(3, 2)
    tagi.save(str(tmp_path / "some" / "where" / "a.safetensors"), net)
    loaded = tagi.load(str(tmp_path / "some" / "where" / "a.safetensors"))
    assert_bit_equal(snapshot(loaded.net), snapshot(net))
    assert loaded.likelihood is None
    assert loaded.extra == {}


def test_saving_leaves_the_network_as_it_is(tmp_path: Path) -> None:
    net = trained(batch_norm_net()).train()
    before = snapshot(net)
    tagi.save(tmp_path / "a.safetensors", net)
    assert_bit_equal(snapshot(net), before)
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_saved_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    tagi.save(tmp_path / "a.safetensors", tagi.nn.Linear(1, 1))
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


class Residual(nn.Module):
    """A network of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = tagi.nn.Linear(3, 3)
        self.head = nn.Sequential(tagi.nn.ReLU(), tagi.nn.Linear(3, 2))

    def forward(self, x: Tensor) -> tagi.Gaussian:
        return self.head(self.body(x) + x)


def test_a_module_of_the_users_own_is_restored_but_not_loaded(tmp_path: Path) -> None:
    net, path = Residual(), tmp_path / "own.safetensors"
    tagi.save(path, net, tagi.Regression(0.5), {"step": 5})
    with pytest.raises(tagi.CheckpointError, match=r"own\.safetensors.*restore"):
        tagi.load(path)
    other = Residual()
    assert tagi.restore(path, other) == {"step": 5}
    assert_bit_equal(snapshot(other), snapshot(net))


def test_a_users_class_named_like_a_layer_is_not_taken_for_it(tmp_path: Path) -> None:
    impostor = type("Linear", (Residual,), {})()
    tagi.save(tmp_path / "a.safetensors", nn.Sequential(impostor))
    with pytest.raises(tagi.CheckpointError, match="restore"):
        tagi.load(tmp_path / "a.safetensors")


def test_a_layer_used_twice_is_restored_as_one(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        layer = tagi.nn.Linear(3, 3)
        return nn.Sequential(layer, tagi.nn.ReLU(), layer)

    net, other = tied(), tied()
    tagi.save(tmp_path / "tied.safetensors", net)
    tagi.restore(tmp_path / "tied.safetensors", other)
    assert_bit_equal(snapshot(other), snapshot(net))
    assert other[0] is other[2]


# ---- files that are refused ----------------------------------------------------------------------------------


def small_net() -> nn.Sequential:
    return nn.Sequential(tagi.nn.Linear(3, 4), tagi.nn.BatchNorm1d(4), tagi.nn.ReLU(), tagi.nn.Linear(4, 2))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    tagi.save(path, small_net(), tagi.Regression(0.5), {"epoch": 1})
    return path


def assert_refused(path: Path, *, by_load: bool = True, message: str | None = None) -> None:
    """One kind of error, which names the file; nothing is written."""
    net, likelihood = small_net(), tagi.Regression(2.0)
    before, noise = snapshot(net), snapshot(likelihood)
    with pytest.raises(tagi.CheckpointError, match=message) as caught:
        tagi.restore(path, net, likelihood)
    assert path.name in str(caught.value)
    assert_bit_equal(snapshot(net), before)
    assert_bit_equal(snapshot(likelihood), noise)
    if by_load:
        with pytest.raises(tagi.CheckpointError, match=message) as caught:
            tagi.load(path)
        assert path.name in str(caught.value)


def test_a_file_cut_anywhere_is_refused(good: Path) -> None:
    content = good.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    ends = {*range(0, len(content), 61), 1, 7, 8, 9, header - 1, header, header + 1, len(content) - 1}
    for end in sorted(ends):
        good.write_bytes(content[:end])
        assert_refused(good)


def test_bytes_after_the_end_are_refused(good: Path) -> None:
    good.write_bytes(good.read_bytes() + b"\0" * 16)
    assert_refused(good)


@pytest.mark.parametrize("size", [0, 1, 8, 9, 64, 1000])
def test_random_bytes_are_refused(size: int, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(size)
    content = bytes(torch.randint(0, 256, (size,), generator=generator).tolist())
    for start in (b"", (size).to_bytes(8, "little"), b"\x08\0\0\0\0\0\0\0{}      "):
        (tmp_path / "noise.safetensors").write_bytes(start + content)
        assert_refused(tmp_path / "noise.safetensors")


def test_a_damaged_header_is_refused_or_harmless(good: Path) -> None:
    """Whatever one byte of the header becomes: a CheckpointError, or a network."""
    net = small_net()
    content = good.read_bytes()
    length = int.from_bytes(content[:8], "little")
    for position in range(0, 8 + length, 5):
        damaged = bytearray(content)
        damaged[position] ^= 0x80 if position % 2 else 0x01
        good.write_bytes(bytes(damaged))
        with contextlib.suppress(tagi.CheckpointError):
            assert isinstance(tagi.load(good).net, nn.Module)
        before = snapshot(net)
        try:
            tagi.restore(good, net)
        except tagi.CheckpointError:
            assert_bit_equal(snapshot(net), before)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    assert_refused(tmp_path / "folder.safetensors")


def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    for metadata in (None, {"format": "pt"}, {"torchtagi": "not json"}, {"torchtagi": "[]"}, {"torchtagi": "3"}):
        save_file({"weight": torch.ones(2, 2)}, path, metadata)
        assert_refused(path)


class Detonator:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_pickle_is_refused_and_not_opened(tmp_path: Path) -> None:
    path, mark = tmp_path / "net.pt", tmp_path / "detonated"
    path.write_bytes(pickle.dumps(Detonator(mark)))
    assert_refused(path)
    torch.save({"net.weight": torch.ones(2), "code": Detonator(mark)}, path)
    assert_refused(path)
    assert not mark.exists()


def set_tensor(key: str, value: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def change(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        tensors[key] = value(tensors.get(key, torch.zeros(2)))

    return change


def with_entry(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


DAMAGES: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, Any]], Any], str]] = {
    "shape": (
        set_tensor("net.3.weight.mean", lambda t: t.t().contiguous()),
        r"net\.3\.weight\.mean.*\(4, 2\).*\(2, 4\)",
    ),
    "fewer outputs": (set_tensor("net.3.bias.var", lambda t: t[:1]), r"net\.3\.bias\.var"),
    "key missing": (lambda tensors, header: tensors.pop("net.0.bias.mean"), r"net\.0\.bias\.mean.*missing"),
    "key too many": (set_tensor("net.9.weight.mean", lambda t: t), r"net\.9\.weight\.mean"),
    "variance negative": (set_tensor("net.0.weight.var", with_entry(-1e-3)), r"net\.0\.weight\.var.*positive"),
    "variance zero": (set_tensor("net.3.bias.var", with_entry(0.0)), r"net\.3\.bias\.var.*positive"),
    "variance nan": (set_tensor("net.0.weight.var", with_entry(float("nan"))), r"net\.0\.weight\.var"),
    "mean nan": (set_tensor("net.0.weight.mean", with_entry(float("nan"))), r"net\.0\.weight\.mean.*finite"),
    "mean infinite": (set_tensor("net.3.bias.mean", with_entry(float("inf"))), r"net\.3\.bias\.mean.*finite"),
    "running mean nan": (
        set_tensor("net.1.running_mean", with_entry(float("nan"))),
        r"net\.1\.running_mean.*finite",
    ),
    "running variance negative": (set_tensor("net.1.running_var", with_entry(-1.0)), r"net\.1\.running_var"),
    "noise negative": (set_tensor("likelihood.noise_var", lambda t: -t), r"likelihood\.noise_var"),
    "noise zero": (set_tensor("likelihood.noise_var", lambda t: 0 * t), r"likelihood\.noise_var"),
    "noise missing": (
        lambda tensors, header: tensors.pop("likelihood.noise_var"),
        r"likelihood\.noise_var.*missing",
    ),
    "format newer": (lambda tensors, header: header.update(format=2), r"format 2.*reads 1"),
    "format missing": (lambda tensors, header: header.pop("format"), "checkpoint"),
    "format a word": (lambda tensors, header: header.update(format="one"), "one"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_does_not_fit_is_refused_whole(damage: str, good: Path) -> None:
    change, message = DAMAGES[damage]
    rewrite(good, change)
    assert_refused(good, message=message)


def test_a_network_is_not_filled_if_the_likelihood_does_not_fit(good: Path) -> None:
    net, before = small_net(), None
    before = snapshot(net)
    with pytest.raises(tagi.CheckpointError, match=r"likelihood\.noise_var.*\(\).*\(2,\)"):
        tagi.restore(good, net, tagi.Regression([0.5, 0.6]))
    assert_bit_equal(snapshot(net), before)


def test_a_likelihood_that_was_not_saved_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    tagi.save(path, small_net())
    assert_refused(path, by_load=False, message=r"likelihood\.noise_var.*missing")


# ---- architectures that are refused --------------------------------------------------------------------------

LINEAR = {"type": "Linear", "arguments": {"in_features": 3, "out_features": 4}}

ARCHITECTURES: dict[str, Any] = {
    "os.system": {"type": "os.system", "arguments": {"command": "true"}},
    "system": {"type": "system", "arguments": {"command": "true"}},
    "torch's own layer": {"type": "torch.nn.Linear", "arguments": {"in_features": 3, "out_features": 4}},
    "full name": {"type": "torchtagi.nn.Linear", "arguments": LINEAR["arguments"]},
    "abstract": {"type": "Layer", "arguments": {}},
    "module": {"type": "Module", "arguments": {}},
    "eval": {"type": "eval", "arguments": {"source": "1"}},
    "dunder": {"type": "__class__", "arguments": {}},
    "inside a sequence": {"type": "Sequential", "parts": [["0", {"type": "os.system", "arguments": {}}]]},
    "a word": "os.system",
    "a list": [LINEAR],
    "nothing in it": {},
    "no arguments": {"type": "Linear"},
    "no parts": {"type": "Sequential"},
    "type a list": {"type": ["Linear"], "arguments": {}},
    "arguments a list": {"type": "Linear", "arguments": [3, 4]},
    "unknown argument": {"type": "Linear", "arguments": {"in_features": 3, "out_features": 4, "hook": "os.system"}},
    "bad argument": {"type": "Linear", "arguments": {"in_features": -3, "out_features": 4}},
    "argument of a wrong type": {
        "type": "Conv2d",
        "arguments": {"in_channels": 1, "out_channels": 1, "kernel_size": {}},
    },
    "device": {"type": "Linear", "arguments": {**LINEAR["arguments"], "device": "nowhere"}},
    "too large to exist": {"type": "Linear", "arguments": {"in_features": 10**9, "out_features": 10**9}},
    "a module of layers": {"type": "ResidualBlock", "arguments": {"channels_in": 1, "channels": 1, "layers": "os"}},
    "part names": {"type": "Sequential", "parts": [["a.b", LINEAR]]},
    "parts that are no pairs": {"type": "Sequential", "parts": [LINEAR]},
    "fits no tensor": {"type": "Linear", "arguments": {"in_features": 5, "out_features": 4}},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_of_unknown_parts_is_refused_and_runs_nothing(
    name: str, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "system", calls.append)
    rewrite(good, lambda tensors, header: header["architecture"].update(net=ARCHITECTURES[name]))
    with pytest.raises(tagi.CheckpointError, match=r"good\.safetensors"):
        tagi.load(good)
    assert calls == []


@pytest.mark.parametrize("kind", ["Dropout", "torch.nn.Dropout", "GELU", "ModuleList", "Layer", "dict", "Gaussian"])
def test_only_the_projects_own_layers_are_built(kind: str, tmp_path: Path) -> None:
    """Even a stranger that would fit, since it needs no tensors and no arguments."""
    path = tmp_path / "a.safetensors"
    tagi.save(path, tagi.nn.ReLU(), tagi.Regression(0.5))
    tagi.load(path)
    rewrite(path, lambda tensors, header: header["architecture"]["net"].update(type=kind))
    with pytest.raises(tagi.CheckpointError, match=rf"a\.safetensors.*{kind}"):
        tagi.load(path)


@pytest.mark.parametrize("architecture", [None, [], "net", {}, {"likelihood": LINEAR}])
def test_an_architecture_without_a_network_is_refused(architecture: Any, good: Path) -> None:
    rewrite(good, lambda tensors, header: header.update(architecture=architecture))
    with pytest.raises(tagi.CheckpointError, match=r"good\.safetensors"):
        tagi.load(good)


@pytest.mark.parametrize("key", ["architecture", "extra", "versions"])
def test_a_header_with_a_part_missing_is_refused(key: str, good: Path) -> None:
    rewrite(good, lambda tensors, header: header.pop(key))
    with pytest.raises(tagi.CheckpointError, match=r"good\.safetensors"):
        tagi.load(good)


# ---- a crash while writing -----------------------------------------------------------------------------------


def fail(*args: Any, **kwargs: Any) -> Any:
    raise OSError(5, "Input/output error")


def interrupt(*args: Any, **kwargs: Any) -> Any:
    raise KeyboardInterrupt


CRASHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "replace": lambda patch: patch.setattr(os, "replace", fail),
    "sync": lambda patch: patch.setattr(os, "fsync", fail),
    "interrupt": lambda patch: patch.setattr(os, "fsync", interrupt),
}


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("exists", [True, False])
def test_a_crash_while_writing_leaves_the_old_file_and_nothing_else(
    crash: str, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.safetensors"
    if exists:
        tagi.save(path, small_net())
    old = path.read_bytes() if exists else None
    with monkeypatch.context() as patch:
        CRASHES[crash](patch)
        with pytest.raises((OSError, KeyboardInterrupt)):
            tagi.save(path, small_net())
    assert [file.name for file in tmp_path.iterdir()] == (["net.safetensors"] if exists else [])
    if exists:
        assert path.read_bytes() == old
        tagi.load(path)


@pytest.mark.parametrize("room", [0, 700])
def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(room: int, good: Path) -> None:
    """The system itself refuses to let a file grow past `room` bytes."""
    resource = pytest.importorskip("resource")
    old = good.read_bytes()
    assert len(old) > room
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            tagi.save(good, small_net(), tagi.Regression(0.5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert good.read_bytes() == old
    assert [file.name for file in good.parent.iterdir()] == [good.name]


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final name only ever changes by a rename of a finished, synced file."""
    path, events = tmp_path / "net.safetensors", []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        events.append("sync")
        sync(handle)

    def replaced(source: Any, target: Any) -> None:
        events.append("replace")
        assert Path(target) == path
        assert Path(source).parent == path.parent
        tagi.load(source)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    tagi.save(path, small_net())
    assert events.index("sync") < events.index("replace")


def test_extra_that_is_no_json_leaves_the_old_file(good: Path) -> None:
    old = good.read_bytes()
    with pytest.raises(TypeError, match="JSON"):
        tagi.save(good, small_net(), extra={"bad": object()})
    assert good.read_bytes() == old
    assert [file.name for file in good.parent.iterdir()] == [good.name]


def test_torchs_own_sequential_comes_back_as_ours(tmp_path: Path) -> None:
    net = torch.nn.Sequential(tagi.nn.Linear(3, 4), tagi.nn.ReLU())
    tagi.save(tmp_path / "net.safetensors", net)
    rebuilt = tagi.load(tmp_path / "net.safetensors").net
    assert type(rebuilt) is tagi.nn.Sequential
    assert torch.equal(rebuilt(torch.ones(2, 3)).mean, net(torch.ones(2, 3)).mean)


def test_a_layer_without_parameters_may_be_used_twice(tmp_path: Path) -> None:
    torch.manual_seed(0)
    relu = tagi.nn.ReLU()
    net = nn.Sequential(tagi.nn.Linear(3, 4), relu, tagi.nn.Linear(4, 4), relu, tagi.nn.Linear(4, 2))
    tagi.save(tmp_path / "net", net)
    x = torch.randn(5, 3)
    assert torch.equal(tagi.load(tmp_path / "net").net(x).mean, net(x).mean)


def test_parameters_used_twice_are_restored_but_not_loaded(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        net = nn.Sequential(tagi.nn.Linear(3, 3), tagi.nn.ReLU(), tagi.nn.Linear(3, 3))
        net[2].weight = net[0].weight
        return net

    net, other = tied(), tied()
    tagi.save(tmp_path / "net", net)
    with pytest.raises(tagi.CheckpointError, match="parameters used twice"):
        tagi.load(tmp_path / "net")
    checkpoint.restore(tmp_path / "net", other)
    x = torch.randn(5, 3)
    assert torch.equal(other(x).mean, net(x).mean)
