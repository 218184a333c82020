"""What users can see, learn or break who have no right to: each row of the table in
docs/guides/security.md that is not tested elsewhere."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.answers import read_answers
from tests.conformance.brokers import unique
from tests.conformance.calls import CALLS
from tests.conformance.rights import (
    Acl,
    Operation,
    Resource,
    World,
    create_acls,
    member_id,
)
from tests.peers.patience import wait_until
from tests.peers.secured import (
    ADMIN,
    ConnectionEnded,
    SaslRefused,
    Secured,
    SecuredWire,
    password_of,
)
from tests.peers.wire import batch, produce_fields

SECURED_USERS = ("alice", "bob")
PREFIXED = 4
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TXN_DENIED = 29, 30, 31, 53
# What is asked for by a topic's id, which only those know who were told it.
BY_ID = {"produce v13", "fetch v17", "fetch v17 with a session", "metadata v12 by id"}
BY_ID |= {"delete_topics v6"}
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "security.md"


def test_what_is_hidden_looks_like_what_is_missing() -> None:
    """Of topics, groups and transactional ids, in all answers to a user without rights."""
    for call, answer in read_answers()["nobody"].items():
        if call in BY_ID or "[" not in answer:
            continue
        same = re.sub(r"(id:)?\b((my|other)-[\w-]+|unknown|no-share|no)\b", "NAME", answer)
        same = same.replace(" cluster_authorized_operations=0", "")
        items = re.sub(r"^[^\[]*\[|\]$", "", same).split("; ")
        kinds = {item.rstrip("]") for item in items if "resource_type" not in item}
        assert len(kinds) <= 1, f"{call}: {answer}"


def test_guide_names_tests_that_exist() -> None:
    """In its tables of attacks."""
    named = set(re.findall(r"`(test_\w+)`", GUIDE.read_text()))
    files = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    found = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
    existing = {name for text in files for name in found.findall(text)}
    assert len(named) > 20
    assert named - existing == set()


@pytest.fixture(scope="module")
def alices(secured: Secured) -> str:
    """A topic on which alice has all rights, with a record; bob has none."""
    name = unique("alice")
    with secured.wire(ADMIN) as admin:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        assert (
            admin.call("create_topics", 7, topics=[topic], timeout=60_000).topics[0].error_code == 0
        )
        kinds = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
        create_acls(admin, [Acl("alice", kind, "alice", Operation.ALL, PREFIXED) for kind in kinds])

    def is_written() -> bool:
        with secured.wire("alice") as alice:
            return _produce(alice, name) == 0

    wait_until(is_written)
    return name


def _produce(wire: SecuredWire, topic: str, value: bytes = b"secret", **fields: Any) -> int:
    answer = wire.call("produce", 9, **produce_fields(topic, batch([value]), **fields))
    return int(answer.responses[0].partition_responses[0].error_code)


def _end_offset(secured: Secured, topic: str) -> int:
    with secured.wire(ADMIN) as admin:
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        answer = admin.call(
            "list_offsets", 8, replica_id=-1, topics=[{"name": topic, "partitions": [part]}]
        )
        return int(answer.topics[0].partitions[0].offset)


def _fetch(
    wire: SecuredWire, topic: str | None, offset: int = 0, *, wait_ms: int = 0, **fields: Any
) -> Any:
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    topics = [] if topic is None else [{"topic": topic, "partitions": [part]}]
    given = {"replica_id": -1, "max_bytes": 1 << 20, "session_epoch": -1} | fields
    return wire.call("fetch", 12, max_wait=wait_ms, min_bytes=1, topics=topics, **given)


def test_produce_without_acks_writes_nothing(secured: Secured, alices: str) -> None:
    before = _end_offset(secured, alices)
    with secured.wire("bob") as bob:
        bob.start("produce", 9, **produce_fields(alices, batch([b"x"]), acks=0))
        assert bob.is_closed()
    assert _end_offset(secured, alices) == before


def test_produce_beside_what_is_allowed_writes_nothing(secured: Secured, alices: str) -> None:
    """A request with several partitions: the others of it are not a way around."""
    before = _end_offset(secured, alices)
    with secured.wire("bob") as bob:
        assert _produce(bob, alices) == TOPIC_DENIED
        assert _produce(bob, alices, acks=1) == TOPIC_DENIED
    assert _end_offset(secured, alices) == before


def test_fetch_session_of_another_user(secured: Secured, alices: str) -> None:
    """Its number is random; who guesses it gets neither records nor names."""
    with secured.wire("alice") as alice, secured.wire("bob") as bob:
        opened = _fetch(alice, alices, session_epoch=0)
        assert opened.session_id
        taken = _fetch(bob, None, session_id=opened.session_id, session_epoch=1)
        records = [part.records for topic in taken.responses for part in topic.partitions]
        assert not any(records)
        if secured.kind == "millstream":
            assert not taken.responses
            with secured.wire("alice") as other:
                _produce(other, alices)
            mine = _fetch(alice, None, session_id=opened.session_id, session_epoch=1)
            assert mine.error_code == 0


def test_record_that_comes_while_a_fetch_waits_and_the_right_is_gone(secured: Secured) -> None:
    """Apache Kafka has checked the right when the fetch came, and answers with the record."""
    if secured.kind == "apache-kafka":
        pytest.skip("it answers with the record")
    topic = unique("watched")
    right = Acl("bob", Resource.TOPIC, topic, Operation.READ)
    with secured.wire(ADMIN) as admin, secured.wire("bob") as bob:
        fields = {"name": topic, "num_partitions": 1, "replication_factor": 1}
        admin.call("create_topics", 7, topics=[fields], timeout=60_000)
        create_acls(admin, [right])
        assert _fetch(bob, topic).responses[0].partitions[0].error_code == 0
        part = {"partition": 0, "current_leader_epoch": -1, "partition_max_bytes": 1 << 20}
        bob.start(
            *("fetch", 12),
            replica_id=-1,
            max_wait=60_000,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[{"topic": topic, "partitions": [part]}],
        )
        time.sleep(0.3)  # it waits; if it did not, the test would pass for another reason
        remove = {"resource_type_filter": 2, "resource_name_filter": topic, "operation": 1}
        remove |= {"pattern_type_filter": 3, "permission_type": 1}
        admin.call("delete_acls", 3, filters=[remove])
        assert _produce(admin, topic) == 0
        found = bob.receive("fetch", 12).responses[0].partitions[0]
        assert not found.records


def test_transaction_of_another_user(secured: Secured, alices: str) -> None:
    """Its producer id and epoch do not help who has no right to the transactional id."""
    txn = unique("alice-txn")
    begun: Any = None
    with secured.wire("alice") as alice, secured.wire("bob") as bob:

        def has_begun() -> bool:
            nonlocal begun
            alice.call("find_coordinator", 4, key_type=1, coordinator_keys=[txn])
            begun = alice.call(
                *("init_producer_id", 4),
                transactional_id=txn,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            return bool(begun.error_code == 0)

        wait_until(has_begun)
        who = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        ended = bob.call("end_txn", 3, transactional_id=txn, committed=False, **who)
        assert ended.error_code == TXN_DENIED
        fenced = bob.call(
            "init_producer_id", 4, transactional_id=txn, transaction_timeout=60_000, **who
        )
        assert fenced.error_code == TXN_DENIED
        added = alice.call(
            *("add_partitions_to_txn", 3),
            v3_and_below_transactional_id=txn,
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=[{"name": alices, "partitions": [0]}],
        )
        results = added.results_by_topic_v3_and_below[0].results_by_partition
        assert results[0].partition_error_code == 0
        assert alice.call("end_txn", 3, transactional_id=txn, committed=True, **who).error_code == 0


def test_producer_id_of_another_user(secured: Secured, alices: str) -> None:
    """Without the right to write, it disturbs nobody's sequence."""
    with secured.wire("alice") as alice, secured.wire("bob") as bob:
        fields = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
        own = alice.call("init_producer_id", 4, transaction_timeout=60_000, **fields)
        who = {"producer_id": own.producer_id, "producer_epoch": own.producer_epoch}

        def send(wire: SecuredWire, sequence: int) -> int:
            records = batch([b"x"], base_sequence=sequence, **who)
            answer = wire.call("produce", 9, **produce_fields(alices, records))
            return int(answer.responses[0].partition_responses[0].error_code)

        assert send(alice, 0) == 0
        assert send(bob, 1) == TOPIC_DENIED
        assert send(alice, 1) == 0


