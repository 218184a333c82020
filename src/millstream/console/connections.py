"""Connections of browsers: what one may take before it has sent a request.

A connection whose request does not come within half a minute is closed, and so is one whose headers
are too long, and one that is too many: each takes a file descriptor of a process that may be the
broker's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTIONS_MAX = 2_000  # beyond, requests are answered with 503
ACCEPTED_MAX = CONNECTIONS_MAX + 200  # beyond, connections are closed at once
HEADERS_SECONDS_MAX = 30.0
HEADER_BYTES_MAX = 128 * 1024


class LimitedConnection(HttpToolsProtocol):
    """See the module."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._last: Any = None  # the request whose headers came last
        self._header_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > ACCEPTED_MAX:
            transport.close()
            return
        self._deadline = self.loop.call_later(HEADERS_SECONDS_MAX, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not self._last:
            self._last, self._header_bytes = self.cycle, 0
            self._stop_waiting()
        elif self._awaits_headers:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES_MAX:
                self.transport.close()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(HEADERS_SECONDS_MAX, self._give_up)

    @property
    def _awaits_headers(self) -> bool:
        """Whether what comes next belongs to the headers of a request."""
        return self.cycle is None or not self.cycle.more_body

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._awaits_headers and not is_answering:
            self.transport.close()
