"""`millstream consume` against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS

Ok = Callable[..., str]
MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


@pytest.fixture
def numbered(ok: Ok, topic: str) -> str:
    """A topic with v0 to v9 in partition 0, timestamps 1,000,000,000,000 + n seconds."""
    ok("topic", "alter", topic, "--config", "retention.ms=-1")  # or such old records would go
    lines = [json.dumps({"value": f"v{n}", "timestamp_ms": 10**12 + n * 1000}) for n in range(10)]
    ok("produce", topic, "--envelope", "--partition", "0", stdin="\n".join(lines))
    return topic


def values(out: str) -> list[str]:
    return out.split()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from-beginning"], range(10)),
        (["--offset", "7"], range(7, 10)),
        (["--offset", "-2"], range(8, 10)),
        (["--last", "3"], range(7, 10)),
        (["--last", "50"], range(10)),
        (["--since", str(10**12 + 4500)], range(5, 10)),
        (["--since", "2001-09-09T01:46:48Z"], range(8, 10)),
        (["--since", "now"], []),
        (["--from-beginning", "--count", "4"], range(4)),
        ([], []),
    ],
)
def test_consume_starts_and_stops_where_asked(
    ok: Ok, numbered: str, options: list[str], expected: range
) -> None:
    out = ok("consume", numbered, "--no-follow", "--partition", "0", *options)
    assert values(out) == [f"v{n}" for n in expected]


def test_consume_takes_only_one_start(cli: Run, topic: str) -> None:
    assert cli("consume", topic, "--from-beginning", "--last", "1").exit_code == 2


def test_consume_names_an_offset_that_is_not_there(cli: Run, numbered: str) -> None:
    outcome = cli("consume", numbered, "--offset", "11", "--partition", "0")
    assert outcome.exit_code == 1
    assert f"{numbered}[0] has no offset 11: it starts at 0 and ends at 10" in outcome.err


def test_consume_names_a_partition_that_is_not_there(cli: Run, topic: str) -> None:
    assert "no partition 3, only 0 to 2" in cli("consume", topic, "--partition", "3").err


def test_consume_last_takes_the_newest_over_all_partitions(ok: Ok, topic: str) -> None:
    for n in range(6):
        ok("produce", topic, f"v{n}", "--partition", str(n % 3))
    assert values(ok("consume", topic, "--last", "4", "--no-follow")) == ["v2", "v3", "v4", "v5"]


def test_consume_shows_metadata_headers_and_keys(ok: Ok, topic: str) -> None:
    ok("produce", topic, "hello", "--key", "k", "-H", "a=b", "--partition", "2")
    out = ok("consume", topic, "--from-beginning", "--no-follow", "-m", "-H", "-k")
    place, headers, key, value = out.rstrip("\n").split("\t")
    assert place.endswith(f"{topic}[2]@0")
    assert (headers, key, value) == ("a=b", "k", "hello")


def test_consume_shows_null_and_bytes(ok: Ok, topic: str) -> None:
    ok("produce", topic, "ff00", "--format", "hex", "--partition", "0")
    ok("produce", topic, "--key", "k", "--tombstone", "--partition", "0")
    reading = ("consume", topic, "--from-beginning", "--no-follow")
    assert ok(*reading) == "\\xff\x00\nnull\n"
    assert ok(*reading, "--format", "hex") == "ff00\nnull\n"
    assert ok(*reading, "--format", "base64") == "/wA=\nnull\n"


def test_consume_prints_json_values_as_json(ok: Ok, topic: str) -> None:
    ok("produce", topic, '{"a": [1, null]}', "--format", "json")
    out = ok("consume", topic, "--from-beginning", "--no-follow", "--json", "--format", "json")
    assert json.loads(out)["value"] == {"a": [1, None]}


def test_consume_with_a_group_goes_on_where_it_left_off(ok: Ok, numbered: str) -> None:
    reading = ("consume", numbered, "--group", f"g-{numbered}", "--from-beginning")
    assert values(ok(*reading, "--count", "4")) == ["v0", "v1", "v2", "v3"]
    assert values(ok(*reading, "--no-follow")) == [f"v{n}" for n in range(4, 10)]
    assert values(ok(*reading, "--no-follow")) == []


def test_consume_without_a_group_leaves_no_trace(ok: Ok, numbered: str) -> None:
    ok("consume", numbered, "--from-beginning", "--no-follow")
    assert "millstream-cli" not in ok("group", "list", "--json")


@pytest.mark.parametrize("option", [["--offset", "1"], ["--last", "1"], ["--partition", "0"]])
def test_consume_with_a_group_refuses_to_seek(cli: Run, topic: str, option: list[str]) -> None:
    outcome = cli("consume", topic, "--group", "g", *option)
    assert outcome.exit_code == 2
    assert "group" in outcome.err


def test_consume_of_an_unknown_topic_fails(cli: Run, name: str) -> None:
    assert f"there is no topic '{name}'" in cli("consume", name).err


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout.readline, "")


def test_consume_follows_and_ends_cleanly_on_interrupt(ok: Ok, topic: str) -> None:
    ok("produce", topic, "before", "--partition", "0")
    command = [MILLSTREAM, "consume", topic, "--from-beginning"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        lines = lines_of(process)
        assert next(lines) == "before\n"
        ok("produce", topic, "after", "--partition", "1")
        assert next(lines) == "after\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert err == "2 records\n"


def test_consume_reads_all_of_many_records(ok: Ok, topic: str) -> None:
    ok("produce", topic, stdin="x\n" * 50_000)
    assert len(values(ok("consume", topic, "--from-beginning", "--no-follow"))) == 50_000
