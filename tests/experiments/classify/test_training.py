"""The loop: it learns, counts right, and goes on exactly where it stopped."""

import dataclasses
import itertools

import pytest
import torch

import torchtagi as tagi
from small_runs import finished, small
from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.runs.folder import Run, RunError
from torchtagi.fitting import EpochEnd, Step, epoch_order

TIMES = ("seconds", "samples_per_second")
KEYS = {
    *("epoch", "error", "nll", "ece", "brier", "auroc_ovr", "auroc_misclassification", "train_error", "noise_std"),
    *("link_noise_std", "alpha", "innovation", "seconds", "samples_per_second", "train_curve"),
}


def untimed(run):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in run.metrics()]


def test_two_small_epochs_learn(trained):
    rows = trained.metrics()
    assert [row["epoch"] for row in rows] == [1, 2]
    assert all(set(row) == KEYS for row in rows)
    assert rows[1]["error"] < 50 < rows[0]["train_error"], "chance is 90"
    assert rows[1]["train_error"] < rows[0]["train_error"]
    assert rows[0]["train_curve"][-1][0] == 480
    for row in rows:
        pieces = [0, *(images for images, _ in row["train_curve"])]
        sizes = [b - a for a, b in itertools.pairwise(pieces)]
        weighted = sum(n * error for n, (_, error) in zip(sizes, row["train_curve"], strict=True)) / 480
        assert weighted == pytest.approx(row["train_error"], abs=0.01), "the curve adds up to the epoch's error"


def test_events_count_images_and_epochs(digits):
    config = small(epochs=1, samples=40, test_samples=20)
    events = list(Training(config, sets=digits).events())
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.samples for step in steps] == [16, 32, 40], "the last batch is what is left"
    assert all(step.of_samples == 40 and step.epoch == 1 for step in steps)
    assert isinstance(events[-1], EpochEnd)
    assert len(events) == 4


@pytest.mark.parametrize(("paper", "counted"), [(False, [4, 0]), (True, [0, 0])])
def test_sharing_is_counted_while_images_are_new(digits, paper, counted):
    training = Training(small(epochs=2, samples=16, test_samples=20, paper=paper), sets=digits)
    steps = (event for event in training.events() if isinstance(event, Step))
    assert [len(training.learner.posterior.sharing) for _ in steps] == counted


@pytest.mark.parametrize(
    ("samples", "test_samples", "measured"), [(16, 160, [2, 4, 5]), (16, 60, [1, 2, 3, 4, 5]), (8, 400, [5])]
)
def test_few_images_are_learned_several_times_between_measurements(digits, samples, test_samples, measured):
    """The test set is predicted when a fifth as many images were learned, and after the last epoch."""
    training = Training(small(epochs=5, samples=samples, test_samples=test_samples), sets=digits)
    rows = [event.row for event in training.events() if isinstance(event, EpochEnd)]
    assert [row["epoch"] for row in rows if "error" in row] == measured
    assert all((set(row) == KEYS) == ("error" in row) for row in rows)


def test_train_error_is_measured_before_learning(digits):
    config = small(epochs=1, samples=16, test_samples=20)
    training = Training(config, sets=digits)
    with torch.no_grad():
        before = training.learner.likelihood.predict(training.learner.net(training.train.images)).labels
    wrong = int((before != training.train.labels).sum())
    step = next(training.events())
    assert step.error == 100 * wrong / 16


def test_paper_setting_trains_with_decaying_noise_and_the_plain_prior(digits, tmp_path):
    config = configure("mnist", paper=True, threads=1, epochs=2, samples=32, test_samples=20)
    training = Training(config, sets=digits)
    torch.manual_seed(0)
    fresh = config.network_of()
    for ours, theirs in zip(training.learner.net.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(ours, theirs), "the layers' own prior"
    assert training.learner.posterior.rule == "paper"
    noises = [event.row["noise_std"] for event in training.events() if isinstance(event, EpochEnd)]
    assert noises == pytest.approx([1.0, 0.975])


def test_default_prior_predicts_with_variance_one(digits):
    training = Training(small(), sets=digits)
    first = training.train.images[epoch_order(480, 0, 0)[:16]]
    with torch.no_grad():
        assert training.learner.net(first).variance.mean().item() == pytest.approx(1.0, rel=1e-3)


def test_cheap_class_probabilities_are_the_predictions():
    torch.manual_seed(0)
    z = tagi.Gaussian(2 * torch.randn(500, 11), torch.rand(500, 11) + 0.01)
    for likelihood in (tagi.HierarchicalClassification(10, 0.3), tagi.HierarchicalClassification(10, 0.1, True)):
        torch.testing.assert_close(likelihood.log_probs(z).exp(), likelihood.predict(z).probs)


def stop_after(training, steps):
    """Break off after so many batches and save, as Ctrl-C does."""
    seen = 0
    for event in training.events():
        seen += isinstance(event, Step)
        if seen == steps:
            break
    training.save()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, digits):
    """A run that was never interrupted."""
    return finished(tmp_path_factory.mktemp("whole") / "run", small(samples=120, test_samples=40), digits)


