"""`make demo` says what the command understands."""

import re
from pathlib import Path

from torchtagi.experiments.cli.app import run
from torchtagi.experiments.runs.folder import Run

MAKEFILE = Path(__file__).parents[3] / "Makefile"


def test_the_demo_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (line,) = re.findall(r"^\t\$\(BIN\)/tagi (.*)$", MAKEFILE.read_text(), re.MULTILINE)
    assert run([*line.split(), "--samples", "64", "--test-samples", "40", "--no-report"]) == 0
    assert "runs/demo" in capsys.readouterr().out
    assert len(Run.open(tmp_path / "runs" / "demo").metrics()) == 1
