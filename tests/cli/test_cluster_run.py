"""The account of `millstream demo cluster`: it would notice a lost record and a long silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.cli import cluster_run
from millstream.cli.cluster_run import ClusterLedger, ClusterVerdict
from millstream.cli.crash_run import judge


class Message:
    def __init__(self, partition: int, offset: int) -> None:
        self.partition = lambda: partition
        self.offset = lambda: offset


def test_ledger_knows_the_longest_silence_of_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 1.5, 7.0, 7.5])
    monkeypatch.setattr(cluster_run.time, "monotonic", lambda: next(times))
    ledger = ClusterLedger()
    error: Any = object()
    ledger.on_delivery(0, None, Message(0, 0))  # at 0
    ledger.on_delivery(1, None, Message(1, 0))  # at 1
    ledger.on_delivery(2, None, Message(0, 1))  # at 1.5
    ledger.on_delivery(3, error, None)
    ledger.on_delivery(4, None, Message(1, 1))  # at 7
    ledger.on_delivery(5, None, Message(0, 2))  # at 7.5
    assert ledger.longest_gap_s == 6.0
    assert (ledger.acknowledged, ledger.refused) == (5, 1)


def test_verdict_holds_only_if_the_share_group_got_everything() -> None:
    sound = judge(ClusterLedger(places={0: (0, 0)}), {0: [(0, 0)]})
    verdict = ClusterVerdict(sound, unpacked=0, packed_again=3, longest_gap_s=1.0)
    assert verdict.holds
    assert not replace(verdict, unpacked=1).holds
    lost = judge(ClusterLedger(places={0: (0, 0)}), {})
    assert not replace(verdict, records=lost).holds