def test_member_of_another_users_group(secured: Secured, alices: str) -> None:
    group = unique("alice-group")
    member = member_id(group)
    who = {"group_id": group, "member_id": member}
    with secured.wire("alice") as alice, secured.wire("bob") as bob:
        beat = {"rebalance_timeout": 60_000, "topic_partitions": []}

        def joined() -> bool:
            alice.call("find_coordinator", 4, key_type=0, coordinator_keys=[group])
            answer = alice.call(
                *("consumer_group_heartbeat", 1),
                member_epoch=0,
                subscribed_topic_names=[alices],
                **who,
                **beat,
            )
            return bool(answer.error_code == 0)

        wait_until(joined)
        left = bob.call("consumer_group_heartbeat", 1, member_epoch=-1, **who)
        assert left.error_code == GROUP_DENIED
        described = alice.call("consumer_group_describe", 1, group_ids=[group]).groups[0]
        assert [it.member_id for it in described.members] == [member]
        removed = bob.call("delete_groups", 2, groups_names=[group]).results[0]
        assert removed.error_code == GROUP_DENIED


def test_share_session_of_another_user(secured: Secured, alices: str) -> None:
    group = unique("alice-share")
    with secured.wire("alice") as alice, secured.wire("bob") as bob:
        topic_id = alice.call("metadata", 12, topics=[{"name": alices}]).topics[0].topic_id
        offsets = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
        parts = [{"partition_index": 0, "acknowledgement_batches": [offsets]}]
        who = {"group_id": group, "member_id": member_id(group)}
        limits = {"max_bytes": 1 << 20, "max_records": 10, "batch_size": 10}
        fetched = [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]
        alice.call("share_fetch", 1, topics=fetched, **who, **limits)
        stolen = bob.call(
            *("share_acknowledge", 1),
            share_session_epoch=1,
            topics=[{"topic_id": topic_id, "partitions": parts}],
            **who,
        )
        assert stolen.error_code == GROUP_DENIED
        ended = bob.call("share_fetch", 1, share_session_epoch=-1, topics=[], **who, **limits)
        assert ended.error_code == GROUP_DENIED


