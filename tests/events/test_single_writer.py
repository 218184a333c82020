"""The single writer: every command decided once, in order, also after a takeover."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import pytest

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.client.transactions import FENCED
from millstream.errors import ApiError
from millstream.events import EventLog, SingleWriter
from millstream.events import single_writer as module
from millstream.events.event import decode_event
from millstream.records.record import Record, encode_batch
from millstream.testing.pytest_plugin import SharedBroker
from tests.events.seats import Command, Seat, seat
from tests.events.test_log import read_all


class Desk:
    """The topics of one aggregate, and a client that sends commands."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        name = uuid.uuid4().hex
        self.names = {kind: f"{kind}-{name}" for kind in ("commands", "events", "replies")}
        self.cluster = Cluster(bootstrap_servers)
        create_topics(self.cluster, [NewTopic(it, 1) for it in self.names.values()])
        self.logs = {kind: EventLog(bootstrap_servers, topic) for kind, topic in self.names.items()}

    def writer(self) -> SingleWriter[Seat, Command]:
        return SingleWriter(
            self.bootstrap_servers,
            seat,
            commands=self.names["commands"],
            events=self.names["events"],
            replies=self.names["replies"],
            partition=0,
            decode=lambda value: Command(*json.loads(value)),
        )

    def send(self, *commands: tuple[str, str, str, str]) -> None:
        """(command id, seat, kind, person)"""
        records = [
            Record(
                index,
                int(time.time() * 1000),  # retention takes older ones
                key.encode(),
                json.dumps([kind, person]).encode(),
                (("command-id", command_id.encode()),),
            )
            for index, (command_id, key, kind, person) in enumerate(commands)
        ]
        self.logs["commands"].append_batch(0, encode_batch(records))

    def replies(self) -> dict[str, object]:
        records = read_all(self.logs["replies"])
        keys = [(it.key or b"").decode() for it in records]
        assert len(keys) == len(set(keys)), keys
        values = [json.loads(it.value or b"") for it in records]
        return {
            key: it["version"] if it["accepted"] else it["reason"]
            for key, it in zip(keys, values, strict=True)
        }

    def events(self) -> list[tuple[str, int, str]]:
        stored = [decode_event(it, 0) for it in read_all(self.logs["events"])]
        return [(it.aggregate_id, it.version, it.event.type) for it in stored]


@pytest.fixture
def desk(millstream: SharedBroker) -> Iterator[Desk]:
    desk = Desk(millstream.bootstrap_servers)
    yield desk
    desk.cluster.close()
    for log in desk.logs.values():
        log.close()


def test_commands_are_decided_in_order_with_one_reply_each(desk: Desk) -> None:
    desk.send(("a", "1", "claim", "ada"), ("b", "1", "claim", "bob"), ("c", "2", "claim", "bob"))
    writer = desk.writer()
    assert writer.handle_next() == 3
    assert desk.replies() == {"a": 2, "b": "taken by ada", "c": 2}
    desk.send(("d", "1", "give back", "ada"), ("e", "1", "claim", "bob"))
    assert writer.handle_next() == 2
    assert writer.handle_next(wait_ms=0) == 0
    assert desk.replies()["e"] == 5
    assert [version for key, version, _ in desk.events() if key == "1"] == [1, 2, 3, 4, 5]


def test_next_writer_goes_on_where_the_last_one_committed(desk: Desk) -> None:
    desk.send(("a", "1", "claim", "ada"))
    desk.writer().handle_next()
    desk.send(("b", "1", "claim", "bob"), ("c", "1", "give back", "ada"))
    assert desk.writer().handle_next() == 2
    assert desk.replies() == {"a": 2, "b": "taken by ada", "c": 3}


def test_writer_that_was_replaced_writes_nothing_more(desk: Desk) -> None:
    desk.send(("a", "1", "claim", "ada"))
    old = desk.writer()
    new = desk.writer()
    with pytest.raises(ApiError) as caught:
        old.handle_next()
    assert caught.value.code in FENCED
    assert new.handle_next() == 1
    assert desk.replies() == {"a": 2}
    assert len(desk.events()) == 2


def test_crash_before_the_commit_leaves_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise ConnectionError("killed")

    desk.send(("a", "1", "claim", "ada"))
    monkeypatch.setattr(module, "commit_offsets", dies)
    with pytest.raises(ConnectionError):
        desk.writer().handle_next()
    monkeypatch.undo()
    assert desk.writer().handle_next() == 1
    assert desk.replies() == {"a": 2}
    assert desk.events() == [("1", 1, "claimed"), ("1", 2, "invoiced")]


def test_value_that_is_no_command_is_refused(desk: Desk) -> None:
    record = Record(0, int(time.time() * 1000), b"1", b"{", (("command-id", b"a"),))
    desk.logs["commands"].append_batch(0, encode_batch([record]))
    desk.writer().handle_next()
    assert str(desk.replies()["a"]).startswith("not a command")
