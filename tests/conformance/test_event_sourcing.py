"""Event sourcing where there is no conditional append: a single writer decides the commands."""

from __future__ import annotations

import pytest

from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ConfigError
from millstream.events import CommandHandler, EventLog, LogChanged
from tests.conformance.brokers import BrokerUnderTest, unique
from tests.events.seats import seat
from tests.events.test_single_writer import Desk
from tests.events.topics import Operator


def test_single_writer_decides_each_command_once(broker: BrokerUnderTest) -> None:
    desk = Desk(broker.bootstrap)
    desk.send(("a", "1", "claim", "ada"), ("b", "1", "claim", "bob"))
    first = desk.writer()
    assert first.handle_next() == 2
    desk.send(("c", "1", "give back", "ada"), ("d", "1", "claim", "bob"))
    assert desk.writer().handle_next() == 2
    assert desk.replies() == {"a": 2, "b": "taken by ada", "c": 3, "d": 5}
    assert [version for _, version, _ in desk.events()] == [1, 2, 3, 4, 5]


def test_single_writer_notices_that_its_commands_were_created_again(
    broker: BrokerUnderTest,
) -> None:
    desk, operator = Desk(broker.bootstrap), Operator(broker.bootstrap)
    desk.send(("a", "1", "claim", "ada"), ("b", "1", "claim", "bob"))
    writer = desk.writer()
    writer.handle_next()
    operator.recreate(desk.names["commands"], settings={})
    new = Desk.of(desk)
    new.send(*((f"c{it}", f"n{it}", "claim", "bob") for it in range(3)))
    with pytest.raises(LogChanged, match="deleted and created again"):
        writer.handle_next()
    assert new.writer().handle_next() == 3


def test_single_writer_notices_that_partitions_were_added(broker: BrokerUnderTest) -> None:
    desk, operator = Desk(broker.bootstrap), Operator(broker.bootstrap)
    desk.send(("a", "1", "claim", "ada"))
    writer = desk.writer()
    writer.handle_next()
    desk.send(("b", "2", "claim", "bob"))
    for name in desk.names.values():
        operator.add_partitions(name, 2)
    with pytest.raises(LogChanged, match="had 1 partitions and has 2"):
        writer.handle_next()
    with pytest.raises(LogChanged, match="had 1 partitions and has 2"):
        Desk.of(desk).writer(partition=1)


def test_single_writer_refuses_events_with_retention(broker: BrokerUnderTest) -> None:
    desk, operator = Desk(broker.bootstrap), Operator(broker.bootstrap)
    operator.alter(desk.names["events"], "retention.ms", "1000000")
    with pytest.raises(ConfigError, match=r"retention\.ms=1000000, which deletes events"):
        desk.writer()


def test_handler_refuses_a_topic_that_accepts_every_version(broker: BrokerUnderTest) -> None:
    with EventLog(broker.bootstrap, unique("plain")) as log:
        create_topics(log.cluster, [NewTopic(log.topic, 1)])
        with pytest.raises(ConfigError, match="or use SingleWriter"):
            CommandHandler(log, seat)
