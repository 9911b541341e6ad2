"""The calibrated prior: predictions have the targets' variance, hidden layers tell inputs apart, and twice is
once."""

import math

import pytest
import torch
from torch import nn

import torchtagi as tagi
from torchtagi.experiments import networks
from torchtagi.inference.prior import LARGEST_SPREAD, SIGNAL, SPREAD, layers_and_heads


def state(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def weighted(net: nn.Module) -> list[nn.Module]:
    return [part for part in net.modules() if isinstance(part, tagi.nn.Conv2d | tagi.nn.Linear)]


def share(layer) -> float:
    """How much of E[w²] is variance."""
    var, square = layer.weight.var.mean().item(), layer.weight.mean.square().mean().item()
    return var / (var + square)


class TwoHeads(nn.Module):
    """A trunk, and two heads of different depth; the deeper one was registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = tagi.nn.Sequential(tagi.nn.Linear(8, 16), tagi.nn.ReLU(), tagi.nn.Linear(16, 3))
        self.shallow = tagi.nn.Linear(8, 2)
        self.trunk = tagi.nn.Linear(5, 8)

    def forward(self, x):
        features = torch.relu(self.trunk(x))
        return {"shallow": self.shallow(features), "deep": (self.deep(features), "not a Gaussian")}


NETS = {
    "cnn": (networks.mnist_cnn, (16, 1, 28, 28)),
    "plain": (networks.cifar_3conv, (16, 3, 32, 32)),
    "layer norm": (lambda: networks.cifar_3conv(norm="layer"), (16, 3, 32, 32)),
    "batch norm": (lambda: networks.cifar_3conv(norm="batch"), (16, 3, 32, 32)),
    "resnet": (lambda: networks.resnet18(width=4), (16, 3, 32, 32)),
}


@pytest.mark.parametrize("target", [0.3, 1.0])
@pytest.mark.parametrize("name", NETS)
def test_predictions_have_the_targets_variance(name, target) -> None:
    torch.manual_seed(0)
    build, shape = NETS[name]
    net, x = build(), torch.randn(shape)
    tagi.calibrate_prior(net, x, target)
    assert net(x).var.mean().item() == pytest.approx(target, rel=2e-3)
    limit = SIGNAL / len(weighted(net))
    assert all(share(layer) <= min(limit, 1) * 1.001 for layer in weighted(net)[:-1])


@pytest.mark.parametrize("name", NETS)
def test_twice_is_once(name) -> None:
    torch.manual_seed(0)
    build, shape = NETS[name]
    net, x = build(), torch.randn(shape)
    tagi.calibrate_prior(net, x)
    once = state(net)
    tagi.calibrate_prior(net, x)
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, once[key], rtol=1e-4, atol=1e-7)


def test_hidden_means_have_hes_scale_and_heads_lecuns() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(tagi.nn.Linear(50, 400), tagi.nn.ReLU(), tagi.nn.Linear(400, 300))
    tagi.calibrate_prior(net, torch.randn(64, 50) / 2)
    assert net[0].weight.mean.square().mean().item() == pytest.approx(2 / 50, rel=0.05)
    assert net[2].weight.mean.square().mean().item() == pytest.approx(1 / 400, rel=0.05)
    assert not net[0].bias.mean.any()
    assert not net[2].bias.mean.any()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 16.0, 1e4])
def test_inputs_of_any_scale_are_told_apart(scale) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(tagi.nn.Linear(20, 64), tagi.nn.ReLU(), tagi.nn.Linear(64, 64), tagi.nn.ReLU())
    net.append(tagi.nn.Linear(64, 3))
    x = torch.rand(32, 20) * scale
    tagi.calibrate_prior(net, x)
    spreads = []
    for place in (0, 2, 4):
        spreads.append(net[: place + 1](x).mean.var(0).mean().sqrt().item())
    assert all(SPREAD * 0.999 <= spread <= LARGEST_SPREAD * 1.001 for spread in spreads[:2])
    assert spreads[2] <= LARGEST_SPREAD * 1.001
    assert net(x).var.mean().item() == pytest.approx(1.0, rel=2e-3)


def test_layers_that_spread_enough_keep_their_scale() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(tagi.nn.Linear(50, 400), tagi.nn.ReLU(), tagi.nn.Linear(400, 1))
    before = net[0].weight.mean.clone()
    tagi.calibrate_prior(net, torch.randn(64, 50) / 2)
    torch.testing.assert_close(net[0].weight.mean.detach(), before * math.sqrt(2))


def test_a_deep_network_keeps_its_signal() -> None:
    """Behind eighteen layers the outputs still depend on the image."""
    torch.manual_seed(0)
    net, x = networks.resnet18(width=8), torch.randn(16, 3, 32, 32)
    tagi.calibrate_prior(net, x)
    features = net[:-1](x)
    signal = features.mean.var(0).mean()
    assert signal / (signal + features.var.mean()) > 0.01, "matching the variance alone leaves 1e-8"


def test_heads_are_what_no_other_layer_follows() -> None:
    net = TwoHeads()
    layers, heads = layers_and_heads(net, torch.randn(4, 5))
    assert layers == [net.trunk, net.shallow, net.deep[0], net.deep[2]], "in the order of their calls"
    assert heads == {net.shallow, net.deep[2]}


def test_a_residual_sum_has_two_last_layers() -> None:
    body, shortcut = tagi.nn.Linear(3, 4), tagi.nn.Linear(3, 4)
    net = nn.Sequential(tagi.nn.Linear(2, 3), tagi.nn.Residual(body, shortcut), tagi.nn.Exp())
    _, heads = layers_and_heads(net, torch.randn(4, 2))
    assert heads == {body, shortcut}


def test_each_head_of_several_predicts_with_the_targets_variance() -> None:
    torch.manual_seed(0)
    net, x = TwoHeads(), torch.randn(16, 5)
    tagi.calibrate_prior(net, x)
    outputs = net(x)
    both = torch.cat([outputs["shallow"].var.flatten(), outputs["deep"][0].var.flatten()])
    assert both.mean().item() == pytest.approx(1.0, rel=2e-3)


def test_running_statistics_and_generators_are_left_alone() -> None:
    net = networks.cifar_3conv(norm="batch")
    before = {name: b.clone() for name, b in net.named_buffers()}
    generator = torch.get_rng_state()
    x = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    tagi.calibrate_prior(net, x)
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())
    assert torch.equal(generator, torch.get_rng_state())
    assert not net._forward_hooks
    assert all(not part._forward_hooks for part in net.modules())


def test_a_network_that_has_learned_is_refused() -> None:
    net = nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 1))
    x, y = torch.randn(16, 3), torch.randn(16, 1)
    tagi.calibrate_prior(net, x)
    tagi.condition(net, tagi.Regression(0.5), tagi.Update(net), x, y)
    before = state(net)
    with pytest.raises(ValueError, match="has learned already"):
        tagi.calibrate_prior(net, x)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_prior_of_ones_own_stays() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 1))
    net[0].weight.set_(torch.full((8, 3), 0.5), 0.01)
    mean, var = net[0].weight.mean.clone(), net[0].weight.var.clone()
    x = torch.randn(16, 3)
    tagi.calibrate_prior(net, x)
    assert torch.equal(net[0].weight.mean, mean)
    assert torch.equal(net[0].weight.var, var)
    assert net(x).var.mean().item() == pytest.approx(1.0, rel=2e-3), "the rest makes up for it"


def test_a_network_of_given_priors_is_left_alone() -> None:
    net = nn.Sequential(tagi.nn.Linear(3, 2))
    net[0].weight.set_(0.1, 5.0)
    net[0].bias.set_(0.0, 5.0)
    before = state(net)
    tagi.calibrate_prior(net, torch.randn(8, 3))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_frozen_networks_uncertain_inputs_and_single_ones() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 1)).requires_grad_(False)
    tagi.calibrate_prior(net, torch.randn(1, 3))
    assert not any(parameter.requires_grad for parameter in net.parameters())
    other = nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 1))
    x = tagi.Gaussian(torch.randn(16, 3), torch.full((16, 3), 0.1))
    tagi.calibrate_prior(other, x)
    assert other(x).var.mean().item() == pytest.approx(1.0, rel=2e-3)


def test_an_unreachable_target_changes_nothing() -> None:
    net = torch.nn.Sequential(tagi.nn.Linear(2, 4), tagi.nn.LayerNorm(4, elementwise_affine=False))
    before = state(net)
    with pytest.raises(ValueError, match="predictive variance of 5"):
        tagi.calibrate_prior(net, torch.randn(8, 2), 5.0)  # a norm's output variance is at most about 1
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert net[0].weight.calibration == (1.0, 1.0)


@pytest.mark.parametrize(
    ("net", "inputs", "target", "match"),
    [
        (nn.Linear(2, 1), torch.zeros(4, 2), 1.0, "no GaussianParameter"),
        (tagi.nn.Linear(2, 1), torch.full((4, 2), math.nan), 1.0, "inputs must be finite"),
        (tagi.nn.Linear(2, 1), torch.zeros(4, 2), 0.0, "target_var must be positive"),
    ],
)
def test_bad_input_is_named(net, inputs, target, match) -> None:
    with pytest.raises(ValueError, match=match):
        tagi.calibrate_prior(net, inputs, target)
