"""The single writer: every command decided once, in order, also after a takeover."""

from __future__ import annotations

import json
import re
import shlex
import time
import uuid
from collections.abc import Iterator

import pytest

from millstream.cli.entry import main
from millstream.cli.options import BOOTSTRAP_VARIABLE
from millstream.client.cluster import Cluster, CoordinatorKind
from millstream.client.topics import NewTopic, create_topics
from millstream.client.transactions import FENCED
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.events import EventLog, LogChanged, SingleWriter
from millstream.events import single_writer as module
from millstream.events.event import decode_event
from millstream.records.record import Header, Record, encode_batch
from millstream.testing.pytest_plugin import SharedBroker
from tests.events.seats import Command, Seat, seat
from tests.events.test_log import read_all
from tests.events.topics import Operator


class Desk:
    """The topics of one aggregate, and a client that sends commands."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        name = uuid.uuid4().hex
        self.names = {kind: f"{kind}-{name}" for kind in ("commands", "events", "replies")}
        self.cluster = Cluster(bootstrap_servers)
        keeps_all = {"retention.ms": "-1"}  # of events: the default deletes them
        create_topics(self.cluster, [NewTopic(it, 1, keeps_all) for it in self.names.values()])
        self.logs = {kind: EventLog(bootstrap_servers, topic) for kind, topic in self.names.items()}

    @classmethod
    def of(cls, other: Desk) -> Desk:
        """The same topics, seen by another process."""
        desk = cls.__new__(cls)
        desk.bootstrap_servers, desk.names = other.bootstrap_servers, other.names
        desk.cluster = other.cluster
        desk.logs = {it: EventLog(other.bootstrap_servers, desk.names[it]) for it in desk.names}
        return desk

    def writer(
        self, *, partition: int = 0, may_lose_events: bool = False
    ) -> SingleWriter[Seat, Command]:
        return SingleWriter(
            self.bootstrap_servers,
            seat,
            commands=self.names["commands"],
            events=self.names["events"],
            replies=self.names["replies"],
            partition=partition,
            decode=lambda value: Command(*json.loads(value)),
            may_lose_events=may_lose_events,
        )

    def send_record(
        self, value: bytes, key: bytes | None = b"1", headers: tuple[Header, ...] = ()
    ) -> None:
        record = Record(0, int(time.time() * 1000), key, value, headers)
        self.logs["commands"].append_batch(0, encode_batch([record]))

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

    def commit(self, offset: int, metadata: str) -> None:
        """The position of the writer."""
        group = f"{self.names['events']}-writer"
        position = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_metadata": metadata,
        }
        fields = {
            "group_id": group,
            "topics": [{"name": self.names["commands"], "partitions": [position]}],
        }
        answer = self.cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            group,
            "offset_commit",
            fields,
            version=8,
            error_of=lambda it: it.topics[0].partitions[0].error_code,
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    def replies(self) -> dict[str, object]:
        records = read_all(self.logs["replies"])
        keys = [(it.key or b"").decode(errors="replace") for it in records]
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


CLAIM = b'["claim", "ada"]'
BAD_ID = b"\xff\xfe"


@pytest.mark.parametrize(
    ("value", "key", "headers", "reason"),
    [
        (b"{", b"1", {}, "Expecting property name"),
        (b'["claim"]', b"1", {}, "TypeError: .*missing 1 required positional argument"),
        (CLAIM, b"\xff", {}, "its key is not UTF-8"),
        (CLAIM, None, {}, "it has no key"),
        (CLAIM, b"1", {"command-id": BAD_ID}, "its header command-id is not UTF-8"),
        (CLAIM, b"1", {"correlation-id": BAD_ID}, "its header correlation-id is not UTF-8"),
    ],
)
def test_record_that_is_no_command_is_refused_and_those_after_it_are_decided(
    desk: Desk, value: bytes, key: bytes | None, headers: dict[str, bytes], reason: str
) -> None:
    headers = {"command-id": b"a"} | headers
    desk.send_record(value, key, tuple(headers.items()))
    desk.send(("b", "1", "claim", "bob"))
    writer = desk.writer()
    while "b" not in desk.replies():
        writer.handle_next()
    replies = desk.replies()
    refusal = replies.pop(headers["command-id"].decode(errors="replace"))
    assert re.match(f"not a command: {reason}", str(refusal))
    assert replies == {"b": 2}


def test_headers_that_the_writer_does_not_use_may_have_any_bytes(desk: Desk) -> None:
    desk.send_record(CLAIM, b"1", (("command-id", b"a"), ("trace", BAD_ID)))
    desk.writer().handle_next()
    assert desk.replies() == {"a": 2}


@pytest.fixture
def operator(millstream: SharedBroker) -> Operator:
    return Operator(millstream.bootstrap_servers)


def test_commands_of_a_topic_that_was_created_again_are_all_decided(
    desk: Desk, operator: Operator
) -> None:
    """A position in the deleted topic is not one in the new one."""
    desk.send(*((f"a{it}", f"{it}", "claim", "ada") for it in range(4)))
    writer = desk.writer()
    writer.handle_next()
    operator.recreate(desk.names["commands"], settings={})
    new = Desk.of(desk)
    new.send(*((f"b{it}", f"n{it}", "claim", "bob") for it in range(6)))
    with pytest.raises(LogChanged, match=r"commands-.* was deleted and created again"):
        writer.handle_next()
    new.writer().handle_next()
    assert new.replies().keys() >= {f"b{it}" for it in range(6)}


def test_command_without_an_id_is_another_one_in_a_topic_that_was_created_again(
    desk: Desk, operator: Operator
) -> None:
    """It has the place of an earlier one."""
    desk.send_record(CLAIM, b"1")
    desk.send_record(b'["give back", "ada"]', b"1")
    desk.writer().handle_next()
    operator.recreate(desk.names["commands"], settings={})
    new = Desk.of(desk)
    new.send_record(CLAIM, b"1")
    new.writer().handle_next()
    assert [version for _, version, _ in new.events()] == [1, 2, 3, 4, 5]


def test_position_in_a_topic_that_was_deleted_is_not_used(desk: Desk, operator: Operator) -> None:
    """Where the cluster keeps it, or a writer commits it late."""
    stamp = {"topic_id": str(desk.logs["commands"].topic_id), "partitions": 1}
    operator.recreate(desk.names["commands"], settings={})
    new = Desk.of(desk)
    new.send(("a", "1", "claim", "ada"), ("b", "1", "claim", "bob"), ("c", "2", "claim", "bob"))
    new.commit(2, json.dumps(stamp))
    assert new.writer().handle_next() == 3


@pytest.mark.parametrize("metadata", ["", "of a tool", "17"])
def test_position_of_an_earlier_version_or_an_operator_is_used(desk: Desk, metadata: str) -> None:
    desk.send(("a", "1", "claim", "ada"), ("b", "1", "claim", "bob"), ("c", "2", "claim", "bob"))
    desk.commit(2, metadata)
    assert desk.writer().handle_next() == 1


@pytest.mark.parametrize("kind", ["events", "replies"])
def test_writer_commits_nothing_to_a_topic_that_was_created_again(
    desk: Desk, operator: Operator, kind: str
) -> None:
    desk.send(("a", "1", "claim", "ada"))
    writer = desk.writer()
    writer.handle_next()
    operator.recreate(desk.names[kind], settings={"retention.ms": "-1"})
    desk.send(("b", "1", "give back", "ada"))
    with pytest.raises(LogChanged, match=f"{kind}-.* was deleted and created again"):
        writer.handle_next()
    new = Desk.of(desk)
    new.writer().handle_next()
    if kind == "events":
        assert new.replies()["b"] == "not yours"
        assert new.events() == []


def test_partitions_of_commands_are_added(desk: Desk, operator: Operator) -> None:
    """In a new partition, a key is without its events; the writer of that one knows it from the
    position of another."""
    desk.send(("a", "1", "claim", "ada"))
    writer = desk.writer()
    writer.handle_next()
    desk.send(("b", "2", "claim", "bob"))
    for name in desk.names.values():
        operator.add_partitions(name, 2)
    with pytest.raises(LogChanged, match="had 1 partitions and has 2"):
        writer.handle_next()
    for partition in (0, 1):
        with pytest.raises(LogChanged, match=r"commands-.* had 1 partitions and has 2.*Copy"):
            Desk.of(desk).writer(partition=partition)


def test_topics_with_too_few_partitions_are_refused(desk: Desk, operator: Operator) -> None:
    operator.add_partitions(desk.names["commands"], 2)
    with pytest.raises(ConfigError, match=r"events-.* has 1 partitions, and commands-.* has 2"):
        desk.writer()


def test_topic_of_events_with_retention_is_refused(desk: Desk, operator: Operator) -> None:
    operator.alter(desk.names["events"], "retention.ms", "1000000")
    with pytest.raises(ConfigError, match=r"retention\.ms=1000000, which deletes events"):
        desk.writer()
    desk.writer(may_lose_events=True)


def test_commands_that_were_deleted_unread_are_named_with_a_cure_that_works(
    desk: Desk, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.send(("a", "1", "claim", "ada"))
    desk.writer().handle_next()
    desk.send(("b", "1", "claim", "bob"))
    desk.send(("c", "2", "claim", "bob"))
    operator.delete_records(desk.names["commands"], 2)
    with pytest.raises(LogChanged, match=r"starts at offset 2: .*from offset 1 on") as caught:
        desk.writer().handle_next()
    command = shlex.split(str(caught.value).partition("are left: ")[2])
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, desk.bootstrap_servers)
    with pytest.raises(SystemExit) as ended:
        main(command[1:])
    assert ended.value.code in (None, 0)
    assert desk.writer().handle_next() == 1
    assert desk.replies().keys() == {"a", "c"}
