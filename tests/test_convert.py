"""Torch networks as Gaussian ones: the same function, its prior, what stays as it was, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtagi as tagi
from torchtagi import Gaussian, GaussianParameter
from torchtagi import nn as tnn
from torchtagi.convert import LAYERS, PRIOR_STD
from torchtagi.experiments import data


class Block(nn.Module):
    """A residual block as it is usually written for torch."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += identity
        return F.relu(out)


class ResNet(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.ModuleList([Block(4, 4, 1), Block(4, 8, 2)])
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.fc(self.dropout(torch.flatten(self.pool(x), 1)))


def resnet_of_our_layers(outputs: int) -> nn.Module:
    """The same network with every operation a layer; its parameters come in the same order."""

    def block(channels_in: int, channels: int, stride: int) -> list[nn.Module]:
        body = tnn.Sequential(
            tnn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            tnn.BatchNorm2d(channels),
            tnn.ReLU(),
            tnn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            tnn.BatchNorm2d(channels),
        )
        shortcut = tnn.Sequential(
            tnn.Conv2d(channels_in, channels, 1, stride, bias=False), tnn.BatchNorm2d(channels)
        )
        return [tnn.Residual(body, shortcut if stride != 1 else None), tnn.ReLU()]

    return tnn.Sequential(
        *(tnn.Conv2d(1, 4, 3, padding=1), tnn.ReLU(), *block(4, 4, 1), *block(4, 8, 2)),
        *(tnn.AvgPool2d(4), tnn.Flatten(), tnn.Linear(8, outputs)),
    )


def toy_images(n: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Noise, and brighter in one half: of which, the label says."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (n,), generator=generator)
    images = 0.5 * torch.randn(n, 1, 8, 8, generator=generator, dtype=dtype)
    images[labels == 0, :, :4] += 0.7
    images[labels == 1, :, 4:] += 0.7
    return images, labels


# ---- the same function ---------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 7), nn.LeakyReLU(0.1), nn.BatchNorm1d(7), nn.Dropout(0.3)),
        *(nn.Linear(7, 6, bias=False), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 6), nn.Sigmoid(), nn.Identity()),
        *(nn.Linear(6, 5), nn.Softplus(2.0, 5.0), nn.LayerNorm(5, elementwise_affine=False), nn.Linear(5, 3)),
    )


def decoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, 2, 1, groups=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, ceil_mode=True)),
        *(nn.ZeroPad2d((0, 1, 1, 0)), nn.Conv2d(4, 4, (3, 1), padding="same", dilation=(2, 1), groups=2)),
        *(nn.AvgPool2d(2, 1, 1, count_include_pad=False), nn.BatchNorm2d(4, 1e-3, 0.3, affine=False), nn.ReLU()),
        *(nn.ConvTranspose2d(4, 2, 3, 2, 1, 1, bias=False), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(1)),
        *(nn.Unflatten(1, (3, 4)), nn.LayerNorm((3, 4), bias=False), nn.Dropout1d(), nn.Linear(4, 2)),
    )


def resnet() -> nn.Module:
    return ResNet(3)


def trained_statistics(net: nn.Module) -> nn.Module:
    """With running statistics and affine parameters that make a difference."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.momentum = 0.7
            if part.affine:
                nn.init.uniform_(part.weight, 0.5, 2.0)
                nn.init.normal_(part.bias)
    net.train()
    for seed in range(3):
        net(1 + toy_images(16, seed, torch.float64)[0])
    return net.eval()


@pytest.mark.parametrize("build", [mlp, decoder, resnet])
def test_without_variance_it_is_the_trained_network(build: Callable[[], nn.Module]) -> None:
    """The variance-free limit in evaluation mode: torch's own outputs are the oracle."""
    torch.manual_seed(0)
    net = trained_statistics(build().double())
    before = copy.deepcopy(net.state_dict())
    x = toy_images(5, 9, torch.float64)[0]
    out = tagi.convert(net, from_weights=True, prior_std=1e-6)(x)
    assert isinstance(out, Gaussian)
    torch.testing.assert_close(out.mean, net(x), rtol=1e-6, atol=1e-6)
    assert (out.var < 1e-6).all()
    assert (out.var > 0).all()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_torch_resnet_equals_one_of_our_layers(training: bool) -> None:
    torch.manual_seed(1)
    converted, ours = tagi.convert(ResNet(3).double()), resnet_of_our_layers(3).double()
    for net in (converted, ours):
        net.train(training)
    for one, other in zip(converted.parameters(), ours.parameters(), strict=True):
        other.data.copy_(one.data)
    x = toy_images(4, 0, torch.float64)[0]
    for one, other in zip((converted(x).mean, converted(x).var), (ours(x).mean, ours(x).var), strict=True):
        torch.testing.assert_close(one, other)


