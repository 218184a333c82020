"""The endpoint in a thread of its own, for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus

from millstream.errors import ConfigError
from millstream.metrics.endpoint import Endpoint, Page, text_page
from millstream.metrics.exposition import CONTENT_TYPE, Family, render

STOP_SECONDS = 10.0


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises `ConfigError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"metrics {text!r}: write it as HOST:PORT, e.g. 127.0.0.1:9405")
    return host.strip("[]"), int(port)


class MetricsThread:
    """Serves /metrics, /health and /ready until it is stopped.

    `collect` and `problems` are called in this thread, with each request; `problems` returns what
    keeps the program from being ready.
    """

    def __init__(
        self,
        address: str,
        collect: Callable[[], Iterable[Family]],
        problems: Callable[[], list[str]] = list,
        *,
        token: str | None = None,
    ) -> None:
        """Raises `MillstreamError` if the address cannot be used."""
        self._collect = collect
        self._problems = problems
        self._host, self._port = parse_address(address)
        self._token = token
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._listening = threading.Event()
        self._error: BaseException | None = None
        self.address = ("", 0)
        self._thread = threading.Thread(target=self._run, name="millstream-metrics", daemon=True)
        self._thread.start()
        self._listening.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._error = error
        finally:
            self._loop.close()
            self._listening.set()

    async def _serve(self) -> None:
        endpoint = Endpoint(
            {"/metrics": self._metrics, "/health": self._health, "/ready": self._ready},
            token=self._token,
            public=frozenset({"/health", "/ready"}),
        )
        await endpoint.listen(self._host, self._port)
        self.address = endpoint.address
        self._listening.set()
        await self._stopping.wait()
        await endpoint.close()

    async def _metrics(self) -> Page:
        async def pieces() -> AsyncIterator[str]:
            for piece in render(self._collect()):
                yield piece

        return Page(pieces(), content_type=CONTENT_TYPE)

    async def _health(self) -> Page:
        return await text_page("ok\n")

    async def _ready(self) -> Page:
        found = self._problems()
        if found:
            return await text_page("\n".join(found) + "\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return await text_page("ready\n")
