"""`millstream zookeeper`: a ZooKeeper server for a first cluster, without installing one."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.output import console

LISTEN_DEFAULT = "127.0.0.1:2181"
DATA_DEFAULT = Path("millstream-zookeeper")
POLL_SECONDS = 0.2

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
def zookeeper(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")
    ] = LISTEN_DEFAULT,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Data directory.")] = DATA_DEFAULT,
    tick_ms: Annotated[
        int, typer.Option(min=50, help="Sessions of brokers last 2 to 20 ticks.")
    ] = 2_000,
) -> None:
    """Run a ZooKeeper server until Ctrl-C, to try out a cluster on one machine.

    The server is the one in PySpark, and needs Java. It is a single one: if it stops, brokers fence
    themselves until it is back. For production, run an ensemble of three as a service.

    [bold]Examples[/bold]

    \b
      millstream zookeeper
      millstream zookeeper --listen 127.0.0.1:2281 --data /tmp/zookeeper
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise usage_error(f"--listen {listen!r}: write it as HOST:PORT, e.g. {LISTEN_DEFAULT}")
    from millstream.testing.zookeeper import ZooKeeperProcess

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data.mkdir(parents=True, exist_ok=True)
    server = ZooKeeperProcess(data.resolve(), int(port), host=host, tick_ms=tick_ms)
    try:
        server.start()
        console().print(f"ZooKeeper is ready on {listen}, data in {data}", markup=False)
        while server.is_running:
            time.sleep(POLL_SECONDS)
        raise CommandFailed(f"ZooKeeper has ended; see {data / 'server.log'}")
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
