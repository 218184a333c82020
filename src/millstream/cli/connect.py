"""`millstream connect`: keeps a database, an index, a cache or a warehouse in step with topics."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from millstream.cli.options import BOOTSTRAP_VARIABLE, ClientConfig
from millstream.cli.output import note, print_json
from millstream.connect.sinks.config import SinkConfig, load_config, without_password
from millstream.connect.sinks.runner import Progress, SinkRunner

LINE_EVERY_SECONDS = 5.0

app = typer.Typer(
    help="Keep a database, index, cache or warehouse in step with topics, until Ctrl-C.",
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def connect(
    file: Annotated[Path, typer.Argument(metavar="SINK.TOML", exists=True, dir_okay=False)],
    once: Annotated[
        bool, typer.Option("--once", help="Apply the records that are committed now, then exit.")
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Fill a second target from the beginning of the topics, switch to it, and exit.",
        ),
    ] = False,
    allow_partial: Annotated[
        bool,
        typer.Option(
            "--allow-partial",
            help="Fill a new target also from topics that have lost records at their beginning. "
            "Default: `allow_partial` of the file.",
        ),
    ] = False,
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
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="The target. Default: `to`.")
    ] = None,
    client_config: ClientConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Keep a database, index, cache or warehouse in step with topics, until Ctrl-C.

    The target contains its position in the log, and every write moves both. So nothing is lost or
    applied twice if this command, the broker or the target is killed, or if it runs twice. A
    restored older copy of the target catches up; a dropped table is filled again.

    [bold]Examples[/bold]

    \b
      millstream connect shop.toml
      millstream connect shop.toml --once
      millstream connect shop.toml --to postgresql://shop@db/shop
      millstream connect search.toml --rebuild
    """
    given: dict[str, Any] = {
        "broker": broker,
        "to": to,
        "allow_partial": allow_partial or None,
        "client_config": client_config and client_config.absolute(),
    }
    run_sink(load_config(file, given), once=once, rebuild=rebuild, as_json=as_json)


def run_sink(config: SinkConfig, *, once: bool, rebuild: bool, as_json: bool = False) -> None:
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    runner = SinkRunner(config, report=Lines(config.name), stop=stop)
    topics = ", ".join(it.topic for it in config.topics)
    note(f"{config.name}: {topics} to {without_password(config.to)}")
    done = runner.rebuild() if rebuild else runner.run(once=once)
    if as_json:
        print_json(vars(done))
    else:
        note(f"{config.name}: {describe(done)}")


class Lines:
    """A line at most every few seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next = time.monotonic() + LINE_EVERY_SECONDS
        self._last = ""

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_EVERY_SECONDS
        text = describe(progress)
        if text != self._last:
            note(f"{self._name}: {text}")
            self._last = text


def describe(progress: Progress) -> str:
    applied = progress.records - progress.bad
    records = "record" if applied == 1 else "records"
    parts = [f"{applied:,} {records} applied", f"lag {progress.lag:,}"]
    if progress.bad:
        parts.append(f"{progress.bad:,} bad")
    if progress.conflicts:
        conflicts = "conflict" if progress.conflicts == 1 else "conflicts"
        parts.append(f"{progress.conflicts:,} {conflicts} with another writer")
    return ", ".join(parts)
