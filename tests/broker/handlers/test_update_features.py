"""UpdateFeatures: only to the level that is."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 57


def test_only_the_present_level_is_accepted(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        for feature, level, code in (
            ("group.version", 1, ErrorCode.NONE),
            ("group.version", 0, ErrorCode.INVALID_UPDATE_VERSION),
            ("no.such.feature", 1, ErrorCode.INVALID_UPDATE_VERSION),
        ):
            for version in range(3):
                update = {"feature": feature, "max_version_level": level}
                answer = await client.call(KEY, version, timeout=1000, feature_updates=[update])
                assert answer.error_code == code

    converse(tmp_path, conversation)
