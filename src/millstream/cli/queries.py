"""`millstream queries`: adds, lists, removes and tests standing queries.

Queries are records of a topic, which pipelines match with their events (`match_queries`). They are
checked here before they are written, against the schema that the topic's record `_schema` has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import typer
from confluent_kafka import KafkaException

from millstream.cli.cluster import Cluster
from millstream.cli.consume import Start, read_beside
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, print_json, print_rows, warn
from millstream.cli.topic import TopicName
from millstream.client.topics import create_topics
from millstream.errors import ConfigError
from millstream.pipelines.standing.kinds import Decimals, kind_of
from millstream.pipelines.standing.reference import explain
from millstream.pipelines.standing.schemas import parse_schema
from millstream.pipelines.standing.stored import (
    SCHEMA_ID,
    QueryRecord,
    Refused,
    StoredQueries,
    parse_definition,
    parse_id,
)
from millstream.pipelines.standing.templates import Compiler, Query
from millstream.pipelines.standing.topic import new_topic

FLUSH_SECONDS = 30.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

app = typer.Typer(
    help="Add, list, remove and test standing queries, which are matched with every event.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

QueryId = Annotated[str, typer.Argument(metavar="ID", help="The id of the query.")]


@app.command()
def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    schema: Annotated[
        str,
        typer.Option(
            "--schema",
            metavar="COLUMNS",
            help="The columns of the events: 'category string, price double'.",
        ),
    ],
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Create a topic for standing queries, or change its schema.

    The topic has one partition, is compacted, and keeps what was replaced for a week.

    [bold]Examples[/bold]

    \b
      millstream queries create searches --schema 'category string, price double, text string'
    """
    parse_schema(schema)
    cluster = Cluster.connect(bootstrap_server, client_config)
    create_topics(cluster.protocol, [new_topic(topic)])
    if len(cluster.partitions_of(topic)) != 1:
        raise CommandFailed(f"{topic} has several partitions; standing queries need one")
    _write(cluster, topic, SCHEMA_ID, schema.encode())
    console().print(f"{topic} takes queries over {schema}", markup=False)


@app.command()
def add(
    topic: TopicName,
    query_id: QueryId,
    where: Annotated[str, typer.Argument(metavar="WHERE", help="The condition.")],
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="In force for events from then on, not now."),
    ] = None,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Add a query, or replace the one with the same id.

    It is checked first; one that is wrong is refused, and the earlier one stays.

    [bold]Examples[/bold]

    \b
      millstream queries add searches bikes-ada "category = 'bike' AND price < 300"
      millstream queries add searches tea "matches(text, 'tea AND \\"green leaf\\" NOT bag*')"
    """
    if parse_id(query_id.encode()).startswith("_"):
        raise usage_error(f"{query_id}: ids that begin with _ are reserved")
    value = json.dumps({"where": where} | ({} if since is None else {"since": since})).encode()
    parse_definition(value)
    cluster = Cluster.connect(bootstrap_server, client_config)
    known = _read(cluster, topic)
    query = known.compiler.compile(where)
    if not query.shape.is_indexed:
        warn(
            f"no index helps to find {query_id}: it is evaluated for every event. Add a condition "
            "with =, IN, a range or a word"
        )
    version = _write(cluster, topic, query_id, value)
    console().print(f"added {query_id}, version {version}", markup=False)


@app.command("list")
def list_queries(
    topic: TopicName,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List the queries that are in force or begin later, and records that were refused.

    [bold]Examples[/bold]

    \b
      millstream queries list searches
      millstream queries list searches --json
    """
    known = _read(Cluster.connect(bootstrap_server, client_config), topic)
    rows: list[dict[str, Any]] = [
        {
            "id": it.query_id,
            "version": it.version,
            "since": (_EPOCH + timedelta(microseconds=it.since_us)).isoformat(),
            "found_by": "index" if it.query.shape.is_indexed else "every event",
            "where": it.query.text,
        }
        for it in known.stored.current().values()
    ]
    refused = [
        {"id": it.query_id, "version": it.version, "reason": it.reason} for it in known.refused
    ]
    if as_json:
        print_json({"schema": known.schema_text, "queries": rows, "refused": refused})
        return
    columns = {"id": "ID", "version": "VERSION", "since": "SINCE", "where": "WHERE"}
    columns["found_by"] = "FOUND BY"
    empty = f"no queries yet; add one with `millstream queries add {topic} ID WHERE`"
    print_rows(rows, columns, empty=empty)
    if refused:
        columns = {"id": "ID", "version": "VERSION", "reason": "REASON"}
        print_rows(refused, columns, empty="", title="refused")


