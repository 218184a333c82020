"""Dead letters as records with headers: what they say, and which are meant."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from millstream.admin.errors import InvalidArgument
from millstream.admin.letters import Filter, Letter, Origin, Position, unique

DEFAULTS = {"topic": "orders", "partition": "1", "offset": "17", "group": "billing"}


def letter(
    *, value: bytes | None = b"v", written_ms: int = 1_700_000_000_000, **errors: str
) -> Letter:
    named = {name.replace("_", "."): text for name, text in (DEFAULTS | errors).items()}
    headers = [(f"__dlq.errors.{name}", text.encode()) for name, text in named.items()]
    return Letter.of_message(
        Message(topic="dlq.orders", value=value, headers=headers, timestamp=(1, written_ms))
    )


def test_letter_says_where_the_record_was() -> None:
    found = letter(delivery_count="5", message="too often", reason="limit")
    assert found.origin == Origin("orders", 1, 17, "billing")
    assert (found.source, found.group, found.reason) == ("orders", "billing", "limit")
    assert (found.delivery_count, found.error("message")) == (5, "too often")


def test_letter_of_a_record_that_failed_twice_speaks_of_the_last_failure() -> None:
    headers = [("__dlq.errors.group", b"first"), ("__dlq.errors.group", b"second")]
    assert Letter.of_message(Message(headers=headers)).group == "second"


def test_record_without_headers_is_a_letter_of_unknown_origin() -> None:
    plain = Letter.of_message(Message(topic="dlq.orders", value=b"v"))
    assert plain.origin is None
    assert (plain.source, plain.group, plain.reason) == ("unknown", "unknown", "unknown")
    assert (plain.delivery_count, plain.replay_count) == (None, 0)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Offset rejected by client.", "rejected"),
        ("Offset delivery count exceeded the threshold.", "limit"),
        ("Something else.", "unknown"),
    ],
)
def test_reason_is_taken_from_the_words_of_apache_kafka(message: str, reason: str) -> None:
    assert letter(message=message).reason == reason


def test_letter_has_a_copy_if_it_has_anything_of_the_record() -> None:
    assert letter().has_copy
    assert not letter(value=None).has_copy
    headers = [("__dlq.errors.topic", b"orders"), ("trace", b"1")]
    assert Letter.of_message(Message(headers=headers)).has_copy


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        (Filter(), True),
        (Filter(group="billing", source="orders", reason="limit"), True),
        (Filter(group="audit"), False),
        (Filter(source="orders:1"), True),
        (Filter(source="orders:2"), False),
        (Filter(source="payments"), False),
        (Filter(reason="rejected"), False),
        (Filter(since="1700000000000", until="1700000000001"), True),
        (Filter(since="1700000000001"), False),
        (Filter(until="1700000000000"), False),
    ],
)
def test_filter_takes_letters_that_fulfil_all_conditions(condition: Filter, matches: bool) -> None:
    assert condition.matcher()(letter(reason="limit")) is matches


def test_filter_refuses_a_partition_that_is_no_number() -> None:
    with pytest.raises(InvalidArgument, match="TOPIC:PARTITION"):
        Filter(source="orders:x").matcher()


@pytest.mark.parametrize("text", ["²", "9" * 5_000, "-1", ""])
def test_numbers_in_headers_that_are_none_stop_nothing(text: str) -> None:
    found = letter(partition=text, delivery_count=text, timestamp=text)
    assert (found.origin, found.delivery_count, found.failed_ms) == (None, None, None)
    headers = [("__dlq.replay.count", text.encode()), ("__dlq.replay.of", f"t/0:{text}".encode())]
    again = Letter.of_message(Message(topic="t", headers=headers))
    assert (again.replay_count, again.replay_of) == (0, None)
    with pytest.raises(InvalidArgument, match="PARTITION:OFFSET"):
        Position.parse(f"0:{text}")


def test_unique_keeps_the_first_letter_about_a_failure() -> None:
    letters = [letter(value=b"1"), letter(value=b"2"), letter(offset="18"), letter(group="audit")]
    kept = list(unique(iter(letters)))
    assert [it.value for it in kept] == [b"1", b"v", b"v"]
