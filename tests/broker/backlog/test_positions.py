"""Positions of groups whose coordinator is another broker."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from millstream.broker.backlog import positions
from millstream.coordination.cluster import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from tests.broker.backlog.scenes import (
    RECORD_BYTES,
    backlog,
    hurry,
    is_over,
    produce,
    records,
    set_policy,
    until,
)
from tests.broker.handlers.group_calls import commit, stable_member
from tests.broker.handlers.share_group_calls import alter, beat
from tests.broker.peers.cluster import Cluster, run

BOUND = 10 * RECORD_BYTES


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def fill(cluster: Cluster) -> None:
    """Broker 1 coordinates the groups, broker 2 leads orders-0, with 12 records."""
    await cluster.create(OFFSETS_TOPIC, 1, cleanup_policy="compact")
    await cluster.create("orders", 2)
    for _ in range(12):
        assert (await produce(cluster.clients[2], records())).error_code.value == 0
    await set_policy(cluster.brokers[2], policy="reject", bytes=BOUND, groups="g,team-*")


@pytest.mark.parametrize("group", ["g", "team-a"])
def test_offsets_are_asked_of_the_coordinator(tmp_path: Path, group: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await fill(cluster)
        await commit(cluster.clients[1], 0, group_id=group)
        await until(lambda: is_over(cluster.brokers[2]))
        assert backlog(cluster.brokers[2]).group == group
        await commit(cluster.clients[1], 12, group_id=group)
        await until(lambda: not is_over(cluster.brokers[2]))

    run(tmp_path, scenario)


def test_group_without_members_is_known_as_such(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await fill(cluster)
        await set_policy(cluster.brokers[2], group_idle_ms=500)
        joined = await stable_member(cluster.clients[1])
        member = {
            "generation_id_or_member_epoch": joined.generation_id,
            "member_id": joined.member_id,
        }
        assert await commit(cluster.clients[1], 0, **member) == 0
        await commit(cluster.clients[1], 0, group_id="team-a")
        await until(lambda: "group team-a no longer counts" in caplog.text)
        assert is_over(cluster.brokers[2])
        assert "group g no longer counts" not in caplog.text

    with caplog.at_level(logging.INFO, "millstream.backlog"):
        run(tmp_path, scenario)


def test_groups_of_a_coordinator_that_does_not_answer_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(positions, "STALE_MS", 1000)

    async def scenario(cluster: Cluster) -> None:
        await fill(cluster)
        await commit(cluster.clients[1], 0)
        await until(lambda: is_over(cluster.brokers[2]))
        await cluster.stop(1)
        await until(lambda: not is_over(cluster.brokers[2]))
        await until(lambda: "groups on broker 1 are not known" in caplog.text)
        await cluster.start(1)
        await until(lambda: is_over(cluster.brokers[2]))
        assert caplog.text.count("groups on broker 1 are not known") == 1
        assert "groups on broker 1 count again" in caplog.text

    with caplog.at_level(logging.INFO, "millstream.backlog"):
        run(tmp_path, scenario)


def test_coordinator_can_move(tmp_path: Path) -> None:
    """To the leader of the partition itself, which has the offsets of none of its groups."""

    async def scenario(cluster: Cluster) -> None:
        await fill(cluster)
        await commit(cluster.clients[1], 0)
        await until(lambda: is_over(cluster.brokers[2]))
        await cluster.elect(OFFSETS_TOPIC, 0, 2)
        await until(lambda: not is_over(cluster.brokers[2]))
        assert await commit(cluster.clients[2], 0) == 0
        await until(lambda: is_over(cluster.brokers[2]))

    run(tmp_path, scenario)


def test_share_group_of_another_broker_counts(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(SHARE_STATE_TOPIC, 1, cleanup_policy="delete")
        await fill(cluster)
        assert (await beat(cluster.clients[1])).error_code.value == 0
        assert (await beat(cluster.clients[1], -1)).error_code.value == 0
        await alter(cluster.clients[1], 0)
        await until(lambda: is_over(cluster.brokers[2]))
        await alter(cluster.clients[1], 12)
        await until(lambda: not is_over(cluster.brokers[2]))

    run(tmp_path, scenario)
