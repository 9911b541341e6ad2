"""Two commands at one run folder: the second ends in one line that names it, and the first run is whole."""

import signal

import pytest
from processes import start, wait_until

from small_runs import finished, small
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.gan.config import configure_gan
from torchtagi.experiments.gan.training import GanTraining
from torchtagi.experiments.runs.folder import Run, RunError, locked

TIMES = ("seconds", "samples_per_second")
BUSY = "Error: another process is at work in {}: wait until it ends, or choose another folder\n"


@pytest.fixture
def held(tmp_path):
    """A command that has begun its run and then stands still, holding its folder; it ends when it is let go on."""
    started = []

    def hold(*arguments):
        process = start(*arguments, "--no-report", "--threads", "1", "--out", str(tmp_path / "run"))
        started.append(process)
        wait_until(process, (tmp_path / "run" / "config.json").is_file)
        process.send_signal(signal.SIGSTOP)
        return process

    yield hold
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def let_go_on(process):
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")


def untimed(run):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in run.metrics()]


def test_a_second_training_is_refused_and_the_first_is_whole(held, tmp_path, digits, capsys):
    size = ("--samples", "160", "--test-samples", "60", "--epochs", "2")
    first, folder = held("train", "mnist", *size), tmp_path / "run"
    second = start("train", "mnist", *size, "--no-report", "--out", str(folder))
    out, err = second.communicate(timeout=120)
    assert (second.returncode, out.decode(), err.decode()) == (1, "", BUSY.format(folder))
    for option in ("--resume", "--overwrite"):
        assert tagi(["train", "mnist", option, "--out", str(folder)]) == 1
        assert capsys.readouterr() == ("", BUSY.format(folder))
    let_go_on(first)
    run, whole = Run.open(folder), finished(tmp_path / "whole", small(samples=160, test_samples=60), digits)
    assert run.checkpoint.read_bytes() == whole.checkpoint.read_bytes()
    assert untimed(run) == untimed(whole)
    assert tagi(["train", "mnist", "--resume", "--no-report", "--out", str(folder)]) == 0, "free again"


def test_a_second_gan_is_refused_and_the_first_is_whole(held, tmp_path, digits, capsys):
    size = {"samples": 64, "test_samples": 20, "epochs": 2}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in size.items()]
    command = ["gan", "gan-mnist", "--judge", "none", *options]
    first, folder = held(*command), tmp_path / "run"
    for option in ([], ["--resume"], ["--overwrite"]):
        assert tagi([*command, *option, "--out", str(folder)]) == 1
        assert capsys.readouterr() == ("", BUSY.format(folder))
    let_go_on(first)
    config = configure_gan("gan-mnist", judge=None, threads=1, **size)
    whole = Run.create(tmp_path / "whole", config.as_json())
    for _ in GanTraining(config, whole, digits).events():
        pass
    run = Run.open(folder)
    assert run.checkpoint.read_bytes() == whole.checkpoint.read_bytes()
    assert untimed(run) == untimed(whole)


def test_a_folder_is_held_under_any_of_its_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("run", target_is_directory=True)
    for other in (tmp_path / "run", tmp_path / "run" / ".." / "run", tmp_path / "link"):
        with (
            locked(tmp_path / "run"),
            pytest.raises(RunError, match=f"another process is at work in {other}"),
            locked(other),
        ):
            pass
    with locked(tmp_path / "run"), locked(tmp_path / "other"):
        assert not (tmp_path / "run").exists(), "a run that is refused leaves no folder"
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "run"):
        raise ZeroDivisionError
    with locked(tmp_path / "run"):
        pass
