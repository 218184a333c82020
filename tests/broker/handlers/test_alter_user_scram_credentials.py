"""Users outlive a restart and kill -9. Answers: `tests/conformance/test_scram_credentials.py`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from millstream.security.scram import SCRAM_SHA_256, ScramCredential
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient
from tests.peers.servers import start_millstream
from tests.peers.wire import Wire

KEY = 51
SALTED = hashlib.pbkdf2_hmac("sha256", b"wonderland", b"salt", 4096)
ALICE = {
    "name": "alice",
    "mechanism": 1,
    "iterations": 4096,
    "salt": b"salt",
    "salted_password": SALTED,
}


async def alter(client: WireClient, deletions: Any = (), upsertions: Any = ()) -> list[int]:
    answer = await client.call(KEY, 0, deletions=deletions, upsertions=upsertions)
    return [it.error_code for it in answer.results]


def test_credential_is_derived_and_kept(tmp_path: Path) -> None:
    expected = ScramCredential.of_salted_password(SCRAM_SHA_256, SALTED, b"salt", 4096)

    async def create(server: BrokerServer, client: WireClient) -> None:
        assert await alter(client, upsertions=[ALICE]) == [ErrorCode.NONE]
        assert server.metadata.image.scram == {("alice", 1): expected}

    async def look_and_delete(server: BrokerServer, client: WireClient) -> None:
        assert server.metadata.image.scram == {("alice", 1): expected}
        gone = {"name": "alice", "mechanism": 1}
        assert await alter(client, deletions=[gone]) == [ErrorCode.NONE]

    async def look(server: BrokerServer, client: WireClient) -> None:
        assert server.metadata.image.scram == {}

    converse(tmp_path, create)
    converse(tmp_path, look_and_delete)
    converse(tmp_path, look)


@pytest.mark.parametrize("missing", ["salt", "salted_password"])
def test_credential_without_a_secret_is_refused(tmp_path: Path, missing: str) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        codes = await alter(client, upsertions=[ALICE | {missing: b""}])
        assert codes == [ErrorCode.UNACCEPTABLE_CREDENTIAL]
        assert server.metadata.image.scram == {}

    converse(tmp_path, conversation)


def test_acknowledged_change_outlives_kill_9(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_millstream(data)
    with Wire(server.bootstrap) as wire:
        bob = ALICE | {"name": "bob"}
        wire.call("alter_user_scram_credentials", 0, deletions=[], upsertions=[ALICE, bob])
        gone = {"name": "alice", "mechanism": 1}
        wire.call("alter_user_scram_credentials", 0, deletions=[gone], upsertions=[])
        server.kill()
    server = start_millstream(data)
    try:
        with Wire(server.bootstrap) as wire:
            answer = wire.call("describe_user_scram_credentials", 0, users=None)
            assert [it.user for it in answer.results] == ["bob"]
    finally:
        server.stop()
