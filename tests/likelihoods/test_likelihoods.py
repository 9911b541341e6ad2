"""Likelihoods: messages against autograd, predictions against scipy, uncertainties against Monte Carlo."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

import torchtagi as tagi
from torchtagi.likelihoods.classification import class_tree, owens_t

N = 6
CLASS_COUNTS = range(2, 41)


def outputs(width: int, seed: int = 0, n: int = N) -> tuple[Tensor, Tensor]:
    """Means and variances a network might put out, in float64."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, width, generator=generator, dtype=torch.float64)
    var = 0.05 + 2 * torch.rand(n, width, generator=generator, dtype=torch.float64)
    return mean, var


def messages(observe: Callable[[tagi.Gaussian], Tensor], mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    """Loss, gradient and curvature for outputs N(mean, var)."""
    z = tagi.Gaussian(mean.clone(), var.clone()).requires_grad_()
    loss = observe(z)
    loss.backward()
    assert z.var is not None
    assert z.mean.grad is not None
    assert z.var.grad is not None
    return loss.detach(), z.mean.grad, z.var.grad


def derivatives(mean: Tensor, total: Tensor, target: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    """−log N(target; mean, total) over the seen entries: its value, and two derivatives in the mean by autograd."""
    mean = mean.clone().requires_grad_()
    density = torch.distributions.Normal(mean, total.sqrt().expand_as(mean))
    loss = -density.log_prob(torch.where(seen, target, 0.0))[seen].sum()
    (first,) = torch.autograd.grad(loss, mean, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), mean)
    return loss.detach(), first.detach(), second


def assert_message_is_derivative(
    observe: Callable[[tagi.Gaussian], Tensor], target: Tensor, noise_var: Tensor, seen: Tensor | None = None
) -> None:
    mean, var = outputs(target.shape[1])
    seen = torch.ones_like(target, dtype=torch.bool) if seen is None else seen
    loss, gradient, curvature = messages(observe, mean, var)
    expected, first, second = derivatives(mean, var + noise_var, target, seen)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, first, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(curvature, second, rtol=1e-12, atol=1e-14)


def float64(values: object) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


# ---- messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_std", [0.1, 1.0, [0.2, 0.7, 3.0]], ids=["small", "one", "per output"])
def test_regression_message_is_the_derivative_of_the_loss(noise_std: float | list[float]) -> None:
    likelihood = tagi.Regression(float64(noise_std)).double()
    target, _ = outputs(3, seed=1)
    noise_var = likelihood.noise_var
    assert_message_is_derivative(lambda z: likelihood(z, target), target, noise_var)


def test_binary_message_is_the_derivative_of_the_loss() -> None:
    likelihood = tagi.Binary(0.6).double()
    target = outputs(2, seed=2)[0].sign()
    assert_message_is_derivative(lambda z: likelihood(z, target), target, likelihood.noise_var)
    whole = target.long()
    assert_message_is_derivative(lambda z: likelihood(z, whole), target, likelihood.noise_var)


@pytest.mark.parametrize("classes", [2, 3, 8, 10])
@pytest.mark.parametrize("per_node", [False, True])
def test_hierarchical_message_is_the_derivative_on_the_path_and_zero_off_it(classes: int, per_node: bool) -> None:
    width = class_tree(classes).shape[1]
    noise_std = torch.linspace(0.2, 2.0, width, dtype=torch.float64) if per_node else 0.5
    likelihood = tagi.HierarchicalClassification(classes, noise_std).double()
    labels = torch.arange(N) % classes
    target = class_tree(classes).double()[labels]
    assert_message_is_derivative(lambda z: likelihood(z, labels), target, likelihood.noise_var, target != 0)


def test_a_certain_output_sends_the_message_of_variance_zero() -> None:
    likelihood = tagi.Regression(0.5).double()
    mean, target = outputs(2)[0], outputs(2, seed=1)[0]
    z = tagi.Gaussian(mean.clone()).requires_grad_()
    likelihood(z, target).backward()
    torch.testing.assert_close(z.mean.grad, (mean - target) / 0.25, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weight", [0.25, -1.0, 3.0])
def test_a_weight_on_the_loss_is_refused(weight: float) -> None:
    """Whatever likelihood sent it: Bayes' rule has no weights."""
    pair_target = outputs(1, seed=3)[0]
    mean, var = outputs(2)
    mean[:, 1] = mean[:, 1].abs() + 0.1
    observers = [
        lambda z: tagi.Regression(0.5)(z, float64([[1.0, -1.0]] * N)),
        lambda z: tagi.Binary(0.5)(z, float64([[1.0, -1.0]] * N)),
        lambda z: tagi.HierarchicalClassification(3, 0.5)(
            tagi.cat([z, z[:, :1]], 1), torch.zeros(N, dtype=torch.long)
        ),
        lambda z: tagi.HeteroscedasticRegression()(z, pair_target),
    ]
    for observe in observers:
        messages(observe, mean, var)
        with pytest.raises(
            RuntimeError, match=rf"multiplied by {weight:g} .*backward\(\) on the loss itself.*noise_std"
        ):
            messages(lambda z, observe=observe: weight * observe(z), mean, var)


def test_the_loss_of_two_batches_sends_both_messages() -> None:
    likelihood = tagi.Regression(0.5).double()
    mean, var = outputs(2)
    first, second = outputs(2, seed=1)[0], outputs(2, seed=2)[0]
    both = messages(lambda z: likelihood(z, first) + likelihood(z, second), mean, var)
    parts = [messages(lambda z, y=y: likelihood(z, y), mean, var) for y in (first, second)]
    for value, one, other in zip(both, *parts, strict=True):
        torch.testing.assert_close(value, one + other, rtol=1e-12, atol=1e-14)


# ---- missing targets -----------------------------------------------------------------------------------------


def test_missing_targets_send_no_message() -> None:
    likelihood = tagi.Regression([0.3, 0.8]).double()
    target, _ = outputs(2, seed=1)
    seen = torch.rand(target.shape, generator=torch.Generator().manual_seed(0)) > 0.4
    assert 0 < seen.sum() < seen.numel()
    holes = torch.where(seen, target, math.nan)
    assert_message_is_derivative(lambda z: likelihood(z, holes), target, likelihood.noise_var, seen)
    mean, var = outputs(2)
    _, gradient, curvature = messages(lambda z: likelihood(z, holes), mean, var)
    assert (gradient[~seen] == 0).all()
    assert (curvature[~seen] == 0).all()


def test_missing_rows_are_the_same_as_rows_left_out() -> None:
    net = tagi.nn.Linear(3, 2).double()
    likelihood = tagi.Regression(0.4).double()
    x, (target, _) = outputs(3, seed=5)[0], outputs(2, seed=1)
    kept = torch.tensor([0, 2, 5])
    holes = torch.full_like(target, math.nan)
    holes[kept] = target[kept]
    results = []
    for inputs, y in ((x, holes), (x[kept], target[kept])):
        net.zero_grad()
        loss = likelihood(net(inputs), y)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in net.parameters())])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-13)
    assert all(bool(grad.abs().max() > 0) for grad in results[0][1:])


