"""The paper's networks: shapes and sizes of Appendix B's tables, and their ordinary twins."""

import pytest
import torch

from torchtagi import models
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


def test_unknown_norm_is_named():
    with pytest.raises(ValueError, match="norm must be none, layer or batch, got 'group'"):
        models.cifar_3conv(norm="group")
