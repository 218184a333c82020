"""An endpoint as a share group: records are accepted when the endpoint has taken them.

The broker keeps which records are delivered, how often, and when they come again; several bridges
may serve one endpoint. Apache Kafka has no delay before a redelivery: there, only the pauses of the
endpoint hold records back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from millstream.bridges.config import WebhookConfig
from millstream.bridges.counts import Counts
from millstream.bridges.loops import Loop, Part
from millstream.bridges.webhooks.attempts import (
    AGAIN_SECONDS,
    Answer,
    Circuit,
    Delivery,
    Outcome,
    judge,
    request_headers,
)
from millstream.bridges.webhooks.posting import post
from millstream.clock import Clock, SystemClock

LOCK_MS = 60_000
LOCKS_MAX = 128  # of a partition: twice as many as are sent at a time, at most
BACKOFF_MS_MAX = 86_400_000
POLL_SECONDS = 0.5
HELD_SECONDS_MAX = 15.0  # a pause for which records stay locked
SETTLE_SECONDS = 25.0  # of a lock, for the requests of the last record that is begun
STOP_SECONDS_MAX = 90.0  # two requests, and what the broker takes to answer
_log = logging.getLogger(__name__)

Post = Callable[[WebhookConfig, bytes, dict[str, str]], Answer]


def group_settings(config: WebhookConfig) -> dict[str, str]:
    """The settings of the endpoint's group."""
    return {
        "share.auto.offset.reset": config.start,
        "share.isolation.level": "read_committed",
        "share.record.lock.duration.ms": str(LOCK_MS),
        "share.delivery.count.limit": str(config.attempts),
        # A locked record counts a delivery, also if the bridge is killed before it sends it.
        "share.partition.max.record.locks": str(LOCKS_MAX),
        "share.retry.backoff.max.ms": str(BACKOFF_MS_MAX),  # first: the next must not exceed it
        "share.retry.backoff.ms": str(int(config.backoff_seconds * 1000)),
        "errors.deadletterqueue.topic.name": config.dead_letters,
        "errors.deadletterqueue.copy.record.enable": "true",
    }


def prepare(config: WebhookConfig, client: dict[str, str]) -> list[str]:
    """Create the topic of dead letters, and set the group's settings. Returns those that the
    cluster does not have."""
    admin = AdminClient({"log_level": 0, **client})
    letters = NewTopic(
        config.dead_letters, 1, config={"errors.deadletterqueue.group.enable": "true"}
    )
    refused = []
    try:
        admin.create_topics([letters])[config.dead_letters].result(30)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            refused.append(config.dead_letters)
    for name, value in group_settings(config).items():
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        group = ConfigResource(
            ConfigResource.Type.GROUP, config.group, incremental_configs=[change]
        )
        try:
            admin.incremental_alter_configs([group])[group].result(30)
        except KafkaException:
            refused.append(name)
    return refused


