"""AlterClientQuotas over the wire. Errors: `tests/conformance/test_quotas.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.broker.quotas.limits import CLIENT_ID, USER
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.quota_calls import ALTER_QUOTAS, alter
from tests.broker.serving import WireClient
from tests.peers.servers import start_millstream
from tests.peers.wire import Wire

ALICE = frozenset({(USER, "alice")})


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_changed_and_removed(tmp_path: Path, version: int) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        entity = [{"entity_type": "user", "entity_name": "alice"}]

        async def change(*operations: tuple[str, float, bool]) -> Any:
            ops = [{"key": key, "value": value, "remove": gone} for key, value, gone in operations]
            entries = [{"entity": entity, "ops": ops}]
            answer = await client.call(ALTER_QUOTAS, version, entries=entries)
            (entry,) = answer.entries
            assert [(it.entity_type, it.entity_name) for it in entry.entity] == [("user", "alice")]
            assert entry.error_code == ErrorCode.NONE
            return server.metadata.image.quotas.get(ALICE)

        set_both = ("producer_byte_rate", 1000.0, False), ("request_percentage", 12.5, False)
        assert await change(*set_both) == {"producer_byte_rate": 1000, "request_percentage": 12.5}
        assert await change(("producer_byte_rate", 2000.0, False)) == {
            "producer_byte_rate": 2000,
            "request_percentage": 12.5,
        }
        assert await change(("request_percentage", 0.0, True)) == {"producer_byte_rate": 2000}
        assert await change(("request_percentage", 0.0, True)) == {"producer_byte_rate": 2000}
        assert await change(("producer_byte_rate", 0.0, True)) is None

    converse(tmp_path, conversation)


def test_entities_fail_individually(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        def entry(name: str, *values: tuple[str, float]) -> dict[str, Any]:
            return {
                "entity": [{"entity_type": CLIENT_ID, "entity_name": name}],
                "ops": [{"key": key, "value": value, "remove": False} for key, value in values],
            }

        answer = await client.call(
            ALTER_QUOTAS,
            1,
            entries=[
                entry("good", ("consumer_byte_rate", 5.0)),
                entry("half", ("consumer_byte_rate", 5.0), ("producer_byte_rate", -1.0)),
                entry("twice", ("consumer_byte_rate", 5.0)),
                entry("twice", ("consumer_byte_rate", 6.0)),
            ],
        )
        invalid = ErrorCode.INVALID_REQUEST
        assert [it.error_code for it in answer.entries] == [0, invalid, invalid, invalid]
        assert answer.entries[1].error_message == "Quota producer_byte_rate must be greater than 0"
        assert server.metadata.image.quotas == {
            frozenset({(CLIENT_ID, "good")}): {"consumer_byte_rate": 5.0}
        }

    converse(tmp_path, conversation)


def test_validation_alone_changes_nothing(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        for value, code in ((1.0, ErrorCode.NONE), (0.5, ErrorCode.INVALID_REQUEST)):
            answer = await alter(
                client, ((USER, None),), {"producer_byte_rate": value}, validate_only=True
            )
            assert answer.entries[0].error_code == code
        assert not server.metadata.image.quotas

    converse(tmp_path, conversation)


def test_acknowledged_change_outlives_kill_9(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_millstream(data)
    entity = [{"entity_type": CLIENT_ID, "entity_name": "wire"}]
    with Wire(server.bootstrap) as wire:
        for key, value, gone in (
            ("producer_byte_rate", 5.0, False),
            ("request_percentage", 1e9, False),
            ("producer_byte_rate", 0.0, True),
        ):
            operation = {"key": key, "value": value, "remove": gone}
            entries = [{"entity": entity, "ops": [operation]}]
            answer = wire.call("alter_client_quotas", 1, entries=entries)
            assert answer.entries[0].error_code == ErrorCode.NONE
        server.kill()
    server = start_millstream(data)
    try:
        with Wire(server.bootstrap) as wire:
            (entry,) = wire.call("describe_client_quotas", 1, components=[]).entries
            assert [(it.key, it.value) for it in entry.values] == [("request_percentage", 1e9)]
    finally:
        server.stop()