@pytest.mark.parametrize("stop", [1, 5, 8, 9, 15])
def test_resumed_anywhere_ends_bit_identical(digits, tmp_path, stop, whole):
    config = small(samples=120, test_samples=40)
    run = Run.create(tmp_path / "stopped", config.as_json())
    stop_after(Training(config, run, digits), stop)
    torch.manual_seed(99)  # another process has another generator
    for _ in Training.resume(Run.open(run.folder), config, digits).events():
        pass
    assert run.checkpoint.read_bytes() == whole.checkpoint.read_bytes()
    assert untimed(run) == untimed(whole)


def test_resumes_augmentation_and_running_statistics(colours, tmp_path):
    """The generator's state and batch norm's buffers are part of a checkpoint."""
    config = configure("cifar10", "3conv-bn", threads=1, epochs=2, batch_size=16, samples=32, augment=True)
    whole = finished(tmp_path / "whole", config, colours)
    run = Run.create(tmp_path / "stopped", config.as_json())
    stop_after(Training(config, run, colours), 3)  # in the second epoch, which is augmented
    torch.manual_seed(99)
    resumed = Training.resume(run, config, colours)
    for _ in resumed.events():
        pass
    assert run.checkpoint.read_bytes() == whole.checkpoint.read_bytes()
    plain = finished(tmp_path / "plain", dataclasses.replace(config, augment=False), colours)
    assert plain.checkpoint.read_bytes() != whole.checkpoint.read_bytes(), "augmentation does something"


def test_seeds_differ_and_repeat(digits, tmp_path):
    runs = [
        finished(tmp_path / str(i), small(epochs=1, samples=32, test_samples=20, seed=seed), digits)
        for i, seed in enumerate((0, 0, 1))
    ]
    first, again, other = (run.checkpoint.read_bytes() for run in runs)
    assert first == again != other


def test_a_metrics_line_beyond_the_checkpoint_is_measured_again(digits, tmp_path):
    """Killed between metrics and checkpoint: the line is there, the epoch is not."""
    config = small(epochs=1, samples=32, test_samples=20)
    run = finished(tmp_path / "run", config, digits)
    rows = untimed(run)
    run.add_metrics({"epoch": 2, "error": 0.0})
    longer = dataclasses.replace(config, epochs=2)
    for _ in Training.resume(run, longer, digits).events():
        pass
    assert untimed(run)[0] == rows[0]
    assert untimed(run)[1]["error"] > 0
    assert Run.open(run.folder).config["epochs"] == 2


def test_killed_before_the_first_checkpoint_starts_again(digits, tmp_path):
    config = small(epochs=1, samples=32, test_samples=20)
    run = Run.create(tmp_path / "run", config.as_json())
    for _ in Training.resume(run, config, digits).events():
        pass
    whole = finished(tmp_path / "whole", config, digits)
    assert run.checkpoint.read_bytes() == whole.checkpoint.read_bytes()


def test_resume_refuses_another_configuration(trained, digits):
    config = small()
    with pytest.raises(RunError, match="batch size 16, not 8"):
        Training.resume(trained, dataclasses.replace(config, batch_size=8), digits)
    with pytest.raises(RunError, match="2 epochs already, more than 1"):
        Training.resume(trained, dataclasses.replace(config, epochs=1), digits)


def test_resume_refuses_a_checkpoint_without_a_position(digits, tmp_path):
    config = small(epochs=1, samples=32, test_samples=20)
    run = Run.create(tmp_path / "run", config.as_json())
    training = Training(config, run, digits)
    training.learner.save(run.checkpoint)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Training.resume(run, config, digits)
    training.learner.save(run.checkpoint, fit={**training.position(), "sums": {"rubbish": 1}})
    with pytest.raises(CheckpointError, match="cannot be read"):
        Training.resume(run, config, digits)


def test_a_checkpoint_is_a_model_for_anybody(trained, digits):
    model = tagi.load(trained.checkpoint)
    rows = trained.metrics()
    test = digits.test.subset(slice(300))
    assert model.evaluate(test.images, test.labels)["error"] == rows[-1]["error"]


def test_divergence_says_where(digits):
    training = Training(small(samples=64, test_samples=20), sets=digits)
    events = training.events()
    next(events)
    with torch.no_grad():
        next(training.learner.net.parameters()).fill_(1e38)
    with pytest.raises((FloatingPointError, ValueError), match="epoch 1, batch 2: "):
        next(events)


def test_saving_needs_a_folder(digits):
    with pytest.raises(RunError, match="no run folder"):
        Training(small(samples=32, test_samples=20), sets=digits).save()
