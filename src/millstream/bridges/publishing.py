"""A running bridge tells the cluster that it is there: what it listens to, what passed and what was
lost, for the console and `millstream bridges` (`millstream.admin.bridges`).

One daemon thread writes a record every few seconds. The bridge never waits for it: without the
cluster, or without the right to write the topic, that is logged once and tried again.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from millstream.admin.bridges import (
    COUNTS_MAX,
    OTHER,
    RUNNING,
    SETTINGS,
    STOPPED,
    TOPIC,
    BridgeStatus,
    Count,
)
from millstream.admin.following import create_missing, write_records
from millstream.admin.pipeline_records import STATUS, encode, shortened
from millstream.bridges.config import BridgeConfig
from millstream.bridges.counts import Counts
from millstream.client.cluster import Cluster
from millstream.errors import MillstreamError

TICK_SECONDS = 2.0
IDLE_TICKS = 2  # a status that did not change is repeated every so many ticks
RETRY_SECONDS_MAX = 30.0
TIMEOUT_SECONDS = 10.0
LAST_WORDS_SECONDS = 2.0
TEXT_MAX = 300
SHOWN_MAX = 50  # addresses and problems
_log = logging.getLogger(__name__)


class Described(Protocol):
    """What is published of a bridge."""

    config: BridgeConfig
    counts: Counts

    @property
    def addresses(self) -> list[str]: ...

    def problems(self) -> list[str]: ...


class Publisher:
    """Publishes a bridge until it is stopped."""

    def __init__(self, bridge: Described, command: str = "") -> None:
        self._bridge = bridge
        self._about = BridgeStatus(
            bridge.config.name,
            run=uuid.uuid4().hex,
            every_ms=round(IDLE_TICKS * TICK_SECONDS * 1000),
            host=socket.gethostname(),
            process=os.getpid(),
            command=command,
            started_ms=time.time_ns() // 1_000_000,
        )
        self._stopping = threading.Event()
        self._is_topic_there = False
        self._last: BridgeStatus | None = None
        self._ticks = 0
        self._warned = ""
        self._thread = threading.Thread(target=self._run, name="bridge-status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Say so, if the cluster can be reached at once."""
        self._stopping.set()
        self._thread.join(LAST_WORDS_SECONDS)

    def _run(self) -> None:
        config = self._bridge.config
        try:
            with Cluster(
                config.broker,
                client_id="millstream-bridge-status",
                security=config.kafka or None,
                timeout_seconds=TIMEOUT_SECONDS,
            ) as cluster:
                self._publish(cluster)
        except MillstreamError as error:  # settings that only librdkafka understands
            self._warn(error)

    def _publish(self, cluster: Cluster) -> None:
        wait_seconds = TICK_SECONDS
        is_last = False
        while not is_last:
            is_last = self._stopping.is_set()
            try:
                self._tick(cluster, is_last)
                wait_seconds = TICK_SECONDS
                self._warned = ""
            except Exception as error:  # noqa: BLE001 - the bridge must not suffer from it
                self._warn(error)
                wait_seconds = min(2 * wait_seconds, RETRY_SECONDS_MAX)
            self._stopping.wait(wait_seconds)

    def _tick(self, cluster: Cluster, is_last: bool) -> None:
        if not self._is_topic_there:
            create_missing(cluster, {TOPIC: SETTINGS})
            self._is_topic_there = True
        status = status_of(self._about, self._bridge, is_stopped=is_last)
        self._ticks += 1
        if status != self._last or self._ticks >= IDLE_TICKS:
            write_records(cluster, TOPIC, [(f"{STATUS}{status.name}", encode(status))])
            self._last, self._ticks = status, 0

    def _warn(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        level = logging.DEBUG if text == self._warned else logging.WARNING
        self._warned = text
        _log.log(
            level,
            "the status of the bridge is not published to %s: %s (publish_status = false turns "
            "this off)",
            *(TOPIC, text),
        )


def status_of(about: BridgeStatus, bridge: Described, *, is_stopped: bool = False) -> BridgeStatus:
    """The status at this moment."""
    return replace(
        about,
        state=STOPPED if is_stopped else RUNNING,
        every_ms=0 if is_stopped else about.every_ms,
        addresses=_texts(bridge.addresses),
        problems=() if is_stopped else _texts(bridge.problems()),
        counts=counts_of(bridge.counts),
    )


def counts_of(counts: Counts) -> tuple[Count, ...]:
    """Those that say what passed and what was lost first, if there are too many."""
    found = [
        Count(name, value, {key: shortened(it, TEXT_MAX) for key, it in by.items()})
        for name, by, value in counts.all()
    ]
    found.sort(key=lambda it: (it.kind == OTHER, it.name, sorted(it.by.items())))
    return tuple(found[:COUNTS_MAX])


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(shortened(it, TEXT_MAX) for it in list(texts)[:SHOWN_MAX])
