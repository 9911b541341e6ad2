"""The line search where part of the variance is not the update's own, against dense linear algebra."""

import pytest
import torch

import torchtagi as tagi

NOISE = 0.7


class Chain(torch.nn.Module):
    """A linear generator seen through a linear discriminator: y = D(G(z))."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.generator = tagi.nn.Linear(3, 4, bias=False)
        self.discriminator = tagi.nn.Linear(4, 1)
        for layer, factor in ((self.generator, 0.4), (self.discriminator, 0.6)):
            layer.weight.set_(layer.weight.mean.detach(), layer.weight.var.detach() * factor**2)
        self.double()

    def forward(self, z):
        return self.discriminator(self.generator(z))


def shares(net, z):
    """K_G and K_F: the outputs' covariance by the generator's and by the discriminator's weights, from dense
    Jacobians of the mean map."""
    parameters = [net.generator.weight, net.discriminator.weight, net.discriminator.bias]

    def outputs(w, d, b):
        return (z @ w.t() @ d.t() + b)[:, 0]

    jacobians = torch.autograd.functional.jacobian(outputs, tuple(p.mean.detach() for p in parameters))
    k = [
        (j.flatten(1) * p.var.detach().flatten()) @ j.flatten(1).t()
        for j, p in zip(jacobians, parameters, strict=True)
    ]
    return k[0], k[1] + k[2], jacobians[0]


def observed(net, z, y, **options):
    """One step of the generator alone; returns its update and the innovations."""
    update = tagi.Update(net.generator, outputs=net, **options)
    update.gain_bound, update.output_bound, update.weight_bound = 0.0, 1e9, 1e9
    out = net(z)
    tagi.Regression(NOISE)(out, y).backward()
    update.step()
    update.zero_grad()
    return update, out


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_alpha_is_the_best_length_in_the_metric_of_all_covariance(seed):
    net = Chain(seed)
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(6, 3, dtype=torch.float64, generator=g) + 1.5
    y = net(z).mean.detach() + 0.4 + 0.1 * torch.randn(6, 1, dtype=torch.float64, generator=g)
    own, frozen, _ = shares(net, z)
    update, out = observed(net, z, y, frozen=[net.discriminator])
    r = (y - out.mean).detach()[:, 0]
    u = r / (out.var.detach()[:, 0] + NOISE**2)
    metric = own + frozen + NOISE**2 * torch.eye(6, dtype=torch.float64)
    lengths = torch.linspace(0, 2, 200_001, dtype=torch.float64)
    cost = 0.5 * lengths**2 * (u @ metric @ u) - lengths * (u @ r)
    best = lengths[cost.argmin()].item()
    assert 0 < best < 1
    assert update.report["alpha"] == pytest.approx(best, abs=2e-5)


def test_equal_observations_move_the_generator_as_exact_conditioning_of_everything_does():
    """The oracle conditions the joint Gaussian of all weights, the discriminator's too, and takes the generator's
    part of the answer."""
    net = Chain()
    z = torch.tensor([[1.0, -0.5, 2.0]], dtype=torch.float64).repeat(8, 1)
    y = net(z).mean.detach() + 0.4
    own, frozen, jacobian = shares(net, z)
    before = net.generator.weight.mean.detach().clone()
    prior_var = net.generator.weight.var.detach().clone()
    exact = torch.linalg.solve(
        own + frozen + NOISE**2 * torch.eye(8, dtype=torch.float64), torch.full((8,), 0.4).double()
    )
    expected = before + prior_var * (jacobian.flatten(1).t() @ exact).view_as(before)
    observed(net, z, y, frozen=[net.discriminator])
    assert torch.allclose(net.generator.weight.mean, expected, rtol=1e-9, atol=1e-12)

    ignorant = Chain()
    observed(ignorant, z, y)
    overshoot = (ignorant.generator.weight.mean - before).norm() / (expected - before).norm()
    assert overshoot > 1.2, "as if no one else could have been wrong, it goes too far"


def test_frozen_weights_stay_as_they_are_and_their_messages_are_cleared():
    net = Chain()
    z = torch.randn(4, 3, dtype=torch.float64)
    kept = {key: value.clone() for key, value in net.discriminator.state_dict().items()}
    observed(net, z, torch.ones(4, 1).double(), frozen=[net.discriminator])
    assert all(torch.equal(kept[key], value) for key, value in net.discriminator.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_without_frozen_modules_nothing_changes():
    z, y = torch.randn(4, 3, dtype=torch.float64), torch.ones(4, 1).double()
    answers = []
    for options in ({}, {"frozen": ()}):
        net = Chain()
        net.discriminator.requires_grad_(False)
        observed(net, z, y, **options)
        answers.append(net.generator.weight.mean.detach().clone())
    assert torch.equal(*answers)


def test_a_message_that_is_not_finite_on_a_frozen_weight_stops_the_step():
    net = Chain()
    update = tagi.Update(net.generator, outputs=net, frozen=[net.discriminator])
    tagi.Regression(NOISE)(net(torch.randn(4, 3).double()), torch.ones(4, 1).double()).backward()
    net.discriminator.weight.mean.grad.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match="not finite"):
        update.step()
