"""OffsetForLeaderEpoch: where epochs ended, also after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream import Broker
from millstream.errors import ErrorCode
from tests.broker.handlers.calls import append, create_topic
from tests.peers.servers import free_port
from tests.peers.wire import Wire


def end_of(wire: Wire, epoch: int, version: int = 4, current: int = -1) -> Any:
    partition = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}
    answer = wire.call(
        "offset_for_leader_epoch", version, topics=[{"topic": "t", "partitions": [partition]}]
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_epochs_end_where_the_next_begins(tmp_path: Path, version: int) -> None:
    """An unclean stop raises the epoch, so that clients notice offsets that are used again."""
    with Broker.start(tmp_path, port=free_port(), in_process=False) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            create_topic(wire, "t")
            append(wire, "t", b"a", b"b")
        broker.kill()
        broker.restart()
        with Wire(broker.bootstrap_servers) as wire:
            append(wire, "t", b"c")
            ends = [end_of(wire, epoch, version) for epoch in (0, 1)]
            assert [(it.leader_epoch, it.end_offset) for it in ends] == [(0, 2), (1, 3)]
            fenced = end_of(wire, 0, version, current=0)
            assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
