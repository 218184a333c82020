"""Commands: accepted once or refused, also by many handlers at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import KafkaException

from millstream.cli.entry import main
from millstream.cli.options import BOOTSTRAP_VARIABLE
from millstream.client.producing import RawProducer
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.events import (
    Accepted,
    CommandHandler,
    Event,
    EventLog,
    LogChanged,
    Origin,
    Refusal,
)
from millstream.events import log as log_module
from millstream.events.aggregate import Aggregate
from millstream.events.event import StoredEvent, encode_event
from millstream.events.handler import TooManyConflicts, stored_events
from millstream.events.log import Conflict
from millstream.events.view import COMMANDS_REMEMBERED
from millstream.records.record import encode_batch
from millstream.testing.pytest_plugin import SharedBroker
from tests.events.seats import Command, Seat, claim, give_back, seat
from tests.events.topics import Operator
from tests.peers.patience import wait_until


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
    with pytest.raises(TooManyConflicts, match="refused the events 5 times: somebody was faster"):
        handler.handle("1", claim("ada"))


def test_look_at_what_is_new_is_not_an_attempt(log: EventLog, millstream: SharedBroker) -> None:
    first = again(log, millstream)
    behind = CommandHandler(log, seat, attempts_max=1)
    first.handle("1", claim("ada"))
    assert behind.load("1").version == 2
    first.handle("1", give_back("ada"))
    assert isinstance(behind.handle("1", claim("bob")), Accepted)
    first.handle("1", give_back("bob"))
    first.handle("1", claim("ada"))
    with pytest.raises(TooManyConflicts, match="refused the events once: version conflict"):
        behind.handle("1", give_back("bob"))


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


@pytest.fixture
def operator(millstream: SharedBroker) -> Operator:
    return Operator(millstream.bootstrap_servers)


Act = Callable[[CommandHandler[Seat, Command]], object]
ACTS: list[Act] = [  # all that needs the states: an append, a refusal, and reads
    lambda handler: handler.handle("new", claim("bob")),
    lambda handler: handler.handle("1", give_back("ada")),
    lambda handler: handler.handle("1", claim("bob")),
    lambda handler: handler.load("1"),
    lambda handler: handler.state_at("1"),
    lambda handler: handler.state_at("0"),  # in a partition that is empty again
]


def handlers_of(
    log: EventLog, millstream: SharedBroker
) -> list[tuple[Act, CommandHandler[Seat, Command]]]:
    """One per act, because the first error makes a handler read the topic's metadata again. To each
    it seems that ada has seat 1."""
    CommandHandler(log, seat).handle("1", claim("ada"))
    handlers = [(act, again(log, millstream)) for act in ACTS]
    for _, handler in handlers:
        assert handler.load("1").state == Seat("ada", 1)
        assert handler.load("new").version == 0
    return handlers


def test_handler_of_a_topic_that_was_created_again_is_refused(
    log: EventLog, millstream: SharedBroker, operator: Operator
) -> None:
    """Its states are of another log, whose versions may be the same by chance."""
    handlers = handlers_of(log, millstream)
    operator.recreate(log.topic, partitions=2)
    new = again(log, millstream)
    assert isinstance(new.handle("1", claim("eve")), Accepted)
    for act, handler in handlers:
        with pytest.raises(LogChanged, match=r"deleted and created again .*new EventLog"):
            act(handler)
    assert new.load("1").state == Seat("eve", 1)
    assert new.load("new").version == 0


def test_partitions_are_not_added_to_a_topic_of_events(log: EventLog, operator: Operator) -> None:
    with pytest.raises(KafkaException) as caught:
        operator.add_partitions(log.topic, 4)
    assert caught.value.args[0].code() == ErrorCode.INVALID_PARTITIONS
    assert "would move its keys" in caught.value.args[0].str()


def test_handler_of_a_topic_with_more_partitions_is_refused(
    log: EventLog,
    millstream: SharedBroker,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(8):
        CommandHandler(log, seat).handle(str(number), claim("ada"))
    handlers = handlers_of(log, millstream)
    operator.force_partitions(log.topic, 3)
    monkeypatch.setattr(log_module, "METADATA_SECONDS_MAX", 0.0)
    for act, handler in handlers:
        with pytest.raises(LogChanged, match="had 2 partitions and has 3: keys are in other"):
            act(handler)
    new = again(log, millstream)
    kept = next(str(it) for it in range(8) if new._log.partition_of(str(it)) != 2)
    with pytest.raises(LogChanged, match="but belongs in partition 2: partitions were added"):
        new.load(kept)


def test_events_that_the_states_contain_are_deleted(log: EventLog, operator: Operator) -> None:
    """The broker begins at version 0 again; the handler does not know why it is refused."""
    name = next(str(it) for it in range(99) if log.partition_of(str(it)) == 0)
    handler = CommandHandler(log, seat, sleep=lambda seconds: pytest.fail("it is in vain"))
    handler.handle(name, claim("ada"))
    operator.delete_records(log.topic, 2)
    slept: list[float] = []
    handler._sleep = slept.append
    with pytest.raises(LogChanged, match=r"up to version 2, at offset 1, were deleted .*-0 starts"):
        handler.handle(name, give_back("ada"))
    assert len(slept) == 1
    assert isinstance(CommandHandler(log, seat).handle(name, claim("bob")), Accepted)


def test_aggregate_begins_again_without_its_events_if_that_is_meant(
    log: EventLog, operator: Operator
) -> None:
    one, two = [str(it) for it in range(99) if log.partition_of(str(it)) == 0][:2]
    handler = CommandHandler(log, seat, may_lose_events=True)
    handler.handle(one, claim("ada"))
    handler.handle(two, claim("ada"))
    operator.delete_records(log.topic, 4)
    assert isinstance(handler.handle(one, claim("bob")), Accepted)
    assert handler.handle(two, give_back("ada")) == Refusal("not yours")
    assert handler.load(two).version == 0
    assert handler.load(one).state == Seat("bob", 1)


@pytest.mark.parametrize("may_lose_events", [False, True])
def test_aggregate_that_another_handler_has_begun_again_is_read(
    log: EventLog, millstream: SharedBroker, operator: Operator, may_lose_events: bool
) -> None:
    name, other = [str(it) for it in range(99) if log.partition_of(str(it)) == 0][:2]
    old, new = [
        CommandHandler(it, seat, may_lose_events=may_lose_events)
        for it in (log, EventLog(millstream.bootstrap_servers, log.topic))
    ]
    old.handle(name, claim("ada"))
    operator.delete_records(log.topic, 2)
    assert isinstance(new.handle(name, claim("bob")), Accepted)
    old.load(other)  # reads the new events as well
    assert old.load(name).state == Seat("bob", 1)
    assert old.handle(name, claim("eve")) == Refusal("taken by bob")
    assert isinstance(old.handle(name, give_back("bob")), Accepted)


def test_handler_of_a_topic_that_does_not_exist_is_refused_at_once(
    millstream: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog(millstream.bootstrap_servers, millstream.unique_topic()) as log:
        monkeypatch.setattr(log.cluster, "retry_seconds", lambda error: pytest.fail("it waits"))
        with pytest.raises(ApiError) as caught:
            CommandHandler(log, seat)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_events_that_were_not_read_are_deleted(
    log: EventLog, millstream: SharedBroker, operator: Operator
) -> None:
    name = next(str(it) for it in range(99) if log.partition_of(str(it)) == 0)
    behind, ahead = again(log, millstream), again(log, millstream)
    behind.load(name)
    ahead.handle(name, claim("ada"))
    operator.delete_records(log.topic, 1)
    with pytest.raises(LogChanged, match=r"starts at offset 1: .* Begin with a new handler"):
        behind.load(name)


def test_events_that_were_not_read_are_deleted_if_that_is_meant(
    log: EventLog, millstream: SharedBroker, operator: Operator
) -> None:
    name = next(str(it) for it in range(99) if log.partition_of(str(it)) == 0)
    behind = CommandHandler(log, seat, may_lose_events=True)
    behind.load(name)
    ahead = again(log, millstream)
    ahead.handle(name, claim("ada"))
    operator.delete_records(log.topic, 2)
    assert behind.load(name).version == 0
    assert isinstance(behind.handle(name, claim("bob")), Accepted)


@pytest.mark.parametrize("may_lose_events", [False, True])
def test_events_that_the_states_contain_are_excised(
    log: EventLog,
    millstream: SharedBroker,
    monkeypatch: pytest.MonkeyPatch,
    may_lose_events: bool,
) -> None:
    handler = CommandHandler(log, seat, may_lose_events=may_lose_events, attempts_max=3)
    handler.handle("1", claim("ada"))
    handler.handle("1", give_back("ada"))
    handler.handle("2", claim("ada"))
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, millstream.bootstrap_servers)
    with pytest.raises(SystemExit) as ended:
        main(["excise", "--topic", log.topic, "--key", "1", "--yes"])
    assert ended.value.code in (None, 0)
    if may_lose_events:
        outcome = handler.handle("1", claim("bob"))
        assert isinstance(outcome, Accepted)
        assert outcome.version == 2
        return
    with pytest.raises(
        LogChanged, match=r"up to version 3, .* by excision: .* has no record there"
    ):
        handler.handle("1", claim("bob"))


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        ({}, "has retention.ms=604800000, .*: set retention.ms=-1, or"),
        ({"retention.ms": "-1", "retention.bytes": "1000"}, "set retention.bytes=-1, or"),
        ({"cleanup.policy": "compact"}, "set cleanup.policy=delete, or"),
        ({"cleanup.policy": "compact,delete"}, "set cleanup.policy=delete, retention.ms=-1, or"),
        ({"retention.ms": "-1", "millstream.backlog.policy": "drop"}, "policy=retain, or"),
    ],
)
def test_topic_that_deletes_events_is_refused(
    millstream: SharedBroker, settings: dict[str, str], cure: str
) -> None:
    if "millstream.backlog.policy" in settings:
        settings = settings | {"millstream.backlog.bytes": "1000000"}
    with EventLog(millstream.bootstrap_servers, millstream.unique_topic()) as log:
        append = {"millstream.conditional.append": "version"}
        create_topics(log.cluster, [NewTopic(log.topic, 1, append | settings)])
        with pytest.raises(ConfigError, match=cure):
            CommandHandler(log, seat)
        handler = CommandHandler(log, seat, may_lose_events=True)
        assert isinstance(handler.handle("1", claim("ada")), Accepted)


def test_events_of_a_transaction_are_read_when_it_has_ended(
    log: EventLog, millstream: SharedBroker
) -> None:
    """A handler that has met it while it was open does not skip them."""
    handler = CommandHandler(log, seat)
    partition = log.partition_of("1")
    events = stored_events("1", 0, [Event("claimed", {"by": "ada"})], Origin("other"))
    producer = RawProducer(log.cluster)
    producer.begin(millstream.unique_topic())
    identity = producer.identity(log.topic, partition)
    batch = encode_batch(
        [encode_event(it, 0, int(time.time() * 1000)) for it in events],
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.base_sequence,
        is_transactional=True,
    )
    producer.send(log.topic, partition, batch, 1)
    producer.flush()
    assert handler.load("1").version == 0
    producer.end(commit=True)
    wait_until(lambda: handler.load("1").version == 1)
    assert handler.load("1").state == Seat("ada", 1)
