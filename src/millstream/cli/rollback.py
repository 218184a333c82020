"""`millstream rollback`: moves readers back to the version that was in force before."""

from __future__ import annotations

import typer

from millstream.cli.options import ClientConfig, Home
from millstream.cli.output import note
from millstream.cli.switch import AllowBehind, print_switched
from millstream.cli.versions import Broker, Pipeline, Store, opened, settings_here

app = typer.Typer(
    help="Move the readers of a pipeline back to the version before.",
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def rollback(
    pipeline: Pipeline,
    allow_behind: AllowBehind = False,
    broker: Broker = None,
    store: Store = None,
    home: Home = None,
    client_config: ClientConfig = None,
) -> None:
    """Move the readers of a pipeline back to the version before.

    The version before must have run since the switch. If it is behind, start it, or
    accept for tables that readers go back in time: --allow-behind.

    [bold]Examples[/bold]

    \b
      millstream rollback revenue
      millstream rollback revenue --allow-behind
    """
    from millstream.pipelines.versions.switching import switch_readers

    settings = settings_here(broker, store, home, client_config)
    with opened(settings) as catalog:
        document = switch_readers(catalog, settings, pipeline, allow_behind=allow_behind, show=note)
    print_switched(document)
