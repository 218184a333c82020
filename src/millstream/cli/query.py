"""`millstream query`: SQL over topics."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import (
    BOOTSTRAP_DEFAULT,
    BootstrapServer,
    ClientConfig,
    parse_assignments,
)
from millstream.cli.output import error_console, note, print_rows, warn

if TYPE_CHECKING:
    from millstream.query.engine import Query
    from millstream.query.scanning import Progress

ROWS_SHOWN = 100
CELL_CHARACTERS = 200
REFRESH_SECONDS = 0.2
EMPTY = "no rows"

app = typer.Typer(help="Query topics with SQL.", rich_markup_mode="rich", add_completion=False)

Schema = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        "-s",
        metavar="[TOPIC=]COLUMNS",
        help='Columns of the values, like "id bigint, name string", or an Avro schema (.avsc). '
        "Repeatable, by topic.",
    ),
]
Rows = Annotated[
    int, typer.Option("--rows", "-n", min=1, help="Show at most so many rows in a table.")
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the result to a .parquet, .csv or .json file."),
]
ReadCommitted = Annotated[
    bool,
    typer.Option("--read-committed/--read-uncommitted", help="Hide open and aborted transactions."),
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="PATH",
        help="Read what is archived there directly: a directory or s3://bucket/prefix.",
    ),
]
Statement = Annotated[str, typer.Argument(metavar="SQL", help="The query; - reads it from stdin.")]


@app.command()
def query(
    sql: Statement,
    schema: Schema = None,
    rows: Rows = ROWS_SHOWN,
    as_json: JsonLines = False,
    output: Output = None,
    committed: ReadCommitted = True,
    archive: Archive = None,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Query topics with SQL.

    Topics are tables, with the columns of their values, and _partition, _offset, _timestamp, _key,
    _value, _headers. Conditions on offsets, partitions and times bound what is read. Ctrl-C
    cancels.

    [bold]Examples[/bold]

    \b
      millstream query "select * from orders limit 10"
      millstream query "select customer, sum(amount) from orders
                        where _timestamp > now() - interval 1 hour group by all"
      millstream query "select _offset, _value from orders where _value like '%alice%'" --json
      millstream query "select * from orders" --schema "id bigint, amount double" -o orders.parquet
      millstream query "select o.* from orders o join 'customers.csv' c on o.customer = c.id"
    """
    try:
        from millstream.query.engine import Query
    except ImportError:
        raise CommandFailed(
            "queries need DuckDB; install it with `pip install 'millstream[query]'`"
        ) from None
    cluster = Cluster.connect(bootstrap_server, client_config)
    running = Query(
        sys.stdin.read() if sql == "-" else sql,
        cluster.bootstrap_servers,
        settings=cluster.settings,
        schema=parse_schemas(schema or []),
        read_committed=committed,
        archive=archive,
    )
    with running:
        if output is not None:
            written = watched(running, lambda: running.write(str(output)))
            note(f"{written} rows written to {output}; {summary(running.progress)}")
        elif as_json:
            watched(running, lambda: print_lines(running))
        else:
            print_table(running, rows)
        for it in running.warnings:
            warn(it)


def parse_schemas(given: list[str]) -> str | dict[str, str] | None:
    """The columns of all topics, or of each by its name."""
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    if any("=" not in it for it in given):
        raise usage_error('several topics: write --schema "TOPIC=id bigint, name string" for each')
    return parse_assignments(given, "--schema")


def print_lines(running: Query) -> None:
    for row in rows_of(running):
        sys.stdout.write(json.dumps(row, ensure_ascii=False, default=plain) + "\n")


def rows_of(running: Query) -> Iterator[dict[str, Any]]:
    with running.reader() as reader:
        for batch in reader:
            yield from batch.to_pylist()


def print_table(running: Query, rows_max: int) -> None:
    def first_rows() -> tuple[list[str], list[dict[str, Any]]]:
        with running.reader(rows_max + 1) as reader:
            found: list[dict[str, Any]] = []
            for batch in reader:
                found += batch.to_pylist()
                if len(found) > rows_max:
                    break
            return list(reader.schema.names), found

    names, found = watched(running, first_rows)
    shown = [{name: cell(it[name]) for name in names} for it in found[:rows_max]]
    print_rows(shown, {name: name for name in names}, empty=EMPTY)
    more = f"the first {rows_max} rows (--rows, --json and --output give more)"
    note(f"{more if len(found) > rows_max else f'{len(found)} rows'}; {summary(running.progress)}")


def cell(value: Any) -> Any:
    """A value in a table: numbers as they are, others as text of a bounded length."""
    if value is None or isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else plain_text(value)
    return text if len(text) <= CELL_CHARACTERS else f"{text[: CELL_CHARACTERS - 1]}…"


def plain_text(value: Any) -> str:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=plain)
    return str(plain(value))


def plain(value: Any) -> Any:
    """What JSON has no type for, as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def watched(running: Query, work: Callable[[], Any]) -> Any:
    """The result of `work`, which runs in a thread, so that Ctrl-C cancels it at once; its progress
    is shown on a terminal."""
    results: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=run, name="millstream-query", daemon=True)
    thread.start()
    try:
        show_progress(running.progress, thread)
    except KeyboardInterrupt:
        running.cancel()
        thread.join()
        raise
    if failures:
        raise failures[0]
    return results[0]


def show_progress(progress: Progress, thread: threading.Thread) -> None:
    console = error_console()
    if not console.is_terminal:
        while thread.is_alive():
            thread.join(REFRESH_SECONDS)
        return
    with console.status("") as status:
        while thread.is_alive():
            thread.join(REFRESH_SECONDS)
            status.update(progress_line(progress))


def progress_line(progress: Progress) -> str:
    remaining = progress.remaining_seconds
    ending = "" if remaining is None else f", about {remaining:.0f} s left"
    share = progress.scanned / max(progress.total, 1)
    return f"{share:.0%} of {progress.total:,} records, {progress.rate:,.0f} per second{ending}"


def summary(progress: Progress) -> str:
    megabytes = progress.size_bytes / 1e6
    return (
        f"read {progress.rows:,} records, {megabytes:,.1f} MB, in {progress.seconds:.1f} s "
        f"({progress.rows / max(progress.seconds, 1e-6):,.0f} per second)"
    )
