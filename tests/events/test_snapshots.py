"""Snapshots: the next handler reads less, and never another state."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from millstream.cli.entry import main
from millstream.cli.options import BOOTSTRAP_VARIABLE
from millstream.errors import ConfigError, MillstreamError
from millstream.events import Accepted, CommandHandler, EventLog, LogChanged, Origin, Refusal
from millstream.events.log import Read
from millstream.events.snapshots import Snapshots
from millstream.events.view import View
from millstream.testing.pytest_plugin import SharedBroker
from tests.events.seats import Command, Seat, claim, give_back, seat
from tests.events.topics import Operator


@pytest.fixture
def log(millstream: SharedBroker) -> Iterator[EventLog]:
    with EventLog(millstream.bootstrap_servers, millstream.unique_topic()) as log:
        log.create()
        yield log


def snapshots(log: EventLog, code: int = 1) -> Snapshots[Seat]:
    aggregate = replace(seat, version=code)
    return Snapshots(log, aggregate, encode=asdict, decode=lambda state: Seat(**state))


def handler(log: EventLog, code: int = 1) -> CommandHandler[Seat, Command]:
    aggregate = replace(seat, version=code)
    return CommandHandler(log, aggregate, snapshots=snapshots(log, code))


def test_next_handler_goes_on_from_the_snapshot(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = handler(log)
    for number in range(600):  # more than one batch of states
        first.handle(f"seat {number}", claim("ada"), Origin(f"c{number}"))
    first.save_snapshots()
    first.handle("seat 0", give_back("ada"))
    offsets: list[int] = []
    read = EventLog.read

    def noted(self: EventLog, partition: int, offset: int) -> Read:
        if self.topic == log.topic:
            offsets.append(offset)
        return read(self, partition, offset)

    monkeypatch.setattr(EventLog, "read", noted)
    second = handler(log)
    assert second.load("seat 0").state == Seat(None, 1)
    assert second.load("seat 599").version == 2
    assert set(offsets) == {1200, 1201}
    # Commands are remembered too.
    repeated = second.handle("seat 5", claim("ada"), Origin("c5"))
    assert repeated == Accepted(2, was_repeated=True)


def test_snapshot_of_other_code_is_not_used_and_is_replaced(log: EventLog) -> None:
    first = handler(log)
    first.handle("1", claim("ada"))
    first.handle("2", claim("bob"))
    first.save_snapshots()
    assert snapshots(log).load(0) is not None
    assert snapshots(log, code=2).load(0) is None
    second = handler(log, code=2)
    second.handle("1", give_back("ada"))
    second.save_snapshots()
    loaded = snapshots(log, code=2).load(0)
    assert loaded is not None
    assert (loaded.get("1").state, loaded.get("2").state) == (Seat(None, 1), Seat("bob", 1))
    assert snapshots(log).load(0) is None


def test_writer_that_is_behind_does_not_overwrite_newer_states(log: EventLog) -> None:
    ahead, behind = handler(log), handler(log)
    ahead.handle("1", claim("ada"))
    stale: View[Seat] = View(seat)
    for stored in log.events(0, 0, log.end_offset(0)):
        stale.apply(stored)
    stale.position = log.end_offset(0)
    behind.load("1")
    ahead.handle("1", give_back("ada"))
    ahead.load("1")
    ahead.save_snapshots()
    assert not snapshots(log).save(0, stale)
    loaded = snapshots(log).load(0)
    assert loaded is not None
    assert loaded.get("1").version == 3


def test_snapshot_that_was_not_finished_is_not_used(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = handler(log)
    for number in range(600):
        first.handle(f"seat {number}", claim("ada"))
    append, calls = EventLog.append_batch, iter(range(10))

    def dies(self: EventLog, partition: int, batch: bytes) -> int:
        if next(calls) == 1:
            raise ConnectionError("killed")
        return append(self, partition, batch)

    monkeypatch.setattr(EventLog, "append_batch", dies)
    with pytest.raises(ConnectionError):
        first.save_snapshots()
    monkeypatch.undo()
    assert snapshots(log).load(0) is None
    assert handler(log).load("seat 7").state == Seat("ada", 1)


@pytest.fixture
def operator(millstream: SharedBroker) -> Operator:
    return Operator(millstream.bootstrap_servers)


def reopened(log: EventLog, millstream: SharedBroker) -> EventLog:
    """As another process does."""
    return EventLog(millstream.bootstrap_servers, log.topic)


def test_snapshot_of_a_topic_that_was_deleted_is_not_used_and_is_replaced(
    log: EventLog, millstream: SharedBroker, operator: Operator
) -> None:
    old = handler(log)
    for number in range(3):
        old.handle(f"seat {number}", claim("ada"))
    old.save_snapshots()
    old.handle("seat 3", claim("ada"))
    operator.recreate(log.topic)
    with pytest.raises(LogChanged):
        old.save_snapshots()
    new = handler(reopened(log, millstream))
    assert isinstance(new.handle("seat 0", claim("bob")), Accepted)
    assert new.load("seat 1").version == 0
    new.save_snapshots()
    loaded = snapshots(reopened(log, millstream)).load(0)
    assert loaded is not None
    assert set(loaded.known) == {"seat 0"}
    assert loaded.get("seat 0").state == Seat("bob", 1)
    with pytest.raises(LogChanged):
        old.save_snapshots()


def test_snapshot_without_the_id_of_its_topic_is_not_used(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions of Millstream have written it."""
    first = handler(log)
    first.handle("1", claim("ada"))
    monkeypatch.setattr(Snapshots, "_stamp", lambda self: {"code": 1})
    first.save_snapshots()
    assert snapshots(log).load(0) is not None
    monkeypatch.undo()
    assert snapshots(log).load(0) is None
    second = handler(log)
    assert second.load("1").state == Seat("ada", 1)
    second.save_snapshots()
    assert snapshots(log).load(0) is not None


