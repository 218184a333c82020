"""The audit in a file that is rotated, and in a topic."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

from millstream.broker.security.audit_places import FILES_KEPT, AuditFile
from millstream.broker.server import BrokerServer
from millstream.broker.tasks import Tasks
from millstream.records.batch import iterate_headers
from millstream.records.record import decode_batch
from millstream.security.acls import Operation, ResourceType
from tests.broker.rights import authorizing, connected_as

METADATA = 3


def write(path: Path, *lines: bytes, bytes_max: int = 1 << 20) -> None:
    async def main() -> None:
        tasks = Tasks(asyncio.get_running_loop())
        await AuditFile(path, tasks, bytes_max=bytes_max).write(list(lines))

    asyncio.run(main())


def test_lines_are_appended_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    write(path, b"a", b"b")
    write(path, b"c")
    assert path.read_bytes() == b"a\nb\nc\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_full_file_is_set_aside_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for number in range(FILES_KEPT + 3):
        write(path, b"line %d" % number, bytes_max=1)
    names = sorted(it.name for it in tmp_path.iterdir())
    assert names == sorted(f"audit.log.{number}" for number in range(1, FILES_KEPT + 1))
    assert (tmp_path / "audit.log.1").read_bytes() == b"line %d\n" % (FILES_KEPT + 2)


def test_file_that_is_moved_away_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    write(path, b"a")
    path.rename(tmp_path / "elsewhere")
    write(path, b"b")
    assert path.read_bytes() == b"b\n"


async def refuse_alice(server: BrokerServer) -> None:
    async with connected_as(server, "alice") as client:
        answer = await client.call(METADATA, 9, topics=[{"name": "orders"}])
        assert answer.topics[0].error_code == 29


def test_refusals_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def main() -> None:
        async with authorizing(tmp_path / "data", millstream_audit_log=f"file:{path}") as server:
            await refuse_alice(server)

    asyncio.run(main())
    (event,) = map(json.loads, path.read_text().splitlines())
    assert (event["principal"], event["resourceName"]) == ("User:alice", "orders")
    assert (event["operation"], event["allowed"]) == ("DESCRIBE", False)


def test_refusals_of_the_last_requests_are_in_the_file(tmp_path: Path) -> None:
    """Requests end while the broker stops."""
    path = tmp_path / "audit.log"

    async def main() -> None:
        async with authorizing(tmp_path / "data", millstream_audit_log=f"file:{path}") as server:
            close = server.connections.close

            async def close_after_a_refusal(**options: Any) -> None:
                audit = server.services.audit
                assert audit is not None
                audit.decided(
                    "User:alice", "h", Operation.READ, ResourceType.TOPIC, "last", allowed=False
                )
                await close(**options)

            server.connections.close = close_after_a_refusal  # type: ignore[method-assign]

    asyncio.run(main())
    (event,) = map(json.loads, path.read_text().splitlines())
    assert event["resourceName"] == "last"


def test_refusals_are_in_the_topic(tmp_path: Path) -> None:
    async def main() -> list[Any]:
        async with authorizing(tmp_path, millstream_audit_log="topic:audit") as server:
            await refuse_alice(server)
            async with asyncio.timeout(60):
                while True:
                    partition = server.partitions.get("audit", 0)
                    if partition is not None and partition.high_watermark:
                        data = bytes(partition.read(0, max_bytes=1 << 20, may_block=False))
                        return [json.loads(it.value or b"") for it in records_of(data)]
                    await asyncio.sleep(0.01)

    (event,) = asyncio.run(main())
    assert (event["event"], event["principal"]) == ("authorization", "User:alice")


def records_of(data: bytes) -> list[Any]:
    return [it for position, _ in iterate_headers(data) for it in decode_batch(data, position)]
