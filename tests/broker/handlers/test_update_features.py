"""UpdateFeatures: levels change, are told by ApiVersions, and last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from millstream.protocol.headers import API_VERSIONS_KEY
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 57
UPGRADE, SAFE = 1, 2


async def update(
    client: WireClient, version: int, feature: str, level: int, way: int = UPGRADE, **more: Any
) -> Any:
    change = {"feature": feature, "max_version_level": level}
    if version > 0:
        change["upgrade_type"] = way
    return await client.call(KEY, version, timeout=1000, feature_updates=[change], **more)


async def finalized(client: WireClient) -> dict[str, int]:
    software = {"client_software_name": "test", "client_software_version": "1"}
    answer = await client.call(API_VERSIONS_KEY, 4, **software)
    return {it.name: it.max_version_level for it in answer.finalized_features}


@pytest.mark.parametrize("version", [1, 2])
def test_level_is_changed_told_and_kept(tmp_path: Path, version: int) -> None:
    async def change(server: BrokerServer, client: WireClient) -> None:
        assert (await finalized(client))["transaction.version"] == 2
        for feature, level in (("transaction.version", 1), ("share.version", 0)):
            answer = await update(client, version, feature, level, SAFE)
            assert answer.error_code == ErrorCode.NONE
            if version == 1:
                assert [(it.feature, it.error_code) for it in answer.results] == [(feature, 0)]

    async def look(server: BrokerServer, client: WireClient) -> None:
        assert server.metadata.image.features["transaction.version"] == 1
        told = await finalized(client)
        assert told["transaction.version"] == 1
        assert "share.version" not in told

    async def change_and_look(server: BrokerServer, client: WireClient) -> None:
        await change(server, client)
        await look(server, client)

    converse(tmp_path, change_and_look)
    converse(tmp_path, look)


def test_validation_changes_nothing(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        answer = await update(client, 2, "transaction.version", 0, SAFE, validate_only=True)
        assert answer.error_code == ErrorCode.NONE
        assert (await finalized(client))["transaction.version"] == 2

    converse(tmp_path, conversation)


@pytest.mark.parametrize("version", range(3))
def test_level_that_cannot_be_is_refused_for_all(tmp_path: Path, version: int) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        answer = await update(client, version, "group.version", 0)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "following feature had an error: Invalid update version 0" in answer.error_message
        if version < 2:
            assert not answer.results

    converse(tmp_path, conversation)
