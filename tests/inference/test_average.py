"""The mean of the last posteriors: the right mean, of the right things, and nobody disturbed by it."""

import numpy as np
import pytest
import torch

import torchtagi as tagi
from small_runs import finished, small
from torchtagi.experiments.classify.evaluation import load_model, predict
from torchtagi.experiments.classify.train import Training
from torchtagi.experiments.runs.folder import Run


def weights(steps: int, count: int) -> np.ndarray:
    """How much each of `count` posteriors weighs in the end, by the recursion's own definition."""
    found = np.zeros(count)
    for n in range(1, count + 1):
        w = max(1 / steps, 30 / (n + 29))
        found *= 1 - w
        found[n - 1] = w
    return found


@pytest.mark.parametrize(("steps", "count"), [(1, 3), (4, 1), (4, 3), (4, 30), (500, 40), (5, 400)])
def test_the_average_is_the_weighted_mean_of_what_it_followed(steps, count):
    torch.manual_seed(0)
    net = tagi.nn.Sequential(tagi.nn.Linear(3, 2, dtype=torch.float64), tagi.nn.ReLU())
    average = tagi.Average(net, steps)
    seen = []
    for _ in range(count):
        with torch.no_grad():
            net[0].weight.mean.normal_()
            net[0].weight.var.uniform_(0.1, 1)
        average.follow()
        seen.append((net[0].weight.mean.detach().clone(), net[0].weight.var.detach().clone()))
    share = torch.from_numpy(weights(steps, count))
    assert float(share.sum()) == pytest.approx(1), "a mean, however few there are"
    for k, own in enumerate((average.net[0].weight.mean, average.net[0].weight.var)):
        wanted = (share.view(-1, 1, 1) * torch.stack([pair[k] for pair in seen])).sum(0)
        torch.testing.assert_close(own, wanted)
    assert average.count == count


def test_running_statistics_are_averaged_and_counters_are_not():
    torch.manual_seed(0)
    net = tagi.nn.Sequential(tagi.nn.BatchNorm1d(2))
    average = tagi.Average(net, 4)
    means = []
    for _ in range(3):
        net(5 + torch.randn(8, 2))
        average.follow()
        means.append(net[0].running_mean.clone())
    share = torch.from_numpy(weights(4, 3)).float()
    torch.testing.assert_close(average.net[0].running_mean, (share[:, None] * torch.stack(means)).sum(0))
    assert int(average.net[0].num_batches_tracked) == 0
    assert int(net[0].num_batches_tracked) == 3


def test_the_average_predicts_and_gets_no_messages():
    net = tagi.nn.Sequential(tagi.nn.Linear(3, 2), tagi.nn.BatchNorm1d(2))
    posterior = tagi.Update(net)
    average = tagi.Average(net)
    before = average.net[1].running_mean.clone()
    z = average.net(torch.randn(4, 3))
    assert not z.mean.requires_grad
    assert not posterior.record.entries
    assert torch.equal(average.net[1].running_mean, before), "evaluation mode: nothing is tracked"
    assert all(p.requires_grad for p in net.parameters()), "the followed network learns on"


def test_where_steps_stay_long_the_average_is_closer_to_the_truth():
    """A short horizon keeps the gain up, so that the last posterior is as noisy as the last few samples."""
    torch.manual_seed(1)
    truth = torch.randn(1, 4, dtype=torch.float64)
    net = tagi.nn.Sequential(tagi.nn.Linear(4, 1, bias=False, dtype=torch.float64))
    posterior = tagi.Update(net, horizon=5)
    average = tagi.Average(net, 400)
    likelihood = tagi.Regression(1.0)
    last, mean = [], []
    for step in range(2500):
        x = torch.randn(1, 4, dtype=torch.float64)
        tagi.condition(net, likelihood, posterior, x, x @ truth.t() + torch.randn(1, 1, dtype=torch.float64))
        average.follow()
        if step >= 1500:  # then it is over 50 and more
            last.append((net[0].weight.mean.detach() - truth).square().sum())
            mean.append((average.net[0].weight.mean - truth).square().sum())
    assert sum(mean) < 0.25 * sum(last)


@pytest.mark.parametrize("steps", [0, -3])
def test_a_window_of_nothing_is_refused(steps):
    with pytest.raises(ValueError, match=f"steps must be at least 1, got {steps}"):
        tagi.Average(tagi.nn.Linear(2, 2), steps)


def test_learning_knows_nothing_of_the_average(digits):
    def learned(average):
        training = Training(small(epochs=1, samples=64, test_samples=20, average=average), sets=digits)
        rows = [event.row for event in training.events() if hasattr(event, "row")]
        return training.learner, rows[0]

    (with_average, row), (without, other) = learned(500), learned(0)
    assert row["train_error"] == other["train_error"]
    for mine, its in zip(with_average.net.parameters(), without.net.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert row["nll"] != other["nll"], "it is the prediction that differs"


def test_the_file_holds_the_network_that_predicts(digits, tmp_path):
    config = small(epochs=1, samples=320, test_samples=50)
    run = Run.create(tmp_path / "run", config.as_json())
    training = Training(config, run, digits)
    for _ in training.events():
        pass
    images = training.test.images
    expected = training.learner.predict(images).probs
    assert torch.equal(predict(*load_model(Run.open(run.folder)), images).probs, expected)
    assert not torch.equal(predict(training.learner.net, training.learner.likelihood, images).probs, expected)


def test_a_run_without_an_average_has_one_network_in_its_file(digits, tmp_path):
    run = finished(tmp_path / "run", small(epochs=1, samples=32, test_samples=20, average=0), digits)
    tensors, _ = run.read_tensors()
    assert {key.split(".")[0] for key in tensors} == {"net", "likelihood"}


@pytest.mark.parametrize(("noise", "asked"), [({}, 1), ({"learn_noise": False, "noise_std": 0.3}, 0)])
def test_the_average_is_asked_beforehand_only_where_its_link_learns(noise, asked, digits):
    training = Training(small(epochs=1, samples=160, test_samples=20, **noise), sets=digits)
    calls = []
    training.learner.predicting.register_forward_hook(lambda *_: calls.append(1))
    list(training.steps())
    assert len(calls) == asked, "of ten batches, the second"
