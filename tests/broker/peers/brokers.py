"""Other brokers as the tests of this room need them: an image with addresses, and bad servers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from millstream.broker.metadata.store import Subscriber
from millstream.broker.peers.peers import Peers
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)

Address: TypeAlias = tuple[str, int]
Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

LISTENER = "PLAINTEXT"


class Addresses:
    """A metadata store that only knows brokers."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def refresh(self) -> ClusterImage:
        return self.image

    def register(self, broker_id: int, address: Address, listener: str = LISTENER) -> None:
        """The broker starts there, in a new incarnation."""
        self._apply(
            RegisterBrokerRecord(
                broker_id=broker_id,
                incarnation_id=uuid.uuid4(),
                broker_epoch=self.image.version + 1,
                endpoints=(BrokerEndpoint(listener, *address),),
            )
        )

    def fence(self, broker_id: int) -> None:
        epoch = self.image.brokers[broker_id].epoch
        self._apply(BrokerRegistrationChangeRecord(broker_id, epoch, fenced=1))

    def _apply(self, record: MetadataRecord) -> None:
        before = self.image
        self.image = before.apply([record], before.version + 1)
        for subscriber in self._subscribers:
            subscriber(before, self.image)


def peers_of(addresses: Addresses) -> Peers:
    return Peers(asyncio.get_running_loop(), addresses, 1, LISTENER)


@contextlib.asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[Address]:
    """Something that listens like a broker and answers as it likes."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()
