"""CreateAcls in every version: valid entries together, each invalid one with its reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.security.acls import AclEntry
from tests.broker.handlers.test_rights import run
from tests.broker.rights import ADMIN, allow, authorizing, cluster, connected_as
from tests.broker.serving import WireClient

CREATE_ACLS = 30
VALID: dict[str, Any] = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ENTRY = AclEntry(2, "t", 3, "User:alice", "*", 3, 3)


async def create(client: WireClient, *creations: dict[str, Any], version: int = 3) -> list[Any]:
    answer = await client.call(CREATE_ACLS, version, creations=list(creations))
    return list(answer.results)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_entry_is_created_once(tmp_path: Path, version: int) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        for _ in range(2):
            for result in await create(client, VALID, VALID, version=version):
                assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
            assert list(server.metadata.image.acls.values()) == [ENTRY]

    run(tmp_path, scenario, user=ADMIN)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"resource_type": 0}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_pattern_type": 1}, "Invalid patternType ANY"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"operation": 16}, "Invalid operation UNKNOWN"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
        ({"principal": "alice"}, "Could not parse principal from `alice`"),
    ],
)
def test_invalid_entry_is_refused_and_the_valid_one_created(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        refused, created = await create(client, VALID | change, VALID)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert reason in refused.error_message
        assert created.error_code == ErrorCode.NONE
        assert list(server.metadata.image.acls.values()) == [ENTRY]

    run(tmp_path, scenario, user=ADMIN)


def test_entries_are_one_commit(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        many = [VALID | {"resource_name": f"t{number}"} for number in range(50)]
        before = server.metadata.image.version
        seen: list[int] = []
        server.metadata.subscribe(lambda before, now: seen.append(len(now.acls)))
        await create(client, *many)
        assert server.metadata.image.version == before + 50
        assert seen == [50]

    run(tmp_path, scenario, user=ADMIN)


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        results = await create(
            client, *(VALID | {"resource_name": f"t{number}"} for number in range(10_001))
        )
        assert {result.error_code for result in results} == {ErrorCode.INVALID_REQUEST}
        assert not server.metadata.image.acls

    run(tmp_path, scenario, user=ADMIN)


def test_right_to_alter_the_cluster_is_needed(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            authorizing(tmp_path) as server,
            connected_as(server, "alice") as client,
        ):
            (refused,) = await create(client, VALID)
            assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert not server.metadata.image.acls
            await allow(server, cluster(7))  # type: ignore[arg-type]
            (created,) = await create(client, VALID)
            assert created.error_code == ErrorCode.NONE

    asyncio.run(main())


def test_without_an_authorizer_nothing_is_created(tmp_path: Path) -> None:
    async def scenario(server: Any, client: WireClient) -> None:
        (refused,) = await create(client, VALID)
        assert refused.error_code == ErrorCode.SECURITY_DISABLED
        assert "authorizer.class.name" in refused.error_message
        assert not server.metadata.image.acls

    run(tmp_path, scenario, authorizer_class_name="", super_users="")
