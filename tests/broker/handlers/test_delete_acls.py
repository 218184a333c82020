"""DeleteAcls in every version: what each filter matched, and what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.security.acls import Operation
from tests.broker.handlers.test_rights import run
from tests.broker.rights import ADMIN, allow, group, topic
from tests.broker.serving import WireClient

DELETE_ACLS = 31
EVERYTHING: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
READ, WRITE = Operation.READ, Operation.WRITE


async def delete(client: WireClient, *filters: dict[str, Any], version: int = 3) -> list[Any]:
    wanted = [EVERYTHING | changes for changes in filters]
    answer = await client.call(DELETE_ACLS, version, filters=wanted)
    return list(answer.filter_results)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_filter_returns_what_it_matched(tmp_path: Path, version: int) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        await allow(server, topic("t", READ), topic("t", WRITE), group("g", READ))
        read, nothing, of_topics = await delete(
            client, {"operation": 3}, {"principal_filter": "User:x"}, {"resource_type_filter": 2},
            version=version,
        )  # fmt: skip
        found = {(it.resource_type, it.resource_name, it.operation) for it in read.matching_acls}
        assert found == {(2, "t", 3), (3, "g", 3)}
        assert nothing.matching_acls == ()
        assert {it.operation for it in of_topics.matching_acls} == {3, 4}
        assert not server.metadata.image.acls

    run(tmp_path, scenario, user=ADMIN)


def test_unknown_filter_is_refused_and_the_others_work(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        await allow(server, topic("t", READ), topic("t", WRITE))
        refused, done = await delete(client, {"operation": 0}, {"operation": 4})
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "unknown operation" in refused.error_message
        assert len(done.matching_acls) == 1
        assert [it.operation for it in server.metadata.image.acls.values()] == [READ]

    run(tmp_path, scenario, user=ADMIN)


def test_deleted_entry_can_be_created_again(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        for _ in range(3):
            await allow(server, topic("t", READ))
            (result,) = await delete(client, {"resource_name_filter": "t"})
            assert len(result.matching_acls) == 1
            assert not server.metadata.image.acls

    run(tmp_path, scenario, user=ADMIN)


def test_right_to_alter_the_cluster_is_needed(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        await allow(server, topic("t", READ))
        first, second = await delete(client, {}, {})
        assert first.error_code == second.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert len(server.metadata.image.acls) == 1

    run(tmp_path, scenario)


def test_without_an_authorizer_nothing_is_deleted(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        (refused,) = await delete(client, {})
        assert refused.error_code == ErrorCode.SECURITY_DISABLED

    run(tmp_path, scenario, authorizer_class_name="", super_users="")
