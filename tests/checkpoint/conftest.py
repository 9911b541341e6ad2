"""A file to damage."""

from pathlib import Path

import pytest
from small_checkpoints import small_net

import torchtagi as tagi
from torchtagi import checkpoint as files


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    files.save(path, small_net(), tagi.Regression(0.5), {"epoch": 1})
    return path
