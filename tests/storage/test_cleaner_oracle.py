"""Apache Kafka's DumpLogSegments reads cleaned segments: every batch, record and index entry."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from millstream.records.batch import iterate_headers, parse_header
from millstream.records.compression import Compression
from millstream.records.record import (
    ControlType,
    Record,
    encode_batch,
    encode_end_transaction,
)
from millstream.storage.cleaner import Cleaner
from millstream.storage.cleaner_plan import plan_cleaning
from millstream.storage.directories import LogDirectories
from millstream.storage.log import Log
from tests.peers.java_runtime import ToolRunner
from tests.storage.cleaning import DAY_MS, compacted
from tests.storage.store import read_all

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("apache-tools")]

NOW_MS = 1_700_000_000_000


def append(log: Log, batch: bytes) -> None:
    log.append(batch, [parse_header(batch)], leader_epoch=0, now_ms=NOW_MS)


def fill(log: Log) -> None:
    """All codecs, tombstones, an idempotent producer and transactions of both ends."""
    for i in range(400):
        records = [
            Record(j, NOW_MS + i, b"key%d" % ((i * 7 + j) % 90), None if i % 9 == 0 else b"v" * i)
            for j in range(3)
        ]
        append(log, encode_batch(records, compression=Compression(i % 5)))
        if i % 20 == 0:
            record = Record(0, NOW_MS + i, b"transaction%d" % (i % 40), b"value")
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": i // 20}
            append(log, encode_batch([record], is_transactional=True, **producer))
            kind = ControlType.ABORT if i % 40 else ControlType.COMMIT
            marker = encode_end_transaction(
                kind,
                offset=0,
                timestamp=NOW_MS + i,
                producer_id=7,
                producer_epoch=0,
                coordinator_epoch=1,
            )
            append(log, marker)
    log.roll(NOW_MS)


@pytest.fixture
def cleaned(tmp_path: Path) -> Path:
    """The directory of a log that was cleaned twice, the second time past the horizon."""
    config = compacted(segment_bytes=60_000, index_interval_bytes=300)
    directories = LogDirectories.open([tmp_path], config_for=lambda topic: config)
    log = directories.create("table", 0, uuid4(), config)
    fill(log)
    for now_ms in (NOW_MS, NOW_MS + DAY_MS):
        Cleaner().clean(plan_cleaning(log, 0, log.log_end_offset, now_ms))
    assert len(read_all(log)) < 150
    directories.sweep()
    directories.close()
    return tmp_path / "table-0"


@pytest.fixture(scope="module")
def tools() -> ToolRunner:
    return ToolRunner()


def test_apache_finds_nothing_wrong_with_cleaned_segments(cleaned: Path, tools: ToolRunner) -> None:
    files = sorted(str(path) for path in cleaned.iterdir() if path.suffix in (".log", ".index"))
    files += sorted(str(path) for path in cleaned.glob("*.timeindex"))
    try:
        result = tools.run("DumpLogSegments", "--deep-iteration", "--files", ",".join(files))
    finally:
        tools.close()
    lines = result.lines + result.stderr.splitlines()
    batches = [line for line in lines if line.startswith("baseOffset:")]
    logs = [path.read_bytes() for path in cleaned.glob("*.log")]
    assert len(batches) == sum(len(list(iterate_headers(log))) for log in logs) > 50
    assert all("isvalid: true" in line for line in batches)
    assert any("deleteHorizonMs: OptionalLong[" in line for line in batches)
    assert any("count: 0" in line for line in batches)
    complaints = ("mismatch", "not consistent", "out of order", "exception", "invalid bytes")
    assert [line for line in lines if any(word in line.lower() for word in complaints)] == []
