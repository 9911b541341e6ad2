"""Fetching a file over HTTP so that it arrives whole and checked, or not at all.

The package `pooch` checks, renames and shows progress too, but begins anew after a cut connection, and two jobs
started together both download; this continues a part, and the second job waits and finds the finished file.
"""

import errno
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from torchtagi.experiments.data.files import FOR_TERMINALS, DataError, Locations, reason

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 30.0
TRANSIENT_STATUS = frozenset({408, 416, 429, 500, 502, 503, 504})


def obtain(url: str, checksum: str, destination: Path, places: Locations, note: str = "") -> Path:
    """`fetch` if downloads are allowed; `note` says what else was found when the file stays missing."""
    try:
        if not places.may_download:
            raise missing(url, destination, "downloads are switched off by TAGI_OFFLINE")
        return fetch(url, checksum, destination)
    except DataError as error:
        raise DataError(f"{note}{error}") from error


def fetch(url: str, checksum: str, destination: Path, attempts: int = 4, backoff: float = 1.0) -> Path:
    """Download to `destination` and return it; `checksum` is `algorithm:hexdigest`.

    The bytes collect in `destination.part`, which a later call continues by an HTTP range request; only a file
    with the right checksum ever gets the final name. A cut connection is tried again until `attempts` are used up,
    after `backoff` seconds, then twice as long each time. One process at a time downloads into a folder.
    """
    part = destination.with_name(destination.name + ".part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(destination.parent / ".download.lock"):
            if not matches(destination, checksum):
                if not matches(part, checksum):
                    transfer(url, checksum, destination, part, attempts, backoff)
                os.replace(part, destination)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            # The part is what filled the disk: leaving it would keep everything else from working.
            part.unlink(missing_ok=True)
        cause = f"cannot write to {destination.parent}: {reason(error)}"
        raise missing(url, destination, cause) from error
    return destination


def transfer(url: str, checksum: str, destination: Path, part: Path, attempts: int, backoff: float) -> None:
    """Bring the part to its end and check it.

    A part that was continued and turned out wrong may have begun as another version of the file, so it gets a
    fresh start; a file that is wrong from its first byte is wrong for good.
    """
    cause = "nothing was tried"
    for attempt in range(attempts):
        if attempt:
            time.sleep(backoff * 2 ** (attempt - 1))
        have = part.stat().st_size if part.is_file() else 0
        try:
            stream(url, part, have)
        except urllib.error.HTTPError as error:
            error.close()
            cause = f"the server answered {error.code} {error.reason}"
            if error.code not in TRANSIENT_STATUS:
                break
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)
        except urllib.error.URLError as error:
            cause = f"no connection: {error.reason}"
            break
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            cause = f"the connection was cut: {error}"
        else:
            if matches(part, checksum):
                return
            cause = f"wrong checksum: got {digest(part, checksum)}, expected {checksum}"
            part.unlink()
            if not have:
                break
    else:
        cause += f", {attempts} attempts"
    raise missing(url, destination, cause)


def stream(url: str, part: Path, have: int) -> None:
    """One request: append to the part if the server continues where it ends, else begin anew."""
    # Without "identity" a server may compress on the fly, and the checksum is of the plain file.
    headers = {"Accept-Encoding": "identity", "User-Agent": "torchtagi"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS) as reply:
        length = reply.headers.get("Content-Length")
        done, total = 0, None if length is None else int(length)
        if reply.status == HTTPStatus.PARTIAL_CONTENT:
            given = re.fullmatch(rf"bytes {have}-\d+/(\d+)", reply.headers.get("Content-Range", ""))
            if given is None:
                part.unlink()
                raise ConnectionError("the server continued at another place")
            done, total = have, int(given[1])
        size: Any = {"initial": done, "total": total, "unit": "B", "unit_scale": True}
        with open(part, "ab" if done else "wb") as file, tqdm(**size, desc=part.stem, **FOR_TERMINALS) as bar:
            while True:
                try:
                    chunk = reply.read(CHUNK_BYTES)
                except (http.client.HTTPException, OSError) as error:  # not one of the disk's
                    raise ConnectionError(str(error) or type(error).__name__) from error
                if not chunk:
                    break
                file.write(chunk)
                done += len(chunk)
                bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"{done} of {total} bytes arrived")


def missing(url: str, destination: Path, cause: str) -> DataError:
    """What tells a person how to help: which file, from where, to which folder."""
    return DataError(
        f"{destination.name} is missing and could not be downloaded ({cause}). "
        f"Fetch it from {url} by hand and put it into {destination.parent}"
    )


def digest(file: Path, checksum: str) -> str:
    """The digest of `file` by the algorithm that `checksum` names, written the same way."""
    algorithm = checksum.partition(":")[0]
    with open(file, "rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def matches(file: Path, checksum: str) -> bool:
    return file.is_file() and digest(file, checksum) == checksum
