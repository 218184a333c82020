"""Rights in handlers: taken away in the middle, hidden names, no way around.

What every API answers to every kind of user is compared with Apache Kafka's in
`tests/conformance/test_authorization.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import struct
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.handlers.create_topics import create_topics
from millstream.broker.handlers.describe_topic_partitions import describe_topic_partitions
from millstream.broker.handlers.list_offsets import list_offsets
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode
from millstream.security.acls import Operation, PatternType, Permission
from tests.broker.rights import (
    ADMIN,
    allow,
    authorizing,
    cluster,
    connected_as,
    group,
    revoke,
    topic,
    transaction,
)
from tests.broker.serving import WireClient
from tests.broker.sharing import calls as sharing
from tests.peers.wire import batch, produce_fields

FIND_COORDINATOR = 10
PRODUCE, FETCH, METADATA, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 3, 19, 20
INIT_PRODUCER_ID, ALTER_CONFIGS, HEARTBEAT_848, SHARE_FETCH = 22, 44, 68, 78
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_TYPE = 32


def run(
    directory: Path,
    scenario: Callable[[BrokerServer, WireClient], Coroutine[Any, Any, None]],
    user: str = "alice",
    **settings: object,
) -> None:
    """With topic `t`, and a client of this user."""

    async def main() -> None:
        async with authorizing(directory, **settings) as server:
            await server.topics.create([NewTopic("t", 1, 1)])
            async with connected_as(server, user) as client:
                await scenario(server, client)

    asyncio.run(asyncio.wait_for(main(), 120))


async def produce(client: WireClient, name: str = "t", **options: Any) -> ErrorCode:
    answer = await client.call(PRODUCE, 9, **produce_fields(name, batch([b"x"]), **options))
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def fetch_fields(offset: int = 0, wait_ms: int = 0, **session: int) -> dict[str, Any]:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": offset,
        "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    fields: dict[str, Any] = {
        "replica_id": -1, "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20,
        "isolation_level": 0, "session_id": 0, "session_epoch": 0, "forgotten_topics_data": [],
        "rack_id": "", "topics": [{"topic": "t", "partitions": [partition]}],
    }  # fmt: skip
    return fields | session


async def fetch(client: WireClient, offset: int = 0, **session: int) -> Any:
    answer = await client.call(FETCH, 12, **fetch_fields(offset, **session))
    return answer.responses[0].partitions[0]


def test_right_to_write_is_checked_for_each_request_of_a_template(tmp_path: Path) -> None:
    """Equal requests take a short cut, which must not lead around the rights."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        assert await produce(client) == REFUSED
        await allow(server, topic("t", WRITE))
        for _ in range(3):
            assert await produce(client) == ErrorCode.NONE
        assert len(server.services.produce_templates) == 1
        async with connected_as(server, "bob") as bob:
            assert await produce(bob) == REFUSED
        await revoke(server, topic("t", WRITE))
        assert await produce(client) == REFUSED
        partition = server.partitions.get("t", 0)
        assert partition is not None
        assert partition.high_watermark == 3

    run(tmp_path, scenario)


