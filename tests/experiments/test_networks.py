"""The paper's networks: shapes and sizes of Appendix B's tables, and their ordinary twins."""

import pytest
import torch

from torchtagi.experiments import networks as models
from torchtagi.experiments.networks import generative
from torchtagi.gaussian import Gaussian

NETWORKS = {
    "cnn": (models.mnist_cnn, (1, 28, 28)),
    "3conv": (models.cifar_3conv, (3, 32, 32)),
    "3conv-ln": (lambda *a, **k: models.cifar_3conv(*a, "layer", **k), (3, 32, 32)),
    "3conv-bn": (lambda *a, **k: models.cifar_3conv(*a, "batch", **k), (3, 32, 32)),
    "resnet18half": (lambda *a, **k: models.resnet18(*a, 32, **k), (3, 32, 32)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gaussian_network_and_its_twin_have_the_same_mean_map(name):
    """With the same weights the Gaussian network's mean is the ordinary network's output: same architecture.
    Norms differ by the units' variance, so they are compared with none."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    net, twin = build(11), build(11, layers=torch.nn)
    means = [p for key, p in net.named_parameters() if key.endswith("mean")]
    for parameter in (p for key, p in net.named_parameters() if key.endswith("var")):
        parameter.data.fill_(1e-12)
    for ours, theirs in zip(means, twin.parameters(), strict=True):
        theirs.data.copy_(ours)
    x = torch.randn(4, *shape)
    assert torch.allclose(net(x).mean, twin(x), atol=2e-4)


@pytest.mark.parametrize(
    ("build", "shape", "expected"),
    [
        (models.mnist_cnn, (1, 28, 28), [(32, 27, 27), (32, 13, 13), (64, 9, 9), (64, 4, 4), (150,), (11,)]),
        (
            models.cifar_3conv,
            (3, 32, 32),
            [(32, 32, 32), (32, 16, 16), (32, 16, 16), (32, 8, 8), (64, 8, 8), (64, 4, 4), (64,), (11,)],
        ),
    ],
)
def test_shapes_of_the_tables(build, shape, expected):
    net, shapes = build(), []
    for layer in net:
        if type(layer).__name__ in ("Conv2d", "AvgPool2d", "Linear"):
            layer.register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape[1:])))
    net(torch.randn(2, *shape))
    assert shapes == expected


def test_resnet18_size():
    """The usual CIFAR ResNet18 has 11,173,962 parameters, 9,600 of them batch norm's affine ones, which we leave
    out, and 5,130 its ten-class output, which here has 11 nodes."""
    count = sum(p.numel() for name, p in models.resnet18().named_parameters() if name.endswith("mean"))
    assert count == 11_173_962 - 9_600 - 5_130 + (512 * 11 + 11)


def test_output_is_a_gaussian_with_positive_variance():
    z = models.resnet18(width=8)(torch.randn(2, 3, 32, 32))
    assert isinstance(z, Gaussian)
    assert z.var.min() > 0


def test_every_norm_of_a_resnet_stands_behind_its_relu():
    parts = [type(part).__name__ for part in models.resnet18(width=4).modules()]
    order = [name for name in parts if name in ("Conv2d", "ReLU", "BatchNorm2d")]
    assert order == ["Conv2d", "ReLU", "BatchNorm2d"] * 20


def test_unknown_norm_is_named():
    with pytest.raises(ValueError, match="norm must be none, layer or batch, got 'group'"):
        models.cifar_3conv(norm="group")


GENERATIVE = {
    "mnist": (
        (generative.mnist_dnet, (1, 28, 28), (512,)),
        (generative.mnist_pnet, (512,), (1,)),
        (generative.mnist_qnet, (512,), (13,)),
        (generative.mnist_gnet, (75,), (1, 28, 28)),
    ),
    "celeba": (
        (generative.celeba_dnet, (3, 32, 32), (256,)),
        (generative.celeba_pnet, (256,), (1,)),
        (generative.celeba_qnet, (256,), (110,)),
        (generative.celeba_gnet, (238,), (3, 32, 32)),
    ),
}
# the units behind each convolution and fully connected layer, as Appendix B.2's tables list them, corrected
TABLES = {
    generative.mnist_dnet: [(32, 28, 28), (32, 14, 14), (64, 14, 14), (64, 7, 7), (512,)],
    generative.mnist_qnet: [(300,), (13,)],
    generative.mnist_gnet: [(3136,), (64, 7, 7), (32, 14, 14), (1, 28, 28)],
    generative.celeba_dnet: [
        *((32, 32, 32), (32, 16, 16), (32, 16, 16), (32, 8, 8), (64, 8, 8), (64, 4, 4), (256,)),
    ],
    generative.celeba_qnet: [(256,), (110,)],
    generative.celeba_gnet: [
        *((1024,), (64, 4, 4), (64, 8, 8), (32, 16, 16), (32, 32, 32), (32, 32, 32), (3, 32, 32)),
    ],
}
SHAPING = ("Linear", "Conv2d", "ConvTranspose2d", "AvgPool2d")


@pytest.mark.parametrize("layers", ["gaussian", "ordinary"])
@pytest.mark.parametrize("name", GENERATIVE)
def test_generative_networks_have_the_tables_shapes(name, layers):
    options = {} if layers == "gaussian" else {"layers": torch.nn}
    for build, inputs, outputs in GENERATIVE[name]:
        net = build(**options)
        seen = []
        for layer in net:
            if type(layer).__name__ in SHAPING:
                layer.register_forward_hook(lambda module, args, out, to=seen: to.append(tuple(out.shape[1:])))
        out = net(torch.randn(3, *inputs))
        assert tuple(out.shape) == (3, *outputs)
        assert isinstance(out, Gaussian) == (layers == "gaussian")
        assert build not in TABLES or seen == TABLES[build]


@pytest.mark.parametrize(("name", "millions"), [("mnist", 2.1), ("celeba", 0.7)])
def test_infogans_have_the_papers_number_of_weights(name, millions):
    weights = sum(p.numel() for build, *_ in GENERATIVE[name] for p in build(layers=torch.nn).parameters())
    assert round(weights / 1e6, 1) == millions
    gaussian = sum(p.numel() for build, *_ in GENERATIVE[name] for p in build().parameters())
    assert gaussian == 2 * weights, "a mean and a variance each"


def test_discriminator_trunks_normalise_by_running_statistics_if_asked():
    for build in (generative.mnist_dnet, generative.celeba_dnet):
        flags = [part.use_running for part in build(use_running=True) if hasattr(part, "use_running")]
        assert flags == [True] * len(flags)
        assert flags
        with pytest.raises(TypeError, match="use_running"):
            build(use_running=True, layers=torch.nn)
