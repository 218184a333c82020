"""UnregisterBroker: refused for brokers that run, and for unknown ones."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 64


def test_broker_that_runs_or_is_unknown_is_not_unregistered(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        unknown = await client.call(KEY, 0, broker_id=7)
        assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert unknown.error_message == "Broker ID 7 is not currently registered"
        running = await client.call(KEY, 0, broker_id=server.id)
        assert running.error_code == ErrorCode.INVALID_REQUEST
        assert running.error_message == f"Broker {server.id} is running: stop it first."

    converse(tmp_path, conversation)
