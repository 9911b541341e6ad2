"""A web server on this machine that misbehaves on request."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Server:
    """What it serves, how it behaves, and what it was asked.

    `cut_after` holds, for one request after the other, the number of body bytes before the connection
    drops; None and an exhausted list mean a whole answer. `failures` are status codes answered first.
    """

    content: bytes
    honours_range: bool = True
    announces_length: bool = True
    range_shift: int = 0
    cut_after: list[int | None] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    missing: bool = False
    ranges: list[str | None] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/file.bin"


class _Handler(BaseHTTPRequestHandler):
    world: Server

    def do_GET(self) -> None:
        world = self.world
        asked = self.headers.get("Range")
        world.ranges.append(asked)
        if world.failures:
            return self.send_error(world.failures.pop(0))
        if world.missing:
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and world.honours_range else 0
        if start and start >= len(world.content):
            return self.send_error(416)
        if start:
            start += world.range_shift
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(world.content) - 1}/{len(world.content)}")
        else:
            self.send_response(200)
        body = world.content[start:]
        if world.announces_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: world.cut_after.pop(0) if world.cut_after else None])

    def log_message(self, format: str, *args: object) -> None:
        """Silence: the tests read `ranges` instead."""


@contextmanager
def serving(world: Server) -> Iterator[Server]:
    handler = type("Handler", (_Handler,), {"world": world})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        world.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield world
        finally:
            server.shutdown()
            thread.join()
