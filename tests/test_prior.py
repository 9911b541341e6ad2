"""The matched prior predicts with the targets' variance; the ReLU prior has He et al.'s scale."""

import math

import pytest
import torch

import torchtagi as tagi
from torchtagi import models


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
