"""`Sequential` against torch's own, which calls the layers one by one: results are equal to the bit."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchtagi as tagi
from torchtagi.experiments import networks as models
from torchtagi.nn import chain

Build = Callable[[], list[nn.Module]]
NETS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "mlp": (lambda: [tagi.nn.Linear(5, 7), tagi.nn.ReLU(), tagi.nn.Linear(7, 3)], (4, 5)),
    "ends in relu": (lambda: [tagi.nn.Linear(5, 7), tagi.nn.Linear(7, 3), tagi.nn.ReLU()], (4, 5)),
    "begins with relu": (lambda: [tagi.nn.ReLU(), tagi.nn.ReLU(), tagi.nn.Linear(5, 3, bias=False)], (4, 5)),
    "relu twice": (
        lambda: [tagi.nn.Linear(5, 6), tagi.nn.ReLU(), tagi.nn.ReLU(), tagi.nn.Flatten(), tagi.nn.Linear(6, 3)],
        (4, 5),
    ),
    "flatten last": (lambda: [tagi.nn.Conv2d(2, 3, 3), tagi.nn.ReLU(), tagi.nn.Flatten()], (2, 2, 6, 6)),
    "unitwise": (
        lambda: [
            *(tagi.nn.Linear(5, 6), tagi.nn.Tanh(), tagi.nn.Linear(6, 6), tagi.nn.Sigmoid(), tagi.nn.ReLU()),
            *(tagi.nn.Linear(6, 4), tagi.nn.MixtureReLU(), tagi.nn.Softplus(), tagi.nn.LeakyReLU(0.1)),
            *(tagi.nn.ReLU(), tagi.nn.Linear(4, 4), tagi.nn.Remax()),
        ],
        (4, 5),
    ),
    "pools": (
        lambda: [
            *(tagi.nn.Conv2d(2, 4, 3), tagi.nn.ReLU(), tagi.nn.AvgPool2d(2), tagi.nn.ReLU()),
            *(tagi.nn.Conv2d(4, 4, 2), tagi.nn.LeakyReLU(0.2), tagi.nn.AvgPool2d(2, ceil_mode=True)),
            *(tagi.nn.MaxPool2d(2), tagi.nn.Flatten(), tagi.nn.Linear(4, 3)),
        ],
        (2, 2, 12, 12),
    ),
    "norms": (
        lambda: [
            *(tagi.nn.Conv2d(2, 4, 3), tagi.nn.BatchNorm2d(4), tagi.nn.ReLU(), tagi.nn.ConvTranspose2d(4, 2, 2)),
            *(tagi.nn.ReLU(), tagi.nn.LayerNorm((2, 11, 11)), tagi.nn.ReLU(), tagi.nn.Flatten()),
            *(tagi.nn.Linear(242, 3), tagi.nn.Unflatten(1, (3, 1))),
        ],
        (2, 2, 12, 12),
    ),
    "mnist": (lambda: list(models.mnist_cnn().children()), (2, 1, 28, 28)),
}


def messages(net: nn.Module, x: tagi.Gaussian | torch.Tensor) -> list[torch.Tensor | None]:
    """The outputs, and every message after an arbitrary one at the outputs."""
    for parameter in net.parameters():
        parameter.grad = None
    z = net(x)
    generator = torch.Generator().manual_seed(3)
    dmean = torch.randn(z.shape, generator=generator, dtype=z.dtype)
    dvar = -torch.rand(z.shape, generator=generator, dtype=z.dtype)
    kept = dmean.clone(), dvar.clone()
    torch.autograd.backward([z.mean, z.var], [dmean, dvar])
    assert torch.equal(dmean, kept[0])
    assert torch.equal(dvar, kept[1]), "a message that came from outside was overwritten"
    return [z.mean, z.var, *(parameter.grad for parameter in net.parameters())]


def assert_equal(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or torch.equal(a, b)


def both(name: str) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    build, shape = NETS[name]
    torch.manual_seed(0)
    layers = build()
    return tagi.nn.Sequential(*layers), nn.Sequential(*layers), torch.randn(shape)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "last"])
def test_a_chain_equals_its_layers(name: str, layout: torch.memory_format) -> None:
    joined, single, x = both(name)
    if name == "begins with relu":
        x = tagi.Gaussian(x, torch.rand_like(x)).mean  # a ReLU of a certain input has no variance
    if x.ndim == 4:
        x = x.contiguous(memory_format=layout)
        joined = joined.to(memory_format=layout)
    assert_equal(messages(joined, x), messages(single, x))


@pytest.mark.parametrize("name", NETS)
def test_a_chain_sends_the_same_message_to_an_uncertain_input(name: str) -> None:
    joined, single, x = both(name)
    answers = []
    for net in (joined, single):
        units = tagi.Gaussian(x.clone(), torch.full_like(x, 0.3)).requires_grad_()
        before = units.mean.detach().clone(), units.var.detach().clone()
        answers.append([*messages(net, units), units.mean.grad, units.var.grad])
        assert torch.equal(units.mean, before[0])
        assert torch.equal(units.var, before[1]), "the input was overwritten"
    assert_equal(*answers)


def test_frozen_layers_get_no_message_and_pass_it_on() -> None:
    joined, single, x = both("mnist")
    for frozen in (0, 3):
        for parameter in list(joined.children())[frozen].parameters():
            parameter.requires_grad_(False)
    sent = messages(joined, x)
    assert_equal(sent, messages(single, x))
    assert sent[2] is None, "the first convolution is frozen"
    assert sent[-1] is not None


def test_one_node_for_a_chain_and_the_same_posterior() -> None:
    posteriors = []
    for kind in (tagi.nn.Sequential, nn.Sequential):
        torch.manual_seed(1)
        net = kind(*NETS["mlp"][0]())
        likelihood, update = tagi.Regression(0.1), tagi.Update(net)
        x, y = torch.randn(4, 5), torch.randn(4, 3)
        for _ in range(3):
            likelihood(net(x), y).backward()
            update.step()
            update.zero_grad()
        posteriors.append([parameter.detach() for parameter in net.parameters()])
    assert_equal(*posteriors)
    joined, _, x = both("mlp")
    assert "ChainMoments" in joined(x).mean.grad_fn.name()


def test_a_layer_with_a_hook_is_called_by_itself() -> None:
    joined, single, x = both("mlp")
    seen: list[tagi.Gaussian] = []
    handle = next(joined.children()).register_forward_hook(lambda layer, args, output: seen.append(output))
    assert_equal(messages(joined, x), messages(single, x))
    assert len(seen) == 2, "one call of each network, which share the layer"
    handle.remove()
    joined(x)
    assert len(seen) == 2


def test_a_network_can_be_used_twice_before_the_backward_pass() -> None:
    joined, single, x = both("mnist")
    answers = []
    for net in (joined, single):
        for parameter in net.parameters():
            parameter.grad = None
        z = net(x) + net(0.5 * x)
        torch.autograd.backward([z.mean, z.var], [torch.ones_like(z.mean), -torch.ones_like(z.var)])
        answers.append([parameter.grad for parameter in net.parameters()])
    assert_equal(*answers)


def test_a_graph_can_be_kept_for_a_second_backward_pass() -> None:
    joined, _, x = both("mnist")
    z = joined(x)
    weight = next(joined.parameters())
    torch.autograd.backward([z.mean, z.var], [torch.ones_like(z.mean)] * 2, retain_graph=True)
    once = weight.grad.clone()
    torch.autograd.backward([z.mean, z.var], [torch.ones_like(z.mean)] * 2)
    torch.testing.assert_close(weight.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.backward([z.mean, z.var], [torch.ones_like(z.mean)] * 2)


def test_bad_input_is_named_by_the_layer_it_reaches() -> None:
    net = tagi.nn.Sequential(tagi.nn.Linear(5, 7), tagi.nn.ReLU(), tagi.nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"6 features .* \(4, 7\)"):
        net(torch.randn(4, 5))
    with pytest.raises(TypeError, match="float64"):
        net(torch.randn(4, 5).double())
    with pytest.raises(ValueError, match="nan at index"):
        net(torch.full((4, 5), float("nan")))


def test_empty_and_single() -> None:
    x = torch.randn(4, 5)
    assert tagi.nn.Sequential()(x) is x
    layer = tagi.nn.Linear(5, 2)
    assert torch.equal(tagi.nn.Sequential(layer)(x).mean, layer(x).mean)
    assert isinstance(tagi.nn.Sequential(layer, tagi.nn.ReLU())[:1], tagi.nn.Sequential)
    assert chain.joins(layer)
    assert not chain.joins(nn.Identity())


class Twice(tagi.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def test_a_subclass_with_a_forward_of_its_own_is_called() -> None:
    torch.manual_seed(0)
    layers = Twice(3, 4), tagi.nn.ReLU(), tagi.nn.Linear(4, 2)
    x = torch.randn(5, 3)
    ours, torchs = tagi.nn.Sequential(*layers)(x), torch.nn.Sequential(*layers)(x)
    assert torch.equal(ours.mean, torchs.mean)
    assert torch.equal(ours.var, torchs.var)
    seen = []
    net = torch.nn.Sequential(*layers)
    y, posterior = torch.zeros(5, 2), tagi.Update(net)
    tagi.condition(net, tagi.Regression(1.0), posterior, x, y, before=lambda _, z, __: seen.append(z))
    assert torch.equal(seen[0].mean, torchs.mean)
