"""The cluster that commands use: confluent-kafka's clients, with errors for the command line.

For the few requests that confluent-kafka does not have (transactions, share groups), `protocol` is
our own thin client. Works with any Kafka cluster; nothing here is specific to Millstream's broker.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from millstream.cli.failures import EXIT_UNREACHABLE, CommandFailed, unreachable
from millstream.cli.options import BOOTSTRAP_DEFAULT
from millstream.client.security import Security, is_security_setting, security_settings
from millstream.client.settings import BOOTSTRAP_SERVERS, read_client_settings

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster as ProtocolCluster

REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 20.0  # for the first answer, of an address that accepts connections
PLAINTEXT = "PLAINTEXT"
NO_OFFSET = -1001  # librdkafka's value for "no committed offset"
UNREACHABLE_CODES = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
)

Partition = tuple[str, int]


@dataclass
class Cluster:
    """A Kafka cluster and the settings with which to reach it."""

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def connect(cls, bootstrap_servers: str, client_config: Path | None = None) -> Cluster:
        """A cluster that answers; raises `CommandFailed` if it does not."""
        cluster = cls.configured(bootstrap_servers, client_config)
        if cluster.security.protocol != PLAINTEXT:
            cluster.probe()  # its errors say what is wrong; librdkafka only times out
        elif not any(map(accepts_connections, cluster.bootstrap_servers.split(","))):
            raise unreachable(cluster.bootstrap_servers)
        try:
            cluster.metadata(ANSWER_TIMEOUT_S)
        except CommandFailed:
            cluster.probe()
            raise
        return cluster

    @classmethod
    def configured(cls, bootstrap_servers: str, client_config: Path | None = None) -> Cluster:
        """A cluster that may not answer."""
        settings = read_client_settings(client_config) if client_config else {}
        if bootstrap_servers == BOOTSTRAP_DEFAULT:
            bootstrap_servers = settings.get(BOOTSTRAP_SERVERS, bootstrap_servers)
        return cls(bootstrap_servers, settings)

    @cached_property
    def security(self) -> Security:
        return Security.from_settings(security_settings(self.settings))

    @property
    def own_settings(self) -> dict[str, Any]:
        """The file's settings in librdkafka's names, for any of confluent-kafka's clients."""
        others = {name: it for name, it in self.settings.items() if not is_security_setting(name)}
        return {**others, **self.security.librdkafka()}

    def client_settings(self, **extra: Any) -> dict[str, Any]:
        return {
            "client.id": "millstream-cli",
            "log_level": 0,  # its own lines would interleave with ours; errors reach us anyway
            "error_cb": lambda error: None,
            **self.own_settings,
            "bootstrap.servers": self.bootstrap_servers,
            **extra,
        }

    def probe(self) -> None:
        """Connect and authenticate once; raises what is wrong."""
        from millstream.client.cluster import parse_addresses
        from millstream.client.connection import Connection, ConnectionLost

        problem: OSError | None = None
        for address in parse_addresses(self._plain_addresses):
            try:
                connection = Connection(
                    address, security=self.security, timeout_seconds=CONNECT_TIMEOUT_S
                )
            except OSError as error:
                problem = error
            else:
                connection.close()
                return
        if isinstance(problem, ConnectionLost):
            raise CommandFailed(f"{self.bootstrap_servers}: {problem}", EXIT_UNREACHABLE)
        raise unreachable(self.bootstrap_servers)

    @property
    def _plain_addresses(self) -> str:
        return ",".join(it.strip().rpartition("://")[2] for it in self.bootstrap_servers.split(","))

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self.client_settings())

    @cached_property
    def protocol(self) -> ProtocolCluster:
        """The same cluster for requests that confluent-kafka does not have."""
        from millstream.client.cluster import Cluster as ProtocolCluster

        return ProtocolCluster(
            self._plain_addresses,
            client_id="millstream-cli",
            security=self.security,
            timeout_seconds=REQUEST_TIMEOUT_S,
        )

    def producer(self, **settings: Any) -> Producer:
        return Producer(self.client_settings(**settings))

    def consumer(self, **settings: Any) -> Consumer:
        kind = Consumer if "group.id" in settings else LoneConsumer
        defaults = {"group.id": "millstream-cli", "enable.auto.commit": False}
        return kind(self.client_settings(**defaults | settings))

    def metadata(self, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """The cluster's brokers and topics, internal ones included."""
        try:
            return self.admin.list_topics(timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() in UNREACHABLE_CODES:
                raise unreachable(self.bootstrap_servers) from None
            raise

    def partitions_of(self, topic: str) -> list[int]:
        """The topic's partition numbers; raises `CommandFailed` for an unknown topic."""
        topics = self.metadata().topics
        if topic not in topics:
            hidden = ""
            if self.security.protocol != PLAINTEXT:
                hidden = ", or the user has no right on it (Describe, Read, Write, ...)"
            near = suggestion(topic, topics)
            raise CommandFailed(f"there is no topic {topic!r}{hidden}{near}")
        return sorted(topics[topic].partitions)

    def start_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        from millstream.admin.offsets import start_offsets

        return start_offsets(self.protocol, partitions)

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        from millstream.admin.offsets import end_offsets

        return end_offsets(self.protocol, partitions)

    def offsets_at(
        self, partitions: Iterable[Partition], timestamp_ms: int
    ) -> dict[Partition, int]:
        """The first offset at or after the timestamp; the end if there is none."""
        from millstream.admin.offsets import offsets_at

        return offsets_at(self.protocol, partitions, timestamp_ms)

    def settings_of(
        self, name: str, kind: ConfigResource.Type = ConfigResource.Type.TOPIC
    ) -> dict[str, Any]:
        """A topic's or a group's settings by name, as confluent-kafka's `ConfigEntry`."""
        resource = ConfigResource(kind, name)
        futures = self.admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        entries: dict[str, Any] = futures[resource].result()
        return entries


class LoneConsumer(Consumer):  # type: ignore[misc]  # confluent-kafka has no types
    """Joins no group and commits nothing. librdkafka wants a group id and looks for its
    coordinator all the same; that the user has no right to the group does not matter."""

    def poll(self, timeout: float = -1) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            message = super().poll(timeout)
            if message is None or not _is_about_the_group(message):
                return message
            if timeout >= 0:
                timeout = max(0.0, deadline - time.monotonic())


def _is_about_the_group(message: Any) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def accepts_connections(address: str) -> bool:
    """Whether the port is open. librdkafka would hide a refusal behind its timeout."""
    host, _, port = address.strip().rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'orders'?` when something known is close to `name`, else nothing."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def wait_each(futures: Mapping[Any, Future[Any]], what: str) -> None:
    """Wait for one operation per name; raise one `CommandFailed` that lists all that failed."""
    failures = []
    for subject, future in futures.items():
        error = future.exception()
        if isinstance(error, KafkaException):
            failures.append(f"{getattr(subject, 'name', subject)}: {error.args[0].str()}")
        elif error is not None:
            raise error
    if failures:
        raise CommandFailed(f"{what} failed for {'; '.join(failures)}")
