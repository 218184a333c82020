"""`millstream serve`: run a broker in this process until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli import serving
from millstream.cli.serving import DATA_DEFAULT, LISTEN_DEFAULT, ServeOptions

app = typer.Typer(
    help="Run a broker until Ctrl-C or SIGTERM.", rich_markup_mode="rich", add_completion=False
)


@app.command()
def serve(
    listen: Annotated[
        str | None,
        typer.Option(
            *serving.LISTEN,
            metavar="HOST:PORT",
            help=f"Address to listen on. Default: {LISTEN_DEFAULT}; port 0: any free port.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            *serving.DATA, metavar="DIR,...", help=f"Data directory. Default: {DATA_DEFAULT}."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            *serving.CONFIG,
            exists=True,
            dir_okay=False,
            help="Properties or TOML file, with Kafka's names.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(*serving.SET, metavar="NAME=VALUE", help="A broker setting; repeatable."),
    ] = None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Prints one line when it is ready. Settings have Kafka's names and come from
    --config, then MILLSTREAM_* variables, then --set; later ones override earlier ones.

    [bold]Examples[/bold]

    \b
      millstream serve
      millstream serve --listen 0.0.0.0:9092 --data /var/lib/millstream
      millstream serve --set num.partitions=4 --set log.retention.hours=24
      millstream serve --config server.properties --data /disk1,/disk2
    """
    serving.serve(ServeOptions(listen, data, config, tuple(set_ or ())))