def test_a_torch_resnet_learns() -> None:
    torch.manual_seed(0)
    net, likelihood = tagi.convert(ResNet(1)), tagi.HierarchicalClassification(2, 0.1, learn_noise=True)
    x, y = toy_images(600, 1)
    tagi.calibrate_prior(net, x[:16])
    tagi.condition(net, likelihood, tagi.Update(net), x, y)
    x, y = toy_images(200, 2)
    with torch.no_grad():
        wrong = (likelihood.predict(net.eval()(x)).labels != y).float().mean().item()
    assert wrong < 0.05


# ---- priors --------------------------------------------------------------------------------------------------


def test_new_priors_are_those_of_the_constructors() -> None:
    """The same draws from torch's global generator as layers built by hand, and nothing of the trained weights."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3, bias=False))
    torch.manual_seed(0)
    converted = tagi.convert(net)
    after = torch.rand(())
    torch.manual_seed(0)
    ours = tnn.Sequential(tnn.Conv2d(1, 2, 3), tnn.ReLU(), tnn.Flatten(), tnn.Linear(8, 3, bias=False))
    assert after == torch.rand(())
    assert type(converted) is tnn.Sequential
    assert repr(converted) == repr(ours)
    assert converted.state_dict().keys() == ours.state_dict().keys()
    assert all(torch.equal(value, ours.state_dict()[name]) for name, value in converted.state_dict().items())
    assert not any(part.given for part in converted.modules() if isinstance(part, GaussianParameter))


@pytest.mark.parametrize("prior_std", [None, 0.2])
def test_trained_weights_are_prior_means(prior_std: float | None) -> None:
    """Variances are prior_std²/fan_in, prior_std²/features for norms; all marked as given."""
    net = nn.ModuleDict(
        {
            "conv": nn.Conv2d(4, 6, (3, 2), groups=2),
            "up": nn.ConvTranspose2d(6, 4, 3, groups=2),
            "linear": nn.Linear(5, 3),
            "batch": nn.BatchNorm2d(7),
            "layer": nn.LayerNorm((2, 3)),
        }
    )
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    options = {} if prior_std is None else {"prior_std": prior_std}
    converted = tagi.convert(net, from_weights=True, **options)
    std = prior_std or PRIOR_STD
    for name, fan_in in (("conv", 2 * 6), ("up", 3 * 9), ("linear", 5), ("batch", 7), ("layer", 6)):
        for kind in ("weight", "bias"):
            part, trained = getattr(converted[name], kind), getattr(net[name], kind)
            assert torch.equal(part.mean, trained)
            assert part.mean is not trained
            torch.testing.assert_close(part.var.detach(), torch.full_like(trained, std**2 / fan_in))
            assert part.given


def test_running_statistics_are_taken_over_with_the_weights() -> None:
    net = nn.BatchNorm1d(2)
    net(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    taken, new = tagi.convert(net, from_weights=True), tagi.convert(net)
    for name, buffer in net.named_buffers():
        assert torch.equal(taken.get_buffer(name), buffer)
        assert taken.get_buffer(name) is not buffer
    assert new.num_batches_tracked == 0
    assert torch.equal(new.running_var, torch.ones(2))


@pytest.mark.parametrize("prior_std", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bad_prior_std_is_refused(prior_std: float) -> None:
    with pytest.raises(ValueError, match=r"prior_std must be positive and finite, got"):
        tagi.convert(nn.Linear(2, 2), from_weights=True, prior_std=prior_std)


# ---- what stays as it was ------------------------------------------------------------------------------------


class Shared(nn.Module):
    """One layer used twice, in containers, beside a buffer and plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(3, 3)
        self.steps = nn.ModuleList([self.twice, nn.ReLU(), self.twice])
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Sequential(nn.Dropout(), nn.Linear(3, 2))})
        self.register_buffer("scale", torch.tensor(2.0))
        self.sizes = [3, 2]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for step in self.steps:
            x = step(x)
        return {name: head(x * self.scale) for name, head in self.heads.items()}


