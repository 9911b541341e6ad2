"""The command as a process: encodings, Ctrl-C, closed pipes."""

import io
import os
import signal
import sys

import pytest
from processes import SOURCE, start

from torchtagi.experiments.cli import app
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.runs.folder import Run

COMMANDS = [command.__name__ for command in app.COMMANDS]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_in_any_encoding(command, encoding, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["tagi", *([command] if command else []), "--help"])
    monkeypatch.setattr(app, "keep_freed_memory", lambda: True)
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 0
    out.flush()
    text = out.buffer.getvalue().decode(encoding)
    assert f"Usage: tagi {command or '[OPTIONS]'}" in text
    assert "--help" in text


def test_help_lists_the_commands_where_the_locale_has_no_utf8():
    child = start("--help", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, b"")
    words = [line.split() for line in out.decode("ascii").splitlines()]
    for command in COMMANDS:
        assert any(command in line for line in words)


def test_ctrl_c_while_torch_is_imported(tmp_path):
    """A torch that takes a minute, and would turn a KeyboardInterrupt into something else."""
    (tmp_path / "torch.py").write_text(
        "import time\nprint('importing', flush=True)\n"
        "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    raise ImportError('half a torch') from None\n"
    )
    child = start("--help", path=f"{tmp_path}{os.pathsep}{SOURCE}")
    assert child.stdout.readline() == b"importing\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, b"Error: stopped\n")


def test_ctrl_c_in_a_command(monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "open", interrupted)
    assert tagi(["evaluate", "run"]) == 130
    assert capsys.readouterr().err == "Error: stopped\n"


@pytest.mark.parametrize("arguments", [["results", "."], ["results", ".", "--json"]])
def test_a_closed_pipe_is_silent(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run.create("r", {"task": "mnist", "network": "cnn", "setting": "default", "seed": 0})
    run.add_metrics({"epoch": 1, "error": 1.0})
    child = start(*arguments, PYTHONUNBUFFERED="")  # buffered, as usual: some writes come only at the end
    child.stdout.close()  # before anything is written, so that the first write fails
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(timeout=60) in (0, 1)


def test_an_unexpected_error_is_one_line_too(monkeypatch, capsys):
    def broken(*arguments, **options):
        raise KeyError("[red]x[/nope]\nsecond line")

    monkeypatch.setattr(Run, "open", broken)
    assert tagi(["evaluate", "run"]) == 1
    expected = (
        r"Error: KeyError: '[red]x[/nope]\nsecond line' (unexpected; with TAGI_DEBUG=1 the same command shows"
    )
    err = capsys.readouterr().err
    assert err.startswith(expected)
    assert err.count("\n") == 1
    monkeypatch.setenv("TAGI_DEBUG", "1")
    with pytest.raises(KeyError):
        tagi(["evaluate", "run"])


def test_a_full_disk_is_told_with_its_remedy(monkeypatch, capsys):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Run, "open", full)
    assert tagi(["evaluate", "run"]) == 1
    assert capsys.readouterr().err == "Error: No space left on device; free some and run the command again\n"
