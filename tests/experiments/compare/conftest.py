"""Comparisons are made in a folder of their own, and without the machine's data."""

import pytest

from torchtagi.experiments import data


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch, digits):
    monkeypatch.setattr(data, "load_train_test", lambda name: digits)  # read once for all tests
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
