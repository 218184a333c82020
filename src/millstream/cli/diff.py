"""`millstream diff`: shows how two versions of a pipeline differ, at equal offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from millstream.cli.failures import EXIT_FAILED
from millstream.cli.options import AsJson, ClientConfig, Home
from millstream.cli.output import console, note, print_json, print_rows, warn
from millstream.cli.versions import Broker, Pipeline, Store, opened, settings_here
from millstream.pipelines.offsets import to_json
from millstream.pipelines.versions.differences import SAMPLES, Diff
from millstream.pipelines.versions.differing import VersionsDiff

app = typer.Typer(
    help="Halt two versions of a pipeline at equal offsets, and show the rows that differ.",
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def diff(
    pipeline: Pipeline,
    first: Annotated[str, typer.Argument(metavar="VERSION", help="One version.")],
    second: Annotated[str, typer.Argument(metavar="VERSION", help="The other version.")],
    time: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Rows are final once the watermark is past this column."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=1000, help="How many rows to show of each kind.")
    ] = SAMPLES,
    all_records: Annotated[
        bool,
        typer.Option(
            "--all-records",
            help="Compare every record of topics with keys, not only the last one of each key.",
        ),
    ] = False,
    broker: Broker = None,
    store: Store = None,
    home: Home = None,
    client_config: ClientConfig = None,
    as_json: AsJson = False,
) -> None:
    """Halt two versions of a pipeline at equal offsets, and show the rows that differ.

    Both versions go on afterwards. Tables with a key are compared by it, and so are topics whose
    records have keys: the last value of each. Rows that are still open, past the watermark of
    either version, are counted and not compared. Exits with 1 if rows differ.

    [bold]Examples[/bold]

    \b
      millstream diff revenue 1 2
      millstream diff revenue 1 2 --time minute --samples 20
      millstream diff revenue 1 2 --all-records
      millstream diff revenue 1 2 --json
    """
    from millstream.pipelines.versions.differing import compare_versions

    settings = settings_here(broker, store, home, client_config)
    with opened(settings) as catalog:
        found = compare_versions(
            catalog,
            settings,
            pipeline,
            (first, second),
            time=time,
            samples=samples,
            all_records=all_records,
            show=note,
            warn=warn,
        )
    if as_json:
        print_json(asdict(found) | {"cut": to_json(found.cut), "is_equal": found.is_equal})
    else:
        print_diff(found)
    if not found.is_equal:
        raise typer.Exit(EXIT_FAILED)


def print_diff(found: VersionsDiff) -> None:
    console().print(f"cut        {json.dumps(to_json(found.cut))}")
    marks = [
        "-" if it is None else datetime.fromtimestamp(it / 1000, UTC).isoformat()
        for it in found.watermarks_ms
    ]
    if any(it is not None for it in found.watermarks_ms):
        console().print(f"watermark  {marks[0]} (version {found.versions[0]})")
        console().print(f"           {marks[1]} (version {found.versions[1]})")
    for version, names in zip(found.versions, found.missing, strict=True):
        if names:
            console().print(f"version {version} does not write {', '.join(names)}")
    for output in (*found.tables, *found.topics):
        print_output(found, output)


def print_output(found: VersionsDiff, output: Diff) -> None:
    one, two = found.versions
    console().print()
    verdict = "equal" if output.is_equal else "different"
    kind = "topic" if output.is_topic else "table"
    console().print(f"{kind} {output.name}: {verdict}", style="bold")
    rows = [
        {"what": "rows", "one": output.rows[0], "two": output.rows[1]},
        {"what": "open, not compared", "one": output.open_rows[0], "two": output.open_rows[1]},
        {"what": "only in this version", "one": output.only[0], "two": output.only[1]},
        {"what": "different values", "one": output.differing, "two": output.differing},
        *(
            {"what": f"  column {name}", "one": count, "two": count}
            for name, count in output.by_column.items()
        ),
    ]
    if any(output.deleted):
        deleted = {"one": output.deleted[0], "two": output.deleted[1]}
        rows.append({"what": "offsets deleted by retention", **deleted})
    columns = {"what": "", "one": f"VERSION {one}", "two": f"VERSION {two}"}
    print_rows(rows, columns, empty="")
    for version, names in zip(found.versions, output.columns_of_one, strict=True):
        if names:
            console().print(f"only version {version} has columns {', '.join(names)}: not compared")
    if output.time is None and any(it is not None for it in found.watermarks_ms):
        console().print("all rows are compared: name the column of their time with --time")
    for sample in output.samples:
        console().print(sample_line(sample.key, sample.first, sample.second, found.versions))


def sample_line(
    key: Mapping[str, Any],
    first: Mapping[str, Any] | None,
    second: Mapping[str, Any] | None,
    versions: tuple[str, str],
) -> str:
    """A row that differs: its key, and the columns that differ, or the version that has it."""
    named = ", ".join(f"{name} {value}" for name, value in key.items())
    if first is not None and second is not None:
        changes = [
            f"{name} {first[name]} -> {second[name]}"
            for name in first
            if first[name] != second[name]
        ]
        return f"  {named}: {', '.join(changes)}"
    row, version = (second, versions[1]) if first is None else (first, versions[0])
    values = ", ".join(f"{name} {value}" for name, value in (row or {}).items())
    return f"  {named}{': ' if named else ''}only in version {version} ({values})"
