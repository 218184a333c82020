"""DescribeAcls in every version: entries by resource, and who may see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.security.acls import Operation, PatternType
from tests.broker.handlers.test_delete_acls import EVERYTHING
from tests.broker.handlers.test_rights import run
from tests.broker.rights import ADMIN, allow, cluster, group, topic
from tests.broker.serving import WireClient

DESCRIBE_ACLS = 29
READ, WRITE = Operation.READ, Operation.WRITE


async def describe(client: WireClient, version: int = 3, **changes: Any) -> Any:
    return await client.call(DESCRIBE_ACLS, version, **(EVERYTHING | changes))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_entries_are_grouped_by_resource(tmp_path: Path, version: int) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        prefixed = topic("t", READ, "bob", pattern_type=PatternType.PREFIXED)
        await allow(server, topic("t", READ), topic("t", WRITE), group("g", READ), prefixed)
        answer = await describe(client, version)
        found = {
            (it.resource_type, it.resource_name, it.pattern_type): [
                (acl.principal, acl.host, acl.operation, acl.permission_type) for acl in it.acls
            ]
            for it in answer.resources
        }
        assert found == {
            (2, "t", 3): [("User:alice", "*", 3, 3), ("User:alice", "*", 4, 3)],
            (2, "t", 4): [("User:bob", "*", 3, 3)],
            (3, "g", 3): [("User:alice", "*", 3, 3)],
        }
        matching = await describe(
            client, version, resource_type_filter=2, resource_name_filter="ticks",
            pattern_type_filter=2,
        )  # fmt: skip
        assert [it.pattern_type for it in matching.resources] == [4]

    run(tmp_path, scenario, user=ADMIN)


def test_unknown_number_in_the_filter_is_refused(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        answer = await describe(client, resource_type_filter=77)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "unknown resource type" in answer.error_message

    run(tmp_path, scenario, user=ADMIN)


def test_right_to_describe_the_cluster_is_needed(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        await allow(server, topic("t", READ))
        refused = await describe(client)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert refused.resources == ()
        await allow(server, cluster(Operation.DESCRIBE))
        assert len((await describe(client)).resources) == 2

    run(tmp_path, scenario)
