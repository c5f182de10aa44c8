from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Server:
    """A server of a test. `handle` gets a request and returns status, headers and body."""

    url: str = ""
    handle: Callable[[Received], tuple[int, dict[str, str], bytes] | None] = lambda _: (
        201,
        {},
        b"{}",
    )
    received: list[Received] = field(default_factory=list)

    def answers(self, *statuses: int) -> None:
        """Answer with statuses in turn; the last one is repeated."""

        def handle(_: Received) -> tuple[int, dict[str, str], bytes]:
            number = min(len(self.received), len(statuses)) - 1
            return statuses[number], {"Content-Type": "application/json"}, b'{"charge":1}'

        self.handle = handle

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("idempotency-key") for request in self.received]


@dataclass
class Received:
    method: str
    path: str
    headers: Any
    body: bytes


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = Received(self.command, self.path, self.headers, body)
            state.received.append(request)
            answer = state.handle(request)
            self.close_connection = True
            if answer is None:
                return
            status, headers, content = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.05,))
    thread.start()
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


class FastClock:
    """A clock whose delays take no time."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.time = 0.0
        self.wall = [1.7e9]

    def monotonic(self) -> float:
        return self.time

    def now(self) -> float:
        return self.wall.pop(0) if len(self.wall) > 1 else self.wall[0]

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> None:
        self.slept.append(round(seconds, 9))
        self.time += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def random(self) -> float:
        return 0.5


@pytest.fixture
def clock() -> FastClock:
    return FastClock()
