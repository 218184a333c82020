"""`millstream bridge`: HTTP, webhooks, UDP and ZeroMQ to topics and back, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from millstream.cli.failures import CommandFailed
from millstream.cli.options import BOOTSTRAP_VARIABLE
from millstream.cli.output import note

app = typer.Typer(
    help="Bridge HTTP, webhooks, UDP and ZeroMQ to topics and back, until Ctrl-C.",
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def bridge(
    file: Annotated[Path, typer.Argument(metavar="BRIDGE.TOML", exists=True, dir_okay=False)],
    broker: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            envvar=BOOTSTRAP_VARIABLE,
            metavar="HOST:PORT,...",
            help="The cluster. Default: `broker` of the file.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, print what it declares, and exit.")
    ] = False,
) -> None:
    """Bridge HTTP, webhooks, UDP and ZeroMQ to topics and back, until Ctrl-C.

    Works with Millstream and Apache Kafka. What comes in is acknowledged to its sender when it is
    durable. Webhooks go out as a share group: signed, repeated until the endpoint takes them, and
    dead letters at the end. Needs the extra 'bridges'.

    [bold]Examples[/bold]

    \b
      millstream bridge edge.toml
      millstream bridge edge.toml --check
      millstream bridge edge.toml --bootstrap-server kafka1:9092
    """
    from millstream.bridges.config import load_config

    config = load_config(file, broker)
    if check:
        typer.echo(f"{file}: {config}")
        return
    try:
        from millstream.bridges.running import Bridge

        told = ["bridge", str(file), *(["--bootstrap-server", broker] if broker else [])]
        running = Bridge(config, shlex.join(["millstream", *told]))
    except ModuleNotFoundError as missing:
        raise CommandFailed(
            f"bridges need {missing.name}: install it with pip install 'millstream[bridges]'"
        ) from None
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with running:
        typer.echo(f"{config.name} is ready: {', '.join(running.addresses)}")
        stop.wait()
    note(
        f"{config.name}: {running.counts.of('records_in'):,} records in, "
        f"{running.counts.of('records_out'):,} out"
    )
