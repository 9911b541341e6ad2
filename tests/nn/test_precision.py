"""Convolutions that multiply in bfloat16: right to the rounding, and nothing else is rounded."""

import pytest
import torch

import torchtagi as tagi
from torchtagi.experiments.classify.config import configure

LAYERS = {
    "conv": lambda: tagi.nn.Conv2d(3, 4, 3, padding=1),
    "strided": lambda: tagi.nn.Conv2d(3, 4, 3, stride=2, bias=False),
    "transposed": lambda: tagi.nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1),
}


def moments_and_messages(layer, certain):
    """What goes in and out, and the messages to the layer's input and parameters."""
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(5, 3, 8, 8, generator=generator)
    var = None if certain else torch.rand(5, 3, 8, 8, generator=generator)
    x = tagi.Gaussian(mean, var).requires_grad_()
    layer.zero_grad()
    z = layer(x)
    dmean, dvar = torch.randn(z.shape, generator=generator), -torch.rand(z.shape, generator=generator)
    torch.autograd.backward([z.mean, z.var], [dmean, dvar])
    sent = {name: parameter.grad for name, parameter in layer.named_parameters()}
    sent |= {"input": x.mean.grad} if certain else {"input": x.mean.grad, "input var": x.var.grad}
    return {"mean": z.mean.detach(), "var": z.var.detach(), **sent}


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_bfloat16_agrees_to_its_eight_bits(kind, certain):
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    exact = moments_and_messages(layer, certain)
    tagi.multiply_in(layer, torch.bfloat16)
    rounded = moments_and_messages(layer, certain)
    for name, value in exact.items():
        assert rounded[name].dtype == torch.float32, name
        error = (rounded[name] - value).square().mean().sqrt() / value.square().mean().sqrt()
        # three roundings of at most 2⁻⁹ each, and a sum of messages over a batch that rounds once more
        assert error < 2**-7, (name, error)
        if "bias" not in name:  # their messages are plain sums, and no product
            assert not torch.equal(rounded[name], value), f"{name} was not computed in bfloat16"
    tagi.multiply_in(layer, None)
    for name, value in moments_and_messages(layer, certain).items():
        assert torch.equal(value, exact[name]), name


def test_only_convolutions_round():
    torch.manual_seed(0)
    net = tagi.nn.Sequential(tagi.nn.Linear(6, 5), tagi.nn.ReLU(), tagi.nn.Linear(5, 2))
    x = torch.randn(4, 6)
    before = net(x)
    tagi.multiply_in(net, torch.bfloat16)
    assert torch.equal(net(x).mean, before.mean)
    assert torch.equal(net(x).var, before.var)


def test_steps_too_small_for_bfloat16_are_kept():
    """Parameters stay in float32: a hundred steps of a thousandth add up."""
    layer = tagi.nn.Conv2d(1, 1, 1, bias=False)
    layer.weight.set_(1.0, 1e-6)
    tagi.multiply_in(layer, torch.bfloat16)
    posterior = tagi.Update(layer, rule="paper")
    start = layer.weight.mean.item()
    x = torch.ones(1, 1, 1, 1)
    for _ in range(100):
        z = layer(x)
        torch.autograd.backward([z.mean, z.var], [torch.full_like(z.mean, -100.0), torch.full_like(z.var, 1.0)])
        posterior.step()
        posterior.zero_grad()
    assert layer.weight.mean.item() - start == pytest.approx(100 * 100 * 1e-6, rel=1e-2)


def test_a_whole_number_type_is_refused():
    with pytest.raises(ValueError, match=r"precision must be a floating dtype, got torch\.int8"):
        tagi.multiply_in(LAYERS["conv"](), torch.int8)


def test_precision_is_part_of_the_configuration_and_not_of_its_name():
    config = configure("mnist", precision="bfloat16")
    assert (config.precision, config.setting) == ("bfloat16", "default")
    with pytest.raises(ValueError, match="precision must be one of float32, bfloat16, got 'float8'"):
        configure("mnist", precision="float8")
