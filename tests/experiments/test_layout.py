"""Library and experiments apart: imports point one way, and from command to parameter it is a short way."""

import ast
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import torchtagi
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.inference.update import Update

PACKAGE = Path(torchtagi.__file__).parent
EXPERIMENTS = "torchtagi.experiments"
LIBRARY = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if not path.is_relative_to(PACKAGE / "experiments") and path.stem != "__main__"
)


def imported(path):
    """The names of all modules, and of what is taken from them, that a source file imports, wherever it does."""
    found = set()
    inside = ("torchtagi", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            around = inside[: len(inside) + 1 - node.level] if node.level else ()
            module = ".".join([*around, *([node.module] if node.module else [])])
            found |= {module} | {f"{module}.{name.name}" for name in node.names}
    return found


def is_experiment(module):
    return module == EXPERIMENTS or module.startswith(f"{EXPERIMENTS}.")


def test_imports_are_read_as_python_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "nn").mkdir()
    for text in (
        "import torchtagi.experiments.data as d",
        "from torchtagi import experiments",
        "from torchtagi.experiments import data",
        "def f():\n    from ..experiments.data import load",
        "from .. import experiments",
    ):
        (tmp_path / "nn" / "layer.py").write_text(text)
        assert any(map(is_experiment, imported(tmp_path / "nn" / "layer.py"))), text
    (tmp_path / "nn" / "layer.py").write_text("from . import experiments\nfrom torchtagi import experiments2")
    assert not any(map(is_experiment, imported(tmp_path / "nn" / "layer.py")))


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_library_imports_no_experiment(path):
    assert not [module for module in imported(path) if is_experiment(module)]


def test_the_whole_library_was_looked_at():
    names = {str(path.relative_to(PACKAGE)) for path in LIBRARY}
    assert {"__init__.py", "model.py", "nn/affine.py", "inference/update.py", "likelihoods/link.py"} <= names


def test_importing_the_library_loads_neither_experiments_nor_extras():
    unwanted = (EXPERIMENTS, "typer", "rich", "matplotlib", "scipy", "sklearn")
    script = f"import sys, torchtagi; print([name for name in sys.modules if name.startswith({unwanted!r})])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_from_the_command_to_the_written_parameter_in_eight_calls(tmp_path, monkeypatch):
    stacks = []
    write = Update.coherent

    def noted(self, *arguments):
        stacks.append(traceback.extract_stack()[:-1])
        return write(self, *arguments)

    monkeypatch.setattr(Update, "coherent", noted)
    monkeypatch.chdir(tmp_path)
    size = ("--epochs", "1", "--samples", "32", "--test-samples", "20", "--threads", "1", "--no-report")
    assert tagi(["train", "mnist", *size]) == 0
    assert len(stacks) == 2
    for stack in stacks:
        ours = [frame for frame in stack if Path(frame.filename).is_relative_to(PACKAGE)]
        names = [frame.name for frame in ours]
        calls = names[names.index("train") :]
        assert Path(ours[names.index("train")].filename) == PACKAGE / "experiments" / "cli" / "train.py"
        assert len(calls) <= 8, calls
        assert len(set(calls)) == len(calls), "each has a name of its own"
