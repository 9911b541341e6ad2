"""Every data test sees an empty world: no collection, an empty cache, downloads off unless it says so."""

import os
from pathlib import Path

import pytest

_COLLECTION = os.environ.get("TAGI_DATA")


@pytest.fixture(autouse=True)
def empty_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns the cache folder that the package will use."""
    monkeypatch.delenv("TAGI_DATA", raising=False)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    return tmp_path / "cache" / "torchtagi"


@pytest.fixture
def root(empty_world: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder that TAGI_DATA names."""
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("TAGI_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def collection(empty_world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of unpacked data sets that TAGI_DATA names outside of the tests."""
    if not _COLLECTION:
        pytest.skip("TAGI_DATA is not set")
    monkeypatch.setenv("TAGI_DATA", _COLLECTION)
    return Path(_COLLECTION)
