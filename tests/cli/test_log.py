"""`millstream log` on a directory that a broker has written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millstream import Broker
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with three records in orders-0, its broker stopped."""
    data = tmp_path_factory.mktemp("data")
    with Broker.start(data) as broker:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "compression.type": "zstd"}
        )
        for value in ("a", "b", None):
            producer.produce("orders", key="k", value=value, headers=[("h", b"1" * 500)])
        producer.flush()
        del producer
    return data


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """A copy of it that the test may damage."""
    copy = tmp_path / "orders-0"
    copy.mkdir()
    for file in (written / "orders-0").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_log_dump_prints_batches(run: Run, data: Path) -> None:
    [batch] = map(json.loads, run("log", "dump", str(data), "--json").out.splitlines())
    assert (batch["topic"], batch["partition"], batch["position"]) == ("orders", 0, 0)
    assert (batch["first_offset"], batch["last_offset"], batch["records"]) == (0, 2, 3)
    assert batch["compression"] == "zstd"
    text = run("log", "dump", str(data)).out
    assert text.startswith(f"# {data / 'orders-0' / f'{0:020d}.log'}\n")
    assert "first_offset: 0  last_offset: 2" in text


def test_log_dump_prints_records(run: Run, data: Path) -> None:
    out = run("log", "dump", str(data), "--records", "--json").out
    records = [json.loads(line) for line in out.splitlines()]
    assert [(r["offset"], r["key"], r["value"]) for r in records] == [
        (0, "k", "a"),
        (1, "k", "b"),
        (2, "k", None),
    ]
    assert records[0]["headers"] == [["h", "1" * 500]]
    lines = run("log", "dump", str(data), "--records").out.splitlines()[1:]
    assert [line.split("\t")[0] for line in lines] == ["0", "1", "2"]
    assert lines[2].endswith("\tk\tnull")


def test_log_verify_passes_a_sound_directory(run: Run, written: Path) -> None:
    outcome = run("log", "verify", str(written))
    assert outcome.exit_code == 0, outcome.err
    assert "sound" in outcome.out
    assert "BAD" not in outcome.out


def test_log_verify_names_the_bad_batch(run: Run, data: Path) -> None:
    file = data / "orders-0" / f"{0:020d}.log"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    outcome = run("log", "verify", str(data))
    assert outcome.exit_code == 1
    assert f"{file} at byte 0, offset 0: " in outcome.err
    assert "BAD" in outcome.out
    report = json.loads(run("log", "verify", str(data), "--json").out)
    assert report["problems"][0]["path"] == str(file)
    assert report["partitions"][0]["verdict"] == "BAD"
    assert run("log", "dump", str(data)).exit_code == 1


def test_log_of_a_missing_path_is_one_line(run: Run, tmp_path: Path) -> None:
    outcome = run("log", "verify", str(tmp_path / "nowhere"))
    assert outcome.exit_code == 1
    assert outcome.err.count("\n") == 1
