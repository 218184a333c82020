"""`millstream serve`: run a broker in this process until it is told to stop."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.failures import usage_error
from millstream.config.broker import BrokerConfig
from millstream.config.sources import from_environment, load, parse_assignments, read_file

LISTEN_DEFAULT = "127.0.0.1:9092"
DATA_DEFAULT = "./millstream-data"

app = typer.Typer(
    help="Run a broker until Ctrl-C or SIGTERM.", rich_markup_mode="rich", add_completion=False
)


@app.command()
def serve(
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help=f"Default: {LISTEN_DEFAULT}; port 0: a free one."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DIR,...", help=f"Where the log lives. Default: {DATA_DEFAULT}."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", exists=True, dir_okay=False, help="Properties or TOML, with Kafka's names."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="A broker setting; repeatable."),
    ] = None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Prints one line when it is ready. Settings carry Kafka's own names and come
    from --config, then MILLSTREAM_* variables, then --set; the last one wins.

    [bold]Examples[/bold]

    \b
      millstream serve
      millstream serve --listen 0.0.0.0:9092 --data /var/lib/millstream
      millstream serve --set num.partitions=4 --set log.retention.hours=24
      millstream serve --config server.properties --data /disk1,/disk2
    """
    settings = gather_settings(listen, data, config, set_ or [])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    from millstream.broker.server import run  # the broker itself: only whoever serves waits for it

    run(settings)


def gather_settings(
    listen: str | None, data: str | None, config: Path | None, assignments: list[str]
) -> BrokerConfig:
    """All sources in their order; `--listen` and `--data` are short for `listeners`, `log.dirs`."""
    overrides: dict[str, object] = {}
    given = from_environment(os.environ).keys() | (read_file(config).keys() if config else set())
    if listen is not None or "listeners" not in given:
        overrides["listeners"] = f"PLAINTEXT://{check_address(listen or LISTEN_DEFAULT)}"
    if data is not None or not given & {"log.dirs", "log.dir"}:
        overrides["log.dirs"] = data or DATA_DEFAULT
    overrides |= parse_assignments(assignments)
    return load(config, os.environ, overrides)


def check_address(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise usage_error(f"--listen {address!r}: write it as HOST:PORT, e.g. {LISTEN_DEFAULT}")
    return f"{host}:{port}"
