"""`millstream log`: dumps and verifies the log files of a data directory, offline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.admin.moments import show_moment
from millstream.cli.failures import CommandFailed
from millstream.cli.formats import Decoder, Format, decode_text, decoder, show
from millstream.cli.offline import (
    Mapped,
    Problem,
    SegmentFile,
    SegmentReport,
    find_segments,
    mapped,
    verify_segment,
    walk,
)
from millstream.cli.options import AsJson
from millstream.cli.output import error_console, print_json, print_rows
from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader
from millstream.records.record import Record, decode_batch

app = typer.Typer(
    help="Dump and verify the log files of a data directory, offline.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

DataPath = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A data directory, a partition directory or a .log file."),
]
TopicFilter = Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")]
PartitionFilter = Annotated[
    int | None, typer.Option("--partition", "-p", help="Only this partition.")
]


@app.command()
def dump(
    path: DataPath,
    topic: TopicFilter = None,
    partition: PartitionFilter = None,
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Decode batches and print their records.")
    ] = False,
    format_: Annotated[
        Format, typer.Option("--format", help="Format of keys and values.")
    ] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Print the batches, or the records, of log files.

    [bold]Examples[/bold]

    \b
      millstream log dump millstream-data --topic orders
      millstream log dump millstream-data/orders-0 --records --json
    """
    decode = decoder(format_)
    for segment in find_segments(path, topic, partition):
        if not as_json:
            sys.stdout.write(f"# {segment.path}\n")
        with mapped(segment.path) as content:
            dump_segment(segment, content, decode if records else None, as_json)


def dump_segment(
    segment: SegmentFile, content: Mapped, decode: Decoder | None, as_json: bool
) -> None:
    """Print a segment batch by batch, or record by record where `decode` is given."""
    next_position = 0
    try:
        for position, header in walk(content):
            next_position = position + header.size_bytes
            facts = batch_facts(segment, position, header)
            if decode is None:
                print_facts(facts, as_json)
                continue
            for record in decode_batch(content, position):
                print_facts(record_facts(facts, record, decode), as_json)
    except CorruptBatch as error:
        raise CommandFailed(f"{segment.path} at byte {next_position}: {error}") from None


def batch_facts(segment: SegmentFile, position: int, header: BatchHeader) -> dict[str, Any]:
    return {
        "topic": segment.topic,
        "partition": segment.partition,
        "position": position,
        "first_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "size_bytes": header.size_bytes,
        "compression": header.compression.name.lower(),
        "max_timestamp_ms": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
    }


def record_facts(batch: dict[str, Any], record: Record, decode: Decoder) -> dict[str, Any]:
    return {
        "topic": batch["topic"],
        "partition": batch["partition"],
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": None if record.key is None else decode(record.key),
        "value": None if record.value is None else decode(record.value),
        "headers": [
            [name, None if data is None else decode_text(data)] for name, data in record.headers
        ],
    }


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        line = json.dumps(facts, ensure_ascii=False, default=str)
    elif "value" in facts:
        key = "null" if facts["key"] is None else show(facts["key"])
        value = "null" if facts["value"] is None else show(facts["value"])
        line = f"{facts['offset']}\t{show_moment(facts['timestamp_ms'])}\t{key}\t{value}"
    else:
        line = "  ".join(f"{name}: {value}" for name, value in list(facts.items())[2:])
    sys.stdout.write(line + "\n")


@app.command()
def verify(
    path: DataPath,
    topic: TopicFilter = None,
    partition: PartitionFilter = None,
    as_json: AsJson = False,
) -> None:
    """Check every batch and index entry; name the first bad one of each file.

    Exits with 1 if it finds a problem.

    [bold]Examples[/bold]

    \b
      millstream log verify millstream-data
      millstream log verify millstream-data/orders-0/00000000000000000000.log
    """
    reports = verify_all(find_segments(path, topic, partition))
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        print_json(
            {
                "partitions": partition_rows(reports),
                "problems": [problem_fields(problem) for problem in problems],
            }
        )
    else:
        columns = {
            "topic": "TOPIC",
            "partition": "PARTITION",
            "segments": "SEGMENTS",
            "batches": "BATCHES",
            "records": "RECORDS",
            "size_bytes": "BYTES",
            "verdict": "VERDICT",
        }
        print_rows(partition_rows(reports), columns, empty="")
    if problems:
        raise CommandFailed("; ".join(map(str, problems)))


def verify_all(segments: list[SegmentFile]) -> list[SegmentReport]:
    """Verify segment by segment under a progress bar that counts bytes."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    reports = []
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    hidden = not sys.stderr.isatty()
    with Progress(*columns, console=error_console(), transient=True, disable=hidden) as progress:
        total = sum(segment.path.stat().st_size for segment in segments)
        task = progress.add_task("verify", total=total)
        for segment in segments:
            reports.append(verify_segment(segment))
            progress.advance(task, segment.path.stat().st_size)
    return reports


def partition_rows(reports: list[SegmentReport]) -> list[dict[str, Any]]:
    """One row per partition: its segments added up."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for report in reports:
        segment = report.segment
        row = rows.setdefault(
            (segment.topic, segment.partition),
            {"topic": segment.topic, "partition": segment.partition}
            | dict.fromkeys(("segments", "batches", "records", "size_bytes"), 0)
            | {"verdict": "sound"},
        )
        row["segments"] += 1
        row["batches"] += report.batches
        row["records"] += report.records
        row["size_bytes"] += report.size_bytes
        if report.problems:
            row["verdict"] = "BAD"
    return list(rows.values())


def problem_fields(problem: Problem) -> dict[str, Any]:
    return problem._asdict() | {"path": str(problem.path)}
