"""Small networks and comparisons that the tests of the update share."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchtagi as tagi

RULES = ("paper", "capped", "coherent")
BOUNDS = ("gain_bound", "output_bound", "weight_bound", "floor")
State = dict[str, Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def fully_connected() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 2)).double()


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        tagi.nn.Unflatten(1, (1, 6, 6)),
        tagi.nn.Conv2d(1, 4, 3, padding=1),
        tagi.nn.ReLU(),
        tagi.nn.AvgPool2d(2, 2),
        tagi.nn.Flatten(),
        tagi.nn.Linear(36, 2),
    ).double()


def layer_normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.LayerNorm(8), tagi.nn.Tanh(), tagi.nn.Linear(8, 2)).double()


def one_layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(tagi.nn.Linear(3, 2)).double()


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "linear": (one_layer, 3),
    "fully connected": (fully_connected, 3),
    "convolutional": (convolutional, 36),
    "layer normed": (layer_normed, 3),
}


class Wrapped(nn.Module):
    """A network of a class of its own: its steps are autograd's."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return self.net(x)


PATHS: dict[str, Callable[[nn.Module], nn.Module]] = {"direct": lambda net: net, "autograd": Wrapped}


def snapshot(net: nn.Module) -> State:
    return {key: value.detach().clone() for key, value in net.named_parameters()}


def assert_states_close(one: State, other: State, tolerance: float = 1e-12) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(
            value, other[key], rtol=tolerance, atol=tolerance, msg=lambda m, key=key: f"{key}: {m}"
        )


def assert_moved(before: State, after: State) -> None:
    """Every tensor differs: a comparison of states that never changed would prove nothing."""
    assert all(not torch.equal(before[key], after[key]) for key in before)


def assert_same(before: State, after: State) -> None:
    assert all(torch.equal(before[key], after[key]) for key in before)


def message(net: nn.Module, x: Tensor, y: Tensor, noise_std: float | Tensor = 1.0) -> State:
    """The summed messages on a network's parameters, without an update."""
    twin = copy.deepcopy(net)
    tagi.Regression(noise_std).double()(twin(x), y).backward()
    return {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}


def update_of(net: nn.Module, rule: str = "coherent", **options: Any) -> tagi.Update:
    """An update whose bounds, which are constants, may be others."""
    bounds = {name: options.pop(name) for name in BOUNDS if name in options}
    update = tagi.Update(net, rule, **options)
    for name, bound in bounds.items():
        setattr(update, name, bound)
    return update


def condition(
    net: nn.Module,
    rule: str,
    x: Tensor,
    y: Tensor,
    noise_std: float | Tensor = 1.0,
    *,
    part: nn.Module | None = None,
    **options: Any,
) -> tagi.Update:
    """One step on one batch, of the whole network or of a part; the update that made it."""
    posterior = update_of(net if part is None else part, rule, outputs=net, **options)
    tagi.Regression(noise_std).double()(net(x), y).backward()
    posterior.step()
    posterior.zero_grad()
    return posterior


def linear(features: int, outputs: int = 1, bias: bool = False, var: float = 0.7, seed: int = 0) -> tagi.nn.Linear:
    net = tagi.nn.Linear(features, outputs, bias=bias).double()
    net.weight.set_(0.3 * normal(outputs, features, seed=seed), var)
    if bias:
        net.bias.set_(0.1, 0.2)
    return net


def dense_posterior(
    mean: Tensor, var: Tensor, design: Tensor, y: Tensor, noise_var: float
) -> tuple[Tensor, Tensor]:
    """Condition w ~ N(mean, diag var) on y = design·w + noise, all at once."""
    prior = torch.diag(var)
    innovation_var = design @ prior @ design.t() + noise_var * torch.eye(len(y), dtype=torch.float64)
    gain = torch.linalg.solve(innovation_var, design @ prior).t()
    return mean + gain @ (y - design @ mean), prior - gain @ design @ prior