class Endpoint(Part):
    """Runs in a thread from `start` to `stop`."""

    stop_seconds_max = STOP_SECONDS_MAX

    def __init__(
        self,
        config: WebhookConfig,
        client: dict[str, str],
        counts: Counts,
        *,
        send: Post = post,
        again_seconds: float = AGAIN_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.is_gone = False
        self._client = client
        self._counts = counts
        self._send = send
        self._again_seconds = again_seconds
        self._poll_seconds = poll_seconds
        self._clock = clock or SystemClock()
        self._circuit = Circuit()
        self._lock = threading.Lock()
        self.loops = [Loop(f"webhook {config.name}", self._run, self._stopping, counts)]

    def start(self) -> None:
        for name in prepare(self.config, self._client):
            _log.warning("webhook %s: the cluster refused %s", self.config.name, name)
        super().start()

    def _now(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def _run(self) -> None:
        consumer = ShareConsumer(
            {
                "group.id": self.config.group,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": self.config.parallel,
                "log_level": 0,
                **self._client,
            }
        )
        consumer.subscribe(list(self.config.topics))
        try:
            with ThreadPoolExecutor(self.config.parallel) as pool:
                is_released = False
                while not self._stopping.is_set() and not self.is_gone:
                    pause = self._circuit.wait_seconds(self._now())
                    if pause and (is_released or pause <= HELD_SECONDS_MAX):
                        self._stopping.wait(min(pause, self._poll_seconds))
                        continue
                    # At the beginning of a long pause, all records that the client has locked are
                    # released. If their locks expired instead, they would come again without the
                    # back-off, and would soon have used up their deliveries.
                    is_released = not self._round(consumer, pool) and pause > 0
        finally:
            consumer.close()

    def _round(self, consumer: Any, pool: ThreadPoolExecutor) -> int:
        """Deliver what one poll brought, and acknowledge each record; returns how many they are."""
        until = self._now() + LOCK_MS / 1000 - SETTLE_SECONDS - self.config.timeout_seconds
        try:
            messages = [it for it in consumer.poll(self._poll_seconds) if it.error() is None]
        except KafkaException as error:
            _log.warning("webhook %s: %s", self.config.name, error.args[0].str())
            self._stopping.wait(POLL_SECONDS)
            return 0
        outcomes = list(pool.map(lambda it: self._deliver(it, until), messages))
        try:
            self._acknowledge(consumer, messages, outcomes)
        except KafkaException as error:  # the records come again when their locks expire
            _log.warning("webhook %s: %s", self.config.name, error.args[0].str())
            self._stopping.wait(POLL_SECONDS)
        return len(messages)

    def _acknowledge(self, consumer: Any, messages: list[Any], outcomes: list[Outcome]) -> None:
        for message, outcome in zip(messages, outcomes, strict=True):
            is_done = outcome is Outcome.ACCEPTED
            kind = AcknowledgeType.ACCEPT if is_done else AcknowledgeType.RELEASE
            consumer.acknowledge(message, kind)
            if is_done:
                self._counts.add("records_out", topic=message.topic())
        if messages:
            consumer.commit_sync()

    def _deliver(self, message: Any, until: float) -> Outcome:
        """At most two requests, none that could outlive the lock of the record."""
        delivery = Delivery(
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            message.value() or b"",
            tuple(message.headers() or ()),
        )
        try:
            outcome = self._attempt(delivery, until)
            if outcome is Outcome.FAILED and not self._stopping.wait(self._again_seconds):
                outcome = self._attempt(delivery, until)
            return outcome
        except Exception:  # noqa: BLE001 - the record's fault: a dead letter at the end
            _log.exception("webhook %s: %s cannot be sent", self.config.name, delivery.id)
            failed = Outcome.FAILED
            self._counts.add("webhook_attempts", webhook=self.config.name, outcome=failed.value)
            return failed

    def _wait_for_endpoint(self, until: float) -> float:
        """Wait while it is paused, if that is not for long: a record that is released without an
        attempt has used up a delivery. Returns the time."""
        while True:
            now = self._now()
            pause = self._circuit.wait_seconds(now)
            if not 0 < pause <= min(HELD_SECONDS_MAX, until - now):
                return now
            if self.is_gone or self._stopping.wait(min(pause, self._poll_seconds)):
                return now

    def _attempt(self, delivery: Delivery, until: float) -> Outcome:
        now = self._wait_for_endpoint(until)
        if self.is_gone or now > until or self._circuit.wait_seconds(now):
            return Outcome.OVERLOADED  # left alone: the record comes again
        keys = list(self.config.keys)
        headers = request_headers(delivery, keys, self._clock.now_ms() // 1000, self.config.format)
        answer = self._send(self.config, delivery.value, headers)
        outcome = judge(answer)
        self._counts.add("webhook_attempts", webhook=self.config.name, outcome=outcome.value)
        with self._lock:
            if self._circuit.note(outcome, answer, self._now()):
                self._counts.add("webhook_pauses", webhook=self.config.name)
        if outcome is not Outcome.ACCEPTED:
            reason = answer.error or f"status {answer.status}"
            _log.warning("webhook %s: %s: %s", self.config.name, delivery.id, reason)
        if outcome is Outcome.GONE:
            self.is_gone = True
            _log.error("webhook %s: the endpoint is gone (410); no more", self.config.name)
        return outcome
