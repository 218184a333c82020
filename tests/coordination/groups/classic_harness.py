"""Members that speak the classic protocol to a shard, one request at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from millstream.coordination.group_records import GROUP_RECORDS, ClassicProtocol
from millstream.coordination.groups.classic import ClassicGroup
from millstream.coordination.groups.classic_messages import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResponse,
)
from millstream.coordination.groups.group import GroupSettings, OffsetCommitter
from millstream.coordination.groups.offsets import CommitRequest, PartitionCommit, TopicCommit
from millstream.errors import ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics, ShardDriver

SESSION_MS = 10_000
REBALANCE_MS = 60_000
INITIAL_DELAY_MS = 3_000


def subscription(*topics: str) -> bytes:
    """A consumer's metadata: version 0, topics, no user data."""
    out = struct.pack(">hi", 0, len(topics))
    for topic in topics:
        out += struct.pack(">h", len(topic)) + topic.encode()
    return out + struct.pack(">i", -1)


class ClassicDriver(ShardDriver):
    """A shard, and what a client would have been answered so far."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        super().__init__(FakeTopics(orders=3), settings or GroupSettings())
        self._tokens = 0

    def new_token(self) -> int:
        self._tokens += 1
        return self._tokens

    @staticmethod
    def encode(key: Any, value: Any | None) -> tuple[bytes, bytes | None]:
        return GROUP_RECORDS.encode(key, value)

    def classic(self, group_id: str = "g") -> ClassicGroup:
        group = self.shard.groups[group_id]
        assert isinstance(group, ClassicGroup)
        return group


class Client:
    """A consumer of group `g`, as far as its membership goes."""

    def __init__(
        self,
        driver: ClassicDriver,
        client_id: str = "client",
        *,
        instance_id: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = (("range", subscription("orders")),),
        protocol_type: str = "consumer",
        group_id: str = "g",
        api_version: int = 9,
        session_timeout_ms: int = SESSION_MS,
        rebalance_timeout_ms: int = REBALANCE_MS,
    ) -> None:
        self.driver = driver
        self.client_id = client_id
        self.instance_id = instance_id
        self.protocols = tuple(ClassicProtocol(*protocol) for protocol in protocols)
        self.protocol_type = protocol_type
        self.group_id = group_id
        self.api_version = api_version
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = ""
        self.generation = -1
        self.join_token = 0
        self.sync_token = 0

    # --- join

    def send_join(self) -> None:
        """JoinGroup; where a member id is required, it is fetched first, as clients do."""
        self._send_join()
        answer = self.joined
        if answer is not None and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._send_join()

    def _send_join(self) -> None:
        request = JoinRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host="/127.0.0.1",
            protocol_type=self.protocol_type,
            protocols=self.protocols,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            api_version=self.api_version,
        )
        driver = self.driver
        self.join_token = driver.new_token()
        driver.apply(driver.shard.join_group(request, self.join_token, driver.now_ms))

    @property
    def joined(self) -> JoinResponse | None:
        """The answer to the last JoinGroup; None while it waits."""
        response = self.driver.answers.get(self.join_token)
        assert response is None or isinstance(response, JoinResponse)
        return response

    def take_join(self) -> JoinResponse:
        """The answer to the last JoinGroup, which must be there and good."""
        answer = self.joined
        assert answer is not None, "the join is still waiting"
        assert answer.error is ErrorCode.NONE, answer
        self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    @property
    def leads(self) -> bool:
        return self.driver.classic(self.group_id).leader_id == self.member_id

    # --- sync, heartbeat, leave, commit

    def send_sync(self, assignments: dict[str, bytes] | None = None, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "generation": self.generation,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": tuple((assignments or {}).items()),
        }
        driver = self.driver
        self.sync_token = driver.new_token()
        request = SyncRequest(**fields | changes)
        driver.apply(driver.shard.sync_group(request, self.sync_token, driver.now_ms))

    @property
    def synced(self) -> SyncResponse | None:
        response = self.driver.answers.get(self.sync_token)
        assert response is None or isinstance(response, SyncResponse)
        return response

    def heartbeat(self, **changes: Any) -> ErrorCode:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "generation": self.generation,
        }
        request = HeartbeatRequest(**fields | changes)
        code = self.driver.apply(self.driver.shard.heartbeat(request, self.driver.now_ms))
        assert isinstance(code, ErrorCode)
        return code

    def leave(self) -> LeftMember:
        return leave(self.driver, LeavingMember(self.member_id, self.instance_id))[0]

    @property
    def committer(self) -> OffsetCommitter:
        return OffsetCommitter(self.member_id, self.generation, self.instance_id, 9)

    def commit(self, offset: int, *, partition: int = 0) -> ErrorCode:
        return commit(
            self.driver, offset, self.committer, partition=partition, group_id=self.group_id
        )


def leave(
    driver: ClassicDriver, *members: LeavingMember, group_id: str = "g"
) -> tuple[LeftMember, ...]:
    left = driver.apply(driver.shard.leave_group(LeaveRequest(group_id, members), driver.now_ms))
    assert isinstance(left, tuple)
    return left


SIMPLE = OffsetCommitter("", -1, None, 9)


def commit(
    driver: ShardDriver,
    offset: int,
    committer: OffsetCommitter = SIMPLE,
    *,
    partition: int = 0,
    group_id: str = "g",
    topic: str = "orders",
    metadata: str = "",
    retention_ms: int = -1,
) -> ErrorCode:
    topic_id = driver.topics.topic_id(topic)
    assert topic_id is not None
    request = CommitRequest(
        group_id,
        committer,
        (TopicCommit(topic, topic_id, (PartitionCommit(partition, offset, 1, metadata),)),),
        retention_ms,
    )
    outcomes = driver.apply(driver.shard.commit_offsets(request, driver.now_ms))
    error: ErrorCode = outcomes[0].error
    return error


def form_group(driver: ClassicDriver, *clients: Client) -> None:
    """Everybody joins, the leader assigns its member id to each, the group is stable."""
    for client in clients:
        client.send_join()
    driver.advance(INITIAL_DELAY_MS * (len(clients) + 1))
    settle(driver, *clients)


def settle(driver: ClassicDriver, *clients: Client) -> None:
    """All joins are answered: everybody syncs, the leader last."""
    for client in clients:
        client.take_join()
    for client in sorted(clients, key=lambda it: it.leads):
        assigned = {it.member_id: it.member_id.encode() for it in clients}
        client.send_sync(assigned if client.leads else {})
    for client in clients:
        assert client.synced is not None
        assert client.synced.assignment == client.member_id.encode()