def test_sharing_and_containers_are_kept() -> None:
    net = Shared()
    converted = tagi.convert(net)
    assert type(converted) is Shared
    assert converted.steps[0] is converted.steps[2] is converted.twice
    assert type(converted.heads["b"]) is tnn.Sequential
    assert type(converted.heads["b"][0]) is tnn.Identity
    assert converted.sizes == [3, 2]
    assert converted.sizes is not net.sizes
    assert converted.scale is not net.scale
    out = converted(torch.randn(4, 3))
    assert {name: tuple(z.shape) for name, z in out.items()} == {"a": (4, 2), "b": (4, 2)}
    assert type(net.twice) is nn.Linear
    assert isinstance(net.eval()(torch.randn(4, 3))["a"], Tensor)


def test_dtype_device_mode_and_what_is_frozen_are_kept() -> None:
    net = nn.Sequential(
        *(nn.Linear(3, 3, dtype=torch.float64), nn.BatchNorm1d(3, affine=False, dtype=torch.float64)),
        nn.Linear(3, 3, device="meta"),
    )
    net[0].requires_grad_(False)
    net[1].eval()
    for converted in (tagi.convert(net), tagi.convert(net[:2], from_weights=True)):
        assert converted[0].weight.mean.dtype == converted[0].bias.var.dtype == torch.float64
        assert converted[1].running_var.dtype == torch.float64
        assert not any(parameter.requires_grad for parameter in converted[0].parameters())
        assert [part.training for part in converted[:2]] == [True, False]
        assert converted.training
    converted = tagi.convert(net)
    assert converted[2].weight.mean.is_meta
    assert all(parameter.requires_grad for parameter in converted[2].parameters())


def test_gaussian_layers_are_copied_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(3, 3), tnn.ReLU(), tnn.Residual(tnn.Linear(3, 3)), tnn.Linear(3, 2))
    net[3].weight.set_(0.5, 0.25)
    converted = tagi.convert(net, from_weights=True)
    for old, new in pairwise((net, converted)):
        assert new[3] is not old[3]
        assert torch.equal(new[3].weight.mean, old[3].weight.mean)
        assert new[3].weight.given
        assert torch.equal(new[2].body.bias.var, old[2].body.bias.var)
    again = tagi.convert(converted)
    x = torch.randn(2, 3)
    assert torch.equal(again(x).var, converted(x).var)


def test_every_layer_of_the_list_has_our_namesake() -> None:
    for theirs, ours in LAYERS.items():
        assert ours is tnn.Identity if "Dropout" in theirs.__name__ else ours.__name__ == theirs.__name__


