"""Bodies and answers of produce requests, v2 and v3."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.admin.outgoing import ANY_PARTITION, Outgoing
from millstream.bridges.http import shapes
from millstream.bridges.http.shapes import (
    BadRequest,
    ObjectStream,
    Written,
    answer_v2,
    answer_v3,
    parse_v2,
    parse_v3,
)

JSON = "application/vnd.kafka.json.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json; charset=utf-8"


def v2(*records: Any) -> bytes:
    return json.dumps({"records": list(records)}).encode()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_v2_json_and_binary_become_records() -> None:
    assert parse_v2(v2({"key": "a", "value": {"é": [1, None]}}), JSON) == [
        Outgoing('{"é":[1,null]}'.encode(), b'"a"', [], ANY_PARTITION, 0)
    ]
    headers = [{"key": "h", "value": b64(b"\x01")}, {"key": "none", "value": None}]
    given = {"value": b64(b"\xff"), "partition": 3, "timestamp": 7, "headers": headers}
    assert parse_v2(v2(given), BINARY) == [
        Outgoing(b"\xff", None, [("h", b"\x01"), ("none", None)], 3, 7)
    ]
    assert parse_v2(v2({"value": "x"}), "application/vnd.kafka.text.v2+json", 2)[0].partition == 2


@pytest.mark.parametrize(
    ("body", "content_type", "status", "problem"),
    [
        (b"{", JSON, 400, "not JSON"),
        (b"[" * 100_000, JSON, 400, "not JSON"),
        (b"[]", JSON, 422, '"records" must be a list'),
        (v2(), JSON, 422, "at least one"),
        (v2(1), JSON, 422, "record 0 is not an object"),
        (v2({"value": 1}, {}), JSON, 422, "record 1 has neither"),
        (v2({"value": "!"}), BINARY, 422, "record 0: value is not base64"),
        (v2({"value": 1}), BINARY, 422, "must be a string"),
        (v2({"value": 1, "partition": -1}), JSON, 422, "partition must be"),
        (v2({"value": 1, "partition": True}), JSON, 422, "partition must be"),
        (v2({"value": 1, "timestamp": "now"}), JSON, 422, "timestamp must be"),
        (v2({"value": 1, "headers": [1]}), JSON, 422, "headers must be"),
        (v2({"value": 1, "headers": [{"key": "\ud800"}]}), JSON, 422, "surrogate"),
        (v2({"value": 1, "headers": [{"key": "a\0b"}]}), JSON, 422, "has a NUL"),
        (v2({"value": "\ud800"}), "application/vnd.kafka.text.v2+json", 422, "surrogate"),
        (v2({"value": 1}), "text/plain", 415, "use one of"),
        (v2({"value": 1}), "", 415, "use one of"),
    ],
)
def test_bad_v2_request_is_named(body: bytes, content_type: str, status: int, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem) as raised:
        parse_v2(body, content_type)
    assert raised.value.status == status


def test_partition_is_given_once() -> None:
    with pytest.raises(BadRequest, match="in the path already"):
        parse_v2(v2({"value": 1, "partition": 0}), JSON, 0)


def test_v3_types_become_bytes() -> None:
    given = {
        "partition_id": 1,
        "key": {"type": "STRING", "data": "k"},
        "value": {"type": "BINARY", "data": b64(b"\x00")},
        "headers": [{"name": "h", "value": b64(b"v")}],
    }
    assert parse_v3(given) == Outgoing(b"\x00", b"k", [("h", b"v")], 1, 0)
    assert parse_v3({"value": {"type": "JSON", "data": {"a": 1}}}).value == b'{"a":1}'
    for bad in (
        {"value": {"type": "AVRO", "data": 1}}, {"value": 1}, [], {"key": {"type": []}},
        {"value": {"type": "STRING", "data": "\ud800"}}, {"headers": [{"name": "\udfff"}]},
    ):  # fmt: skip
        with pytest.raises(BadRequest):
            parse_v3(bad)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=8), max_size=3), max_size=5),
    st.sampled_from(["", "\n", " \n\t"]),
    st.integers(1, 7),
)
def test_objects_come_out_whole_however_the_body_is_cut(
    objects: list[dict[str, str]], between: str, size: int
) -> None:
    body = between.join(json.dumps(it, ensure_ascii=False) for it in objects).encode()
    stream = ObjectStream(10_000)
    found = []
    for at in range(0, len(body), size):
        found += list(stream.feed(body[at : at + size]))
    stream.finish()
    assert found == objects


@pytest.mark.parametrize(
    "body",
    [
        b"[1]",
        b'{"a":1} 2',
        b'{"a"',
        b"\xff",
        b"{" + b" " * 200,
        b"{]}",
        b'{"a":1}}',
        b'{"\xff":1}',
        b"{" * 90_000,
    ],
)
def test_body_that_is_no_stream_of_objects_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_whole(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_objects_or_refused(body: bytes) -> None:
    objects = refused_or(read_whole, body)
    if isinstance(objects, BadRequest):
        assert objects.status in (400, 413)
        return
    assert bool(objects) == bool(body.decode().strip())  # what is accepted is text
    assert all(isinstance(it, dict) for it in objects)
    for found in objects:
        record = refused_or(parse_v3, found)
        if isinstance(record, BadRequest):
            assert record.status in (400, 422)
        else:
            assert record.value is None or "value" in found


def refused_or(function: Any, given: Any) -> Any:
    try:
        return function(given)
    except BadRequest as bad:
        return bad


class Watched:
    """A pattern, and where it began to look."""

    def __init__(self, pattern: re.Pattern[bytes], begun: list[int]) -> None:
        self._pattern, self._begun = pattern, begun

    def search(self, text: bytearray, at: int) -> re.Match[bytes] | None:
        self._begun.append(at)
        return self._pattern.search(text, at)

    def match(self, text: bytearray, at: int) -> re.Match[bytes] | None:
        self._begun.append(at)
        return self._pattern.match(text, at)


def test_each_byte_of_a_stream_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a body in small pieces is that of its size, not of its square."""
    begun: list[int] = []
    for name in ("_STRUCTURE", "_WITHIN_STRING"):
        monkeypatch.setattr(shapes, name, Watched(getattr(shapes, name), begun))
    stream, text = ObjectStream(10_000_000), '}{\\"' * 20_000
    body = json.dumps({"a": text}).encode()
    found = []
    for at in range(0, len(body), 100):
        found += list(stream.feed(body[at : at + 100]))
    stream.finish()
    assert found == [{"a": text}]
    assert begun == sorted(begun), "it looked again at what it had seen"
    assert len(begun) < len(body) / 10


def read_whole(body: bytes) -> list[Any]:
    stream = ObjectStream(100)
    found = list(stream.feed(body))
    stream.finish()
    return found


def test_answers_have_confluents_shape() -> None:
    written = [Written(1, 17, 5), Written(status=404, error="no topic")]
    assert answer_v2(written)["offsets"] == [
        {"partition": 1, "offset": 17},
        {"partition": None, "offset": None, "error_code": 404, "error": "no topic"},
    ]
    assert answer_v3(written[0], "c", "t", Outgoing(b"abc", None)) == {
        "error_code": 200,
        "cluster_id": "c",
        "topic_name": "t",
        "partition_id": 1,
        "offset": 17,
        "value": {"size": 3},
    }
    assert answer_v3(written[1], "c", "t", None) == {"error_code": 404, "message": "no topic"}
