"""The matched prior predicts with the targets' variance; the ReLU prior has He et al.'s scale."""

import math

import pytest
import torch
from torch import nn

import torchtagi as tagi
from torchtagi.experiments import networks as models


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
@pytest.mark.parametrize("target", [0.3, 1.0])
def test_predictive_variance_is_the_target(norm, target):
    torch.manual_seed(0)
    net = models.cifar_3conv(norm=norm)
    x = torch.randn(16, 3, 32, 32)
    variances = [p.clone() for name, p in net.named_parameters() if name.endswith("var")]
    factor = tagi.match_prior(net, x, target)
    assert net(x).var.mean().item() == pytest.approx(target, rel=1e-3)
    after = [p for name, p in net.named_parameters() if name.endswith("var")]
    assert all(torch.allclose(a, b * factor) for a, b in zip(after, variances, strict=True))


def test_running_statistics_are_left_alone():
    net = models.cifar_3conv(norm="batch")
    before = {name: b.clone() for name, b in net.named_buffers()}
    tagi.match_prior(net, torch.randn(16, 3, 32, 32))
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_an_unreachable_target_changes_nothing():
    net = torch.nn.Sequential(tagi.nn.Linear(2, 4), tagi.nn.LayerNorm(4, elementwise_affine=False))
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(ValueError, match="predictive variance of 5"):
        tagi.match_prior(net, torch.randn(8, 2), 5.0)  # a norm's output variance is at most about 1
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


def test_relu_prior_scales():
    torch.manual_seed(0)
    net = models.mnist_cnn()
    before = {name: p.clone() for name, p in net.named_parameters()}
    tagi.use_relu_prior(net)
    last = max(int(name.split(".")[0]) for name in before)
    for name, value in net.named_parameters():
        if name.endswith("weight.mean"):
            factor = 1.0 if name.startswith(f"{last}.") else math.sqrt(2)
            assert torch.allclose(value, before[name] * factor)
        elif name.endswith("bias.mean"):
            assert not value.any()
        else:
            assert torch.equal(value, before[name])


def shares(net):
    layers = [part for part in net.modules() if isinstance(part, tagi.nn.Conv2d | tagi.nn.Linear)]
    return [
        (layer.weight.var.mean() / (layer.weight.var.mean() + layer.weight.mean.square().mean())).item()
        for layer in layers
    ]


def test_a_deep_network_keeps_its_signal():
    torch.manual_seed(0)
    net = models.resnet18(width=4)
    x = torch.randn(16, 3, 32, 32)
    tagi.use_relu_prior(net)
    tagi.match_prior(net, x)
    before = {name: b.clone() for name, b in net.named_buffers()}
    assert min(shares(net)[:-1]) > 0.5
    faint = net(x).mean.std(0).mean().item()  # how far the outputs tell one image from another
    assert tagi.keep_signal(net, x)
    assert max(shares(net)[:-1]) == pytest.approx(4 / 21, rel=1e-4)
    z = net(x)
    assert z.var.mean().item() == pytest.approx(1.0, rel=1e-3)
    assert z.mean.std(0).mean().item() > 5 * faint
    assert before.keys() == dict(net.named_buffers()).keys()
    assert not tagi.keep_signal(net, x), "once is enough"


@pytest.mark.parametrize("build", [models.mnist_cnn, models.cifar_3conv])
def test_a_shallow_network_is_left_alone(build):
    torch.manual_seed(0)
    net = build()
    x = torch.randn(16, *((1, 28, 28) if build is models.mnist_cnn else (3, 32, 32)))
    tagi.use_relu_prior(net)
    tagi.match_prior(net, x)
    before = [p.clone() for p in net.parameters()]
    assert not tagi.keep_signal(net, x)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


def hidden_spread(net, x):
    """The standard deviation, from input to input, of each hidden layer's output means."""
    found, hooks = [], []
    layers = [part for part in net.modules() if isinstance(part, tagi.nn.Conv2d | tagi.nn.Linear)]
    for layer in layers[:-1]:
        hooks.append(layer.register_forward_hook(lambda _, __, z: found.append(z.mean.var(0).mean().sqrt().item())))
    net(x)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_spread_signal_makes_hidden_means_differ_by_the_number_asked_for(norm):
    torch.manual_seed(0)
    net = models.cifar_3conv(norm=norm)
    x = torch.randn(16, 3, 32, 32)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    factors = tagi.spread_signal(net, x, 0.7)
    after = {name: value.clone() for name, value in net.state_dict().items()}
    assert hidden_spread(net, x) == pytest.approx([0.7] * 4, rel=1e-4)
    weights = [name for name in before if name.endswith("weight.mean")]
    assert len(factors) == len(weights) - 1
    for name, factor in zip(weights, [*factors, 1.0], strict=True):
        var = name.removesuffix("mean") + "var"
        assert torch.allclose(after[name], before[name] * factor)
        assert torch.allclose(after[var], before[var] * factor**2)
    assert all(torch.equal(after[name], before[name]) for name in before if ".weight." not in name)


def test_spread_signal_leaves_the_scale_alone_where_inputs_do_not_differ():
    equal = torch.ones(4, 3, 32, 32)
    assert tagi.spread_signal(models.cifar_3conv(), equal) == [1.0] * 4


@pytest.mark.parametrize(
    ("inputs", "std", "message"),
    [
        (torch.ones(1, 3, 32, 32), 0.5, "at least two"),
        (torch.full((2, 3, 32, 32), float("nan")), 0.5, "inputs"),
        (torch.ones(2, 3, 32, 32), 0.0, "std"),
    ],
)
def test_spread_signal_names_a_bad_argument(inputs, std, message):
    with pytest.raises(ValueError, match=message):
        tagi.spread_signal(models.cifar_3conv(), inputs, std)


class HeadFirst(nn.Module):
    """Registered in another order than it is called, its body called twice and by name."""

    def __init__(self):
        super().__init__()
        self.head, self.spare, self.body = tagi.nn.Linear(8, 2), tagi.nn.Linear(3, 3), tagi.nn.Linear(8, 8)
        self.first, self.relu = tagi.nn.Linear(3, 8), tagi.nn.ReLU()

    def forward(self, x):
        return self.head(self.body(self.body(x=self.relu(self.first(x)))))


def test_the_last_layer_is_the_one_called_last():
    torch.manual_seed(0)
    net, x = HeadFirst(), torch.randn(32, 3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    first, body = tagi.spread_signal(net, x, 0.5)
    for name, factor in (("first", first), ("body", body), ("head", 1.0), ("spare", 1.0)):
        assert torch.allclose(net.state_dict()[f"{name}.weight.mean"], before[f"{name}.weight.mean"] * factor)
    hidden = net.body(net.relu(net.first(x))).mean
    assert hidden.var(0).mean().sqrt().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("fit", [tagi.match_prior, tagi.spread_signal])
def test_a_network_that_fails_keeps_its_prior(fit):
    net = nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 8), tagi.nn.Linear(5, 1))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match="must have 5 features"):
        fit(net, torch.randn(4, 3))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
