"""Snapshots: the next handler reads less, and never another state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from millstream.events import Accepted, CommandHandler, EventLog, Origin
from millstream.events.snapshots import Snapshots
from millstream.events.view import View
from millstream.testing.pytest_plugin import SharedBroker
from tests.events.seats import Command, Seat, claim, give_back, seat


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
    read: list[int] = []
    events = EventLog.events

    def noted(self: EventLog, partition: int, start: int, end: int) -> object:
        read.append(end - start)
        return events(self, partition, start, end)

    monkeypatch.setattr(EventLog, "events", noted)
    second = handler(log)
    assert second.load("seat 0").state == Seat(None, 1)
    assert second.load("seat 599").version == 2
    assert max(read) == 1
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
