"""`millstream views`: serves the maintained views of pipelines over HTTP."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Annotated

import typer

from millstream.cli.failures import usage_error
from millstream.cli.output import console
from millstream.views import open_views
from millstream.views.serving import Limits, ViewServer

LISTEN_DEFAULT = "127.0.0.1:8092"

app = typer.Typer(
    help="Serve the maintained views of pipelines over HTTP.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)


@app.callback()
def views() -> None:
    """Serve the maintained views of pipelines over HTTP."""


@app.command()
def serve(
    store: Annotated[
        str,
        typer.Argument(metavar="STORE", help="sqlite:///PATH or postgresql://USER@HOST/DATABASE."),
    ],
    pipelines: Annotated[
        list[str], typer.Argument(metavar="PIPELINE...", help="The pipelines that have the views.")
    ],
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Port 0: any free port."),
    ] = LISTEN_DEFAULT,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            "--host-name",
            metavar="NAME",
            help="A name by which clients know the server, beside localhost and its addresses. "
            "Can be repeated.",
        ),
    ] = None,
    connections: Annotated[
        int, typer.Option("--connections", min=1, max=10_000, help="At most so many at a time.")
    ] = Limits.connections,
    rows: Annotated[
        int, typer.Option("--rows", min=1, max=1_000_000, help="At most so many in an answer.")
    ] = Limits.rows,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.001, help="At most so many for a query.")
    ] = Limits.seconds,
    wait_seconds: Annotated[
        float,
        typer.Option("--wait-seconds", min=0, help="At most so many for a position of the log."),
    ] = Limits.wait_seconds,
) -> None:
    """Serve views over HTTP until Ctrl-C or SIGTERM.

    Rows by key, ranges, read-only SQL and changes as server-sent events. There are no users
    and no passwords: every client that reaches the address can read all views, and in
    PostgreSQL what else the user of STORE can read.

    [bold]Examples[/bold]

    \b
      millstream views serve sqlite:///shop.db shop
      millstream views serve postgresql://reader@db/shop shop stock --listen 0.0.0.0:8092
      millstream views serve sqlite:///shop.db shop --host-name views.shop.example
      curl 'http://127.0.0.1:8092/views/by_user/rows/ada?at_least=orders:0:41&timeout=5'
      curl 'http://127.0.0.1:8092/views/leaders/rows?low=1&high=4'
      curl http://127.0.0.1:8092/sql --data 'SELECT count(*) AS users FROM by_user'
      curl --no-buffer http://127.0.0.1:8092/views/leaders/changes
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise usage_error(f"--listen {listen!r}: write it as HOST:PORT, e.g. {LISTEN_DEFAULT}")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    limits = Limits(connections, rows, seconds, wait_seconds)
    with (
        open_views(store, *pipelines) as opened,
        ViewServer((host.strip("[]"), int(port)), opened, limits, host_name or ()) as server,
    ):
        for number in (signal.SIGINT, signal.SIGTERM):
            # shutdown() waits for the loop, which this thread runs.
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        console().print(f"views of {', '.join(pipelines)} at {server.url}/views", markup=False)
        server.serve_forever()