def test_log_prob_of_missing_targets_is_that_of_the_others() -> None:
    likelihood = tagi.Regression(0.4).double()
    z = tagi.Gaussian(*outputs(3))
    target = outputs(3, seed=1)[0]
    target[0, 1] = target[2] = math.nan
    expected = stats.norm.logpdf(target.numpy(), z.mean.numpy(), np.sqrt(z.variance.numpy() + 0.16))
    np.testing.assert_allclose(likelihood.log_prob(z, target).numpy(), np.nansum(expected, 1), rtol=1e-6)
    assert likelihood.log_prob(z, target)[2] == 0


# ---- predictions ---------------------------------------------------------------------------------------------


def test_regression_predicts_the_observation_and_its_log_probability() -> None:
    likelihood = tagi.Regression(float64([0.5, 2.0])).double()
    z = tagi.Gaussian(*outputs(2))
    target = outputs(2, seed=1)[0]
    total = z.variance + float64([0.25, 4.0])
    predicted = likelihood.predict(z)
    torch.testing.assert_close(predicted.mean, z.mean, rtol=0, atol=0)
    torch.testing.assert_close(predicted.var, total, rtol=1e-12, atol=0)
    expected = stats.norm.logpdf(target.numpy(), z.mean.numpy(), total.sqrt().numpy()).sum(1)
    np.testing.assert_allclose(likelihood.log_prob(z, target).numpy(), expected, rtol=1e-12)
    torch.testing.assert_close(-likelihood(z, target), likelihood.log_prob(z, target).sum())


