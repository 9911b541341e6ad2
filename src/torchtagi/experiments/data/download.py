"""Fetching a file over HTTP so that it arrives whole and checked, or not at all."""

import errno
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from torchtagi.experiments.data.atomic import publish
from torchtagi.experiments.data.errors import DataError
from torchtagi.experiments.data.locations import Progress

_CHUNK_BYTES = 1 << 18
_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its address and `algorithm:hexdigest`."""

    url: str
    checksum: str


def missing_file(destination: Path, url: str, cause: str) -> DataError:
    """The error that tells a person how to help: which file, from where, to which folder."""
    return DataError(
        f"{destination.name} is missing and could not be downloaded ({cause}). "
        f"Fetch it from {url} by hand and put it into {destination.parent}"
    )


def fetch(
    url: str,
    destination: Path,
    checksum: str,
    progress: Progress | None = None,
    timeout: float = 30.0,
    attempts: int = 4,
    backoff: float = 1.0,
) -> Path:
    """Download `url` to `destination` and return it; `checksum` reads `algorithm:hexdigest`.

    The bytes collect in `destination.part`, which a later call continues by an HTTP range request; only
    a file with the right checksum ever gets the final name. A cut connection is tried again until
    `attempts` are used up, after `backoff` seconds, then twice as long each time.

    One process at a time downloads into a folder. Unique temporary names would be safe too, but then
    nobody could continue anybody's part and two jobs started together would fetch everything twice;
    behind the lock the second finds the finished file.
    """
    if attempts < 1:
        raise ValueError(f"attempts must be at least 1, got {attempts}")
    download = _Download(url, destination, checksum, progress, timeout, attempts, backoff)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(destination.parent / ".download.lock"):
            if not _matches(destination, checksum):
                download.complete_part()
                publish(download.part, destination)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            # The part is what filled the disk: leaving it would keep everything else from working.
            download.part.unlink(missing_ok=True)
            cause = f"no space left on the disk for {destination.parent}"
        else:
            cause = f"cannot write to {destination.parent}: {error}"
        raise missing_file(destination, url, cause) from error
    return destination


class _CutConnectionError(Exception):
    """The transfer stopped before its end; the bytes so far are good and worth keeping."""


@dataclass(frozen=True)
class _Download:
    """One file on its way; the arguments are those of `fetch`."""

    url: str
    destination: Path
    checksum: str
    progress: Progress | None
    timeout: float
    attempts: int
    backoff: float

    @property
    def part(self) -> Path:
        return self.destination.with_name(self.destination.name + ".part")

    def complete_part(self) -> None:
        """Bring the part to its end and check it.

        A part that was continued and turned out wrong may have begun as another version of the file, so
        it gets one fresh start; a file that is wrong from its first byte is wrong for good.
        """
        if _matches(self.part, self.checksum):
            return
        continued = _size(self.part) > 0
        self._transfer()
        if continued and not _matches(self.part, self.checksum):
            self.part.unlink()
            self._transfer()
        if not _matches(self.part, self.checksum):
            found = _digest(self.part, self.checksum)
            self.part.unlink()
            raise self._missing(f"wrong checksum: got {found}, expected {self.checksum}")

    def _transfer(self) -> None:
        for attempt in range(self.attempts):
            try:
                self._stream()
                return
            except urllib.error.HTTPError as error:
                error.close()
                cause = f"the server answered {error.code} {error.reason}"
                if error.code not in _TRANSIENT_STATUS:
                    raise self._missing(cause) from error
            except urllib.error.URLError as error:
                raise self._missing(f"no connection: {error.reason}") from error
            except _CutConnectionError as error:
                cause = f"the connection was cut: {error}"
            if attempt + 1 < self.attempts:
                time.sleep(self.backoff * 2**attempt)
        raise self._missing(f"{cause}, {self.attempts} attempts")

    def _stream(self) -> None:
        """One request: append to the part if the server continues where it ends, else begin anew."""
        have = _size(self.part)
        reply = self._request(have)
        if reply is None:
            self.part.unlink()
            have = 0
            reply = self._request(have)
        if reply is None:
            raise _CutConnectionError("the server insists on sending a fragment")
        with reply:
            start, total = _extent(reply)
            with open(self.part, "r+b" if start else "wb") as file:
                file.seek(start)
                done = self._copy(reply, file, start, total)
        if total is not None and done < total:
            raise _CutConnectionError(f"{done} of {total} bytes arrived")

    def _request(self, have: int) -> http.client.HTTPResponse | None:
        """The server's answer to "from byte `have` on", or None if it cannot be joined to the part."""
        # Without "identity" a server may compress on the fly, and the checksum is of the plain file.
        headers = {"Accept-Encoding": "identity", "User-Agent": "torchtagi"}
        if have:
            headers["Range"] = f"bytes={have}-"
        request = urllib.request.Request(self.url, headers=headers)
        try:
            reply: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            if have and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                error.close()
                return None
            raise
        except urllib.error.URLError:
            raise
        except (http.client.HTTPException, OSError) as error:
            raise _CutConnectionError(str(error) or type(error).__name__) from error
        if _extent(reply)[0] not in (0, have):
            reply.close()
            return None
        return reply

    def _copy(self, reply: http.client.HTTPResponse, file: BinaryIO, start: int, total: int | None) -> int:
        done = start
        while True:
            if self.progress:
                self.progress(done, total)
            try:
                chunk = reply.read(_CHUNK_BYTES)
            except (http.client.HTTPException, OSError) as error:
                raise _CutConnectionError(str(error) or type(error).__name__) from error
            if not chunk:
                return done
            file.write(chunk)
            done += len(chunk)

    def _missing(self, cause: str) -> DataError:
        return missing_file(self.destination, self.url, cause)


def _extent(reply: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Where in the file the body starts, and how long the whole file is."""
    if reply.status == HTTPStatus.PARTIAL_CONTENT:
        content_range = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", reply.headers.get("Content-Range", ""))
        if content_range is None:
            raise _CutConnectionError("a partial answer without a Content-Range")
        start, total = content_range.groups()
        return int(start), None if total == "*" else int(total)
    length = reply.headers.get("Content-Length")
    return 0, None if length is None else int(length)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _digest(file: Path, checksum: str) -> str:
    """The digest of `file` by the algorithm that `checksum` names, written the same way."""
    algorithm = checksum.partition(":")[0]
    with open(file, "rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _matches(file: Path, checksum: str) -> bool:
    return file.is_file() and _digest(file, checksum) == checksum
