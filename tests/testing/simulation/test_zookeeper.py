"""The model of ZooKeeper: commits, sessions, watches, the election."""

from __future__ import annotations

import uuid

from millstream.coordination.cluster_records import FeatureLevelRecord
from millstream.testing.simulation.invariants import Invariants
from millstream.testing.simulation.world import World
from millstream.testing.simulation.zookeeper import SESSION_MS, Answer, ZooKeeper

RECORDS = (FeatureLevelRecord("f", 1),)


def zookeeper() -> ZooKeeper:
    world = World(1)
    return ZooKeeper(world, Invariants(world))


def session(it: ZooKeeper, broker_id: int, notices: list[int] | None = None) -> int:
    told = notices if notices is not None else []
    return it.open_session(broker_id, uuid.UUID(int=broker_id), lambda: told.append(broker_id))


def test_commit_succeeds_only_on_the_newest_version() -> None:
    it = zookeeper()
    assert it.commit(-1, 7, RECORDS) is Answer.DONE
    assert it.commit(-1, 8, RECORDS) is Answer.CONFLICT
    assert it.commit(0, 9, RECORDS) is Answer.DONE
    assert [(entry.version, entry.nonce) for entry in it.entries] == [(0, 7), (1, 9)]


def test_session_ends_without_pings_and_its_broker_is_gone() -> None:
    it = zookeeper()
    first = session(it, 1)
    it.world.run_until(SESSION_MS + 1)
    second = session(it, 2)
    it.expire_sessions()
    assert it.ping(first) is Answer.EXPIRED
    assert it.ping(second) is Answer.DONE
    assert list(it.live()) == [2]


def test_watch_fires_once_until_the_next_read() -> None:
    it, notices = zookeeper(), list[int]()
    mine = session(it, 1, notices)
    it.read(mine, -1)
    it.commit(-1, 1, RECORDS)
    it.commit(0, 2, RECORDS)
    assert notices == [1, 1], "one when it joined, one for both commits"
    entries = it.read(mine, -1)
    assert isinstance(entries, list)
    assert len(entries) == 2


def test_controller_is_elected_once_and_its_successor_fences_it() -> None:
    it = zookeeper()
    first, second = session(it, 1), session(it, 2)
    assert it.elect(first) == it.elect(first) == 1
    assert it.elect(second) is None
    it.expire(first)
    assert it.elect(second) == 2
    assert it.commit(-1, 1, RECORDS, 1) is Answer.FENCED
    assert it.commit(-1, 1, RECORDS, 2) is Answer.DONE
