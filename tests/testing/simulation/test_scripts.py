"""Scripted races: the real parts come through, and each broken part is caught by its script."""

from __future__ import annotations

import pytest

from millstream.errors import CorruptBatch
from millstream.testing.simulation import Violation, scripts
from tests.testing.simulation.broken import BROKEN

CAUGHT_BY = {
    "counts the proposed set": scripts.proposal_to_shrink_that_is_not_decided,
    "counts the current set": scripts.lost_answer_to_an_expansion,
    "takes unknown for refused": scripts.lost_answer_to_an_expansion,
    "counts what is not flushed": scripts.slow_disk_of_the_leader,
    "fetches what is not flushed": scripts.slow_disk_of_the_leader,
    "joins before the start of the epoch": scripts.new_leader_with_an_old_high_watermark,
    "ignores min.insync.replicas": scripts.new_leader_with_an_old_high_watermark,
    "leads before it is registered": scripts.leader_that_restarts_at_once,
    "commits on any version": scripts.leader_that_restarts_at_once,
    "truncates to the high watermark": scripts.failover_before_followers_know_the_high_watermark,
    "checks no leader epoch": scripts.follower_in_an_old_epoch,
    "never truncates": scripts.follower_in_an_old_epoch,
    "zombie controller": scripts.controller_that_is_deposed_while_it_decides,
}


@pytest.mark.parametrize("script", scripts.SCRIPTS.values(), ids=scripts.SCRIPTS)
def test_real_parts_come_through(script: scripts.Telling) -> None:
    it = script(None)
    assert it.cluster.invariants.ack_count > 5


@pytest.mark.parametrize("broken", CAUGHT_BY)
def test_broken_part_is_caught(broken: str) -> None:
    with pytest.raises((Violation, CorruptBatch)):  # the log itself refuses a batch of the future
        CAUGHT_BY[broken](BROKEN[broken])


def test_every_broken_part_has_a_script_that_catches_it() -> None:
    assert CAUGHT_BY.keys() == BROKEN.keys()
