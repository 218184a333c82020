"""Backlog policies cost nothing until a topic has one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from tests.broker.backlog.scenes import hurry, partition, produce, records, set_policy, until
from tests.broker.handlers.group_calls import run
from tests.broker.serving import WireClient


def test_nothing_is_imported_without_a_policy() -> None:
    program = (
        "import sys, millstream.broker.server\n"
        "assert 'millstream.broker.backlog.backlog' in sys.modules\n"
        "assert 'millstream.broker.backlog.monitor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_partition_asks_nobody_without_a_policy(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        assert not server.backlog.is_used
        assert partition(server).admission is None
        assert list(server.backlog.partitions()) == []

    run(tmp_path, scenario)


def test_partitions_show_policy_and_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await produce(client, records())
        await set_policy(server, policy="hold", bytes=10**6, groups="g")
        await until(lambda: [*server.backlog.partitions()])
        (found,) = [it for it in server.backlog.partitions() if it.partition == 0]
        assert found == ("orders", 0, "hold", False, "", 0, 0)

    run(tmp_path, scenario)