def test_share_fetch_of_an_unknown_topic_id(secured: Secured, alices: str) -> None:
    if secured.kind == "apache-kafka":
        pytest.skip("with an authorizer, it fails with an unexpected error")
    with secured.wire("alice") as alice:
        parts = [{"partition_index": 0}]
        answer = alice.call(
            *("share_fetch", 1),
            group_id=unique("alice-share"),
            member_id=member_id("unknown"),
            max_bytes=1 << 20,
            max_records=10,
            batch_size=10,
            topics=[{"topic_id": uuid.UUID(int=77), "partitions": parts}],
        )
        codes = [int(part.error_code) for topic in answer.responses for part in topic.partitions]
        assert (answer.error_code, codes) == (0, [100])


def test_users_of_scram_are_not_listed_for_everybody(secured: Secured) -> None:
    if secured.kind == "apache-kafka":
        pytest.skip("it never answers this")
    with secured.wire("bob") as bob:
        answer = bob.call("describe_user_scram_credentials", 0, users=None)
        assert (answer.error_code, answer.results) == (CLUSTER_DENIED, ())


def test_topic_is_not_created_by_asking_for_it(secured: Secured) -> None:
    name = unique("uninvited")
    with secured.wire("bob") as bob:
        asked = bob.call("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=True)
        assert asked.topics[0].error_code == TOPIC_DENIED
    with secured.wire(ADMIN) as admin:
        every = admin.call("metadata", 12, topics=None, allow_auto_topic_creation=False)
        assert name not in {topic.name for topic in every.topics}


def test_settings_do_not_show_passwords(secured: Secured) -> None:
    secrets = [password_of(user) for user in (ADMIN, *SECURED_USERS)]
    with secured.wire(ADMIN) as admin:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        answer = admin.call("describe_configs", 4, resources=[resource], include_synonyms=True)
        assert answer.results[0].error_code == 0
        assert len(answer.results[0].configs) > 50
        for secret in secrets:
            assert secret not in str(answer)
        change = {
            "name": "listener.name.sasl_plaintext.plain.sasl.jaas.config",
            "value": "nonsense",
        }
        refused = admin.call(
            *("incremental_alter_configs", 1),
            resources=[{"resource_type": 4, "resource_name": "1", "configs": [change]}],
            validate_only=True,
        )
        for secret in secrets:
            assert secret not in str(refused)
    log = secured.server.data.with_name("data.log")
    if log.exists():
        assert not any(secret in log.read_text() for secret in secrets)


@pytest.mark.parametrize("name", ["admin", "User:admin"])
def test_certificate_with_the_name_of_a_super_user(secured: Secured, name: str) -> None:
    """The principal is the whole name in it, unless a rule makes it another one."""
    store = secured.certificates.sign(name.replace(":", "-"))
    with secured.stranger("SSL") as wire:
        wire.start_tls(secured.certificates.client_context(store))
        answer = wire.call(
            *("describe_acls", 3),
            resource_type_filter=1,
            pattern_type_filter=1,
            operation=1,
            permission_type=1,
        )
        assert answer.error_code == CLUSTER_DENIED


@pytest.mark.parametrize("name", ["admin\u00ad", "ADMIN", "admin ", " admin", "ａdmin", "*"])
def test_name_that_looks_like_a_super_users(secured: Secured, name: str) -> None:
    with secured.stranger() as wire, pytest.raises(SaslRefused):
        wire.sign_in(name, password_of(ADMIN))


def test_guessing_makes_nobody_else_wait(secured: Secured) -> None:
    """An address that guesses is slowed down; a user at another one is served meanwhile."""
    source = "127.200.0.1"
    for _ in range(12):
        with (
            SecuredWire(secured.address("SASL_PLAINTEXT"), source=source) as wire,
            suppress(ConnectionEnded, SaslRefused),
        ):
            wire.sign_in("alice", "guess")
    with SecuredWire(secured.address("SASL_PLAINTEXT"), source=source) as guesser:
        guesser.handshake("PLAIN")
        guesser.start("sasl_authenticate", 2, auth_bytes=b"\0alice\0guess")
        with secured.wire("alice") as alice:
            assert alice.call("metadata", 12, topics=()).brokers


def test_user_who_is_deleted_does_not_come_in_again(secured: Secured) -> None:
    secured.add_scram_user("gone", "SCRAM-SHA-256")
    with secured.wire(ADMIN) as admin:
        deletion = {"name": "gone", "mechanism": 1}
        answer = admin.call("alter_user_scram_credentials", 0, deletions=[deletion], upsertions=())
        assert answer.results[0].error_code == 0
    from tests.conformance.test_authentication import Scram

    def is_refused() -> bool:
        with secured.stranger() as wire:
            try:
                Scram(wire, "SCRAM-SHA-256").sign_in("gone", password_of("gone"))
            except SaslRefused:
                return True
        return False

    wait_until(is_refused)


def test_refusals_tell_nothing_of_what_is_refused(secured: Secured, alices: str) -> None:
    """The texts of errors, for a user without rights."""
    world = World(secured, ids=dict.fromkeys(_names_of_calls(), uuid.UUID(int=5)))
    texts: set[str] = set()
    wire = secured.wire("bob")
    for call in CALLS:
        try:
            answer = wire.call(call.api, call.version, **call.fields(world, "bob"))
        except (ConnectionEnded, TimeoutError):
            wire.socket.close()
            wire = secured.wire("bob")
            continue
        texts |= set(re.findall(r"error_message='([^']*)'", str(answer)))
    wire.socket.close()
    assert texts
    for text in texts:
        assert "admin" not in text
        assert "alice" not in text
        if secured.kind == "millstream":
            assert "exist" not in text or "This server does not host" in text, text


def _names_of_calls() -> Iterator[str]:
    for owner in ("my", "other"):
        for name in ("topic", "sink"):
            yield f"{owner}-{name}"
        for way in ("name", "id"):
            yield f"{owner}-victim-{way}-bob"
