"""`millstream produce`: records from arguments, a file or stdin into a topic.

Keys go to partitions as the Java client sends them (murmur2), so that a record typed here lands
beside its siblings; librdkafka's own default would put it elsewhere.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.admin.outgoing import BadRecord, Encoder, Outgoing, parse_line
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.formats import Format, encoder
from millstream.cli.options import (
    BOOTSTRAP_DEFAULT,
    AsJson,
    BootstrapServer,
    ClientConfig,
    parse_assignments,
)
from millstream.cli.output import error_console, note, print_json
from millstream.cli.topic import TopicName

POLL_EVERY_RECORDS = 1000
QUEUE_FULL_WAIT_S = 0.1

app = typer.Typer(help="Send records to a topic.", rich_markup_mode="rich", add_completion=False)


def produce_arguments(record: Outgoing) -> dict[str, Any]:
    """Keyword arguments of `Producer.produce`; unset ones are omitted."""
    given: dict[str, Any] = {"value": record.value, "key": record.key}
    if record.headers:
        given["headers"] = list(record.headers)
    if record.partition >= 0:
        given["partition"] = record.partition
    if record.timestamp_ms > 0:
        given["timestamp"] = record.timestamp_ms
    return given


@dataclass
class Receipts:
    """Acknowledged offset range of each partition, and the first refusal."""

    ranges: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: int = 0
    refusal: str | None = None

    def on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refusal = self.refusal or error.str()
            return
        self.acknowledged += 1
        span = self.ranges[message.partition()]
        offset = message.offset()
        span[:] = [min([offset, *span[:1]]), max([offset, *span[1:]])]

    def as_json(self, topic: str) -> dict[str, Any]:
        partitions = [
            {"partition": index, "first_offset": first, "last_offset": last}
            for index, (first, last) in sorted(self.ranges.items())
        ]
        return {"topic": topic, "acknowledged": self.acknowledged, "partitions": partitions}

    def summary(self, topic: str) -> str:
        places = ", ".join(
            f"{topic}[{index}] {first}" + (f"..{last}" if last != first else "")
            for index, (first, last) in sorted(self.ranges.items())
        )
        plural = "record" if self.acknowledged == 1 else "records"
        return f"{self.acknowledged} {plural} acknowledged" + (f": {places}" if places else "")


Values = Annotated[
    list[str] | None, typer.Argument(metavar="VALUE", help="Values. Default: lines of stdin.")
]
File = Annotated[
    Path | None, typer.Option("--file", "-f", exists=True, help="Read lines from this file.")
]
Whole = Annotated[
    bool, typer.Option("--whole", help="Send the whole of --file or stdin as one value.")
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")]
KeySeparator = Annotated[
    str | None,
    typer.Option("--key-separator", "-K", metavar="TEXT", help="Each line is KEY TEXT VALUE."),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="Header of every record; repeatable."
    ),
]
Envelope = Annotated[
    bool, typer.Option("--envelope", help="Each line is an object as `consume --json` prints it.")
]
Tombstone = Annotated[
    bool, typer.Option("--tombstone", help="Send a record with --key and a null value.")
]
ValueFormat = Annotated[Format, typer.Option("--format", help="Format of values.")]
Schema = Annotated[
    Path | None, typer.Option("--schema", exists=True, help="Avro schema of values.")
]
PartitionNumber = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="Partition. Default: by key, or random."),
]
Acks = Annotated[str, typer.Option("--acks", help="0, 1 or all.")]
CompressionName = Annotated[
    str, typer.Option("--compression", help="none, gzip, snappy, lz4 or zstd.")
]


@app.command()
def produce(
    topic: TopicName,
    messages: Values = None,
    file: File = None,
    whole: Whole = False,
    key: Key = None,
    key_separator: KeySeparator = None,
    header: Headers = None,
    envelope: Envelope = False,
    tombstone: Tombstone = False,
    format_: ValueFormat = Format.TEXT,
    schema: Schema = None,
    partition: PartitionNumber = None,
    acks: Acks = "all",
    compression: CompressionName = "none",
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Send records to a topic.

    Returns when the brokers have acknowledged every record.

    [bold]Examples[/bold]

    \b
      millstream produce orders "first order" "second order"
      echo 'alice:{"total": 12}' | millstream produce orders -K : --format json
      millstream produce orders --key alice --header source=web "hello"
      millstream produce orders --key alice --tombstone
      millstream consume orders -a --no-follow --json | millstream produce copy --envelope
    """
    if messages and (file or whole):
        raise usage_error("give values as arguments, or with --file or on stdin, not both")
    encode = encoder(format_, schema)
    headers = parse_assignments(header or [], "--header")
    default = Outgoing(
        value=None,
        key=key.encode() if key is not None else None,
        headers=[(name, value.encode()) for name, value in headers.items()],
        partition=-1 if partition is None else partition,
    )
    if tombstone:
        if key is None or messages or file:
            raise usage_error("--tombstone takes --key and no values")
        outgoing: Iterable[Outgoing] = [default]
    else:
        lines = read_whole(file) if whole else read_lines(messages, file)
        outgoing = (parse(line, default, encode, key_separator, envelope) for line in lines)
    cluster = Cluster.connect(bootstrap_server, client_config)
    check_partition(cluster, topic, partition)
    receipts = send(cluster, topic, outgoing, {"acks": acks, "compression.type": compression})
    if as_json:
        print_json(receipts.as_json(topic))
    else:
        note(receipts.summary(topic))
    if receipts.refusal:
        raise CommandFailed(f"a record for {topic} was refused: {receipts.refusal}")


