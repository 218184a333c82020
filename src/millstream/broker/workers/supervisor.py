"""The parent of the workers: starts them, starts them again when they die, and stops them.

    start   lock the data directories -> change the number of workers, if it is another -> start
            all workers at once -> say that they serve
    death   fence the worker in the metadata: its partitions have no leader -> start it again
    stop    SIGTERM to all workers, which stop cleanly

The parent serves no requests. If it is killed, the workers stop, since their standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from millstream.broker.metadata.shared import SharedMetadata
from millstream.broker.workers import rescaling
from millstream.broker.workers.fencing import fence
from millstream.broker.workers.layout import Layout
from millstream.broker.workers.listeners import (
    check_ports,
    metrics_address,
    worker_addresses,
)
from millstream.broker.workers.processes import Spare, Worker, WorkerFailed
from millstream.broker.workers.restarts import Restarts
from millstream.broker.workers.worker import Assignment
from millstream.clock import SystemClock
from millstream.config.broker import BrokerConfig, Endpoint
from millstream.errors import ConfigError, MillstreamError
from millstream.storage.filesystem import OsFileSystem

logger = logging.getLogger("millstream.workers")

WORKERS_MAX = 256


class Supervisor:
    """All workers. See the module."""

    def __init__(self, config: BrokerConfig, workers: int) -> None:
        check_count(workers)
        check_ports(config, workers)
        self._config = config
        self._layout = Layout(OsFileSystem(), config.log_directories)
        self._count = workers
        self._undo = AsyncExitStack()
        self._metadata: SharedMetadata | None = None
        self._shared: list[Endpoint] = []
        self._spare = Spare()
        self.workers: list[Worker] = []

    @property
    def bootstrap_servers(self) -> str:
        """The addresses that all workers share."""
        return ",".join(f"{it.host or socket.getfqdn()}:{it.port}" for it in self._shared)

    @property
    def listener_addresses(self) -> dict[str, str]:
        """The same, by the names of the listeners."""
        return {it.listener: f"{it.host or socket.getfqdn()}:{it.port}" for it in self._shared}

    @property
    def has_tls(self) -> bool:
        protocols = self._config.listener_protocols
        return any(protocols[it.listener].uses_tls for it in self._config.endpoints)

    async def start(self) -> None:
        """Return when all workers serve. If it raises, none is left."""
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            raise

    async def _start(self) -> None:
        layout = self._layout
        locks = self._undo.enter_context(ExitStack())
        layout.lock(locks)
        await asyncio.to_thread(rescaling.prepare, layout, self._count)
        layout.check_stopped(self._count)
        self._shared = [self._reserve(endpoint) for endpoint in self._config.endpoints]
        self._metadata = SharedMetadata(
            layout.fs,
            layout.metadata,
            SystemClock(),
            node_id=0,
            snapshot_bytes=self._config.metadata_log_max_record_bytes_between_snapshots,
        )
        self._undo.push_async_callback(self._metadata.close)
        # Workers that were killed together with their parent, or left by it, are not fenced.
        numbers = range(1, self._count + 1)
        await self._metadata.change(partial(fence, dead=numbers))
        self.workers = [
            Worker(number, partial(self._assign, number), self._spare) for number in numbers
        ]
        self._undo.push_async_callback(self._stop_workers)
        self._undo.push_async_callback(self._spare.stop)
        starts = [asyncio.ensure_future(worker.start()) for worker in self.workers]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise

    def _reserve(self, endpoint: Endpoint) -> Endpoint:
        """Bind a shared address without listening, so that it is free for the workers and for
        nobody else; returns it with its port."""
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        reserved = self._undo.enter_context(contextlib.closing(socket.socket(family)))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            reserved.bind((endpoint.host, endpoint.port))
        except OSError as error:
            where = f"{endpoint.host or '*'}:{endpoint.port}"
            raise MillstreamError(
                f"cannot listen on {where} ({endpoint.listener}): {error.strerror}"
            ) from error
        return endpoint._replace(port=reserved.getsockname()[1])

    def _assign(self, number: int, ports: dict[str, int]) -> Assignment:
        settings = {
            name: value for name, value in self._config.static.items() if name not in _OWN_SETTINGS
        }
        settings["node.id"] = str(number)
        settings["log.dirs"] = ",".join(self._layout.worker_directories(number))
        settings |= worker_addresses(self._config, number, ports).settings()
        settings |= metrics_address(self._config, number)
        return Assignment(
            number,
            settings,
            self._layout.cluster,
            self._layout.presence_lock(number),
            self._shared,
        )

    async def supervise(self) -> None:
        """Start workers again when they die, until cancelled."""
        await self._spare.prepare()
        await asyncio.gather(*map(self._keep_alive, self.workers))

    async def _keep_alive(self, worker: Worker) -> None:
        restarts = Restarts()
        reason = await worker.died()
        while True:
            delay = restarts.delay_after(worker.served_seconds)
            logger.error(
                "worker %d died (%s): its partitions have no leader; starting it again%s",
                *(worker.number, reason, f" in {delay:.1f} s" if delay else ""),
            )
            await self._fence(worker.number)
            await asyncio.sleep(delay)
            try:
                await worker.start()
            except WorkerFailed as error:
                reason = str(error)
                continue
            logger.info("worker %d serves again", worker.number)
            await self._spare.prepare()
            reason = await worker.died()

    async def _fence(self, number: int) -> None:
        assert self._metadata is not None
        try:
            await self._metadata.change(partial(fence, dead=(number,)))
        except MillstreamError as error:
            logger.error("cannot fence worker %d: %s", number, error)

    def send(self, number: signal.Signals) -> None:
        for worker in self.workers:
            worker.send(number)

    async def stop(self) -> None:
        await self._undo.aclose()

    async def _stop_workers(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self.workers))


# Each worker has its own.
_OWN_SETTINGS = {
    "node.id",
    "broker.id",
    "log.dir",
    "log.dirs",
    "listeners",
    "advertised.listeners",
}


def check_count(workers: int) -> None:
    if not 1 <= workers <= WORKERS_MAX:
        raise ConfigError(
            f"--workers {workers}: give at least 1 and at most {WORKERS_MAX}, such as one per core"
        )


def leave_workers(config: BrokerConfig) -> None:
    """Make the data directories those of a single broker, if workers have used them."""
    layout = Layout(OsFileSystem(), config.log_directories)
    with ExitStack() as locks:
        layout.lock(locks)
        rescaling.prepare_single_broker(layout, config.id)


def run(
    config: BrokerConfig, workers: int, *, ready: Callable[[Supervisor], None] | None = None
) -> None:
    """Run the workers until SIGTERM or SIGINT, then stop them. SIGUSR1 and
    SIGHUP go to all of them. `ready` is called once, when they serve."""
    asyncio.run(_run(Supervisor(config, workers), ready or say_ready))


async def _run(supervisor: Supervisor, ready: Callable[[Supervisor], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await _unless(stopping, supervisor.start())
    if not stopping.is_set():
        loop.add_signal_handler(signal.SIGUSR1, supervisor.send, signal.SIGUSR1)
        if supervisor.has_tls:
            loop.add_signal_handler(signal.SIGHUP, supervisor.send, signal.SIGHUP)
        ready(supervisor)
        await _unless(stopping, supervisor.supervise())
    await supervisor.stop()


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work until it ends or the process has to stop."""
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    task.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)


def say_ready(supervisor: Supervisor) -> None:
    """The line that says where they serve."""
    print(_ready_line(supervisor), flush=True)


def _ready_line(supervisor: Supervisor) -> str:
    directories = ", ".join(supervisor._layout.roots)
    own = " ".join(
        ",".join(str(port) for port in worker.ports.values()) for worker in supervisor.workers
    )
    return (
        f"millstream is ready on {supervisor.bootstrap_servers} with {len(supervisor.workers)} "
        f"workers on ports {own}, data in {directories}"
    )
