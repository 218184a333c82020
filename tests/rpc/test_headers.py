"""Headers of requests and replies."""

from __future__ import annotations

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.rpc.headers import (
    Failure,
    new_correlation_id,
    parse_reply,
    parse_request,
    reply_headers,
    request_headers,
)


def test_request_headers_are_springs() -> None:
    correlation_id = new_correlation_id()
    assert uuid.UUID(bytes=correlation_id).version == 4
    headers = request_headers(
        correlation_id,
        "replies",
        3,
        1_700_000_000_123,
        [("trace", b"x"), ("kafka_replyTopic", b"")],
    )
    assert headers == [
        ("trace", b"x"),
        ("kafka_correlationId", correlation_id),
        ("kafka_replyTopic", b"replies"),
        ("kafka_replyPartition", b"\0\0\0\3"),
        ("millstream-deadline", b"1700000000123"),
    ]
    request = parse_request(b"v", b"k", headers)
    assert (request.value, request.key, request.headers) == (b"v", b"k", (("trace", b"x"),))
    assert request.correlation_id == correlation_id
    assert (request.reply_topic, request.reply_partition) == ("replies", 3)
    assert request.deadline_ms == 1_700_000_000_123
    assert request.wants_reply
    assert parse_request(b"v", correlation_id, headers).key is None  # it stands for no key


def test_requests_without_headers_want_no_reply() -> None:
    assert not parse_request(b"v", None, []).wants_reply


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "kafka_correlationId",
                    "kafka_replyTopic",
                    "kafka_replyPartition",
                    "millstream-deadline",
                    "millstream-error",
                ]
            ),
            st.none() | st.binary(max_size=25),
        )
    )
)
def test_any_bytes_in_headers_are_accepted(headers: list[tuple[str, bytes | None]]) -> None:
    parse_request(None, None, headers)
    parse_reply(headers)


def test_replies_carry_errors() -> None:
    assert parse_reply(reply_headers(b"id")) == (b"id", None)
    headers = reply_headers(b"id", Failure.of(ValueError("no price")))
    assert parse_reply(headers) == (b"id", ("ValueError", "no price"))
    assert parse_reply([("millstream-error", b"\xff")]) == (None, ("Error", "\ufffd"))
    long = reply_headers(b"id", Failure.of(ValueError("x" * 100_000)))
    assert len(dict(long)["millstream-error"] or b"") < 3000