@app.command()
def remove(
    topic: TopicName,
    query_ids: Annotated[list[str], typer.Argument(metavar="ID")],
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Remove queries. They stay in force for events that are older than this.

    [bold]Examples[/bold]

    \b
      millstream queries remove searches bikes-ada
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    known = _read(cluster, topic)
    ids = {*known.stored.current(), *(it.query_id for it in known.refused)}
    for query_id in query_ids:
        if query_id not in ids:
            raise no_query(topic, query_id)
    for query_id in query_ids:
        _write(cluster, topic, query_id, None)
        console().print(f"removed {query_id}", markup=False)


@app.command("test")
def match_event(
    topic: TopicName,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="An event as JSON.")],
    query_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Explain this query.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="WHERE", help="Explain this condition.")
    ] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show which queries match an event and why, or the truth of each condition of one query.

    The newest version of each query counts, whenever it is in force.

    [bold]Examples[/bold]

    \b
      millstream queries test searches '{"category": "bike", "price": 250}'
      millstream queries test searches '{"category": "bike"}' --id bikes-ada
      millstream queries test searches '{"price": 250}' --where 'price BETWEEN 200 AND 300'
    """
    if query_id is not None and where is not None:
        raise usage_error("--id and --where both name a query: leave out one")
    known = _read(Cluster.connect(bootstrap_server, client_config), topic)
    row = event_of(event, known.compiler.schema)
    if where is not None:
        _show_truth(known.compiler.compile(where), row, as_json)
    elif query_id is not None:
        found = known.stored.current().get(query_id)
        if found is None:
            raise no_query(topic, query_id)
        _show_truth(found.query, row, as_json)
    else:
        _show_matches(known, row, as_json)


def no_query(topic: str, query_id: str) -> CommandFailed:
    return CommandFailed(
        f"{topic} has no query {query_id!r}; see `millstream queries list {topic}`"
    )


def _show_truth(query: Query, row: Mapping[str, Any], as_json: bool) -> None:
    words = {True: "true", False: "false", None: "unknown"}
    rows = [{"condition": it.condition, "truth": words[it.truth]} for it in explain(query, row)]
    if as_json:
        print_json(rows)
        return
    print_rows(rows, {"truth": "TRUTH", "condition": "CONDITION"}, empty="")


def _show_matches(known: _Known, row: Mapping[str, Any], as_json: bool) -> None:
    batch = pa.RecordBatch.from_pylist([dict(row)], known.compiler.schema)
    found = known.stored.match(batch, None).columns.to_pylist()
    rows = [{"id": it["_query"], "version": it["_version"], "why": it["_why"]} for it in found]
    if as_json:
        print_json(rows)
        return
    columns = {"id": "ID", "version": "VERSION", "why": "WHY"}
    print_rows(rows, columns, empty="no query matches")


def event_of(text: str, schema: pa.Schema) -> dict[str, Any]:
    """An event from JSON; times are text. Raises `CommandFailed`."""
    try:
        given: Any = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise usage_error(f"the event is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise usage_error('the event must be a JSON object, like {"price": 250}')
    row = _fields_of(given, list(schema), "the event")
    try:
        pa.RecordBatch.from_pylist([row], schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise usage_error(f"the event does not fit the schema: {error}") from None
    return row


def _fields_of(given: Mapping[str, Any], columns: list[pa.Field], where: str) -> dict[str, Any]:
    unknown = sorted(given.keys() - {it.name for it in columns})
    if unknown:
        names = ", ".join(it.name for it in columns)
        raise usage_error(f"{where} has {unknown[0]!r}, which is no column: {names}")
    return {it.name: _value_of(given.get(it.name), it) for it in columns}


def _value_of(value: Any, column: pa.Field) -> Any:
    kind = kind_of(column.type)
    if isinstance(value, dict) and pa.types.is_struct(column.type):
        return _fields_of(value, list(column.type), column.name)
    if isinstance(kind, Decimals) and isinstance(value, int):
        return Decimal(value)
    if isinstance(value, Decimal) and not isinstance(kind, Decimals):
        return float(value)
    if not isinstance(value, str) or kind not in ("time", "date"):
        return value
    try:
        return date.fromisoformat(value) if kind == "date" else datetime.fromisoformat(value)
    except ValueError:
        raise usage_error(f"{column.name} is {value!r}, which is no {kind}") from None


class _Known:
    """The records of a topic: its schema, its queries, and those that were refused."""

    def __init__(self, schema_text: str) -> None:
        schema = parse_schema(schema_text)
        self.schema_text = schema_text
        self.compiler = Compiler(schema)
        self.stored = StoredQueries(schema)
        self.refused: list[Refused] = []

    def apply(self, records: list[QueryRecord]) -> None:
        """Keep what was refused and has not been replaced since."""
        refused = self.stored.advance(records, records[-1].offset + 1 if records else 0)
        newest = {it.key: it.offset for it in records}
        self.refused = [it for it in refused if it.version == newest.get(it.query_id.encode())]


def _read(cluster: Cluster, topic: str) -> _Known:
    """Raises `CommandFailed` if there is no such topic, or if it has no schema."""
    try:
        partitions = cluster.partitions_of(topic)
    except CommandFailed as error:
        raise CommandFailed(f"{error}; `millstream queries create` creates one") from None
    if len(partitions) != 1:
        raise CommandFailed(f"{topic} has several partitions; standing queries need one")
    consumer = cluster.consumer(**{"auto.offset.reset": "error", "enable.partition.eof": True})
    try:
        found = read_beside(cluster, consumer, [topic], None, Start(beginning=True), False)
        records = [
            QueryRecord(it.offset(), it.timestamp()[1], it.key(), it.value())
            for it in found
            if it is not None
        ]
    finally:
        consumer.close()
    schemas = [it.value for it in records if it.key == SCHEMA_ID.encode() and it.value]
    if not schemas:
        raise CommandFailed(
            f"{topic} has no schema, against which queries are checked: create it with "
            f"`millstream queries create {topic} --schema 'category string, price double'`"
        )
    try:
        known = _Known(schemas[-1].decode(errors="replace"))
    except ConfigError as error:
        raise CommandFailed(f"{topic}: the record {SCHEMA_ID} is wrong: {error}") from None
    known.apply(records)
    return known


def _write(cluster: Cluster, topic: str, query_id: str, value: bytes | None) -> int:
    """Write a record; returns its offset when it is durable."""
    written: list[Any] = []
    producer = cluster.producer(acks="all")
    producer.produce(
        topic,
        value,
        key=query_id.encode(),
        on_delivery=lambda error, it: written.append((error, it)),
    )
    if producer.flush(FLUSH_SECONDS) or not written:
        raise CommandFailed(f"{topic} did not acknowledge {query_id} within {FLUSH_SECONDS:g} s")
    error, message = written[0]
    if error is not None:
        raise KafkaException(error)
    return int(message.offset())