def test_binary_predicts_the_probability_of_plus_one() -> None:
    likelihood = tagi.Binary(0.5).double()
    z = tagi.Gaussian(*outputs(2))
    target = outputs(2, seed=1)[0].sign()
    margin = z.mean.numpy() / np.sqrt(z.variance.numpy() + 0.25)
    np.testing.assert_allclose(likelihood.predict(z).numpy(), stats.norm.cdf(margin), rtol=1e-12)
    expected = stats.norm.logcdf(target.numpy() * margin).sum(1)
    np.testing.assert_allclose(likelihood.log_prob(z, target).numpy(), expected, rtol=1e-12)


def test_binary_log_prob_stays_finite_far_out() -> None:
    z = tagi.Gaussian(torch.tensor([[-40.0]]), torch.tensor([[0.5]]))
    value = tagi.Binary(0.5).log_prob(z, torch.ones(1, 1)).item()
    assert value == pytest.approx(stats.norm.logcdf(-40 / math.sqrt(0.75)), rel=1e-4)


def test_the_noise_can_be_changed_between_batches() -> None:
    likelihood = tagi.Regression([0.5, 0.5]).double()
    likelihood.noise_std = 2.0
    assert likelihood.noise_std.tolist() == [2.0, 2.0]
    likelihood.noise_std = float64([0.5, 3.0])
    target = outputs(2, seed=1)[0]
    assert_message_is_derivative(lambda z: likelihood(z, target), target, float64([0.25, 9.0]))
    assert likelihood.config()["noise_std"] == [0.5, 3.0]


# ---- learned noise -------------------------------------------------------------------------------------------


def noisy_batches(noise_std: float, batches: int, n: int = 64) -> list[tuple[tagi.Gaussian, Tensor]]:
    """Targets around outputs of known variance."""
    drawn = []
    for seed in range(batches):
        mean, var = outputs(1, seed=seed, n=n)
        noise = torch.randn(n, 1, generator=torch.Generator().manual_seed(-1 - seed), dtype=torch.float64)
        drawn.append((tagi.Gaussian(mean, 0.1 * var), mean + (0.1 * var + noise_std**2).sqrt() * noise))
    return drawn


@pytest.mark.parametrize("noise_std", [0.5, 3.0])
def test_the_noise_can_be_learned_from_the_innovations(noise_std: float) -> None:
    likelihood = tagi.Regression(0.01, learn_noise=True).double()
    for z, target in noisy_batches(noise_std, 200):
        likelihood(z, target)
    z = noisy_batches(1.0, 1)[0][0]
    predicted = likelihood.predict(z).variance - z.variance
    torch.testing.assert_close(predicted, torch.full_like(predicted, noise_std**2), rtol=0.2, atol=0)


