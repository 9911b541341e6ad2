"""The recorded networks of the authors' code, number by number (vectors/*.npz).

Oracle 6: outputs, messages, parameters after one and three capped updates, running statistics and evaluation. The
recorded messages are changes, dm and dv; a gradient and a curvature have the other sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import torchtagi as tagi
from torchtagi import Gaussian
from torchtagi import nn as tnn
from torchtagi.likelihoods import class_tree

FOLDER = Path(__file__).parent / "vectors"
RTOL, ATOL = 2e-4, 1e-5

Vectors = dict[str, NDArray[np.float32]]
Send = Callable[[Gaussian, Vectors, torch.dtype], None]


def regression(z: Gaussian, vectors: Vectors, dtype: torch.dtype) -> None:
    y, noise_var = torch.tensor(vectors["y"], dtype=dtype), np.unique(vectors["var_y"])
    assert noise_var.shape == (1,), "one noise for all observations"
    tagi.Regression(float(np.sqrt(noise_var[0]))).to(dtype)(z.flatten(1), y).backward()


def classes(z: Gaussian, vectors: Vectors, dtype: torch.dtype) -> None:
    tagi.HierarchicalClassification(10, 1.0).to(dtype)(z, torch.tensor(vectors["label"]).long()).backward()


def heteroscedastic(z: Gaussian, vectors: Vectors, dtype: torch.dtype) -> None:
    tagi.HeteroscedasticRegression()(z, torch.tensor(vectors["y"], dtype=dtype)).backward()


@dataclass(frozen=True)
class Recorded:
    """A recorded network: its layers, the shape of an input, and what is observed."""

    layers: Callable[[], list[nn.Module]]
    shape: tuple[int, ...] = (-1,)
    send: Send = regression


def two_layers(activation: Callable[[], nn.Module], bias: bool = True) -> Callable[[], list[nn.Module]]:
    return lambda: [tnn.Linear(3, 5, bias=bias), activation(), tnn.Linear(5, 2)]


def probabilities(last: Callable[[], nn.Module]) -> Callable[[], list[nn.Module]]:
    return lambda: [tnn.Linear(3, 5), tnn.MixtureReLU(), tnn.Linear(5, 4), last()]


NETWORKS = {
    "linear_relu": Recorded(two_layers(tnn.ReLU)),
    "linear_relu_b1": Recorded(two_layers(tnn.ReLU)),
    "linear_relu_capped": Recorded(two_layers(tnn.ReLU)),
    "linear_xavier_gain_nobias": Recorded(two_layers(tnn.ReLU, bias=False)),
    "act_MixtureReLU": Recorded(two_layers(tnn.MixtureReLU)),
    "act_MixtureSigmoid": Recorded(two_layers(tnn.MixtureSigmoid)),
    "act_Sigmoid": Recorded(two_layers(tnn.Sigmoid)),
    "act_Tanh": Recorded(two_layers(tnn.Tanh)),
    "conv_relu_avgpool": Recorded(
        lambda: [
            tnn.Conv2d(2, 3, 3, padding=1),
            tnn.ReLU(),
            tnn.AvgPool2d(2, 2),
            tnn.Flatten(),
            tnn.Linear(27, 2),
        ],
        (2, 6, 6),
    ),
    "conv_avgpool_padtype2": Recorded(
        lambda: [
            tnn.Conv2d(1, 2, 5, padding=2),
            tnn.ReLU(),
            tnn.ZeroPad2d((0, 1, 0, 1)),
            tnn.AvgPool2d(3, 2),
            tnn.Flatten(),
            tnn.Linear(32, 2),
        ],
        (1, 8, 8),
    ),
    "conv_maxpool": Recorded(
        lambda: [
            tnn.Conv2d(1, 2, 3, padding=1),
            tnn.ReLU(),
            tnn.MaxPool2d(2, 2),
            tnn.Flatten(),
            tnn.Linear(18, 2),
        ],
        (1, 6, 6),
    ),
    "conv_batchnorm": Recorded(
        lambda: [
            tnn.Conv2d(1, 2, 3, padding=1, bias=False),
            tnn.ReLU(),
            tnn.BatchNorm2d(2, correction=1, differentiate_statistics=False),
            tnn.AvgPool2d(2, 2),
            tnn.Conv2d(2, 3, 3, bias=False),
            tnn.ReLU(),
            tnn.BatchNorm2d(3, correction=1, differentiate_statistics=False),
            tnn.Flatten(),
            tnn.Linear(3, 2),
        ],
        (1, 6, 6),
    ),
    "fc_layernorm": Recorded(
        lambda: [
            tnn.Linear(3, 5),
            tnn.ReLU(),
            tnn.LayerNorm(5, eps=1e-4, correction=1, differentiate_statistics=False),
            tnn.Linear(5, 2),
        ]
    ),
    "convtranspose": Recorded(
        lambda: [
            tnn.Linear(3, 32),
            tnn.ReLU(),
            tnn.Unflatten(1, (2, 4, 4)),
            tnn.ConvTranspose2d(2, 3, 3, 2),
            tnn.ZeroPad2d((0, -1, 0, -1)),
            tnn.ReLU(),
            tnn.ConvTranspose2d(3, 1, 3, 1, 1),
        ]
    ),
    "hrc_softmax10": Recorded(lambda: [tnn.Linear(4, 8), tnn.ReLU(), tnn.Linear(8, 11)], send=classes),
    "remax": Recorded(probabilities(tnn.Remax)),
    "cfsoftmax": Recorded(probabilities(tnn.ClosedFormSoftmax)),
    "evenexp_heteros": Recorded(
        lambda: [tnn.Linear(2, 6), tnn.ReLU(), tnn.Linear(6, 4), tnn.EvenExp()], send=heteroscedastic
    ),
}


def read(name: str) -> Vectors:
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


def assert_recorded(actual: Tensor, expected: NDArray[np.float32], what: str) -> None:
    np.testing.assert_allclose(
        actual.detach().double().numpy().ravel(), expected.ravel(), rtol=RTOL, atol=ATOL, err_msg=what
    )


def named_layers(net: nn.Sequential, vectors: Vectors) -> dict[str, tnn.Layer]:
    """The recorded names, `<type>.<index>`, in the order of the layers that have parameters."""
    names = {key.split("__")[1] for key in vectors if key.startswith("init__")}
    ordered = sorted(names, key=lambda name: int(name.split(".")[1]))
    layers = [layer for layer in net if getattr(layer, "weight", None) is not None]
    assert [name.split(".")[0] for name in ordered] == [type(layer).__name__ for layer in layers]
    return dict(zip(ordered, layers, strict=True))


def recorded_tensors(layer: tnn.Layer) -> dict[str, Tensor]:
    tensors = {"mu_w": layer.weight.mean, "var_w": layer.weight.var}
    if layer.bias is not None:
        tensors |= {"mu_b": layer.bias.mean, "var_b": layer.bias.var}
    return tensors


class Recorder:
    """Keeps the last affine layer's output, whose messages were recorded, and the last activation's input."""

    def __init__(self, net: nn.Sequential) -> None:
        last = [layer for layer in net if isinstance(layer, tnn.Linear | tnn.ConvTranspose2d)][-1]
        last.register_forward_hook(self.keep)

    def keep(self, module: nn.Module, args: object, output: Gaussian) -> None:
        self.output = output
        if output.mean.requires_grad:
            output.mean.retain_grad()
            output.var.retain_grad()


def test_every_recorded_network_is_compared() -> None:
    assert set(NETWORKS) == {path.stem for path in FOLDER.glob("*.npz")}
    assert len(NETWORKS) == 18


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network_matches_its_record(name: str, dtype: torch.dtype) -> None:
    """Oracle 6."""
    recorded, vectors = NETWORKS[name], read(name)
    net = nn.Sequential(*recorded.layers()).to(dtype)
    layers = named_layers(net, vectors)
    with torch.no_grad():
        for layer_name, layer in layers.items():
            for kind, tensor in recorded_tensors(layer).items():
                tensor.copy_(torch.tensor(vectors[f"init__{layer_name}__{kind}"]).view_as(tensor))
    recorder = Recorder(net)
    x = torch.tensor(vectors["mu_x"], dtype=dtype)
    x = x.view(len(x), *recorded.shape)
    posterior = tagi.Update(net, "capped")
    for step in (1, 2, 3):
        z = net(x)
        assert_recorded(z.mean, vectors[f"out{step}__mu"], f"mean before update {step}")
        assert_recorded(z.var, vectors[f"out{step}__var"], f"variance before update {step}")
        if f"norm{step}__BatchNorm2d()_2.0__running_mean" in vectors:
            assert_running_statistics(layers, vectors, step)
        recorded.send(z, vectors, dtype)
        assert_recorded(-recorder.output.mean.grad, vectors[f"delta{step}__mu"], f"dmean of update {step}")
        assert_recorded(-recorder.output.var.grad, vectors[f"delta{step}__var"], f"dvar of update {step}")
        posterior.step()
        posterior.zero_grad()
        if step in (1, 3):
            for layer_name, layer in layers.items():
                for kind, tensor in recorded_tensors(layer).items():
                    key = f"step{step}__{layer_name}__{kind}"
                    assert_recorded(tensor, vectors[key], key)
    net.eval()
    z = net(x)
    assert_recorded(z.mean, vectors["eval__mu"], "mean in eval")
    assert_recorded(z.var, vectors["eval__var"], "variance in eval")


def assert_running_statistics(layers: dict[str, tnn.Layer], vectors: Vectors, step: int) -> None:
    for name, layer in layers.items():
        if isinstance(layer, tnn.BatchNorm2d):
            prefix = f"norm{step}__{name.replace('.', '()_')}.0__"
            assert_recorded(layer.running_mean, vectors[f"{prefix}running_mean"], f"{name} running mean")
            assert_recorded(layer.running_var, vectors[f"{prefix}running_var"], f"{name} running variance")


def test_batch_norm_statistics_are_in_the_record() -> None:
    """The comparison above is only as good as the keys it finds."""
    keys = [key for key in read("conv_batchnorm") if key.startswith("norm") and "running" in key]
    assert len(keys) == 8


def test_output_gain_is_recorded_as_the_layers_gain() -> None:
    """`out__jcb`: the gain of the last activation, which is 1 behind a linear layer."""
    for name in ("remax", "cfsoftmax", "evenexp_heteros"):
        recorded, vectors = NETWORKS[name], read(name)
        net = nn.Sequential(*recorded.layers()).double()
        with torch.no_grad():
            for layer_name, layer in named_layers(net, vectors).items():
                for kind, tensor in recorded_tensors(layer).items():
                    tensor.copy_(torch.tensor(vectors[f"init__{layer_name}__{kind}"]).view_as(tensor))
        hidden = net[:-1](torch.tensor(vectors["mu_x"]).double()).detach().requires_grad_()
        out = net[-1](hidden)
        torch.autograd.backward([out.mean, out.var], [torch.ones_like(out.mean), torch.ones_like(out.var)])
        assert_recorded(hidden.mean.grad, vectors["out1__jcb"], f"{name}: gain")
        assert_recorded(hidden.var.grad, vectors["out1__jcb"] ** 2, f"{name}: squared gain")


def test_tree_of_ten_classes_is_the_recorded_one() -> None:
    vectors = read("hrc_softmax10")
    code = np.zeros((10, 11))
    for label in range(10):
        code[label, vectors["hs_idx_1based"][label] - 1] = vectors["hs_obs"][label]
    np.testing.assert_array_equal(class_tree(10).numpy(), code)
    for label, nodes, signs in zip(vectors["label"], vectors["obs_idx_1based"], vectors["y"], strict=True):
        np.testing.assert_array_equal(class_tree(10)[int(label)].numpy()[nodes - 1], signs)


def test_class_probabilities_are_the_recorded_ones() -> None:
    """The record is not normalised over the classes, predictions are; the authors predict with R = 1/9."""
    vectors = read("hrc_softmax10")
    z = Gaussian(torch.tensor(vectors["eval__mu"]).double(), torch.tensor(vectors["eval__var"]).double())
    prediction = tagi.HierarchicalClassification(10, 1 / 3).double().predict(z)
    unnormalised = vectors["eval__prob"]
    assert_recorded(prediction.probs, unnormalised / unnormalised.sum(1, keepdims=True), "probabilities")
    np.testing.assert_array_equal(prediction.labels.numpy(), vectors["eval__pred"])
