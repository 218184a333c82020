"""A broker and a client at once, for tests that are one conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from millstream.broker.server import BrokerServer
from tests.broker.serving import WireClient, serving

Conversation = Callable[[BrokerServer, WireClient], Awaitable[None]]


def converse(directory: Path, conversation: Conversation, **settings: object) -> None:
    """Hold the conversation with a new broker on the directory."""

    async def run() -> None:
        async with (
            serving(directory, **settings) as server,
            WireClient.connected(server) as client,
        ):
            await conversation(server, client)

    asyncio.run(run())