def test_a_learned_noise_never_falls_below_its_floor_nor_below_the_batch() -> None:
    likelihood = tagi.Regression(0.8, learn_noise=True).double()
    for z, target in noisy_batches(0.01, 100):
        _, _, curvature = messages(lambda output, y=target: likelihood(output, y), z.mean, z.variance)
        noise_var = 1 / curvature - z.variance
        floor = max(0.64, ((target - z.mean).square() - z.variance).mean().item())
        assert noise_var.min().item() >= floor - 1e-6
    assert likelihood.predictive_noise_var.item() == pytest.approx(0.64)
    z, target = noisy_batches(5.0, 1)[0]
    _, _, curvature = messages(lambda output: likelihood(output, target), z.mean, z.variance)
    batch_var = ((target - z.mean).square() - z.variance).mean().item()
    torch.testing.assert_close(1 / curvature - z.variance, torch.full_like(curvature, batch_var), rtol=1e-9, atol=0)


def test_noise_is_learned_in_training_only_and_from_what_was_seen_only() -> None:
    z, target = noisy_batches(3.0, 1)[0]
    one, other = (tagi.Regression(0.1, learn_noise=True).double() for _ in range(2))
    start = one.predictive_noise_var.item()
    one.eval()
    one(z, target)
    assert one.predictive_noise_var.item() == start
    one.train()
    one(z, torch.full_like(target, math.nan))
    assert one.predictive_noise_var.item() == start
    holes = target.clone()
    holes[::2] = math.nan
    one(z, holes)
    other(z[1::2], target[1::2])
    assert one.predictive_noise_var.item() == pytest.approx(other.predictive_noise_var.item(), rel=1e-12)
    assert one.predictive_noise_var.item() > start


def test_learned_noise_of_classes_counts_the_nodes_on_the_path() -> None:
    likelihood = tagi.HierarchicalClassification(4, 0.1, learn_noise=True).double()
    mean, var = outputs(3)
    labels = torch.arange(N) % 4
    target = class_tree(4).double()[labels]
    _, gradient, curvature = messages(lambda z: likelihood(z, labels), mean, var)
    seen = target != 0
    noise_var = (1 / curvature - var)[seen]
    innovation = (target - mean)[seen]
    assert noise_var.min().item() == pytest.approx(noise_var.max().item())
    assert noise_var[0].item() >= (innovation.square() - var[seen]).mean().item() - 1e-9
    torch.testing.assert_close(gradient[seen], -innovation / (var[seen] + noise_var))
    assert not gradient[~seen].any()


def test_one_noise_is_learned_for_each_output_where_one_is_given_for_each() -> None:
    """Each output's is what a likelihood of that output alone learns; missing targets count for neither."""
    joint = tagi.Regression([0.01, 0.02], learn_noise=True).double()
    single = [tagi.Regression(floor, learn_noise=True).double() for floor in (0.01, 0.02)]
    for first, second in zip(noisy_batches(0.3, 200), reversed(noisy_batches(2.0, 200)), strict=True):
        z, target = tagi.cat([first[0], second[0]], 1), torch.cat([first[1], second[1]], 1)
        target[::3, 1] = math.nan
        joint(z, target)
        for k, alone in enumerate(single):
            alone(z[:, k : k + 1], target[:, k : k + 1])
    learned = joint.predictive_noise_var
    assert learned.shape == (2,)
    torch.testing.assert_close(learned, torch.stack([alone.predictive_noise_var for alone in single]))
    torch.testing.assert_close(learned, float64([0.09, 4.0]), rtol=0.2, atol=0)


def test_learned_noise_takes_outputs_of_another_dtype() -> None:
    z, target = noisy_batches(3.0, 1)[0]
    single, double = tagi.Regression(0.1, learn_noise=True), tagi.Regression(0.1, learn_noise=True).double()
    single(z, target)
    double(z, target)
    assert single.predictive_noise_var.item() == pytest.approx(double.predictive_noise_var.item(), rel=1e-5)


def test_a_target_far_out_of_range_does_not_spoil_the_learned_noise() -> None:
    likelihood = tagi.Regression(0.1, learn_noise=True)
    z = tagi.Gaussian(torch.zeros(4, 1), torch.ones(4, 1))
    likelihood(z, torch.full((4, 1), 1e30))
    assert math.isfinite(likelihood.predictive_noise_var.item())


