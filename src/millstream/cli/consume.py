"""`millstream consume`: prints a topic's records from a given start, then follows it like
`tail -f`.

Without `--group` it joins no group and commits nothing. With `--group` it is an ordinary member and
commits exactly the records it has printed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from millstream.admin.moments import parse_moment_ms
from millstream.cli.cluster import Cluster, Partition
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.formats import Format, decoder
from millstream.cli.options import BOOTSTRAP_DEFAULT, BootstrapServer, ClientConfig
from millstream.cli.output import note
from millstream.cli.printing import RecordPrinter
from millstream.cli.topic import TopicNames

POLL_S = 0.5  # how often Ctrl-C is noticed while nothing arrives

START = "Where to start"
SHOW = "What to show"

app = typer.Typer(
    help="Print a topic's records, and follow it like `tail -f`.",
    rich_markup_mode="rich",
    add_completion=False,
)


@dataclass(frozen=True)
class Start:
    """Where to start reading: exactly one of these, or nothing for the end."""

    beginning: bool = False
    offset: int | None = None
    since: str | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        given = [self.beginning, *(x is not None for x in (self.offset, self.since, self.last))]
        if sum(given) > 1:
            raise usage_error("give only one of --from-beginning, --offset, --since, --last")


FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning", "-a", rich_help_panel=START, help="Start with the oldest record."
    ),
]
FromOffset = Annotated[
    int | None,
    typer.Option(
        "--offset",
        "-o",
        rich_help_panel=START,
        help="Start at this offset; -5: five before the end.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        rich_help_panel=START,
        metavar="WHEN",
        help="2026-11-14T08:30, yesterday, 15m (ago), or ms since 1970.",
    ),
]
Last = Annotated[
    int | None,
    typer.Option("--last", "-n", min=1, rich_help_panel=START, help="Only the newest N records."),
]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", help="Only this partition; repeatable.")
]
Group = Annotated[
    str | None, typer.Option("--group", "-g", help="Join this group, and commit printed records.")
]
Count = Annotated[int | None, typer.Option("--count", "-c", min=1, help="Stop after N records.")]
Follow = Annotated[
    bool,
    typer.Option("--follow/--no-follow", help="Wait for new records at the end, or stop there."),
]
ReadCommitted = Annotated[
    bool,
    typer.Option("--read-committed/--read-uncommitted", help="Hide open and aborted transactions."),
]
JsonLines = Annotated[
    bool, typer.Option("--json", rich_help_panel=SHOW, help="One JSON object per line.")
]
ValueFormat = Annotated[
    Format, typer.Option("--format", rich_help_panel=SHOW, help="Format of values.")
]
KeyFormat = Annotated[
    Format, typer.Option("--key-format", rich_help_panel=SHOW, help="Format of keys.")
]
Schema = Annotated[
    Path | None,
    typer.Option("--schema", rich_help_panel=SHOW, exists=True, help="Avro schema of values."),
]
Keys = Annotated[bool, typer.Option("--keys", "-k", rich_help_panel=SHOW, help="Key, tab, value.")]
Headers = Annotated[bool, typer.Option("--headers", "-H", rich_help_panel=SHOW)]
Metadata = Annotated[
    bool,
    typer.Option("--metadata", "-m", rich_help_panel=SHOW, help="Time, topic, partition, offset."),
]


@app.command()
def consume(
    topics: TopicNames,
    from_beginning: FromBeginning = False,
    offset: FromOffset = None,
    since: Since = None,
    last: Last = None,
    partition: Partitions = None,
    group: Group = None,
    count: Count = None,
    follow: Follow = True,
    committed: ReadCommitted = True,
    as_json: JsonLines = False,
    format_: ValueFormat = Format.TEXT,
    key_format: KeyFormat = Format.TEXT,
    schema: Schema = None,
    keys: Keys = False,
    headers: Headers = False,
    metadata: Metadata = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Print a topic's records, and follow it like `tail -f`.

    Starts at the end by default. Ctrl-C stops.

    [bold]Examples[/bold]

    \b
      millstream consume orders
      millstream consume orders --last 10 --no-follow --keys
      millstream consume orders --since 2h --metadata
      millstream consume orders --from-beginning --no-follow --json | jq .value
      millstream consume orders --group billing --count 100
      millstream consume readings --from-beginning --format avro --schema reading.avsc
    """
    start = Start(from_beginning, offset, since, last)
    printer = RecordPrinter(
        decoder(format_, schema), decoder(key_format), as_json, keys, headers, metadata
    )
    cluster = Cluster.connect(bootstrap_server, client_config)
    settings: dict[str, Any] = {
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }
    if group is not None:
        check_group_options(start, partition)
        consumer = cluster.consumer(**settings | member_settings(group, start))
        records = read_as_member(consumer, topics, follow)
    else:
        consumer = cluster.consumer(**settings | {"auto.offset.reset": "error"})
        records = read_beside(cluster, consumer, topics, partition, start, follow)
    try:
        print_records(consumer, records, printer, count, commit=group is not None)
    except KeyboardInterrupt:
        note(f"{printer.printed} records")
    finally:
        printer.flush()
        consumer.close()


