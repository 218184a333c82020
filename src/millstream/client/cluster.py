"""A cluster as its clients see it: brokers, leaders, coordinators, and a connection to each.

`Cluster` finds the broker for a request, and retries if that was the wrong one or is not ready:
brokers restart, leaders move, coordinators load. It retries for the caller's `timeout_seconds`; a
single request times out, and is sent again, after `request_timeout_seconds`. A topic that does not
exist may be about to appear; callers that know better set `missing_topic_seconds`.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from uuid import UUID

from millstream.client.connection import Connection
from millstream.client.rights import with_right
from millstream.client.security import Security
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.protocol.apis import CoordinatorKind as CoordinatorKind
from millstream.protocol.messages import Fields

DEFAULT_TIMEOUT_SECONDS = 60.0
DEFAULT_REQUEST_TIMEOUT_SECONDS = 30.0
BACKOFF_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 1.0
BOOTSTRAP_ID = -1
COMMON = ""

Answer = TypeVar("Answer")


class PartitionInfo(NamedTuple):
    number: int
    leader: int
    leader_epoch: int


class TopicInfo(NamedTuple):
    name: str
    id: UUID | None
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool = False


class Cluster:
    """See the module. One thread at a time."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "millstream",
        security: Security | Mapping[str, str] | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        request_timeout_seconds: float = DEFAULT_REQUEST_TIMEOUT_SECONDS,
        missing_topic_seconds: float | None = None,
    ) -> None:
        self._bootstrap = parse_addresses(bootstrap_servers)
        self._client_id = client_id
        if security is not None and not isinstance(security, Security):
            security = Security.from_settings(security)
        self._security = security
        self.timeout_seconds = timeout_seconds
        self.request_timeout_seconds = min(request_timeout_seconds, timeout_seconds)
        self._missing_topic_seconds = missing_topic_seconds
        self._addresses: dict[int, tuple[str, int]] = {}
        self._refreshed_at = -math.inf  # when the list of brokers was last refreshed
        self._failed_at: dict[tuple[str, int], float] = {}  # when addresses last did not answer
        self._connections: dict[tuple[int, str], Connection] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._topics_told_at: dict[str, float] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Metadata

    def connection(self, broker_id: int, purpose: str = COMMON) -> Connection:
        """The connection to a broker, opened if necessary.

        Each purpose has its own connection: if requests are kept in flight, other responses must
        not come in between.
        """
        known = self._connections.get((broker_id, purpose))
        if known is not None:
            return known
        if broker_id not in self._addresses:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"unknown broker {broker_id}")
        connection = self._open(self._addresses[broker_id])
        self._connections[broker_id, purpose] = connection
        return connection

    def any_connection(self) -> Connection:
        """A connection to some broker that answers; brokers that did not are tried last."""
        for (_, purpose), connection in self._connections.items():
            if purpose == COMMON:
                return connection
        problems = []
        addresses = dict.fromkeys([*self._addresses.values(), *self._bootstrap])
        for address in sorted(addresses, key=lambda it: self._failed_at.get(it, -math.inf)):
            try:
                connection = self._open(address)
            except OSError as error:
                problems.append(str(error))
                continue
            self._connections[BOOTSTRAP_ID, COMMON] = connection
            return connection
        raise ConnectionError(f"no broker can be reached ({'; '.join(dict.fromkeys(problems))})")

    def _open(self, address: tuple[str, int]) -> Connection:
        try:
            connection = Connection(
                address,
                client_id=self._client_id,
                security=self._security,
                timeout_seconds=self.request_timeout_seconds,
            )
        except OSError as error:
            self._failed_at[address] = time.monotonic()
            if isinstance(error, (ConnectionRefusedError, TimeoutError, socket.gaierror)):
                raise ConnectionError(f"{address[0]}:{address[1]}: {error}") from error
            raise
        self._failed_at.pop(address, None)
        return connection

    def forget_all(self) -> None:
        """Drop all connections and cached metadata."""
        self.close()
        self._topics.clear()
        self._coordinators.clear()
        self._refreshed_at = -math.inf

    def refresh(self, topics: Sequence[str] | None = None) -> dict[str, TopicInfo]:
        """Ask for the cluster's brokers and these topics (None: all); unknown ones are left out."""
        answer = self.any_connection().call(
            "metadata",
            {
                "topics": None if topics is None else [{"name": name} for name in topics],
                "allow_auto_topic_creation": False,
            },
        )
        self._addresses = {int(b.node_id): (b.host, int(b.port)) for b in answer.brokers}
        self._refreshed_at = time.monotonic()
        found = {}
        for topic in answer.topics:
            if topic.error_code is ErrorCode.NONE:
                found[topic.name] = _topic_info(topic)
                self._topics[topic.name] = found[topic.name]
                self._topics_told_at[topic.name] = self._refreshed_at
            elif topic.error_code.retriable is False:
                check(topic.error_code, f"topic {topic.name}", "metadata")
        return found

    def broker_ids(self, *, seconds_old_max: float = 0.0) -> list[int]:
        """All brokers of the cluster, from recent metadata."""
        if time.monotonic() - self._refreshed_at > seconds_old_max:
            self.retrying(lambda: self.refresh([]))
        return sorted(self._addresses)

    def topic(self, name: str, *, seconds_old_max: float = math.inf) -> TopicInfo:
        """The topic with its leaders, from recent metadata.

        Raises UNKNOWN_TOPIC_OR_PARTITION.
        """
        known = self._topics.get(name)
        if known is not None and time.monotonic() - self._topics_told_at[name] <= seconds_old_max:
            return known
        found = self.refresh([name]).get(name)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return found

    def leader(self, topic: str, partition: int) -> int:
        """The id of the broker that leads a partition."""
        info = self.topic(topic)
        if not 0 <= partition < len(info.partitions):
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic} has no partition {partition}; it has {len(info.partitions)} partitions",
            )
        leader = info.partitions[partition].leader
        if leader < 0:
            self._topics.pop(topic, None)
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return leader

    def coordinator(self, kind: CoordinatorKind, key: str, api: str = "find_coordinator") -> int:
        """The id of the broker that coordinates a group, transactional id or share partition."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        answer = self.any_connection().call(
            "find_coordinator", {"key_type": int(kind), "coordinator_keys": [key]}
        )
        found = answer.coordinators[0]
        if found.error_code is not ErrorCode.NONE:
            message = found.error_message or f"no coordinator for {key!r}"
            check(found.error_code, message, api)
        broker_id = int(found.node_id)
        self._addresses[broker_id] = (found.host, int(found.port))
        self._coordinators[kind, key] = broker_id
        return broker_id

    # Requests with retries

    def ask_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        api: str,
        fields: Fields,
        *,
        version: int | None = None,
        error_of: Callable[[Any], ErrorCode] | None = None,
    ) -> Any:
        """Ask the coordinator of `key`; retry while it answers with a retriable error.

        `error_of` finds the error in an answer; by default it is the answer's own `error_code`.
        """
        return self.retrying(
            lambda: self._ask(self.coordinator(kind, key, api), api, fields, version, error_of)
        )

    def ask_leader(
        self,
        topic: str,
        partition: int,
        api: str,
        fields: Fields,
        *,
        version: int | None = None,
        error_of: Callable[[Any], ErrorCode] | None = None,
    ) -> Any:
        """Ask the leader of a partition, in the same way."""
        return self.retrying(
            lambda: self._ask(self.leader(topic, partition), api, fields, version, error_of)
        )

    def ask_broker(self, broker_id: int, api: str, fields: Fields) -> Any:
        """Ask a broker about itself, in the same way."""
        return self.retrying(
            lambda: self._ask(broker_id, api, fields, None, None), others_answer=False
        )

    def _ask(
        self,
        broker_id: int,
        api: str,
        fields: Fields,
        version: int | None,
        error_of: Callable[[Any], ErrorCode] | None,
    ) -> Any:
        answer = self.connection(broker_id).call(api, fields, version=version)
        code = (
            getattr(answer, "error_code", ErrorCode.NONE) if error_of is None else error_of(answer)
        )
        if code.retriable:
            raise ApiError(code, f"broker {broker_id} answers {api} with {code.name}")
        return answer

    def retrying(self, attempt: Callable[[], Answer], *, others_answer: bool = True) -> Answer:
        """`attempt` until it neither loses its connection nor raises a retriable `ApiError`.

        A broker that hangs uses up the time with one request. If others may answer instead, there
        is a second attempt.
        """
        started = time.monotonic()
        backoff = BACKOFF_SECONDS
        is_first = True
        while True:
            try:
                return attempt()
            except (OSError, ApiError) as error:
                if isinstance(error, ApiError) and not error.code.retriable:
                    raise
                # Before giving up, too: a late answer would be taken for that of the next request.
                self._start_over(error)
                has_hung = isinstance(error, TimeoutError) and is_first
                is_over = time.monotonic() + backoff > started + self.retry_seconds(error)
                if is_over and not (has_hung and others_answer and self._knows_others()):
                    if isinstance(error, OSError):
                        raise _given_up(error, self.timeout_seconds) from error
                    raise
            is_first = False
            time.sleep(backoff)
            backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)

    def _knows_others(self) -> bool:
        return len({*self._addresses.values(), *self._bootstrap}) > 1

    def retry_seconds(self, error: OSError | ApiError) -> float:
        """How long to retry after this error."""
        is_missing = (
            isinstance(error, ApiError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        if is_missing and self._missing_topic_seconds is not None:
            return self._missing_topic_seconds
        return self.timeout_seconds

    def _start_over(self, error: OSError | ApiError) -> None:
        """Drop cached metadata, and after a lost connection all connections."""
        self._topics.clear()
        self._coordinators.clear()
        self._refreshed_at = -math.inf
        if isinstance(error, OSError):
            self.close()


def _given_up(error: OSError, seconds: float) -> ConnectionError:
    return ConnectionError(f"{error} (gave up after {seconds:g} s)")


def check(code: ErrorCode, message: str, api: str = "") -> None:
    """Raise the `ApiError` of an answer's error code, if any; `api` says which right it needs."""
    if code is not ErrorCode.NONE:
        raise ApiError(code, with_right(message, api, code))


def parse_addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """`host:port,host:port` as pairs; raises `ConfigError` for anything else."""
    addresses = []
    for part in bootstrap_servers.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdigit():
            raise ConfigError(
                f"bootstrap.servers: {part.strip()!r} is not an address; write host:port"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses


def _topic_info(topic: Any) -> TopicInfo:
    partitions = sorted(
        PartitionInfo(int(p.partition_index), int(p.leader_id), int(p.leader_epoch))
        for p in topic.partitions
    )
    return TopicInfo(topic.name, topic.topic_id, tuple(partitions), bool(topic.is_internal))
