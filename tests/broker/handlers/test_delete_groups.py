"""DeleteGroups in every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import DELETE_GROUPS, commit, run, stable_member
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", range(3))
def test_every_group_is_in_the_answer(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await stable_member(client)
        await commit(client, 1, group_id="simple")
        wanted = ["simple", "g", "nowhere", ""]
        answer = await client.call(DELETE_GROUPS, version, groups_names=wanted)
        assert {it.group_id: it.error_code.value for it in answer.results} == {
            "simple": ErrorCode.NONE,
            "g": ErrorCode.NON_EMPTY_GROUP,
            "nowhere": ErrorCode.GROUP_ID_NOT_FOUND,
            "": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        again = await client.call(DELETE_GROUPS, version, groups_names=["simple"])
        assert again.results[0].error_code.value == ErrorCode.GROUP_ID_NOT_FOUND

    run(tmp_path, scenario)
