"""DescribeArchive over the wire: without an archive; `tests/admin/test_archive.py` has one."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from tests.broker.handlers.group_calls import run
from tests.broker.serving import WireClient

KEY = 20001


def test_topics_that_are_not_archived_are_left_out(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        for topics in (None, [], ["orders"], ["absent", "", "a" * 300]):
            answer = await client.call(KEY, 0, topics=topics)
            assert (answer.error_code.value, answer.topics) == (0, ())

    run(tmp_path, scenario)
