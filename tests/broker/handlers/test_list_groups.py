"""ListGroups in every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from tests.broker.handlers.group_calls import LIST_GROUPS, commit, run, stable_member
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await stable_member(client)
        await commit(client, 1, group_id="simple")
        answer = await client.call(LIST_GROUPS, version)
        assert {(it.group_id, it.protocol_type) for it in answer.groups} == {
            ("g", "consumer"),
            ("simple", ""),
        }

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (["stable"], [], {"g"}),
        (["Empty", "Dead"], [], {"simple"}),
        ([], ["CLASSIC"], {"g", "simple"}),
        ([], ["consumer"], set()),
        (["Stable"], ["nonsense"], set()),
    ],
)
def test_filters_leave_the_others_out(
    tmp_path: Path, states: list[str], types: list[str], expected: set[str]
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await stable_member(client)
        await commit(client, 1, group_id="simple")
        answer = await client.call(LIST_GROUPS, 5, states_filter=states, types_filter=types)
        assert {it.group_id for it in answer.groups} == expected
        assert {it.group_type for it in answer.groups} <= {"classic"}

    run(tmp_path, scenario)
