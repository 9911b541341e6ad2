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
def collection() -> Path:
    """The folder of unpacked data sets that TAGI_DATA names."""
    if not _COLLECTION:
        pytest.skip("TAGI_DATA is not set")
    return Path(_COLLECTION)
