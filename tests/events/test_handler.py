"""Commands: accepted once or refused, also by many handlers at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from millstream.events import Accepted, CommandHandler, Event, EventLog, Origin, Refusal
from millstream.events.aggregate import Aggregate
from millstream.events.event import StoredEvent
from millstream.events.handler import TooManyConflicts
from millstream.events.log import Conflict
from millstream.events.view import COMMANDS_REMEMBERED
from millstream.testing.pytest_plugin import SharedBroker
from tests.events.seats import Command, Seat, claim, give_back, seat


@pytest.fixture
def log(millstream: SharedBroker) -> Iterator[EventLog]:
    with EventLog(millstream.bootstrap_servers, millstream.unique_topic()) as log:
        log.create(partitions=2)
        yield log


def again(log: EventLog, millstream: SharedBroker) -> CommandHandler[Seat, Command]:
    """A handler of another process."""
    return CommandHandler(EventLog(millstream.bootstrap_servers, log.topic), seat)


def test_commands_are_accepted_or_refused_by_the_state(
    log: EventLog, millstream: SharedBroker
) -> None:
    first, second = again(log, millstream), again(log, millstream)
    assert isinstance(first.handle("1", claim("ada")), Accepted)
    assert second.handle("1", claim("bob")) == Refusal("taken by ada")
    assert first.handle("1", give_back("ada")).version == 3  # type: ignore[union-attr]
    # The second handler believes that it is taken, reads on, and decides again.
    outcome = second.handle("1", claim("bob"))
    assert isinstance(outcome, Accepted)
    assert [it.version for it in outcome.events] == [4, 5]
    assert first.load("1").state == Seat("bob", 2)


def test_handler_that_is_behind_decides_again_after_a_conflict(
    log: EventLog, millstream: SharedBroker
) -> None:
    first, second = again(log, millstream), again(log, millstream)
    assert second.load("1").version == 0
    first.handle("1", claim("ada"))
    assert second.handle("1", claim("bob")) == Refusal("taken by ada")


def test_command_with_the_same_id_is_carried_out_once(
    log: EventLog, millstream: SharedBroker
) -> None:
    origin = Origin("claim-1", "order-7")
    first = again(log, millstream).handle("1", claim("ada"), origin)
    assert isinstance(first, Accepted)
    assert {it.correlation_id for it in first.events} == {"order-7"}
    assert {it.causation_id for it in first.events} == {"claim-1"}
    handler = again(log, millstream)
    assert handler.handle("1", claim("ada"), origin) == Accepted(2, was_repeated=True)
    handler.handle("1", give_back("ada"))
    assert handler.handle("1", claim("ada"), origin) == Accepted(2, was_repeated=True)
    assert handler.load("1").state == Seat(None, 1)


def test_command_without_events_has_no_effect(log: EventLog) -> None:
    idle = Aggregate[int, str]("idle", 0, lambda state, command: [], lambda state, event: state)
    handler = CommandHandler(log, idle)
    assert handler.handle("1", "x") == Accepted(0)
    assert log.end_offset(log.partition_of("1")) == 0


def test_handler_gives_up_after_many_conflicts(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise Conflict("somebody was faster")

    handler = CommandHandler(log, seat, attempts_max=5, sleep=lambda seconds: None)
    monkeypatch.setattr(log, "append", refuse)
    with pytest.raises(TooManyConflicts, match="5 times"):
        handler.handle("1", claim("ada"))


def test_state_can_be_read_as_of_an_offset_or_a_time(log: EventLog) -> None:
    handler = CommandHandler(log, seat)
    for command in (claim("ada"), give_back("ada"), claim("bob")):
        handler.handle("1", command)
        handler.handle("other", command)
    events = [it for it in log.events(log.partition_of("1"), 0, 100) if it.aggregate_id == "1"]
    assert handler.state_at("1", offset=events[0].offset).version == 0
    assert handler.state_at("1", offset=events[2].offset).state == Seat("ada", 1)
    assert handler.state_at("1", offset=events[2].offset + 1).state == Seat(None, 1)
    assert handler.state_at("1", timestamp_ms=events[-1].timestamp_ms).state == Seat("bob", 2)
    assert handler.state_at("1", timestamp_ms=events[0].timestamp_ms - 1).version == 0
    assert handler.state_at("1").state == Seat("bob", 2)


def test_concurrent_handlers_lose_and_double_nothing(
    log: EventLog, millstream: SharedBroker
) -> None:
    counter = Aggregate[int, int](
        "counter",
        0,
        lambda state, amount: [Event("added", {"amount": amount})],
        lambda state, event: state + event.data["amount"],
    )

    def work() -> None:
        with EventLog(millstream.bootstrap_servers, log.topic) as own:
            handler = CommandHandler(own, counter)
            for _ in range(20):
                assert isinstance(handler.handle("c", 1), Accepted)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    current = CommandHandler(log, counter).load("c")
    assert (current.state, current.version) == (80, 80)


class ForgetfulLog(EventLog):
    """Sends an append again after others have appended: as if the answer had been lost while the
    leader moved."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(*arguments)
        self.meanwhile: Callable[[], None] = lambda: None

    def append(self, partition: int, events: Sequence[StoredEvent]) -> int:
        super().append(partition, events)
        self.meanwhile()
        return super().append(partition, events)


@pytest.mark.parametrize("others", [0, 1, COMMANDS_REMEMBERED + 8])
def test_append_that_conflicts_with_itself_is_accepted_once(
    log: EventLog, millstream: SharedBroker, others: int
) -> None:
    """However many commands of others came in between."""
    counter: Aggregate[int, str] = Aggregate(
        "counter",
        0,
        evolve=lambda state, event: state + 1,
        decide=lambda state, command: [Event("counted", {"by": command})] * 2,
    )
    forgetful = ForgetfulLog(millstream.bootstrap_servers, log.topic)
    other = CommandHandler(EventLog(millstream.bootstrap_servers, log.topic), counter)
    handler = CommandHandler(forgetful, counter)
    handler.load("1")

    def meanwhile() -> None:
        for _ in range(others):
            other.handle("1", "other")

    forgetful.meanwhile = meanwhile
    outcome = handler.handle("1", "this")
    assert isinstance(outcome, Accepted)
    assert [it.version for it in outcome.events] == [1, 2]
    assert not outcome.was_repeated
    events = log.events(log.partition_of("1"), 0, 1_000_000)
    assert [it.event.data["by"] for it in events] == ["this"] * 2 + ["other"] * 2 * others
    assert handler.load("1").version == 2 + 2 * others
