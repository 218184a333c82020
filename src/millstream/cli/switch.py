"""`millstream switch`: moves readers to another version, in one transaction."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.options import ClientConfig, Home
from millstream.cli.output import console, note
from millstream.cli.versions import Broker, Pipeline, Store, opened, settings_here
from millstream.pipelines.versions.registry import Versions

app = typer.Typer(
    help="Move the readers of a pipeline to another version, in one transaction.",
    rich_markup_mode="rich",
    add_completion=False,
)

AllowBehind = Annotated[
    bool,
    typer.Option("--allow-behind", help="Switch tables although readers go back in time."),
]


@app.command()
def switch(
    pipeline: Pipeline,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The version to switch to.")],
    drop_tables: Annotated[
        bool,
        typer.Option("--drop-tables", help="Drop views of tables that it does not write."),
    ] = False,
    allow_behind: AllowBehind = False,
    broker: Broker = None,
    store: Store = None,
    home: Home = None,
    client_config: ClientConfig = None,
) -> None:
    """Move the readers of a pipeline to another version, in one transaction.

    Tables: the views that readers read are replaced. Topics: both versions halt at
    the same offsets; the old one has written everything up to them, and the new one
    writes from there on. Both versions go on, so that `millstream rollback` can go back.

    [bold]Examples[/bold]

    \b
      millstream switch revenue 2
      millstream switch revenue 2 --store postgresql://shop@db/shop
    """
    from millstream.pipelines.versions.switching import switch_readers

    settings = settings_here(broker, store, home, client_config)
    with opened(settings) as catalog:
        document = switch_readers(
            catalog,
            settings,
            pipeline,
            version,
            drop_tables=drop_tables,
            allow_behind=allow_behind,
            show=note,
        )
    print_switched(document)


def print_switched(document: Versions) -> None:
    found = document.get(document.in_force or "")
    outputs = [
        *(f"table {it.name}" for it in found.tables),
        *(f"topic {it}" for it in found.topics),
    ]
    console().print(
        f"version {document.in_force} of {document.pipeline} is in force "
        f"(before: {document.previous}): {', '.join(outputs)}"
    )