def test_refused_produce_without_acks_closes_the_connection(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        client.send(PRODUCE, 9, **produce_fields("t", batch([b"x"]), acks=0))
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive(PRODUCE, 9)

    run(tmp_path, scenario)


def test_refused_topic_is_not_added_to_a_transaction(tmp_path: Path) -> None:
    """Produce v12 adds its partitions: only those to which the client may write."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("secret", 1, 1)])
        await allow(server, transaction("tx", WRITE), topic("t", WRITE))
        await client.call(FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["tx"])
        ids = await client.call(
            INIT_PRODUCER_ID, 4, transactional_id="tx", transaction_timeout=60_000,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        records = batch(
            [b"x"], producer_id=ids.producer_id, producer_epoch=ids.producer_epoch,
            base_sequence=0, transactional=True,
        )  # fmt: skip
        partition = [{"index": 0, "records": records}]
        answer = await client.call(
            PRODUCE,
            12,
            transactional_id="tx",
            acks=-1,
            timeout=10_000,
            topic_data=[
                {"name": "t", "partition_data": partition},
                {"name": "secret", "partition_data": partition},
            ],
        )
        codes = {it.name: it.partition_responses[0].error_code for it in answer.responses}
        assert codes == {"t": ErrorCode.NONE, "secret": REFUSED}
        described = await server.coordinators.transactions.describe("tx")
        assert described is not None
        assert [it.topic for it in described.partitions or ()] == ["t"]

    run(tmp_path, scenario)


def test_right_to_read_is_taken_away_in_the_middle_of_a_session(tmp_path: Path) -> None:
    """Also of a partition that has nothing new, and would not be looked at."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await allow(server, topic("t", READ))
        first = await client.call(FETCH, 12, **fetch_fields())
        assert first.responses[0].partitions[0].error_code == ErrorCode.NONE
        session = {"session_id": first.session_id, "session_epoch": 1, "topics": []}
        quiet = await client.call(FETCH, 12, **fetch_fields(**session))  # type: ignore[arg-type]
        assert quiet.responses == ()
        await revoke(server, topic("t", READ))
        session["session_epoch"] = 2
        refused = await client.call(FETCH, 12, **fetch_fields(**session))  # type: ignore[arg-type]
        assert refused.responses[0].partitions[0].error_code == REFUSED
        await allow(server, topic("t", READ))
        session["session_epoch"] = 3
        allowed = await client.call(FETCH, 12, **fetch_fields(**session))  # type: ignore[arg-type]
        assert allowed.responses[0].partitions[0].error_code == ErrorCode.NONE

    run(tmp_path, scenario)


def test_session_of_another_user_gives_nothing_away(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await allow(server, topic("t", READ))
        opened = await client.call(FETCH, 12, **fetch_fields())
        session: Any = {"session_id": opened.session_id, "session_epoch": 1, "topics": []}
        async with connected_as(server, ADMIN) as admin:
            assert await produce(admin) == ErrorCode.NONE
        async with connected_as(server, "eve") as eve:
            stolen = await eve.call(FETCH, 12, **fetch_fields(**session))
            assert stolen.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert stolen.responses == ()

    run(tmp_path, scenario)


def test_right_to_read_is_taken_away_while_a_fetch_waits(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await allow(server, topic("t", READ))
        client.send(FETCH, 12, **fetch_fields(wait_ms=60_000))
        async with connected_as(server, ADMIN) as admin:
            partition = server.partitions.get("t", 0)
            assert partition is not None
            while not partition._watchers:
                await asyncio.sleep(0.01)
            await revoke(server, topic("t", READ))
            assert await produce(admin) == ErrorCode.NONE
        answer = await client.receive(FETCH, 12)
        found = answer.responses[0].partitions[0]
        assert found.error_code == REFUSED
        assert not found.records

    run(tmp_path, scenario)


def test_right_to_read_is_taken_away_while_a_share_fetch_waits(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        topic_id = server.metadata.image.topics["t"].id
        await sharing.begin(server, topic_id)
        member = sharing.Member(client, topic_id, "m", "g")
        refused = await member.fetch(max_wait=0)
        assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        await allow(server, group("g", READ))
        member.epoch = 0
        hidden = await member.fetch(max_wait=0)
        assert hidden.responses[0].partitions[0].error_code == REFUSED
        await allow(server, topic("t", READ))
        member.send_fetch(max_wait=sharing.ENDLESS_MS)
        async with asyncio.timeout(60):
            while not (leader := server.services.share_partitions.get("g", topic_id, 0)):
                await asyncio.sleep(0.01)
            while not leader._waiting:
                await asyncio.sleep(0.01)
        await revoke(server, topic("t", READ))
        await sharing.produce(server, 3)
        answer = await client.receive(sharing.SHARE_FETCH, sharing.NEWEST)
        partition = answer.responses[0].partitions[0]
        assert partition.error_code == REFUSED
        assert not partition.records

    run(tmp_path, scenario, share_coordinator_state_topic_num_partitions=2)


@pytest.mark.parametrize(("replica_id", "needed"), [(2, None), (-2, READ)])
def test_fetch_of_a_replica_is_not_for_everyone(
    tmp_path: Path, replica_id: int, needed: Operation | None
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        fields = fetch_fields() | {"replica_id": replica_id}
        refused = await client.call(FETCH, 12, **fields)
        assert refused.responses[0].partitions[0].error_code == REFUSED
        await allow(server, topic("t", READ))
        again = (await client.call(FETCH, 12, **fields)).responses[0].partitions[0].error_code
        assert (again == REFUSED) is (needed is None)
        await allow(server, cluster(Operation.CLUSTER_ACTION))
        last = (await client.call(FETCH, 12, **fields)).responses[0].partitions[0].error_code
        assert last != REFUSED

    run(tmp_path, scenario)


def test_metadata_of_one_user_are_not_given_to_another(tmp_path: Path) -> None:
    """Answers are cached: two users who send the same request get their own."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("secret", 1, 1)])
        await allow(server, topic("t", DESCRIBE), topic("secret", READ, "bob"))
        async with connected_as(server, "bob") as bob:
            for _ in range(2):
                assert await names(client) == ["t"]
                assert await names(bob) == ["secret"]
        await revoke(server, topic("t", DESCRIBE))
        assert await names(client) == []

    run(tmp_path, scenario)


def test_metadata_are_decided_every_time_if_allowed_operations_are_in_the_audit(
    tmp_path: Path,
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await allow(server, topic("t", DESCRIBE))
        for _ in range(3):
            await client.call(METADATA, 9, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        audit = server.services.audit
        assert audit is not None
        await audit.close()

    path = tmp_path / "audit"
    run(
        tmp_path / "data",
        scenario,
        millstream_audit_log=f"file:{path}",
        millstream_audit_allowed=True,
    )
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(it["count"] for it in events if it["resourceName"] == "t") == 3


async def names(client: WireClient) -> list[str]:
    answer = await client.call(METADATA, 9, topics=None, allow_auto_topic_creation=True)
    return [it.name for it in answer.topics]


class ComparedName(str):
    """Counts how often names are compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        type(self).count += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


class ComparedIndex(int):
    """The same for indexes of partitions."""

    count = 0

    def __eq__(self, other: object) -> bool:
        type(self).count += 1
        return super().__eq__(other)

    __hash__ = int.__hash__


REFUSED_ITEMS = 500


def refused_request(api: str) -> Any:
    """A request of one who may do nothing, with many items."""
    names = [SimpleNamespace(name=ComparedName(f"n{it}")) for it in range(REFUSED_ITEMS)]
    indexes = [
        SimpleNamespace(partition_index=ComparedIndex(it), timestamp=-1)
        for it in range(REFUSED_ITEMS)
    ]
    return {
        "create_topics": SimpleNamespace(topics=names, validate_only=False),
        "describe_topic_partitions": SimpleNamespace(
            topics=names, cursor=None, response_partition_limit=2_000
        ),
        "list_offsets": SimpleNamespace(
            topics=[SimpleNamespace(name="t", partitions=indexes)], isolation_level=0, replica_id=-1
        ),
    }[api]


@pytest.mark.parametrize(
    ("api", "handler", "item"),
    [
        ("create_topics", create_topics, ComparedName),
        ("describe_topic_partitions", describe_topic_partitions, ComparedName),
        ("list_offsets", list_offsets, ComparedIndex),
    ],
)
def test_refusal_takes_time_in_proportion_to_the_items(
    tmp_path: Path, api: str, handler: Callable[..., Any], item: Any
) -> None:
    """A request of one who may do nothing could keep the broker busy for minutes otherwise."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        (connection,) = server.connections._open
        context = RequestContext(
            server.services, 7, "test", "127.0.0.1", "PLAINTEXT", 1, lambda: 1, connection._client
        )
        item.count = 0
        answer = handler(context, refused_request(api))
        answer = await answer if inspect.isawaitable(answer) else answer
        entries = answer["topics"][0]["partitions"] if api == "list_offsets" else answer["topics"]
        assert [it["error_code"] for it in entries] == [REFUSED] * REFUSED_ITEMS
        assert item.count < 10 * REFUSED_ITEMS

    run(tmp_path, scenario)


@pytest.mark.parametrize("name", ["t", "missing"])
def test_answer_about_a_hidden_topic_does_not_tell_whether_it_exists(
    tmp_path: Path, name: str
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        described = await client.call(
            METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=True,
            include_topic_authorized_operations=True,
        )  # fmt: skip
        (found,) = described.topics
        assert (found.error_code, found.topic_id, found.partitions) == (REFUSED, None, ())
        assert found.topic_authorized_operations == -(2**31)
        wanted = [{"name": name, "topic_id": uuid.UUID(int=0)}]
        deleted = await client.call(DELETE_TOPICS, 6, topics=wanted, timeout=1_000)
        assert deleted.responses[0].error_code == REFUSED
        created = await client.call(
            CREATE_TOPICS, 7, topics=[{"name": name, "num_partitions": 1, "replication_factor": 1}]
        )
        assert created.topics[0].error_code == REFUSED
        assert await produce(client, name) == REFUSED
        assert "missing" not in server.metadata.image.topics

    run(tmp_path, scenario)


def test_missing_topic_is_created_for_those_who_may(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        asked: Any = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
        await allow(server, topic("new", READ))
        refused = await client.call(METADATA, 12, **asked)
        assert refused.topics[0].error_code == REFUSED
        assert "new" not in server.metadata.image.topics
        await allow(server, topic("new", Operation.CREATE))
        created = await client.call(METADATA, 12, **asked)
        assert created.topics[0].error_code == ErrorCode.NONE
        assert "new" in server.metadata.image.topics

    run(tmp_path, scenario)


def test_expression_matches_only_topics_that_the_member_may_see(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("tsecret", 1, 1)])
        await allow(server, group("g", READ), topic("t", READ))
        member = "AAAAAAAAAAAAAAAAAAAAAA"
        await client.call(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
        joined = await client.call(
            HEARTBEAT_848, 1, group_id="g", member_id=member, member_epoch=0,
            rebalance_timeout=60_000, subscribed_topic_regex="t.*", topic_partitions=[],
        )  # fmt: skip
        assert joined.error_code == ErrorCode.NONE, joined
        image = server.metadata.image
        assigned = [it.topic_id for it in joined.assignment.topic_partitions]
        assert assigned == [image.topics["t"].id]
        refused = await client.call(
            HEARTBEAT_848, 1, group_id="g", member_id=member, member_epoch=joined.member_epoch,
            rebalance_timeout=-1, subscribed_topic_names=["t", "tsecret"],
        )  # fmt: skip
        assert refused.error_code == REFUSED

    run(tmp_path, scenario)


def test_prefix_and_deny(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("team.a", 1, 1), NewTopic("team.b", 1, 1)])
        await allow(
            server,
            topic("team.", WRITE, pattern_type=PatternType.PREFIXED),
            topic("team.b", WRITE, permission=Permission.DENY),
        )
        assert await produce(client, "team.a") == ErrorCode.NONE
        assert await produce(client, "team.b") == REFUSED
        assert await produce(client, "t") == REFUSED

    run(tmp_path, scenario)


def test_dead_letters_go_only_where_the_administrator_may_write(tmp_path: Path) -> None:
    """The broker writes them itself, so the right of whoever chose the topic counts."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await allow(server, group("g", Operation.ALTER_CONFIGS))
        name = "errors.deadletterqueue.topic.name"
        change = {"name": name, "config_operation": 0, "value": "dlq.secret"}
        resource = {"resource_type": GROUP_TYPE, "resource_name": "g", "configs": [change]}
        refused = await client.call(ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        assert refused.responses[0].error_code == REFUSED
        await allow(server, topic("dlq.secret", WRITE))
        changed = await client.call(ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        assert changed.responses[0].error_code == ErrorCode.NONE

    run(tmp_path, scenario)


def test_super_user_may_do_everything_and_nobody_else_without_entries(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        assert await produce(client) == ErrorCode.NONE
        assert (await fetch(client)).error_code == ErrorCode.NONE
        async with connected_as(server, "ANONYMOUS") as nobody:
            assert await produce(nobody) == REFUSED
            assert (await fetch(nobody)).error_code == REFUSED

    run(tmp_path, scenario, user=ADMIN)


def test_rights_survive_a_restart(tmp_path: Path) -> None:
    async def grant(server: BrokerServer, client: WireClient) -> None:
        await allow(server, topic("t", WRITE))

    async def use(server: BrokerServer, client: WireClient) -> None:
        assert await produce(client) == ErrorCode.NONE
        async with connected_as(server, "bob") as bob:
            assert await produce(bob) == REFUSED

    run(tmp_path, grant)
    run(tmp_path, use)


def test_deleted_topic_leaves_its_rights_to_one_of_the_same_name(tmp_path: Path) -> None:
    """As in Kafka: rights are to names."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await allow(server, topic("t", WRITE))
        assert await produce(client) == ErrorCode.NONE
        await server.topics.delete([server.metadata.image.topics["t"].id])
        assert await produce(client) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await server.topics.create([NewTopic("t", 1, 1)])
        assert await produce(client) == ErrorCode.NONE

    run(tmp_path, scenario)


def test_without_an_authorizer_everyone_may_do_everything(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        assert server.services.authorizer is None
        assert await produce(client) == ErrorCode.NONE
        answer = await client.call(29, 3, resource_type_filter=1, pattern_type_filter=1,
                                   operation=1, permission_type=1)  # fmt: skip
        assert answer.error_code == ErrorCode.SECURITY_DISABLED

    run(tmp_path, scenario, authorizer_class_name="", super_users="")


def test_frame_that_is_cut_off_harms_nobody(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        client._writer.write(struct.pack(">ihhih", 10, 30, 3, 1, -1))
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive(30, 3)
        async with connected_as(server, ADMIN) as admin:
            assert await produce(admin) == ErrorCode.NONE

    run(tmp_path, scenario)
