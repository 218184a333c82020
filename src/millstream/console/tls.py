"""Connections over the console's own TLS, and an answer to those who come without it.

An event loop ends a connection that does not begin with a handshake, and a browser that was sent to
`http://` by mistake would say no more than that the answer was empty. So the first byte of each
connection is looked at, and left where it is, before the handshake begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

HANDSHAKE = b"\x16"  # the first byte of TLS
BEGIN_SECONDS_MAX = 30.0  # until the first byte, and then for the handshake
BEGINNING_MAX = 1_000  # connections in that state; beyond, they are closed
REFUSE_SECONDS_MAX = 2.0
REQUEST_BYTES = 64 * 1024
RETRY_SECONDS = 1.0  # after there were too many open files
_BODY = b"This console speaks HTTPS: write https:// instead of http:// in its address.\n"
REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(_BODY)
) + _BODY


class TlsListener:
    """Accepts connections until `close`; call it in the event loop."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        self._context = context
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._accepting = self._loop.create_task(self._accept(listening))

    def close(self) -> None:
        for task in (self._accepting, *self._beginning):
            task.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if len(self._beginning) >= BEGINNING_MAX:
                accepted.close()
                continue
            task = self._loop.create_task(self._begin(accepted))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, accepted: socket.socket) -> None:
        try:
            async with asyncio.timeout(BEGIN_SECONDS_MAX):
                first = await self._first_byte(accepted)
            if first == HANDSHAKE:
                await self._loop.connect_accepted_socket(
                    self._make,
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=BEGIN_SECONDS_MAX,
                )
                return  # the transport closes it
            if first:
                await self._refuse(accepted)
        except (OSError, TimeoutError):  # among them those of TLS
            pass
        except asyncio.CancelledError:
            accepted.close()
            raise
        accepted.close()

    async def _first_byte(self, accepted: socket.socket) -> bytes:
        """Empty if the other side has left."""
        accepted.setblocking(False)
        readable = asyncio.Event()
        self._loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK)

    async def _refuse(self, accepted: socket.socket) -> None:
        """What is unread when a socket is closed would reset it, and the answer would be lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFUSE_SECONDS_MAX):
                await self._loop.sock_recv(accepted, REQUEST_BYTES)
                await self._loop.sock_sendall(accepted, REFUSAL)
                accepted.shutdown(socket.SHUT_WR)
                while await self._loop.sock_recv(accepted, REQUEST_BYTES):
                    pass
