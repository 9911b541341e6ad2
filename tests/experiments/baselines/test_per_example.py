"""Per-example gradients against torch.func and against a loop over the examples."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchtagi.experiments import networks as models
from torchtagi.experiments.baselines import per_example
from torchtagi.experiments.baselines.per_example import gradient_moments


def looped(net, x, y):
    """Each example's gradient by a backward pass of its own."""
    rows = []
    for i in range(len(x)):
        loss = functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
        rows.append(torch.autograd.grad(loss, list(net.parameters())))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def by_func(net, x, y):
    parameters = dict(net.named_parameters())

    def loss(parameters, x, y):
        return functional.cross_entropy(torch.func.functional_call(net, parameters, (x[None],)), y[None])

    grads = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
    return [grads[name].detach() for name in parameters]


def strange_net():
    """Strides, padding, missing biases."""
    return nn.Sequential(
        nn.Conv2d(2, 3, (3, 2), stride=2, padding=(1, 0), bias=False),
        nn.Tanh(),
        nn.Conv2d(3, 4, (2, 3), stride=(1, 2), padding=1),
        nn.Flatten(),
        nn.LazyLinear(5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


CASES = {
    "strange": (strange_net, (5, 2, 9, 8), 3),
    "mnist": (lambda: models.mnist_cnn(10, layers=nn), (3, 1, 28, 28), 10),
    "cifar, layer norm": (lambda: models.cifar_3conv(10, norm="layer", layers=nn), (2, 3, 32, 32), 10),
}


@pytest.mark.parametrize("oracle", [looped, by_func])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [per_example.CHUNK_NUMBERS, 1])
def test_moments_are_those_of_single_gradients(case, oracle, chunk, monkeypatch):
    monkeypatch.setattr(per_example, "CHUNK_NUMBERS", chunk)
    torch.manual_seed(0)
    build, shape, classes = CASES[case]
    net, x, y = build().double(), torch.randn(shape, dtype=torch.float64), torch.randint(0, classes, shape[:1])
    net(x)
    expected = oracle(net, x, y)
    found = gradient_moments(net, lambda: functional.cross_entropy(net(x), y, reduction="none"))
    torch.testing.assert_close(found.losses, functional.cross_entropy(net(x), y, reduction="none").detach())
    for index, grads in enumerate(expected):
        torch.testing.assert_close(found.mean[index], grads.mean(0))
        torch.testing.assert_close(found.mean_square[index], grads.square().mean(0))
    assert all(parameter.grad is None for parameter in net.parameters())


def test_with_batch_norm_the_shares_add_up_to_the_batchs_gradient():
    torch.manual_seed(0)
    net = models.cifar_3conv(10, norm="batch", layers=nn)
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    found = gradient_moments(net, lambda: functional.cross_entropy(net(x), y, reduction="none"))
    whole = torch.autograd.grad(functional.cross_entropy(net(x), y), list(net.parameters()))
    for mean, expected in zip(found.mean, whole, strict=True):
        torch.testing.assert_close(mean, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(2),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 2, dilation=2),
    ],
)
def test_other_layers_with_parameters_are_named(layer):
    net = nn.Sequential(layer, nn.Flatten())
    with pytest.raises(ValueError, match=type(layer).__name__):
        gradient_moments(net, lambda: net(torch.randn(2, 2, 4, 4)).sum(1))


def test_a_layer_called_twice_is_refused():
    layer = nn.Linear(3, 3)
    net = nn.Sequential(layer, layer)
    with pytest.raises(ValueError, match="called again"):
        gradient_moments(net, lambda: net(torch.randn(2, 3)).sum(1))
