"""DescribeClientQuotas over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.broker.quotas.limits import CLIENT_ID, IP, USER
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.quota_calls import DESCRIBE_QUOTAS, alter
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_that_match_are_described(tmp_path: Path, version: int) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        both = ((CLIENT_ID, None), (USER, "alice"))
        await alter(client, both, {"producer_byte_rate": 10, "consumer_byte_rate": 20})
        await alter(client, ((IP, "10.0.0.1"),), {"connection_creation_rate": 3})

        async def describe(*components: dict[str, Any], strict: bool = False) -> Any:
            answer = await client.call(
                DESCRIBE_QUOTAS, version, components=list(components), strict=strict
            )
            assert answer.error_code == ErrorCode.NONE
            return [
                (
                    [(part.entity_type, part.entity_name) for part in entry.entity],
                    {value.key: value.value for value in entry.values},
                )
                for entry in answer.entries
            ]

        alice = (
            [(USER, "alice"), (CLIENT_ID, None)],
            {"consumer_byte_rate": 20.0, "producer_byte_rate": 10.0},
        )
        address = ([(IP, "10.0.0.1")], {"connection_creation_rate": 3.0})
        user = {"entity_type": USER, "match_type": 0, "match": "alice"}
        assert await describe() == [alice, address]
        assert await describe(user) == [alice]
        assert await describe(user, strict=True) == []
        assert await describe({"entity_type": IP, "match_type": 2}) == [address]

    converse(tmp_path, conversation)


def test_filter_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        components = [{"entity_type": "group", "match_type": 2}]
        answer = await client.call(DESCRIBE_QUOTAS, 1, components=components)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert answer.error_message == "Unsupported entity type group"
        assert answer.entries is None

    converse(tmp_path, conversation)
