"""`millstream archive`: what is archived, whether it is whole, and the way back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from millstream.admin.archive import archive_state
from millstream.admin.moments import show_moment
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import note, print_json, print_rows
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.archive.reading import Archive, PartitionArchive, TopicArchive

app = typer.Typer(
    help="Show, verify and restore archived topics, and make Delta tables of them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

ArchivePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="The brokers' millstream.archive.path: a directory, or s3://bucket/prefix?region=...",
    ),
]
TopicFilter = Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")]
Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic.")]
TopicId = Annotated[
    str | None,
    typer.Option("--topic-id", help="Of a topic that was deleted; by default, the newest one."),
]


@app.command()
def status(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="Read the archive itself. Without it, the brokers are asked.",
        ),
    ] = None,
    topic: TopicFilter = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show what is archived of each partition: as its leader says, or as its files say.

    Brokers also tell how far the archive is behind their logs, and why nothing is archived at the
    moment. The files also tell of topics that were deleted.

    [bold]Examples[/bold]

    \b
      millstream archive status
      millstream archive status /var/archive
      millstream archive status "s3://bucket/archive?region=eu-central-1" --topic orders --json
    """
    if path is None:
        _show_brokers(bootstrap_server, client_config, topic, as_json)
    else:
        _show_files(path, topic, as_json)


def _show_brokers(
    bootstrap_server: str, client_config: ClientConfig, topic: str | None, as_json: bool
) -> None:
    with Cluster.connect(bootstrap_server, client_config).protocol as cluster:
        state = archive_state(cluster, None if topic is None else [topic])
    if not state.is_known:
        raise CommandFailed(
            "the brokers of this cluster tell nothing about an archive: name its PATH instead"
        )
    rows = [{**asdict(it), "state": it.state, "lag": it.lag_records} for it in state.partitions]
    if as_json:
        print_json(rows)
    else:
        columns = {
            "topic": "TOPIC",
            "partition": "PARTITION",
            "state": "STATE",
            "start": "START",
            "end": "END",
            "local_start": "LOG START",
            "log_end": "LOG END",
            "lag": "ONLY IN LOG",
            "lag_bytes": "BYTES BEHIND",
            "files": "FILES",
            "size_bytes": "BYTES",
            "problem": "PROBLEM",
        }
        print_rows(rows, columns, empty="no topic has remote.storage.enable")
    if state.problems:
        raise CommandFailed("\n".join(state.problems))


def _show_files(path: str, topic: str | None, as_json: bool) -> None:
    rows = [
        _facts(each, part)
        for each in _topics(_open(path), topic)
        for part in each.partitions.values()
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["newest"] = None if row["newest_ms"] < 0 else show_moment(row["newest_ms"])
    columns = {
        "topic": "TOPIC",
        "topic_id": "ID",
        "partition": "PARTITION",
        "start_offset": "START",
        "end_offset": "END",
        "files": "FILES",
        "records": "RECORDS",
        "size_bytes": "BYTES",
        "segment_bytes": "SEGMENTS' BYTES",
        "newest": "NEWEST RECORD",
    }
    print_rows(rows, columns, empty="nothing is archived there")


@app.command()
def verify(
    path: ArchivePath,
    topic: TopicFilter = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only compare checksums; decode no records.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read every file and every record, and report what is wrong. Exits with 1 if something is.

    [bold]Examples[/bold]

    \b
      millstream archive verify /var/archive
      millstream archive verify /var/archive --topic orders --quick
    """
    from millstream.archive.verifying import verify_partition

    reports = [
        verify_partition(part, decode=not quick)
        for each in _topics(_open(path), topic)
        for part in each.partitions.values()
    ]
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        print_json([vars(report) for report in reports])
    else:
        rows = [
            {**vars(report), "problems": len(report.problems), "unlisted": len(report.unlisted)}
            for report in reports
        ]
        columns = {
            "topic": "TOPIC",
            "partition": "PARTITION",
            "files": "FILES",
            "records": "RECORDS",
            "size_bytes": "BYTES",
            "problems": "PROBLEMS",
            "unlisted": "UNLISTED FILES",
        }
        print_rows(rows, columns, empty="nothing is archived there")
    if problems:
        raise CommandFailed("\n".join(problems))


@app.command()
def restore(
    path: ArchivePath,
    topic: Topic,
    directory: Annotated[
        Path,
        typer.Option(
            "--directory", "-d", help="A data directory that no broker uses, such as a new one."
        ),
    ],
    topic_id: TopicId = None,
    as_json: AsJson = False,
) -> None:
    """Write the log of an archived topic, from which a broker can start.

    [bold]Examples[/bold]

    \b
      millstream archive restore /var/archive --topic orders --directory restored
      millstream serve --data restored
    """
    from millstream.archive.restoring import restore_topic

    found = _open(path).topic(topic, _uuid(topic_id))
    restored = restore_topic(found, directory.absolute())
    rows = [each._asdict() for each in restored]
    if as_json:
        print_json(rows)
        return
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "start_offset": "START",
        "end_offset": "END",
        "records": "RECORDS",
        "segments": "SEGMENTS",
        "size_bytes": "BYTES",
    }
    print_rows(rows, columns, empty="nothing is archived there")
    note(f"start a broker with this directory: millstream serve --data {directory}")


@app.command()
def delta(
    path: ArchivePath, topic: Topic, topic_id: TopicId = None, as_json: AsJson = False
) -> None:
    """Make or update the Delta table over the files of an archived topic.

    [bold]Examples[/bold]

    \b
      millstream archive delta /var/archive --topic orders
    """
    try:
        from millstream.archive.delta import synchronize_table
    except ModuleNotFoundError as error:
        raise CommandFailed(
            f"a Delta table needs the package {error.name}: pip install 'millstream[delta]'"
        ) from None
    archive = _open(path)
    done = synchronize_table(archive.place, archive.topic(topic, _uuid(topic_id)))
    if as_json:
        print_json(done._asdict())
    else:
        changes = f"{done.added} files added, {done.removed} removed"
        note(f"version {done.version}: {changes}")
        typer.echo(done.uri)


def _open(path: str) -> Archive:
    try:
        import pyarrow  # noqa: F401 - only whether it is there
    except ModuleNotFoundError:
        raise CommandFailed(
            "an archive needs the package pyarrow: pip install 'millstream[archive]'"
        ) from None
    from millstream.archive.reading import open_archive

    return open_archive(path)


def _topics(archive: Archive, topic: str | None) -> list[TopicArchive]:
    found = archive.topics()
    if topic is not None and topic not in found:
        raise CommandFailed(f"{archive.place.root} has no archive of the topic {topic}")
    return [each for name, them in found.items() if topic in (None, name) for each in them]


def _facts(topic: TopicArchive, part: PartitionArchive) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "topic_id": str(topic.topic_id),
        "partition": part.manifest.partition,
        "start_offset": part.start_offset,
        "end_offset": part.end_offset,
        "files": len(part.files),
        "records": sum(file.records for file in part.files),
        "size_bytes": sum(file.size_bytes for file in part.files),
        "segment_bytes": sum(file.segment_bytes for file in part.files),
        "newest_ms": part.manifest.max_timestamp,
        "leader_epoch": part.manifest.leader_epoch,
    }


def _uuid(text: str | None) -> UUID | None:
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise MillstreamError(
            f"{text} is not a topic id such as 0ace1f2e-1111-4222-8333-444455556666"
        ) from None
