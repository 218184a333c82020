"""`millstream produce` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import murmur2

from tests.cli.conftest import Run

Ok = Callable[..., str]


def records(ok: Ok, topic: str, *options: str) -> list[dict[str, Any]]:
    out = ok("consume", topic, "--from-beginning", "--no-follow", "--json", *options)
    return sorted(map(json.loads, out.splitlines()), key=lambda r: (r["partition"], r["offset"]))


def test_produce_sends_arguments_and_reports_offsets(ok: Ok, cli: Run, topic: str) -> None:
    outcome = cli("produce", topic, "a", "b", "--partition", "1")
    assert outcome.err == f"2 records acknowledged: {topic}[1] 0..1\n"
    assert [r["value"] for r in records(ok, topic)] == ["a", "b"]


def test_produce_reports_json(ok: Ok, topic: str) -> None:
    receipt = json.loads(ok("produce", topic, "a", "--partition", "2", "--json"))
    assert receipt == {
        "topic": topic,
        "acknowledged": 1,
        "partitions": [{"partition": 2, "first_offset": 0, "last_offset": 0}],
    }


def test_produce_reads_lines_of_stdin(ok: Ok, topic: str) -> None:
    ok("produce", topic, stdin="one\ntwo\r\nthree")
    assert sorted(r["value"] for r in records(ok, topic)) == ["one", "three", "two"]


def test_produce_reads_lines_of_a_file(ok: Ok, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {n}\n" for n in range(5000)))
    assert json.loads(ok("produce", topic, "--file", str(file), "--json"))["acknowledged"] == 5000
    assert len(records(ok, topic)) == 5000


def test_produce_sends_a_whole_file_as_one_value(ok: Ok, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "document.txt"
    file.write_text("two\nlines\n")
    ok("produce", topic, "--file", str(file), "--whole")
    assert [r["value"] for r in records(ok, topic)] == ["two\nlines\n"]


def test_produce_partitions_keys_as_the_java_client_does(ok: Ok, topic: str) -> None:
    keys = [f"key-{n}" for n in range(50)]
    ok("produce", topic, "--key-separator", ":", stdin="\n".join(f"{key}:v" for key in keys))
    placed = {r["key"]: r["partition"] for r in records(ok, topic)}
    assert placed == {key: murmur2(key.encode(), 3) for key in keys}


def test_produce_sends_headers_and_key(ok: Ok, topic: str) -> None:
    ok("produce", topic, "hello", "--key", "k", "-H", "source=web", "-H", "empty=")
    [record] = records(ok, topic)
    assert record["key"] == "k"
    assert record["headers"] == [["source", "web"], ["empty", ""]]


def test_produce_sends_tombstones(ok: Ok, cli: Run, topic: str) -> None:
    ok("produce", topic, "--key", "k", "--tombstone")
    [record] = records(ok, topic)
    assert (record["key"], record["value"]) == ("k", None)
    assert cli("produce", topic, "--tombstone").exit_code == 2


def test_produce_takes_back_what_consume_printed(ok: Ok, topic: str, name: str) -> None:
    ok("produce", topic, "--key", "k", "-H", "a=b", "värde")
    ok("produce", topic, "--key", "gone", "--tombstone")
    lines = ok("consume", topic, "--from-beginning", "--no-follow", "--json")
    ok("topic", "create", f"{name}-copy", "--partitions", "3")
    ok("produce", f"{name}-copy", "--envelope", stdin=lines)
    copied = [r | {"topic": topic} for r in records(ok, f"{name}-copy")]
    assert copied == records(ok, topic)


@pytest.mark.parametrize("line", ["not json", "[]", '{"key": "k"}'])
def test_produce_names_a_bad_envelope(cli: Run, topic: str, line: str) -> None:
    outcome = cli("produce", topic, "--envelope", stdin=line)
    assert outcome.exit_code == 2
    assert line in outcome.err


@pytest.mark.parametrize(
    ("format_", "value"), [("json", "{oops"), ("hex", "zz"), ("base64", "%%%%")]
)
def test_produce_refuses_values_that_are_not_in_the_format(
    cli: Run, topic: str, format_: str, value: str
) -> None:
    outcome = cli("produce", topic, value, "--format", format_)
    assert outcome.exit_code == 2
    assert value in outcome.err


def test_produce_sends_avro_by_schema(ok: Ok, cli: Run, topic: str, tmp_path: Path) -> None:
    schema = tmp_path / "reading.avsc"
    fields = [{"name": "sensor", "type": "string"}, {"name": "value", "type": "double"}]
    schema.write_text(json.dumps({"type": "record", "name": "Reading", "fields": fields}))
    reading = {"sensor": "s1", "value": 1.5}
    avro = ("--format", "avro", "--schema", str(schema))
    ok("produce", topic, json.dumps(reading), *avro)
    assert [r["value"] for r in records(ok, topic, *avro)] == [reading]
    outcome = cli("produce", topic, '{"sensor": 5}', *avro)
    assert outcome.exit_code == 2
    assert "schema" in outcome.err


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_produce_compresses(ok: Ok, topic: str, codec: str) -> None:
    ok("produce", topic, "x" * 1000, "--compression", codec)
    assert [r["value"] for r in records(ok, topic)] == ["x" * 1000]


def test_produce_names_a_partition_that_is_not_there(cli: Run, topic: str) -> None:
    outcome = cli("produce", topic, "x", "--partition", "7")
    assert outcome.exit_code == 1
    assert "no partition 7, only 0 to 2" in outcome.err


def test_produce_says_why_the_broker_refuses(ok: Ok, cli: Run, topic: str) -> None:
    ok("topic", "alter", topic, "--config", "max.message.bytes=100")
    outcome = cli("produce", topic, "x" * 5000)
    assert outcome.exit_code == 1
    assert "refused" in outcome.err
    assert "size" in outcome.err.lower()


def test_produce_does_not_mix_sources(cli: Run, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("x")
    assert cli("produce", topic, "value", "--file", str(file)).exit_code == 2
