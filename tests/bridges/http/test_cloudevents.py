"""CloudEvents as requests and as records."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.http.cloudevents import BATCHED, STRUCTURED, parse_request, request_headers
from millstream.bridges.http.shapes import BadRequest

EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.placed"}
BINARY = {f"ce-{name}": value for name, value in EVENT.items()}


def test_binary_event_keeps_attributes_body_and_type() -> None:
    headers = BINARY | {"content-type": "text/plain", "ce-partitionkey": "alice", "x-other": "1"}
    (record,) = parse_request(headers, b"\xffbody")
    assert (record.value, record.key) == (b"\xffbody", b"alice")
    assert dict(record.headers) == {
        "ce_specversion": b"1.0",
        "ce_id": b"1",
        "ce_source": b"/shop",
        "ce_type": b"order.placed",
        "ce_partitionkey": b"alice",
        "content-type": b"text/plain",
    }


def test_structured_and_batched_events_are_values() -> None:
    body = json.dumps(EVENT | {"data": {"a": 1}}).encode()
    (record,) = parse_request({"content-type": f"{STRUCTURED}; charset=utf-8"}, body)
    assert record.value == body
    assert dict(record.headers)["content-type"] == b"application/cloudevents+json; charset=UTF-8"
    batch = json.dumps([EVENT, EVENT | {"partitionkey": "k"}]).encode()
    found = parse_request({"content-type": BATCHED}, batch)
    assert [it.key for it in found] == [None, b"k"]


@pytest.mark.parametrize(
    ("headers", "body", "problem"),
    [
        ({}, b"", "no event"),
        (BINARY | {"ce-type": ""}, b"", "lacks the attribute 'type'"),
        (BINARY | {"ce-specversion": "0.3"}, b"", "1.0 is supported"),
        (BINARY | {"ce-Bad_Name": "1"}, b"", "attribute 'Bad_Name'"),
        ({"content-type": STRUCTURED}, b"[]", "is a JSON object"),
        ({"content-type": STRUCTURED}, b"{}", "lacks the attribute 'id'"),
        ({"content-type": BATCHED}, b"{}", "a batch is a list"),
    ],
)
def test_request_that_is_no_event_is_refused(
    headers: dict[str, str], body: bytes, problem: str
) -> None:
    with pytest.raises(BadRequest, match=problem):
        parse_request(headers, body)


def test_record_that_is_an_event_goes_out_as_it_came_in() -> None:
    headers = BINARY | {"ce-subject": "a%20b", "content-type": 'text/plain; charset="utf-8"'}
    (record,) = parse_request(headers, b"x")
    sent = request_headers("orders", 0, 7, 0, record.headers)
    assert sent == headers | {"ce-subject": "a b"}


def test_other_record_gets_attributes() -> None:
    sent = request_headers("orders", 2, 7, 1_700_000_000_000, [("trace", b"\x00")])
    assert sent["ce-id"] == "orders-2-7"
    assert sent["ce-source"] == "/topics/orders"
    assert sent["ce-time"] == "2023-11-14T22:13:20Z"
    assert "ce-time" not in request_headers("orders", 2, 7, 1_700_000_000_000_000, [])


@given(st.dictionaries(st.text(max_size=12), st.binary(max_size=20), max_size=5))
def test_headers_of_any_record_are_safe_in_http(headers: dict[str, Any]) -> None:
    given = [(f"ce_{name}", value) for name, value in headers.items()]
    sent = request_headers("t", 0, 0, 0, [*given, ("content-type", b"a\r\nx: y")])
    for value in sent.values():
        assert value.isascii()
        assert value.isprintable()
