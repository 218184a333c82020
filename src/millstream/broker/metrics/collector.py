"""Collects the metrics of a broker for one scrape, and serves them with its probes.

A scrape runs on the event loop, which owns all state, in steps of a fraction of a millisecond:
other work comes between two steps. One scrape runs at a time. The files of /proc are read in a
thread.

    /metrics   Prometheus' text format
    /health    the broker's event loop answers
    /ready     the broker serves (`readiness.py`)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from http import HTTPStatus
from typing import Protocol

from millstream.broker.counters import ConnectionSurvey, Counters
from millstream.broker.metrics import archive, broker, cluster, groups, limits, readiness, requests
from millstream.broker.metrics.broker import Cleaning, FlushTimes, LoopDelays, Rates
from millstream.broker.metrics.limits import Authentications
from millstream.broker.metrics.partitions import PartitionMetrics
from millstream.broker.replicas.flushing import Flusher
from millstream.broker.services import Services
from millstream.metrics import process
from millstream.metrics.endpoint import Endpoint, Page, text_page
from millstream.metrics.exposition import CONTENT_TYPE, Family, counter, gauge, labels, render

logger = logging.getLogger("millstream.metrics")

LOOPBACK = ("127.", "::1", "localhost")


class Server(Protocol):
    """What is needed of the broker besides its services."""

    services: Services
    flusher: Flusher
    is_serving: bool
    is_stopping: bool

    @property
    def loop_delays(self) -> LoopDelays | None: ...

    @property
    def cleaning(self) -> Cleaning | None: ...

    @property
    def authentications(self) -> Authentications | None: ...

    @property
    def failed_handshakes(self) -> int: ...

    def survey_connections(self) -> Awaitable[ConnectionSurvey]: ...


class MetricsServer:
    """The endpoint of a broker, and what it serves."""

    def __init__(self, server: Server, counters: Counters) -> None:
        self._server = server
        self._services = server.services
        self._counters = counters
        self._partitions = PartitionMetrics(self._services, counters)
        self._flushes = FlushTimes()
        server.flusher.on_flush = self._flushes.note
        self._rates = Rates()
        self._note_rates(0)
        self._scraping = asyncio.Lock()
        self._scrapes = 0
        self._scrape_seconds = 0.0
        config = self._services.config
        self._endpoint = Endpoint(
            {"/metrics": self._metrics, "/health": self._health, "/ready": self._ready},
            token=config.millstream_metrics_token,
            public=frozenset({"/health", "/ready"}),
        )

    async def start(self) -> None:
        """Raises `MillstreamError` if the address cannot be used."""
        address = self._services.config.metrics_address
        assert address is not None
        host, port = address
        await self._endpoint.listen(host, port)
        if not host.startswith(LOOPBACK) and self._services.config.millstream_metrics_token is None:
            logger.warning(
                "anyone who can connect to %s:%d can read the metrics, with the names of topics "
                "and groups: set millstream.metrics.token, or listen on 127.0.0.1",
                *(host or "*", self.address[1]),
            )
        logger.info("metrics on http://%s:%d/metrics", *self.address)

    async def stop(self) -> None:
        self._server.flusher.on_flush = None
        await self._endpoint.close()

    @property
    def address(self) -> tuple[str, int]:
        return self._endpoint.address

    # Pages

    async def _health(self) -> Page:
        return await text_page("ok\n")

    async def _ready(self) -> Page:
        found = readiness.problems(self._services, is_serving=lambda: self._server.is_serving)
        if found:
            return await text_page("\n".join(found) + "\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return await text_page("ready\n")

    async def _metrics(self) -> Page:
        return Page(self._pieces(), content_type=CONTENT_TYPE)

    async def _pieces(self) -> AsyncIterator[str]:
        async with self._scraping:
            async for piece in self.scrape():
                yield piece

    async def scrape(self) -> AsyncIterator[str]:
        """All metrics as text, in pieces."""
        began = time.perf_counter()
        services = self._services
        most = services.config.millstream_metrics_partitions_max
        with_rows = len(services.partitions) <= most
        state = await asyncio.to_thread(process.read)
        connections = await self._server.survey_connections()
        partitions = await self._partitions.survey(
            now_ms=services.clock.now_ms(), with_rows=with_rows
        )
        found = await groups.survey(services)
        quotas = await limits.survey(services)
        self._note_rates(connections.accepted)

        def families() -> Iterator[Family]:
            yield from self._broker_families(state)
            yield from requests.families(self._counters, time.perf_counter())
            yield from requests.connection_families(connections, self._rates.accepted_per_second)
            yield from self._partitions.families(partitions)
            yield broker.counter_of_unclean_elections(self._partitions.unclean_elections)
            yield from cluster.families(services, with_partitions=with_rows)
            yield from groups.families(found)
            yield from groups.share_families(services)
            yield from limits.families(
                services,
                quotas,
                self._server.authentications,
                self._server.failed_handshakes,
            )
            yield from archive.families(services)
            if services.telemetry is not None:
                yield from services.telemetry.families(services.clock.monotonic_ms())
            yield from self._own_families(began)

        for piece in render(families()):
            yield piece
        self._scrapes += 1
        self._scrape_seconds += time.perf_counter() - began

    def _broker_families(self, state: process.ProcessState) -> Iterator[Family]:
        services, server = self._services, self._server
        number = broker.state_of(is_serving=server.is_serving, is_stopping=server.is_stopping)
        delays = server.loop_delays
        if delays is not None:
            yield from broker.families(services, number, self._rates, delays, state)
        yield from broker.flush_families(server.flusher, self._flushes, time.perf_counter())
        yield from broker.cleaner_families(server.cleaning, services.clock.now_ms())
        yield from process.families(state)

    def _own_families(self, began: float) -> Iterator[Family]:
        found = readiness.problems(self._services, is_serving=lambda: self._server.is_serving)
        yield gauge("millstream_ready", "Whether the broker is ready: /ready.", int(not found))
        yield gauge(
            "millstream_broker_info",
            "The id of this broker and of its cluster.",
            ((labels(broker=self._services.broker_id, cluster=self._services.cluster_id), 1),),
        )
        yield counter("millstream_metrics_scrapes_total", "Earlier scrapes.", self._scrapes)
        yield counter(
            "millstream_metrics_scrape_seconds_total",
            "Duration of earlier scrapes, with the work of others in between.",
            self._scrape_seconds,
        )

    def _note_rates(self, accepted: int) -> None:
        busy = time.thread_time() + self._server.flusher.inline_seconds
        self._rates.note(time.perf_counter(), busy, accepted)
