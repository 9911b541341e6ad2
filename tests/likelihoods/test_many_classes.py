"""A tree of many classes: what grows with C log C instead of C², and the two ways to sum along its paths."""

import copy
import sys
import time

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor

import torchtagi as tagi
from torchtagi.likelihoods import class_tree, classification
from torchtagi.likelihoods.classification import class_paths

MANY = 30_000
N = 16


def outputs(likelihood: tagi.HierarchicalClassification) -> tagi.Gaussian:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(N, likelihood.outputs, generator=generator, dtype=torch.float64)
    return tagi.Gaussian(mean, 0.1 + torch.rand(mean.shape, generator=generator, dtype=torch.float64))


def labels() -> Tensor:
    chosen = torch.randint(0, MANY, (N,), generator=torch.Generator().manual_seed(1))
    return torch.cat([torch.tensor([0, MANY - 1]), chosen[2:]])


def path(label: int, classes: int) -> list[tuple[int, int]]:
    """Node and sign at each level, from the prefixes that occur among the classes' binary numbers."""
    levels = (classes - 1).bit_length()
    found, first = [], 0
    for level in range(levels):
        prefixes = sorted({c >> (levels - level) for c in range(classes)})
        sign = -1 if label >> (levels - level - 1) & 1 else 1
        found.append((first + prefixes.index(label >> (levels - level)), sign))
        first += len(prefixes)
    return found


def peak_memory() -> int:
    resource = pytest.importorskip("resource")
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def test_thirty_thousand_classes_take_little_time_and_memory() -> None:
    """A dense tree of them is 3.6 GB."""
    memory, start = peak_memory(), time.perf_counter()
    likelihood = tagi.HierarchicalClassification(MANY, 0.5, learn_noise=True)
    assert time.perf_counter() - start < 1
    z = outputs(likelihood).to(torch.float32).requires_grad_()
    likelihood(z, labels()).backward()
    likelihood.predict(z)
    assert time.perf_counter() - start < 10
    assert peak_memory() - memory < 500 * 2**20


def test_thirty_thousand_classes_send_messages_on_their_paths_alone() -> None:
    likelihood = tagi.HierarchicalClassification(MANY, 0.5).double()
    z = outputs(likelihood).requires_grad_()
    likelihood(z, labels()).backward()
    assert z.var is not None
    expected = np.zeros((2, N, likelihood.outputs))
    for row, label in enumerate(labels().tolist()[:4]):
        for node, sign in path(label, MANY):
            total = z.var[row, node].item() + 0.25
            expected[:, row, node] = (z.mean[row, node].item() - sign) / total, 1 / total
    for grad, value in zip((z.mean.grad, z.var.grad), expected, strict=True):
        assert grad is not None
        np.testing.assert_allclose(grad.numpy()[:4], value[:4], rtol=1e-12)
        assert bool((torch.count_nonzero(grad, 1) == 15).all())


def test_thirty_thousand_classes_have_probabilities_that_sum_to_one() -> None:
    likelihood = tagi.HierarchicalClassification(MANY, 0.5).double()
    z = outputs(likelihood)
    predicted = likelihood.predict(z)
    torch.testing.assert_close(predicted.probs.sum(1), torch.ones(N, dtype=torch.float64))
    margin = (z.mean / (z.variance + 0.25).sqrt()).numpy()
    one, other = (
        np.prod([special.ndtr(sign * margin[:, node]) for node, sign in path(label, MANY)], axis=0)
        for label in (7, MANY - 1)
    )
    np.testing.assert_allclose(
        (predicted.probs[:, 7] / predicted.probs[:, MANY - 1]).numpy(), one / other, rtol=1e-9
    )
    assert bool((predicted.epistemic >= 0).all())
    assert bool((predicted.aleatoric >= 0).all())


@pytest.mark.parametrize("classes", [*range(2, 41), 127, 128, 129, 1000])
def test_both_ways_to_sum_along_paths_agree(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood = tagi.HierarchicalClassification(classes, 0.7).double()
    z = outputs(likelihood)
    found = []
    for few in (0, classes):
        monkeypatch.setattr(classification, "FEW", few)
        found.append(likelihood.log_probs(z))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classes", [*range(2, 41), 127, 128, 129, 1000])
def test_the_probability_of_a_label_is_that_among_all_classes(classes: int) -> None:
    """`log_prob` follows two paths of the tree, `log_probs` all of them; with several noises at once too."""
    likelihood = tagi.HierarchicalClassification(classes, 0.7).double()
    z, y = outputs(likelihood), torch.arange(N) % classes
    expected = likelihood.log_probs(z).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(likelihood.log_prob(z, y), expected, rtol=1e-12, atol=1e-12)
    noises = likelihood.noise_var * torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64).view(3, 1, 1)
    several = likelihood.log_prob_at(z.mean / (z.variance + noises).sqrt(), y)
    assert several.shape == (3, N)
    torch.testing.assert_close(several[1], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10, 64, 200])
def test_paths_are_the_dense_trees_entries(classes: int) -> None:
    nodes, signs = class_paths(classes)
    code = class_tree(classes)
    assert nodes.shape == signs.shape == (classes, (classes - 1).bit_length())
    for label in range(classes):
        assert list(zip(nodes[label].tolist(), signs[label].tolist(), strict=True)) == path(label, classes)
        assert torch.equal(nodes[label], torch.nonzero(code[label])[:, 0])


def test_a_likelihood_first_used_in_inference_mode_can_be_differentiated_later() -> None:
    classification.stored_paths.cache_clear()
    classification.stored_branches.cache_clear()
    likelihood = tagi.HierarchicalClassification(10, 0.7).double()
    z, y = outputs(likelihood), torch.arange(N) % 10
    with torch.inference_mode():
        likelihood.log_prob(z, y)
        likelihood.log_probs(z)
    z = z.requires_grad_()
    (likelihood.log_prob(z, y) + likelihood.log_probs(z).sum(1)).sum().backward()
    assert z.mean.grad is not None
    assert bool((z.mean.grad != 0).any())


def test_a_likelihood_can_be_copied_and_has_no_state_but_its_noise() -> None:
    likelihood = tagi.HierarchicalClassification(10, 0.7)
    assert list(likelihood.state_dict()) == [name for name, _ in likelihood.named_buffers()] == ["noise_var"]
    twin, z = copy.deepcopy(likelihood).double(), outputs(likelihood)
    assert torch.equal(twin.log_probs(z), likelihood.double().log_probs(z))


@pytest.mark.parametrize("bad", [1, 0, -3, 2.5, "ten", None])
def test_a_tree_needs_two_classes(bad: object) -> None:
    for make in (tagi.HierarchicalClassification, class_tree):
        with pytest.raises(ValueError, match=rf"classes must be.*{bad}"):
            make(bad)
