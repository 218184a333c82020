"""A broker in the test's own event loop, and a way to send it requests as a client would."""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from kio.serial import entity_reader, entity_writer

from millstream.broker.server import BrokerServer
from millstream.clock import Clock
from millstream.config.broker import BrokerConfig
from millstream.protocol.apis import APIS
from millstream.protocol.headers import API_VERSIONS_KEY
from millstream.protocol.messages import _builder, _entity_class
from millstream.testing.loop_guard import LoopGuardFileSystem


@contextlib.asynccontextmanager
async def serving(
    directory: Path, *, clock: Clock | None = None, **settings: object
) -> AsyncIterator[BrokerServer]:
    """A running broker. Settings are Kafka's names with underscores for dots.

    Fails if the event loop waited for the disk while the broker served.
    """
    values: dict[str, object] = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 4,
    }
    values |= {name.replace("_", "."): value for name, value in settings.items()}
    guard = LoopGuardFileSystem()
    server = BrokerServer(BrokerConfig.from_values(values), clock=clock, filesystem=guard)
    with guard.paused():
        await server.start()
    try:
        yield server
    finally:
        with guard.paused():
            await server.stop()
    guard.check()


class WireClient:
    """Speaks to a broker over a socket, in the versions it is told, with kio's own messages."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str = "test"
    ) -> None:
        self._client_id = client_id.encode()
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(
        cls, server: BrokerServer, client_id: str = "test"
    ) -> AsyncIterator[WireClient]:
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        try:
            yield cls(reader, writer, client_id)
        finally:
            writer.close()

    async def call(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send a request made of plain fields (see `entity`) and wait for its answer."""
        self.send(api_key, version, **fields)
        return await self.receive(api_key, version)

    def send(self, api_key: int, version: int, **fields: Any) -> None:
        api = APIS[api_key]
        cls = schema(api.name, version, "request")
        self._correlation_id += 1
        is_flexible = version >= api.first_flexible
        name = self._client_id
        header = struct.pack(">hhih", api_key, version, self._correlation_id, len(name)) + name
        body = io.BytesIO()
        entity_writer(cls)(body, entity(cls, fields))
        frame = header + (b"\x00" if is_flexible else b"") + body.getvalue()
        self._writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive(self, api_key: int, version: int) -> Any:
        api = APIS[api_key]
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        frame = await self._reader.readexactly(size)
        is_flexible = version >= api.first_flexible and api_key != API_VERSIONS_KEY
        start = 5 if is_flexible else 4
        response, length = entity_reader(schema(api.name, version, "response"))(frame, start)
        assert start + length == len(frame), "bytes follow the response"
        return response


def schema(api: str, version: int, kind: str) -> Any:
    return _entity_class(api, version, kind)


def entity(cls: Any, fields: dict[str, Any]) -> Any:
    return _builder(cls)(fields)
