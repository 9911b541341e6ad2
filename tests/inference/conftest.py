"""Mean passes for small networks."""

import pytest

from torchtagi.inference import passes


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of any size make mean passes, and soon: steps 0, 1, 3, 7, 15, 23 … are full."""
    monkeypatch.setattr(passes, "SMALL", 0)
    monkeypatch.setattr(passes, "GROWTH", 1)