# ---- what is refused -----------------------------------------------------------------------------------------


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    return net


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "lstm": (lambda: nn.LSTM(2, 2), r"layer\.1: LSTM has no Gaussian counterpart: .*in front"),
    "attention": (lambda: nn.MultiheadAttention(2, 1), r"layer\.1: MultiheadAttention"),
    "embedding": (lambda: nn.Embedding(2, 2), r"layer\.1: Embedding"),
    "conv1d": (lambda: nn.Conv1d(2, 2, 1), r"layer\.1: Conv1d.*use Conv2d with a kernel of height 1"),
    "gelu": (nn.GELU, r"layer\.1: GELU.*use relu, leaky_relu"),
    "softmax": (lambda: nn.Softmax(1), r"layer\.1: Softmax.*remove it, for the likelihood takes its place"),
    "log_softmax": (lambda: nn.LogSoftmax(1), r"layer\.1: LogSoftmax.*remove it, for the likelihood"),
    "parametrised": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        r"layer\.1: ParametrizedLinear",
    ),
    "hooks": (lambda: hooked(nn.Linear(2, 2)), r"layer\.1: Linear has hooks"),
    "own": (OwnParameter, r"layer\.1: OwnParameter has a parameter of its own, scale\. .*buffer"),
    "tied": (tied, r"layer\.1\.1: its weight is that of layer\.1\.0 too; call one layer twice"),
    "reflect": (
        lambda: nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
        r"layer\.1: .*padding_mode='reflect'",
    ),
    "same": (lambda: nn.Conv2d(1, 1, 2, padding="same"), r"layer\.1: padding='same' .*kernel_size=\(2, 2\)"),
    "no-bias": (lambda: nn.BatchNorm1d(2, bias=False), r"layer\.1: tagi\.nn\.BatchNorm1d has no bias=False"),
    "indices": (lambda: nn.MaxPool2d(2, return_indices=True), r"layer\.1: .*return_indices=True"),
}


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda module, inputs, output: None)
    return layer


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused_with_its_path(name: str) -> None:
    build, message = REFUSED[name]
    net = nn.ModuleDict({"layer": nn.ModuleList([nn.Linear(2, 2), build()])})
    with pytest.raises(TypeError, match=message):
        tagi.convert(net)


def test_the_network_itself_may_be_what_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^the network: GELU has no Gaussian counterpart"):
        tagi.convert(nn.GELU())


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1)


def test_a_call_of_mean_says_what_to_write_instead() -> None:
    """`mean` is an attribute of a Gaussian, so Python can only say that a tensor is not callable."""
    net = tagi.convert(tagi.convert(nn.Sequential(Mean())))
    with pytest.raises(TypeError, match="not callable") as caught:
        net(torch.randn(2, 3))
    assert caught.value.__notes__ == [
        "mean and var are attributes of a Gaussian: instead of x.mean(dim) write torch.mean(x, dim)"
    ]


# ---- fine-tuning pays ----------------------------------------------------------------------------------------


def digit_network(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 9, outputs)),
    )


def error_after_learning(net: nn.Module, x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> float:
    torch.manual_seed(2)
    model = tagi.Classifier(net, classes=10)
    model.fit((x, y), epochs=10)
    return float(model.evaluate(test_x, test_y)["error"])


@pytest.mark.slow
def test_fine_tuning_beats_learning_from_scratch(digits: data.TrainTest) -> None:
    """A network that knows the digits 0 to 4 from 20,000 images learns all ten from 500 with fewer errors than one
    that knows nothing, in the mean of two draws of everything."""
    from_scratch, fine_tuned = [], []
    for seed in (0, 2):
        torch.manual_seed(seed)
        order = torch.randperm(len(digits.train.labels))
        x, y = digits.train.images[order[:500]], digits.train.labels[order[:500]]
        known = order[500:][digits.train.labels[order[500:]] < 5][:20_000]
        trained = digit_network(5)
        optimizer = torch.optim.Adam(trained.parameters(), 1e-3)
        for batch in (*known.split(64), *known[torch.randperm(len(known))].split(64)):
            optimizer.zero_grad()
            F.cross_entropy(trained(digits.train.images[batch]), digits.train.labels[batch]).backward()
            optimizer.step()
        test = digits.test.images[::5], digits.test.labels[::5]

        from_scratch.append(error_after_learning(digit_network(10), x, y, *test))
        trained[-1] = nn.Linear(64 * 9, 10)
        fine_tuned.append(error_after_learning(tagi.convert(trained, from_weights=True), x, y, *test))
    assert sum(fine_tuned) / 2 < 8
    assert sum(fine_tuned) < 0.9 * sum(from_scratch)
