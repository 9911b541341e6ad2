"""Last-layer Laplace against brute force: Hessian by autograd, evidence by search, logits by drawing."""

import copy

import pytest
import torch
from torch.nn import functional

from torchtagi.experiments.baselines.laplace import LayerPosterior
from torchtagi.experiments.baselines.methods import configure_baseline
from torchtagi.experiments.classify.training import Training

N, D, C = 40, 4, 3


@pytest.fixture
def features():
    torch.manual_seed(0)
    return torch.cat([torch.randn(N, D - 1), torch.ones(N, 1)], 1).double()


def test_logits_have_the_covariance_of_the_whole_hessian(features):
    """With W = 0 every example has the same probabilities, and the Kronecker product is exact."""
    labels = torch.randint(0, C, (N,))
    weight = torch.zeros(C, D, dtype=torch.double)

    def loss(flat):
        return functional.cross_entropy(features @ flat.view(C, D).T, labels, reduction="sum")

    delta = 0.7
    whole = torch.autograd.functional.hessian(loss, weight.flatten()) + delta * torch.eye(C * D, dtype=torch.double)
    probs = torch.full((C,), 1 / C, dtype=torch.double)
    found = LayerPosterior(weight, features.T @ features, probs.diag() - probs[:, None] * probs, delta)
    factor = found.logit_factor(features[:5])
    for phi, root in zip(features[:5], factor, strict=True):
        jacobian = torch.kron(torch.eye(C, dtype=torch.double), phi[None])
        torch.testing.assert_close(root @ root.T, jacobian @ whole.inverse() @ jacobian.T)


def test_the_prior_is_where_the_evidence_is_largest(features):
    weight = torch.randn(C, D).double()
    probs = (features @ weight.T).softmax(1)
    hessian = (probs.sum(0).diag() - probs.T @ probs) / N
    outer = features.T @ features
    best = LayerPosterior(weight, outer, hessian)
    for factor in (0.3, 0.97, 1.03, 3.0):
        other = LayerPosterior(weight, outer, hessian, best.prior_precision * factor)
        assert log_evidence(other) < log_evidence(best)


def log_evidence(posterior):
    """As far as it depends on δ: ½ Σ log δ/(h_j a_i + δ) − ½ δ‖W‖²."""
    delta = posterior.prior_precision
    determinant = (delta / (posterior.curvature + delta)).log().sum()
    return float(determinant - delta * posterior.squared_norm) / 2


def trained(method, sets, **changes):
    values = {"epochs": 1, "samples": 160, "test_samples": 30, "batch_size": 16, "threads": 1, **changes}
    training = Training(configure_baseline("mnist", method, **values), sets=sets)
    for _ in training.events():
        pass
    return training


def test_it_learns_as_adam_does_and_gathers_its_last_epoch(digits):
    adam, laplace = (trained(method, digits, epochs=2) for method in ("adam", "laplace"))
    theirs, own = adam.learner.net.state_dict(), laplace.learner.net.state_dict()
    assert all(torch.equal(theirs[name], own[name]) for name in own)
    assert int(laplace.learner.seen) == 160, "of the second epoch alone"
    learner = laplace.learner
    learner.net.eval()
    before = copy.deepcopy(learner.outer)
    probs = learner.net(laplace.train.images).softmax(1)
    phi = learner.features
    assert torch.equal(learner.outer, before), "looking gathers nothing"
    assert phi.shape == (160, 151)
    scale = (phi.T @ phi).diag()  # the network moved while it gathered, and its digits were varied
    assert 0.5 < learner.outer.diag().sum() / scale.sum() < 2
    hessian = probs.sum(0).diag() - probs.T @ probs
    torch.testing.assert_close(learner.hessian.sum(1), torch.zeros(10), atol=1e-3, rtol=0)
    assert 0.5 < learner.hessian.trace() / hessian.trace() < 2


def test_draws_have_the_logits_moments(digits):
    training = trained("laplace", digits, hyperparameters={"draws": 4000})
    learner, images = training.learner, training.test.images[:3]
    learner.net.eval()
    with torch.no_grad():
        mean = learner.net(images)
        factor = learner.posterior().logit_factor(learner.features)
        torch.manual_seed(1)
        draws = torch.stack(list(learner.draws(images, 4000))).log()
    centred = draws - draws.mean(2, keepdim=True)  # a softmax knows logits up to a constant
    centring = torch.eye(10) - 0.1
    torch.testing.assert_close(centred.mean(0), mean @ centring, atol=0.15, rtol=0)
    for index in range(3):
        expected = centring @ factor[index] @ factor[index].T @ centring
        error = (centred[:, index].T.cov() - expected).norm() / expected.norm()
        assert error < 0.1


def test_without_a_step_it_is_its_network(digits):
    training = Training(configure_baseline("mnist", "laplace", samples=16, threads=1), sets=digits)
    images = training.test.images[:4]
    found = training.learner.predict(images)
    assert training.learner.last.out_features == 10, "the layer that answers"
    assert found.epistemic.max() == 0
    torch.testing.assert_close(found.probs, training.learner.net(images).softmax(1))