# ---- classes -------------------------------------------------------------------------------------------------


def path(code: Tensor) -> list[tuple[int, int]]:
    """(node, sign) along a class's path."""
    return [(int(node), int(code[node])) for node in torch.nonzero(code).flatten()]


@pytest.mark.parametrize("classes", CLASS_COUNTS)
def test_class_tree_has_one_distinct_path_a_class(classes: int) -> None:
    code = class_tree(classes)
    levels = (classes - 1).bit_length()
    assert set(code.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert len({tuple(row.tolist()) for row in code}) == classes
    assert all(len(path(row)) == levels for row in code)
    prefixes = {(level, c >> (levels - level)) for c in range(classes) for level in range(levels)}
    assert code.shape == (classes, len(prefixes))
    assert bool((code != 0).any(0).all()), "a node that no class passes would never be observed"
    # read along its path, left 0 and right 1, a class is its own number
    numbers = [int("".join("0" if sign > 0 else "1" for _, sign in path(row)), 2) for row in code]
    assert numbers == list(range(classes))


@pytest.mark.parametrize("classes", CLASS_COUNTS)
def test_two_classes_share_a_path_up_to_one_node_where_they_part(classes: int) -> None:
    paths = [path(row) for row in class_tree(classes)]
    for a in range(classes):
        for b in range(a):
            parted = next(
                i for i, (left, right) in enumerate(zip(paths[a], paths[b], strict=True)) if left != right
            )
            assert paths[a][parted][0] == paths[b][parted][0]
            assert paths[a][parted][1] == -paths[b][parted][1]
            later = {node for node, _ in paths[a][parted + 1 :]} & {node for node, _ in paths[b][parted + 1 :]}
            assert not later


def test_ten_classes_have_eleven_nodes() -> None:
    assert tagi.HierarchicalClassification(10).outputs == 11


@pytest.mark.parametrize("classes", CLASS_COUNTS)
def test_class_probabilities_are_the_normalised_products_along_the_paths(classes: int) -> None:
    likelihood = tagi.HierarchicalClassification(classes, 0.7).double()
    z = tagi.Gaussian(*outputs(likelihood.outputs, seed=classes))
    margin = z.mean.numpy() / np.sqrt(z.variance.numpy() + 0.49)
    code = class_tree(classes).numpy()[None]
    joint = np.where(code == 0, 1.0, stats.norm.cdf(code * margin[:, None])).prod(2)
    expected = joint / joint.sum(1, keepdims=True)
    predicted = likelihood.predict(z)
    np.testing.assert_allclose(predicted.probs.numpy(), expected, rtol=1e-6)
    torch.testing.assert_close(predicted.probs.sum(1), torch.ones(N, dtype=torch.float64))
    if classes & (classes - 1) == 0:
        np.testing.assert_allclose(joint.sum(1), 1.0)
    np.testing.assert_array_equal(predicted.labels.numpy(), expected.argmax(1))
    np.testing.assert_allclose(predicted.confidence.numpy(), expected.max(1), rtol=1e-6)
    np.testing.assert_allclose(predicted.entropy.numpy(), stats.entropy(expected, axis=1), rtol=1e-6)
    for label in (0, classes - 1):
        labels = torch.full((N,), label)
        log_prob = likelihood.log_prob(z, labels).numpy()
        np.testing.assert_allclose(log_prob, np.log(expected[:, label]), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_of_every_integer_dtype_mean_the_same(dtype: torch.dtype) -> None:
    likelihood = tagi.HierarchicalClassification(4, 0.5).double()
    mean, var = outputs(3, n=4)
    labels = torch.tensor([3, 0, 2, 1])
    expected = messages(lambda z: likelihood(z, labels), mean, var)
    value = messages(lambda z: likelihood(z, labels.to(dtype)), mean, var)
    for one, other in zip(value, expected, strict=True):
        assert torch.equal(one, other)
    z = tagi.Gaussian(mean, var)
    assert torch.equal(likelihood.log_prob(z, labels.to(dtype)), likelihood.log_prob(z, labels))


@pytest.mark.parametrize("classes", [2, 3, 8, 10])
def test_epistemic_and_aleatoric_variance_make_up_the_whole(classes: int) -> None:
    likelihood = tagi.HierarchicalClassification(classes, 0.7).double()
    predicted = likelihood.predict(tagi.Gaussian(*outputs(likelihood.outputs)))
    whole = predicted.probs * (1 - predicted.probs)
    torch.testing.assert_close(predicted.epistemic + predicted.aleatoric, whole, rtol=1e-12, atol=1e-15)
    assert bool((predicted.epistemic > 0).all())
    assert bool((predicted.aleatoric >= 0).all())
    if classes in (2, 8):  # where the parts are exact, an output with noise has both
        assert bool((predicted.aleatoric > 0).all())


def sampled_joint(likelihood: tagi.HierarchicalClassification, z: tagi.Gaussian, draws: int) -> np.ndarray:
    """(draws, N, C): the product along each class's path, for outputs drawn from z."""
    samples = z.sample(draws, generator=torch.Generator().manual_seed(0)).numpy()
    samples /= likelihood.noise_std.numpy()
    code = class_tree(likelihood.classes).numpy()
    return np.stack([special.ndtr(samples * row)[..., row != 0].prod(-1) for row in code], -1)


@pytest.mark.parametrize("classes", [2, 4, 8])
def test_epistemic_variance_is_that_of_the_class_probability_over_the_outputs(classes: int) -> None:
    """Exactly so where every leaf is a class."""
    draws = 100_000
    likelihood = tagi.HierarchicalClassification(classes, 0.7).double()
    z = tagi.Gaussian(*outputs(likelihood.outputs, n=2))
    joint = sampled_joint(likelihood, z, draws)
    variance = joint.var(0)
    fourth = ((joint - joint.mean(0)) ** 4).mean(0)
    standard_error = np.sqrt((fourth - variance**2) / draws)
    error = np.abs(likelihood.predict(z).epistemic.numpy() - variance)
    assert (error < 6 * standard_error).all()


@pytest.mark.parametrize("classes", [3, 5, 6, 10])
def test_epistemic_variance_is_roughly_right_where_leaves_are_unused(classes: int) -> None:
    """The normalised probability is a ratio, whose variance has no closed form."""
    likelihood = tagi.HierarchicalClassification(classes, 0.7).double()
    z = tagi.Gaussian(*outputs(likelihood.outputs, n=40))
    joint = sampled_joint(likelihood, z, 4_000)
    chance = joint / joint.sum(-1, keepdims=True)
    predicted = likelihood.predict(z)
    assert predicted.epistemic.sum().item() == pytest.approx(chance.var(0).sum(), rel=1 / 3)
    assert predicted.aleatoric.sum().item() == pytest.approx((chance * (1 - chance)).mean(0).sum(), rel=1 / 3)


@pytest.mark.parametrize("certain", ["none", "zero"])
def test_a_certain_output_has_no_epistemic_variance(certain: str) -> None:
    likelihood = tagi.HierarchicalClassification(10, 0.7).double()
    mean, var = outputs(11)
    z = tagi.Gaussian(mean, None if certain == "none" else torch.zeros_like(var))
    predicted = likelihood.predict(z)
    assert float(predicted.epistemic.max()) < 1e-12
    assert float(predicted.aleatoric.max()) > 0.05


def test_epistemic_variance_vanishes_as_the_output_becomes_certain() -> None:
    likelihood = tagi.HierarchicalClassification(4, 0.7).double()
    mean, var = outputs(3)
    sums = [likelihood.predict(tagi.Gaussian(mean, var * s)).epistemic.sum().item() for s in (1, 0.1, 0.01, 0.001)]
    assert sums == sorted(sums, reverse=True)
    assert sums[3] < 0.01 * sums[0]


def test_predictions_far_out_stay_finite_in_float32() -> None:
    likelihood = tagi.HierarchicalClassification(10, 0.1)
    mean = torch.linspace(-60, 60, 22).reshape(2, 11)
    predicted = likelihood.predict(tagi.Gaussian(mean, torch.full_like(mean, 1e-3)))
    for part in (predicted.probs, predicted.epistemic, predicted.aleatoric, predicted.entropy):
        assert bool(torch.isfinite(part).all())
        assert bool((part >= 0).all())
    torch.testing.assert_close(predicted.probs.sum(1), torch.ones(2))
    z = tagi.Gaussian(mean, torch.full_like(mean, 1e-3))
    assert bool(torch.isfinite(likelihood.log_prob(z, torch.tensor([0, 9]))).all())


def test_owens_t_matches_scipy() -> None:
    h, a = torch.meshgrid(
        torch.linspace(-8, 8, 65, dtype=torch.float64), torch.linspace(0, 1, 33, dtype=torch.float64), indexing="ij"
    )
    np.testing.assert_allclose(owens_t(h, a).numpy(), special.owens_t(h.numpy(), a.numpy()), rtol=1e-9, atol=1e-15)


# ---- AGVI ----------------------------------------------------------------------------------------------------


def pair(m: float, v: float, n: float, w: float) -> tuple[Tensor, Tensor]:
    return float64([[m, n]]), float64([[v, w]])


AGVI_CASES = [(0.3, 0.8, 2.0, 0.05, 1.1), (-1.0, 0.2, 1.0, 0.02, 2.5), (0.0, 3.0, 0.5, 0.002, -0.4)]


@pytest.mark.parametrize(("m", "v", "n", "w", "y"), AGVI_CASES)
def test_agvi_message_against_conditioning_on_sampled_moments(
    m: float, v: float, n: float, w: float, y: float
) -> None:
    """z, b and e are sampled; their sample moments, not formulas, are conditioned on y and then on e²."""
    draws = 2_000_000
    rng = np.random.default_rng(0)
    b = rng.normal(n, math.sqrt(w), draws)
    e = np.sqrt(b) * rng.standard_normal(draws)
    z = rng.normal(m, math.sqrt(v), draws)
    seen = z + e
    gain_z, gain_e = (np.cov(x, seen)[0, 1] / seen.var() for x in (z, e))
    innovation = y - seen.mean()
    error_mean = e.mean() + gain_e * innovation
    error_var = e.var() - gain_e**2 * seen.var()
    posterior_error = rng.normal(error_mean, math.sqrt(error_var), draws)
    square = e**2
    gain_b = np.cov(b, square)[0, 1] / square.var()
    change_n = gain_b * ((posterior_error**2).mean() - square.mean())
    change_w = gain_b**2 * ((posterior_error**2).var() - square.var())
    _, gradient, curvature = messages(
        lambda output: tagi.HeteroscedasticRegression()(output, float64([[y]])), *pair(m, v, n, w)
    )
    assert -gradient[0, 0].item() * v == pytest.approx(gain_z * innovation, rel=0.01, abs=0.003)
    assert -curvature[0, 0].item() * v**2 == pytest.approx(-(gain_z**2) * seen.var(), rel=0.01)
    assert -gradient[0, 1].item() * w == pytest.approx(change_n, rel=0.03, abs=0.03 * gain_b * n)
    assert -curvature[0, 1].item() * w**2 == pytest.approx(change_w, rel=0.03, abs=0.03 * gain_b**2 * square.var())


def test_agvi_sends_each_pair_its_own_message() -> None:
    likelihood = tagi.HeteroscedasticRegression()
    mean, var = outputs(4)
    mean[:, 1::2] = mean[:, 1::2].abs() + 0.1
    target = outputs(2, seed=1)[0]
    loss, gradient, curvature = messages(lambda z: likelihood(z, target), mean, var)
    total = 0.0
    for column in range(2):
        pairs = slice(2 * column, 2 * column + 2)
        part = messages(lambda z, c=column: likelihood(z, target[:, c : c + 1]), mean[:, pairs], var[:, pairs])
        total += part[0]
        torch.testing.assert_close(gradient[:, pairs], part[1], rtol=1e-12, atol=0)
        torch.testing.assert_close(curvature[:, pairs], part[2], rtol=1e-12, atol=0)
    torch.testing.assert_close(loss, total)


def test_agvi_pulls_the_noise_towards_the_squared_error() -> None:
    likelihood = tagi.HeteroscedasticRegression()
    small, large = (
        messages(lambda z, y=y: likelihood(z, float64([[y]])), *pair(0.0, 0.01, 1.0, 0.1))[1][0, 1].item()
        for y in (0.1, 4.0)
    )
    assert large < 0 < small, "a step against the gradient"


def test_agvi_with_a_noise_known_exactly_is_ordinary_regression() -> None:
    target = outputs(1, seed=1)[0]
    mean, var = outputs(2)
    mean[:, 1], var[:, 1] = 0.49, 0.0
    loss, gradient, curvature = messages(lambda z: tagi.HeteroscedasticRegression()(z, target), mean, var)
    plain = messages(lambda z: tagi.Regression(float64(0.7)).double()(z, target), mean[:, :1], var[:, :1])
    torch.testing.assert_close(loss, plain[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient[:, :1], plain[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(curvature[:, :1], plain[2], rtol=1e-6, atol=0)
    assert bool(torch.isfinite(gradient).all())
    assert bool(torch.isfinite(curvature).all())


def test_agvi_takes_a_missing_target_for_no_observation() -> None:
    """As rows left out: no message to either output of its pair, nothing added to the loss."""
    likelihood = tagi.HeteroscedasticRegression()
    mean, var = outputs(4)
    mean[:, 1::2] = mean[:, 1::2].abs() + 0.1
    target = outputs(2, seed=1)[0]
    whole = messages(lambda z: likelihood(z, target), mean, var)
    seen = torch.rand(target.shape, generator=torch.Generator().manual_seed(0)) > 0.4
    assert 0 < seen.sum() < seen.numel()
    holes = torch.where(seen, target, math.nan)
    loss, gradient, curvature = messages(lambda z: likelihood(z, holes), mean, var)
    of_pair = seen.repeat_interleave(2, 1)
    torch.testing.assert_close(gradient, torch.where(of_pair, whole[1], 0.0), rtol=1e-12, atol=0)
    torch.testing.assert_close(curvature, torch.where(of_pair, whole[2], 0.0), rtol=1e-12, atol=0)
    total = (var[:, 0::2] + mean[:, 1::2]).sqrt()
    expected = np.nansum(stats.norm.logpdf(holes.numpy(), mean[:, 0::2].numpy(), total.numpy()), 1)
    assert -loss.item() == pytest.approx(expected.sum(), rel=1e-12)
    np.testing.assert_allclose(likelihood.log_prob(tagi.Gaussian(mean, var), holes).numpy(), expected, rtol=1e-12)


def test_agvi_prediction_and_log_probability() -> None:
    likelihood = tagi.HeteroscedasticRegression()
    mean, var = outputs(4)
    mean[:, 1::2] = mean[:, 1::2].abs() + 0.1
    z, target = tagi.Gaussian(mean, var), outputs(2, seed=1)[0]
    total = var[:, 0::2] + mean[:, 1::2]
    predicted = likelihood.predict(z)
    assert torch.equal(predicted.mean, mean[:, 0::2])
    torch.testing.assert_close(predicted.var, total)
    expected = stats.norm.logpdf(target.numpy(), mean[:, 0::2].numpy(), total.sqrt().numpy()).sum(1)
    np.testing.assert_allclose(likelihood.log_prob(z, target).numpy(), expected, rtol=1e-12)
    assert -likelihood(z, target).item() == pytest.approx(expected.sum(), rel=1e-12)