def test_snapshots_of_another_number_of_partitions_are_refused(
    log: EventLog, millstream: SharedBroker, operator: Operator
) -> None:
    snapshots(log)
    operator.recreate(log.topic, partitions=2)
    with pytest.raises(ConfigError, match=r"has 1 partitions, and .* has 2: if .* created again"):
        snapshots(reopened(log, millstream))


@pytest.mark.parametrize("deleted", [2, 5])
def test_events_are_deleted_before_or_after_the_snapshot(
    log: EventLog,
    millstream: SharedBroker,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    deleted: int,
) -> None:
    first = handler(log)
    first.handle("1", claim("ada"))
    first.save_snapshots()
    first.handle("2", claim("ada"))
    first.handle("3", claim("ada"))
    operator.delete_records(log.topic, deleted)
    second = handler(reopened(log, millstream))
    cure = f"were deleted.* Delete topic {log.topic}-snapshots, and begin with a new handler"
    with pytest.raises(LogChanged, match=cure):
        second.handle("1", give_back("ada"))
    operator.delete(f"{log.topic}-snapshots")
    if deleted == 5:  # in the middle of the events of an aggregate
        with pytest.raises(MillstreamError, match=r"events are missing, .* excise") as caught:
            handler(reopened(log, millstream)).load("1")
        command = shlex.split(str(caught.value).partition("again: ")[2])
        monkeypatch.setenv(BOOTSTRAP_VARIABLE, millstream.bootstrap_servers)
        with pytest.raises(SystemExit) as ended:
            main([log.topic if it == "TOPIC" else it for it in command[1:]] + ["--yes"])
        assert ended.value.code in (None, 0)
    third = handler(reopened(log, millstream))
    assert isinstance(third.handle("1", claim("bob")), Accepted)
    assert isinstance(third.handle("3", claim("bob")), Accepted if deleted == 5 else Refusal)