def check_partition(cluster: Cluster, topic: str, partition: int | None) -> None:
    """Refuse an unknown partition; the broker may still create an unknown topic."""
    if partition is None or topic not in cluster.metadata().topics:
        return
    known = cluster.partitions_of(topic)
    if partition not in known:
        raise CommandFailed(f"{topic} has no partition {partition}, only 0 to {known[-1]}")


def read_whole(file: Path | None) -> Iterator[str]:
    yield file.read_text(encoding="utf-8") if file else sys.stdin.read()


def read_lines(messages: list[str] | None, file: Path | None) -> Iterator[str]:
    """The values to send, one per line, from arguments, a file or stdin."""
    if messages:
        yield from messages
        return
    if file is None:
        if sys.stdin.isatty():
            note("one record per line; Ctrl-D ends")
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    from rich.progress import open as open_with_progress

    with open_with_progress(
        file,
        "r",
        encoding="utf-8",
        description=f"reading {file.name}",
        console=error_console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as stream:
        yield from (line.rstrip("\r\n") for line in stream)


def parse(
    line: str, default: Outgoing, encode: Encoder, key_separator: str | None, envelope: bool
) -> Outgoing:
    """One input line as a record; another one is an error in the command line."""
    try:
        return parse_line(line, default, encode, key_separator, envelope)
    except BadRecord as error:
        raise usage_error(str(error)) from None


def send(
    cluster: Cluster, topic: str, outgoing: Iterable[Outgoing], settings: dict[str, Any]
) -> Receipts:
    """Send everything and wait until all of it is acknowledged or refused."""
    receipts = Receipts()
    producer = cluster.producer(**{"partitioner": "murmur2_random", "linger.ms": 5, **settings})
    try:
        for count, record in enumerate(outgoing, start=1):
            enqueue(producer, topic, record, receipts)
            if count % POLL_EVERY_RECORDS == 0:
                producer.poll(0)
            if receipts.refusal:
                break
    finally:
        # Also on Ctrl-C or a bad line: wait for the records that were already accepted.
        producer.flush()
    return receipts


def enqueue(producer: Any, topic: str, record: Outgoing, receipts: Receipts) -> None:
    """Hand one record to the client, waiting while its queue is full."""
    while True:
        try:
            producer.produce(topic, on_delivery=receipts.on_delivery, **produce_arguments(record))
        except BufferError:
            producer.poll(QUEUE_FULL_WAIT_S)
        else:
            return
