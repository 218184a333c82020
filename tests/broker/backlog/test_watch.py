"""One partition under a policy, with positions and a clock of the test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millstream.broker.backlog.counters import BacklogCounters
from millstream.broker.backlog.state import GroupActivity, Position
from millstream.broker.backlog.watch import Watch
from millstream.broker.replicas.leadership import Leadership
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_LEADER
from millstream.broker.server import BrokerServer
from millstream.config.backlog import BacklogPolicy
from millstream.errors import ErrorCode, NotCached
from tests.broker.backlog.scenes import partition, records
from tests.broker.handlers.group_calls import run
from tests.broker.serving import WireClient

HOLD = BacklogPolicy("hold", 5000, -1, ("g",), 60_000)


class Groups:
    """Where the test's groups are."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}

    def of(self, topic: str, index: int) -> list[Position]:
        return [Position(group, offset, True) for group, offset in self.offsets.items()]


def watching(server: BrokerServer, policy: BacklogPolicy = HOLD) -> tuple[Watch, Groups]:
    groups = Groups()
    watch = Watch(
        partition(server), policy, GroupActivity(), groups.of, BacklogCounters(), server.clock
    )
    watch.partition.admission = watch
    return watch, groups


def append(led: Partition, count: int = 1) -> None:
    for _ in range(count):
        led.append(records(), acks=ACKS_LEADER)


def test_waiters_continue_as_long_as_there_is_room(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, _: WireClient) -> None:
        watch, groups = watching(server)
        groups.offsets["g"] = 0
        append(watch.partition, 6)
        assert not watch.is_open()
        woken: list[int] = []

        def waiter(number: int) -> None:
            woken.append(number)
            append(watch.partition, 2)

        for number in range(5):
            watch.when_open(lambda number=number: waiter(number))  # type: ignore[misc]
        groups.offsets["g"] = 3
        span = watch.span()
        assert span is not None
        watch.update(span, watch.measure(span, may_block=False))
        assert woken == [0]  # three unread, two more: full
        groups.offsets["g"] = 8
        watch.update(None, None)
        assert woken == [0, 1, 2, 3]  # the last is beyond the bound

    run(tmp_path, scenario)


def test_stopping_lets_all_waiters_continue(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, _: WireClient) -> None:
        watch, groups = watching(server)
        groups.offsets["g"] = 0
        append(watch.partition, 6)
        assert not watch.is_open()
        woken: list[str] = []
        watch.when_open(lambda: woken.append("one"))
        forgotten = lambda: woken.append("two")  # noqa: E731
        watch.when_open(forgotten)
        watch.forget(forgotten)
        watch.stop()
        assert woken == ["one"]
        assert watch.partition.admission is None
        assert watch.is_open()

    run(tmp_path, scenario)


def test_refusal_names_group_bound_and_backlog(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, _: WireClient) -> None:
        watch, groups = watching(server, replace(HOLD, age_ms_max=1000))
        groups.offsets["g"] = 0
        append(watch.partition, 6)
        assert not watch.is_open()
        error = watch.refusal()
        assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        size = watch.partition.log.size_bytes
        assert f"group g has {size} bytes unread of at most 5000 and unread" in str(error)
        watch.held(0.5)
        assert watch._counters.held_seconds == {("orders", "g"): 0.5}

    run(tmp_path, scenario)


def test_time_is_counted_for_the_group_that_stopped_producers(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, _: WireClient) -> None:
        watch, groups = watching(server)
        groups.offsets["g"] = 0
        append(watch.partition, 6)
        assert not watch.is_open()
        watch.when_open(lambda: watch.held(0.5))
        watch.update(None, None)  # it has caught up
        assert watch._counters.held_seconds == {("orders", "g"): 0.5}
        watch.stop()
        watch.held(0.5)
        assert watch._counters.held_seconds == {("orders", "g"): 1.0}

    run(tmp_path, scenario)


def test_new_leadership_begins_with_a_measurement(tmp_path: Path) -> None:
    """It counts what it appends from 0."""

    async def scenario(server: BrokerServer, _: WireClient) -> None:
        watch, groups = watching(server)
        groups.offsets["g"] = 0
        append(watch.partition, 3)
        assert watch.is_open()
        append(watch.partition, 3)
        led, log = watch.partition, watch.partition.log
        led.leadership = Leadership(
            log, epoch=led.leader_epoch + 1, high_watermark=log.log_end_offset, changed=None
        )
        assert led.leadership.appended_bytes == 0
        assert not watch.is_open()

    run(tmp_path, scenario)


def test_producers_are_admitted_while_the_backlog_cannot_be_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(server: BrokerServer, _: WireClient) -> None:
        watch, groups = watching(server)
        groups.offsets["g"] = 0
        append(watch.partition, 6)

        def not_cached(*_: object, **__: object) -> int:
            raise NotCached

        with monkeypatch.context() as patched:
            patched.setattr("millstream.broker.backlog.watch.bytes_between", not_cached)
            assert watch.is_open()
        watch.change_policy(replace(HOLD, bytes_max=4000))
        assert not watch.is_open()

    run(tmp_path, scenario)
