"""Event sourcing where there is no conditional append: a single writer decides the commands."""

from __future__ import annotations

import pytest

from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ConfigError
from millstream.events import CommandHandler, EventLog
from tests.conformance.brokers import BrokerUnderTest, unique
from tests.events.seats import seat
from tests.events.test_single_writer import Desk


def test_single_writer_decides_each_command_once(broker: BrokerUnderTest) -> None:
    desk = Desk(broker.bootstrap)
    desk.send(("a", "1", "claim", "ada"), ("b", "1", "claim", "bob"))
    first = desk.writer()
    assert first.handle_next() == 2
    desk.send(("c", "1", "give back", "ada"), ("d", "1", "claim", "bob"))
    assert desk.writer().handle_next() == 2
    assert desk.replies() == {"a": 2, "b": "taken by ada", "c": 3, "d": 5}
    assert [version for _, version, _ in desk.events()] == [1, 2, 3, 4, 5]


def test_handler_refuses_a_topic_that_accepts_every_version(broker: BrokerUnderTest) -> None:
    with EventLog(broker.bootstrap, unique("plain")) as log:
        create_topics(log.cluster, [NewTopic(log.topic, 1)])
        with pytest.raises(ConfigError, match="or use SingleWriter"):
            CommandHandler(log, seat)
