"""No salts or keys are described; `tests/conformance/test_scram_credentials.py` has the rest."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from tests.broker.handlers.administering import converse
from tests.broker.handlers.test_alter_user_scram_credentials import ALICE, alter
from tests.broker.serving import WireClient

KEY = 50


def test_only_mechanism_and_iterations_are_described(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await alter(client, upsertions=[ALICE | {"name": name} for name in ("bob", "alice")])
        answer = await client.call(KEY, 0, users=None)
        assert [it.user for it in answer.results] == ["alice", "bob"]
        for result in answer.results:
            (info,) = result.credential_infos
            assert (info.mechanism, info.iterations) == (1, 4096)

    converse(tmp_path, conversation)
