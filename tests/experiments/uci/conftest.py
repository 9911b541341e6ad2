"""Tiny sets in the collection's format, in a folder of their own; nothing else of the machine's data is found."""

from pathlib import Path

import pytest
from small_sets import write_set


@pytest.fixture(autouse=True)
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    root = tmp_path / "sets"
    monkeypatch.setenv("TAGI_DATA", str(root))
    write_set(root, "yacht")
    write_set(root, "energy", splits=2)
    return root
