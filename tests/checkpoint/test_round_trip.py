"""What was saved comes back bit-equal."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_checkpoints import assert_bit_equal, batch_norm_net, small_net, snapshot, trained
from torch import Tensor, nn

import torchtagi as tagi
from torchtagi import checkpoint
from torchtagi import checkpoint as files

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "AdaptiveAvgPool2d": lambda: tagi.nn.AdaptiveAvgPool2d((2, 3)),
    "AvgPool2d": lambda: tagi.nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "BatchNorm1d": lambda: tagi.nn.BatchNorm1d(4, 1e-3, 0.2, correction=1, use_running=True, sync=True),
    "BatchNorm2d": lambda: tagi.nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    "ClosedFormSoftmax": tagi.nn.ClosedFormSoftmax,
    "Conv2d": lambda: tagi.nn.Conv2d(4, 6, (3, 2), 2, (1, 0), groups=2, bias=False, prior="xavier"),
    "ConvTranspose2d": lambda: tagi.nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2),
    "EvenExp": tagi.nn.EvenExp,
    "Exp": tagi.nn.Exp,
    "Flatten": lambda: tagi.nn.Flatten(1, 2),
    "Identity": tagi.nn.Identity,
    "LayerNorm": lambda: tagi.nn.LayerNorm((4, 8, 8), 1e-3, correction=1),
    "LeakyReLU": lambda: tagi.nn.LeakyReLU(0.3),
    "Linear": lambda: tagi.nn.Linear(8, 5, bias=False, prior="he"),
    "MaxPool2d": lambda: tagi.nn.MaxPool2d(2, 1),
    "MixtureReLU": tagi.nn.MixtureReLU,
    "MixtureSigmoid": tagi.nn.MixtureSigmoid,
    "MixtureTanh": tagi.nn.MixtureTanh,
    "ReLU": tagi.nn.ReLU,
    "Remax": tagi.nn.Remax,
    "Residual": lambda: tagi.nn.Residual(tagi.nn.Conv2d(4, 4, 3, padding=1), tagi.nn.Conv2d(4, 4, 1)),
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
    "OneVsRest": lambda: tagi.OneVsRest(3, [0.3, 0.7, 0.1]),
    "Regression": lambda: tagi.Regression([0.3, 0.7]),
    "RelativeNoise": lambda: tagi.likelihoods.RelativeNoise([0.3, 0.7]),
}
LEARNED: dict[str, Callable[[], nn.Module]] = {
    "Binary, learned": lambda: tagi.Binary(0.3, learn_noise=True),
    "HierarchicalClassification, learned": lambda: tagi.HierarchicalClassification(10, 0.1, learn_noise=True),
    "OneVsRest, learned": lambda: tagi.OneVsRest(10, 0.1, learn_noise=True),
    "Regression, learned": lambda: tagi.Regression(0.3, learn_noise=True),
    "RelativeNoise, learned": lambda: tagi.likelihoods.RelativeNoise([0.3], learn_noise=True),
}


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
    files.save(tmp_path / "layer.safetensors", layer)
    rebuilt = files.load(tmp_path / "layer.safetensors").net
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
    files.save(tmp_path / "a.safetensors", tagi.nn.Linear(2, 2), likelihood)
    rebuilt = files.load(tmp_path / "a.safetensors").likelihood
    assert type(rebuilt) is type(likelihood)
    assert_bit_equal(snapshot(rebuilt), snapshot(likelihood))
    assert repr(rebuilt) == repr(likelihood)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_trained_network_comes_back_bit_equal(memory_format: torch.memory_format, tmp_path: Path) -> None:
    net = trained(batch_norm_net().to(memory_format=memory_format)).eval()
    likelihood = tagi.HierarchicalClassification(10, 0.25)
    path, extra = tmp_path / "net.safetensors", {"epoch": 3, "notes": ["é", None, 1.5]}
    files.save(path, net, likelihood, extra)
    saved = files.load(path)
    assert saved.extra == extra
    assert saved.versions["torchtagi"] == tagi.__version__
    assert saved.versions["torch"] == torch.__version__
    assert_bit_equal(snapshot(saved.net), snapshot(net))
    assert saved.net[1].num_batches_tracked.item() == 3
    assert isinstance(saved.likelihood, tagi.HierarchicalClassification)
    assert_bit_equal(snapshot(saved.likelihood), snapshot(likelihood))
    other = batch_norm_net().to(memory_format=memory_format).eval()
    assert files.restore(path, other, tagi.HierarchicalClassification(10, 1.0)) == extra
    assert_bit_equal(snapshot(other), snapshot(net))
    assert other[0].weight.mean.is_contiguous(memory_format=memory_format)
    x = torch.randn(2, 2, 6, 6)
    with torch.no_grad():
        assert torch.equal(other(x).mean, net(x).mean)
        assert torch.equal(other(x).var, net(x).var)
        torch.testing.assert_close(saved.net(x).mean, net(x).mean)


def test_what_is_loaded_is_ready_to_predict(tmp_path: Path) -> None:
    files.save(tmp_path / "a.safetensors", trained(batch_norm_net()), tagi.HierarchicalClassification(10).train())
    saved = files.load(tmp_path / "a.safetensors")
    assert saved.likelihood is not None
    assert not any(module.training for part in (saved.net, saved.likelihood) for module in part.modules())
    assert all(parameter.requires_grad for parameter in saved.net.parameters())
    trained(saved.net.train())  # and to learn on


def test_what_is_loaded_stays_when_the_file_is_written_over(tmp_path: Path) -> None:
    net, path = small_net(), tmp_path / "a.safetensors"
    files.save(path, net)
    loaded = files.load(path).net
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert_bit_equal(snapshot(loaded), snapshot(net))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_network_keeps_its_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    net = nn.Sequential(tagi.nn.Linear(3, 2), tagi.nn.BatchNorm1d(2)).to(dtype)
    for parameter in net.parameters():
        parameter.data.uniform_(0.1, 1.0)
    likelihood = tagi.Regression([0.3, 0.7]).to(dtype)
    likelihood.noise_var.uniform_(0.1, 1.0)
    files.save(tmp_path / "a.safetensors", net, likelihood)
    saved = files.load(tmp_path / "a.safetensors")
    assert_bit_equal(snapshot(saved.net), snapshot(net))
    assert_bit_equal(snapshot(saved.likelihood), snapshot(likelihood))
    other = nn.Sequential(tagi.nn.Linear(3, 2), tagi.nn.BatchNorm1d(2)).to(dtype)
    files.restore(tmp_path / "a.safetensors", other)
    assert_bit_equal(snapshot(other), snapshot(net))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_loaded_into_float32_and_predicts(dtype: torch.dtype, tmp_path: Path) -> None:
    """Half precision has no Φ, and its variances no room; the values are kept."""
    path = tmp_path / "half.safetensors"
    net, likelihood = batch_norm_net().to(dtype), tagi.HierarchicalClassification(10, 0.5).to(dtype)
    files.save(path, net, likelihood)
    saved = files.load(path)
    for one, other in ((saved.net, net), (saved.likelihood, likelihood)):
        assert one is not None
        widened = {
            key: value.float() if value.is_floating_point() else value for key, value in snapshot(other).items()
        }
        assert_bit_equal(snapshot(one), widened)
    z = saved.net(torch.randn(3, 2, 6, 6))
    torch.testing.assert_close(saved.likelihood.predict(z).probs.sum(1), torch.ones(3))
    restored = batch_norm_net()
    files.restore(path, restored)
    assert_bit_equal(snapshot(restored), snapshot(saved.net))


def test_a_variance_that_half_precision_lost_is_refused(tmp_path: Path) -> None:
    net = small_net()
    net[0].weight.set_(0.0, 1e-9)
    files.save(tmp_path / "half.safetensors", net.half())
    with pytest.raises(tagi.CheckpointError, match=r"half\.safetensors: net\.0\.weight\.var.*positive.*half prec"):
        files.load(tmp_path / "half.safetensors")


def test_a_network_can_be_restored_without_its_likelihood(tmp_path: Path) -> None:
    net = tagi.nn.Linear(3, 2)
    files.save(tmp_path / "a.safetensors", net, tagi.Regression(0.5), {"a": 1})
    other = tagi.nn.Linear(3, 2)
    assert files.restore(tmp_path / "a.safetensors", other) == {"a": 1}
    assert_bit_equal(snapshot(other), snapshot(net))


def test_further_modules_are_restored_by_name_and_passed_over_by_load(tmp_path: Path) -> None:
    path = tmp_path / "two.safetensors"
    net, other = small_net(), Residual()
    files.save(path, net, tagi.Regression(0.5), other=other)
    assert_bit_equal(snapshot(files.load(path).net), snapshot(net))
    again, fresh = small_net(), Residual()
    files.restore(path, again, tagi.Regression(0.1), other=fresh)
    assert_bit_equal(snapshot(fresh), snapshot(other))
    before = snapshot(again)
    with pytest.raises(tagi.CheckpointError, match=r"two\.safetensors: missing\..* is missing"):
        files.restore(path, again, missing=Residual())
    assert_bit_equal(snapshot(again), before)


def test_saving_makes_folders_and_takes_a_string(tmp_path: Path) -> None:
    net = tagi.nn.Linear(3, 2)
    files.save(str(tmp_path / "some" / "where" / "a.safetensors"), net)
    loaded = files.load(str(tmp_path / "some" / "where" / "a.safetensors"))
    assert_bit_equal(snapshot(loaded.net), snapshot(net))
    assert loaded.likelihood is None
    assert loaded.extra == {}


def test_saving_leaves_the_network_as_it_is(tmp_path: Path) -> None:
    net = trained(batch_norm_net()).train()
    before = snapshot(net)
    files.save(tmp_path / "a.safetensors", net)
    assert_bit_equal(snapshot(net), before)
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_saved_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    files.save(tmp_path / "a.safetensors", tagi.nn.Linear(1, 1))
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
    files.save(path, net, tagi.Regression(0.5), {"step": 5})
    with pytest.raises(tagi.CheckpointError, match=r"own\.safetensors.* net .*test_round_trip\.Residual.*restore"):
        files.load(path)
    other = Residual()
    assert files.restore(path, other) == {"step": 5}
    assert_bit_equal(snapshot(other), snapshot(net))


def test_a_users_class_named_like_a_layer_is_not_taken_for_it(tmp_path: Path) -> None:
    impostor = type("Linear", (Residual,), {})()
    files.save(tmp_path / "a.safetensors", nn.Sequential(tagi.nn.ReLU(), nn.Sequential(impostor)))
    with pytest.raises(tagi.CheckpointError, match=r"net\.1\.0 .*test_round_trip\.Linear.*restore"):
        files.load(tmp_path / "a.safetensors")


def test_an_ordinary_layer_is_named(tmp_path: Path) -> None:
    files.save(tmp_path / "a.safetensors", nn.Sequential(tagi.nn.Linear(3, 2), nn.Dropout()))
    with pytest.raises(tagi.CheckpointError, match=r"net\.1 .*torch\.nn\.modules\.dropout\.Dropout.*restore"):
        files.load(tmp_path / "a.safetensors")


def test_tensors_without_a_network_are_read_and_not_loaded(tmp_path: Path) -> None:
    architecture = {"net": {"unbuildable": "was saved without its architecture"}}
    checkpoint.write(tmp_path / "a.safetensors", {"w": torch.ones(2)}, architecture, {"step": 1})
    header, tensors = checkpoint.read(tmp_path / "a.safetensors")
    assert header["extra"] == {"step": 1}
    assert_bit_equal(tensors, {"w": torch.ones(2)})
    with pytest.raises(tagi.CheckpointError, match="without its architecture"):
        files.load(tmp_path / "a.safetensors")


def test_a_layer_used_twice_is_restored_as_one(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        layer = tagi.nn.Linear(3, 3)
        return nn.Sequential(layer, tagi.nn.ReLU(), layer)

    net, other = tied(), tied()
    files.save(tmp_path / "tied.safetensors", net)
    files.restore(tmp_path / "tied.safetensors", other)
    assert_bit_equal(snapshot(other), snapshot(net))
    assert other[0] is other[2]


def test_torchs_own_sequential_comes_back_as_ours(tmp_path: Path) -> None:
    net = torch.nn.Sequential(tagi.nn.Linear(3, 4), tagi.nn.ReLU())
    files.save(tmp_path / "net.safetensors", net)
    rebuilt = files.load(tmp_path / "net.safetensors").net
    assert type(rebuilt) is tagi.nn.Sequential
    assert torch.equal(rebuilt(torch.ones(2, 3)).mean, net(torch.ones(2, 3)).mean)


def test_a_layer_without_parameters_may_be_used_twice(tmp_path: Path) -> None:
    torch.manual_seed(0)
    relu = tagi.nn.ReLU()
    net = nn.Sequential(tagi.nn.Linear(3, 4), relu, tagi.nn.Linear(4, 4), relu, tagi.nn.Linear(4, 2))
    files.save(tmp_path / "net", net)
    x = torch.randn(5, 3)
    assert torch.equal(files.load(tmp_path / "net").net(x).mean, net(x).mean)


def test_parameters_used_twice_are_restored_but_not_loaded(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        net = nn.Sequential(tagi.nn.Linear(3, 3), tagi.nn.ReLU(), tagi.nn.Linear(3, 3))
        net[2].weight = net[0].weight
        return net

    net, other = tied(), tied()
    files.save(tmp_path / "net", net)
    with pytest.raises(tagi.CheckpointError, match=r"parameters used twice, 0\.weight\.mean as 2\.weight\.mean"):
        files.load(tmp_path / "net")
    checkpoint.restore(tmp_path / "net", other)
    x = torch.randn(5, 3)
    assert torch.equal(other(x).mean, net(x).mean)
