"""Messages that know that the statistics move, against autograd through the statistics themselves."""

import pytest
import torch

import torchtagi as tagi

N = torch.float64


def normalised(mean, var, dims, eps, correction):
    """â as a function of the means, by plain torch operations."""
    centre = mean.mean(dims, keepdim=True)
    count = mean.numel() // centre.numel()
    spread = ((mean - centre).square() + var).sum(dims, keepdim=True) / (count - correction)
    return (mean - centre) / (spread + eps).sqrt()


CASES = {
    "layer": (lambda **k: tagi.nn.LayerNorm((3, 4, 2), 0.1, **k), (5, 3, 4, 2), (1, 2, 3), (3, 4, 2)),
    "batch images": (lambda **k: tagi.nn.BatchNorm2d(3, 0.1, **k), (5, 3, 4, 2), (0, 2, 3), (3, 1, 1)),
    "batch": (lambda **k: tagi.nn.BatchNorm1d(3, 0.1, **k), (7, 3), (0,), (3,)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("affine", [False, True], ids=["plain", "affine"])
@pytest.mark.parametrize("correction", [0, 1])
def test_the_message_is_the_transposed_jacobian(name, affine, correction):
    build, shape, dims, affine_shape = CASES[name]
    torch.manual_seed(0)
    key = "elementwise_affine" if name == "layer" else "affine"
    norm = build(**{key: affine}, correction=correction).double()
    mean = torch.randn(shape, dtype=N, requires_grad=True)
    var = torch.rand(shape, dtype=N)
    gain = torch.ones((), dtype=N)
    if affine:
        norm.weight.mean.data.uniform_(0.5, 2.0)
        gain = norm.weight.mean.detach().view(affine_shape)
    dmean = torch.randn(shape, dtype=N)
    (expected,) = torch.autograd.grad(normalised(mean, var, dims, 0.1, correction) * gain, mean, dmean)
    units = tagi.Gaussian(mean.detach().clone(), var.clone()).requires_grad_()
    z = norm(units)
    torch.autograd.backward([z.mean, z.var], [dmean, torch.zeros_like(dmean)])
    torch.testing.assert_close(units.mean.grad, expected, rtol=1e-9, atol=1e-11)
    constant = build(**{key: affine}, correction=correction, differentiate_statistics=False).double()
    constant.load_state_dict(norm.state_dict())
    assert not torch.allclose(message(constant, mean, var, dmean), expected, rtol=0.01)


def message(norm, mean, var, dmean):
    units = tagi.Gaussian(mean.detach().clone(), var.clone()).requires_grad_()
    z = norm(units)
    torch.autograd.backward([z.mean, z.var], [dmean, torch.zeros_like(dmean)])
    return units.mean.grad


def test_weights_before_a_norm_get_no_message_that_it_would_undo():
    """Scaling all weights of a channel changes nothing behind the norm, so no message asks for it."""
    torch.manual_seed(0)
    sent = {}
    for differentiate in (True, False):
        net = tagi.nn.Sequential(
            tagi.nn.Conv2d(2, 3, 3, bias=False),
            tagi.nn.BatchNorm2d(3, eps=0.0, affine=False, differentiate_statistics=differentiate),
        ).double()
        weight = net[0].weight
        weight.mean.data.copy_(torch.linspace(-1, 1, weight.mean.numel()).view_as(weight.mean))
        weight.var.data.fill_(1e-12)
        x = torch.linspace(-2, 3, 4 * 2 * 36, dtype=N).view(4, 2, 6, 6).sin()
        z = net(x)
        torch.autograd.backward([z.mean, z.var], [torch.linspace(-1, 2, z.mean.numel()).view_as(z.mean).cos()] * 2)
        sent[differentiate] = (weight.mean * weight.mean.grad).sum((1, 2, 3)).abs().max().item()
    assert sent[True] < 1e-9 < 0.1 < sent[False]


def test_running_statistics_and_evaluation_hold_them_constant():
    torch.manual_seed(0)
    mean, var, dmean = torch.randn(6, 3, dtype=N), torch.rand(6, 3, dtype=N), torch.randn(6, 3, dtype=N)
    for options, training in (({"use_running": True}, True), ({}, False)):
        messages = []
        for differentiate in (True, False):
            norm = tagi.nn.BatchNorm1d(3, differentiate_statistics=differentiate, **options).double()
            norm.train(training)
            messages.append(message(norm, mean, var, dmean))
        assert torch.equal(*messages)
