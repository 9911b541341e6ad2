"""Where data sets are looked for and where downloads go."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[int, int | None], None]
"""Called with (done, total); bytes for a download, images for a conversion; total is None when unknown."""


def cache_folder() -> Path:
    """The user's cache folder for data sets, following the platform's convention."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Local") / "torchtagi"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torchtagi"


def offline_requested() -> bool:
    """Whether the environment forbids network access (`TAGI_OFFLINE=1`)."""
    return os.environ.get("TAGI_OFFLINE", "").strip().lower() not in ("", "0", "false", "no")


@dataclass(frozen=True)
class Locations:
    """Folders to search, best first, and the one that new files are written to."""

    search: tuple[Path, ...]
    target: Path
    may_download: bool
    progress: Progress | None = None

    @classmethod
    def resolve(
        cls, root: str | Path | None = None, download: bool = True, progress: Progress | None = None
    ) -> "Locations":
        """`root`, then `$TAGI_DATA`, then the cache folder.

        Downloads go to `root` when it is given and to the cache folder otherwise: `$TAGI_DATA` is
        often a collection shared between users, which nobody asked us to write to.
        """
        cache = cache_folder()
        collection = os.environ.get("TAGI_DATA")
        candidates = [Path(place) for place in (root, collection, cache) if place]
        return cls(
            search=tuple(dict.fromkeys(candidates)),
            target=Path(root) if root else cache,
            may_download=download and not offline_requested(),
            progress=progress,
        )

    def describe(self) -> str:
        """The searched folders, for error messages."""
        return ", ".join(str(folder) for folder in self.search)
