"""The mean of the last posteriors: the right mean, of the right things, and nobody disturbed by it."""

import numpy as np
import pytest
import torch

import torchtagi as tagi


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


def test_running_statistics_are_averaged_and_counters_are_copied():
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
    assert int(average.net[0].num_batches_tracked) == int(net[0].num_batches_tracked) == 3


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


def test_learning_knows_nothing_of_the_average():
    nets = []
    for followed in (False, True):
        torch.manual_seed(0)
        net = tagi.nn.Sequential(tagi.nn.Linear(3, 4), tagi.nn.BatchNorm1d(4), tagi.nn.Linear(4, 1))
        update, average = tagi.Update(net), tagi.Average(net, 4)
        for _ in range(5):
            tagi.condition(net, tagi.Regression(0.5), update, torch.randn(8, 3), torch.randn(8, 1))
            if followed:
                average.follow()
        nets.append(net.state_dict())
        if followed:
            assert not torch.equal(average.net[0].weight.mean, net[0].weight.mean), (
                "it is the prediction that differs"
            )
    assert all(torch.equal(value, nets[1][name]) for name, value in nets[0].items())


def change_dtype(net):
    net.double()


def change_tensors(net):
    """As after `load_state_dict(assign=True)`: the network's tensors are others."""
    state = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(state, assign=True)


@pytest.mark.parametrize("change", [change_dtype, change_tensors])
def test_it_follows_a_network_whose_tensors_are_replaced(change):
    torch.manual_seed(0)
    net = tagi.nn.Sequential(tagi.nn.Linear(3, 2), tagi.nn.BatchNorm1d(2))
    average = tagi.Average(net, 4)
    seen = []
    for step in range(4):
        if step == 2:
            change(net)
        with torch.no_grad():
            net[0].weight.mean.normal_()
            net[1].running_mean.normal_()
        average.follow()
        seen.append([net[0].weight.mean.detach().double().clone(), net[1].running_mean.double().clone()])
    share = torch.from_numpy(weights(4, 4))
    for k, own in enumerate((average.net[0].weight.mean, average.net[1].running_mean)):
        assert own.dtype == net[0].weight.mean.dtype
        rows = torch.stack([pair[k] for pair in seen])
        wanted = (share.view(-1, *[1] * (rows.ndim - 1)) * rows).sum(0)
        torch.testing.assert_close(own.double(), wanted, rtol=1e-5, atol=1e-6)
    assert average.net(torch.randn(4, 3, dtype=net[0].weight.mean.dtype)).mean.isfinite().all()


def test_a_model_asks_the_average_beforehand_once_in_ten_chunks():
    torch.manual_seed(0)
    model = tagi.Classifier(tagi.nn.Sequential(tagi.nn.Linear(3, 4)), classes=4)
    calls = []
    model.predicting.register_forward_hook(lambda *_: calls.append(1))
    for step in range(10):
        model.update(torch.randn(16, 3), torch.arange(16) % 4)
        assert len(calls) == (step >= 1), "of ten chunks, the second"
