"""A TCP proxy that loses what a test wants lost: answers, requests, or whole connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

_CHUNK_BYTES = 65_536


class CuttingProxy:
    """Forwards connections from `port` to a server.

    `request_filter` and `answer_filter` see each chunk: they return it, or another one, or None to
    lose it and cut the connection.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._forwarding = threading.Lock()
        self._is_silent = threading.Event()
        self.refuses = False
        self.request_filter: Callable[[bytes], bytes | None] = lambda chunk: chunk
        self.answer_filter: Callable[[bytes], bytes | None] = lambda chunk: chunk
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def silence(self) -> None:
        """As a network that drops all packets: nothing is forwarded, and no connection ends."""
        self._is_silent.set()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            for pair in self._pairs:
                _end(*pair)
            self._pairs.clear()

    def lose_answer_to(self, request: bytes) -> None:
        """Forward the request that contains this, and then cut the connection instead of
        forwarding an answer."""

        def watch_requests(chunk: bytes) -> bytes:
            if request in chunk:
                self.answer_filter = lambda answer: None
            return chunk

        self.request_filter = watch_requests

    def heal(self) -> None:
        """Forward again. What was sent meanwhile is lost, with its connections."""
        if self._is_silent.is_set():
            self.cut()
        self._is_silent.clear()
        self.refuses = False
        self.request_filter = self.answer_filter = lambda chunk: chunk

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refuses:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._target, timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                with self._lock:
                    self._pairs.append((client, server))
                for source, target, is_request in ((client, server, True), (server, client, False)):
                    arguments = (source, target, is_request)
                    threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if self._is_silent.is_set():
                    continue
                if not self._forward(chunk, target, is_request):
                    break
        if not self._is_silent.is_set():
            _end(source, target)

    def _forward(self, chunk: bytes, target: socket.socket, is_request: bool) -> bool:
        """Returns whether the connection goes on. A request whose answer is to be lost has been
        sent before the next answer is looked at."""
        with self._forwarding:
            kept = (self.request_filter if is_request else self.answer_filter)(chunk)
            if kept is not None and is_request:
                target.sendall(kept)
        if kept is not None and not is_request:
            target.sendall(kept)
        return kept is not None


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextlib.contextmanager
def cutting_proxy(host: str, port: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