def print_records(
    consumer: Consumer,
    records: Iterator[Message | None],
    printer: RecordPrinter,
    count: int | None,
    commit: bool,
) -> None:
    for record in records:
        if record is None:
            printer.flush()
            continue
        printer.print(record)
        if commit:
            consumer.store_offsets(record)  # the client commits it in time, at the latest on close
        if printer.printed == count:
            return


def check_group_options(start: Start, partition: list[int] | None) -> None:
    if partition:
        raise usage_error("a group assigns partitions itself: --partition goes without --group")
    if start.offset is not None or start.since is not None or start.last is not None:
        raise usage_error(
            "a group starts where it left off; move it with `millstream group reset`, "
            "or use --from-beginning for a group that is new"
        )


def member_settings(group: str, start: Start) -> dict[str, Any]:
    return {
        "group.id": group,
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,  # a record counts as read once printed
        "auto.offset.reset": "earliest" if start.beginning else "latest",
    }


def messages(consumer: Consumer) -> Iterator[Message | None]:
    """Messages without end; None if there is nothing at the moment."""
    while True:
        message = consumer.poll(0)
        if message is None:
            yield None
            message = consumer.poll(POLL_S)
        if message is not None:
            yield message


def read_as_member(consumer: Consumer, topics: list[str], follow: bool) -> Iterator[Message | None]:
    """Records as a member of a group; without `follow`, until its partitions have ended."""
    ended: set[Partition] = set()
    consumer.subscribe(topics)
    for message in messages(consumer):
        if message is None:
            yield None
            continue
        place = (message.topic(), message.partition())
        if not at_end(message):
            ended.discard(place)
            yield message
            continue
        ended.add(place)
        assigned = {(p.topic, p.partition) for p in consumer.assignment()}
        if not follow and assigned <= ended:
            return


def read_beside(
    cluster: Cluster,
    consumer: Consumer,
    topics: list[str],
    only: list[int] | None,
    start: Start,
    follow: bool,
) -> Iterator[Message | None]:
    """Records without a group: all partitions, or `only` those, from `start` on."""
    places = [
        (topic, index) for topic in topics for index in chosen_partitions(cluster, topic, only)
    ]
    starts = start_offsets(cluster, places, start)
    ends = cluster.end_offsets(places)
    consumer.assign([TopicPartition(t, p, starts[t, p]) for t, p in places])
    present = read_to(consumer, {place for place in places if starts[place] < ends[place]}, ends)
    yield from present if start.last is None else newest(present, start.last)
    if follow:
        yield from (m for m in messages(consumer) if m is None or not at_end(m))


def chosen_partitions(cluster: Cluster, topic: str, only: list[int] | None) -> list[int]:
    known = cluster.partitions_of(topic)
    for index in only or []:
        if index not in known:
            raise CommandFailed(f"{topic} has no partition {index}, only 0 to {known[-1]}")
    return sorted(set(only)) if only else known


def start_offsets(cluster: Cluster, places: list[Partition], start: Start) -> dict[Partition, int]:
    """The offset at which each partition's reading starts."""
    if start.beginning:
        return cluster.start_offsets(places)
    if start.since is not None:
        return cluster.offsets_at(places, parse_moment_ms(start.since, datetime.now().astimezone()))
    ends = cluster.end_offsets(places)
    if start.offset is None and start.last is None:
        return ends
    firsts = cluster.start_offsets(places)
    back = start.last if start.last is not None else -(start.offset or 0)
    if start.last is not None or back > 0:
        return {place: max(firsts[place], ends[place] - back) for place in places}
    for place in places:
        if not firsts[place] <= -back <= ends[place]:
            raise CommandFailed(
                f"{place[0]}[{place[1]}] has no offset {-back}: "
                f"it starts at {firsts[place]} and ends at {ends[place]}"
            )
    return dict.fromkeys(places, -back)


def read_to(
    consumer: Consumer, open_places: set[Partition], ends: dict[Partition, int]
) -> Iterator[Message | None]:
    """Records until every open partition has reached its end as of the start."""
    if not open_places:
        return
    for message in messages(consumer):
        if message is None:
            yield None
            continue
        place = (message.topic(), message.partition())
        ended = at_end(message)
        if not ended:
            yield message
        if ended or message.offset() >= ends[place] - 1:
            open_places.discard(place)
            if not open_places:
                return


def newest(records: Iterator[Message | None], count: int) -> list[Message]:
    """The newest `count` records by timestamp, a partition's own order kept."""
    kept: dict[Partition, deque[Message]] = {}
    for record in records:
        if record is None:
            continue
        place = (record.topic(), record.partition())
        kept.setdefault(place, deque(maxlen=count)).append(record)
    merged = [record for queue in kept.values() for record in queue]
    merged.sort(key=lambda record: (record.timestamp()[1], record.partition(), record.offset()))
    return merged[-count:]


def at_end(message: Message) -> bool:
    """Whether this is the end of a partition rather than a record; raises for an error."""
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    raise KafkaException(error)
