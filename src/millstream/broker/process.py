"""A process that is a broker: its event loop, its signals, its garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig
from millstream.errors import MillstreamError

GARBAGE_CONTAINERS = 10_000  # more than were freed, before the youngest are searched for garbage


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop if available: see docs/decisions/0005-event-loop.md."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(
    config: BrokerConfig,
    *,
    ready: Callable[[BrokerServer], None] | None = None,
    build: Callable[[BrokerConfig], BrokerServer] = BrokerServer,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly. `ready` is called once, when serving.

    SIGUSR1 logs the counters; SIGHUP reads certificates again.
    """
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(build(config), ready or say_ready))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def collect_garbage_rarely() -> None:
    """For a process that is a broker and nothing else: keep the garbage collector off the loop.

    A full collection visits all containers, some 10 ms for 50,000 of them, and comes when many have
    been created: with the partitions of a new topic, say. What exists now lives as long as the
    process, and most of the rest is freed by its reference counts.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE_CONTAINERS, 10, 10)


async def _serve(server: BrokerServer, ready: Callable[[BrokerServer], None]) -> None:
    import signal

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server.stop_soon = stopping.set
    await server.start()
    loop.add_signal_handler(signal.SIGUSR1, server.log_counters)
    if server.listeners.has_tls:  # else it ends the process, as of any program
        loop.add_signal_handler(signal.SIGHUP, server.listeners.reload)
    collect_garbage_rarely()
    try:
        ready(server)
        await stopping.wait()
    finally:
        await server.stop()
    if not server.directories.live_directories:
        raise MillstreamError("stopped: all log directories have failed")


def say_ready(server: BrokerServer) -> None:
    """The line that says where it serves."""
    directories = ", ".join(str(path) for path in server.config.log_directories)
    print(f"millstream is ready on {server.bootstrap_servers}, data in {directories}", flush=True)
