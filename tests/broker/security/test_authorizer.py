"""The rights of connections: kept, and forgotten with the lists and with another principal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.security.authorizer import (
    DECISIONS_MAX,
    Authorizer,
    Rights,
    principal_of_brokers,
    warn_about_brokers,
)
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_security import (
    RemoveAccessControlEntryRecord,
    decide_new_acls,
)
from millstream.security.acls import AclEntry, Operation, Permission, ResourceType
from millstream.security.principal import ANONYMOUS, Principal
from tests.broker.rights import cluster, topic

READ, WRITE = Operation.READ, Operation.WRITE
TOPIC = ResourceType.TOPIC
ALICE = Principal("User", "alice")


class RecordingAudit:
    def __init__(self) -> None:
        self.wants_allowed = False
        self.decisions: list[tuple[Any, ...]] = []

    def decided(self, *decision: Any, allowed: bool) -> None:
        self.decisions.append((*decision, allowed))


class World:
    """A store of access control entries, and one client."""

    def __init__(self, *entries: AclEntry, super_users: str = "", by_default: bool = False) -> None:
        self.subscribers: list[Any] = []
        self.metadata = SimpleNamespace(image=ClusterImage(), subscribe=self.subscribers.append)
        self.add(*entries)
        self.audit = RecordingAudit()
        config = SimpleNamespace(super_users=super_users, allow_everyone_if_no_acl_found=by_default)
        store: Any = self.metadata
        settings: Any = config
        audit: Any = self.audit
        self.authorizer = Authorizer(store, settings, audit)
        self.client = SimpleNamespace(principal=ALICE)
        self.rights: Rights = self.authorizer.rights_of(self.client, "10.0.0.1")

    def add(self, *entries: AclEntry) -> None:
        image = self.metadata.image
        self.apply(decide_new_acls(image.acls, entries))

    def apply(self, records: Any) -> None:
        image = self.metadata.image
        self.metadata.image = image.apply(records, image.version + 1)
        for subscriber in self.subscribers:
            subscriber(image, self.metadata.image)

    def remove_all(self) -> None:
        image = self.metadata.image
        self.apply([RemoveAccessControlEntryRecord(entry_id) for entry_id in image.acls])


def test_decisions_change_with_the_lists() -> None:
    world = World()
    assert not world.rights.allows(READ, TOPIC, "t")
    before = world.rights.version
    world.add(topic("t", READ))
    assert world.rights.version is not before
    assert world.rights.allows(READ, TOPIC, "t")
    world.remove_all()
    assert not world.rights.allows(READ, TOPIC, "t")


def test_other_changes_of_the_metadata_keep_the_decisions() -> None:
    world = World(topic("t", READ))
    assert world.rights.allows(READ, TOPIC, "t")
    before = world.rights.version
    world.apply([])
    assert world.rights.allows(READ, TOPIC, "t")
    assert world.rights.version is before


def test_client_that_becomes_somebody_else_has_the_rights_of_that_one() -> None:
    world = World(topic("t", READ), super_users="User:root")
    world.client.principal = ANONYMOUS
    assert not world.rights.allows(READ, TOPIC, "t")
    world.client.principal = ALICE
    assert world.rights.allows(READ, TOPIC, "t")
    assert world.rights.identity == ("User:alice", "10.0.0.1")
    world.client.principal = Principal("User", "root")
    assert world.rights.allows(WRITE, TOPIC, "t")


def test_super_user_may_do_what_is_denied() -> None:
    denied = topic("*", Operation.ALL, permission=Permission.DENY)
    world = World(denied, super_users="User:bob; User:alice")
    assert world.rights.allows(READ, TOPIC, "t")
    assert world.rights.allows_somewhere(WRITE, TOPIC)


def test_everyone_may_use_what_has_no_entries_if_the_setting_says_so() -> None:
    world = World(topic("t", READ, "bob"), by_default=True)
    assert not world.rights.allows(READ, TOPIC, "t")
    assert world.rights.allows(WRITE, TOPIC, "u")


def test_right_to_some_topic() -> None:
    world = World(topic("t", WRITE))
    assert world.rights.allows_somewhere(WRITE, TOPIC)
    assert not world.rights.allows_somewhere(READ, TOPIC)
    world.remove_all()
    assert not world.rights.allows_somewhere(WRITE, TOPIC)


def test_operations_are_a_bit_field() -> None:
    world = World(topic("t", READ), cluster(Operation.ALL))
    assert world.rights.operations(TOPIC, "t") == 1 << READ | 1 << Operation.DESCRIBE
    assert world.rights.operations(TOPIC, "u") == 0
    everything = world.rights.operations(ResourceType.CLUSTER, "kafka-cluster")
    assert everything == sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


def test_refusals_are_recorded_each_time_and_what_is_only_filtered_is_not() -> None:
    world = World()
    for _ in range(2):
        world.rights.allows(READ, TOPIC, "t")
    world.rights.allows(READ, TOPIC, "t", log_denied=False)
    world.rights.operations(TOPIC, "t")
    assert world.audit.decisions == [("User:alice", "10.0.0.1", READ, TOPIC, "t", False)] * 2


def test_what_is_allowed_is_recorded_if_it_is_wanted() -> None:
    world = World(topic("t", READ))
    world.rights.allows(READ, TOPIC, "t")
    assert world.audit.decisions == []
    world.audit.wants_allowed = True
    world.rights.allows(READ, TOPIC, "t")
    world.rights.operations(TOPIC, "t")
    assert world.audit.decisions == [("User:alice", "10.0.0.1", READ, TOPIC, "t", True)]


def test_decisions_of_a_connection_are_bounded() -> None:
    world = World()
    for number in range(DECISIONS_MAX + 10):
        world.rights.allows(READ, TOPIC, f"t{number}")
    assert len(world.rights._decisions) <= DECISIONS_MAX
    kept = len(world.rights._decisions)
    assert not world.rights.allows(READ, TOPIC, "x" * 30_000)
    assert len(world.rights._decisions) <= kept


def test_addresses_of_version_6_are_compared_in_one_form() -> None:
    world = World(topic("t", READ, host="0:0:0:0:0:0:0:1"))
    assert not world.rights.allows(READ, TOPIC, "t")
    assert world.authorizer.rights_of(world.client, "::1").allows(READ, TOPIC, "t")
    assert world.authorizer.rights_of(world.client, "::1%lo").allows(READ, TOPIC, "t")


PLAIN = 'PlainLoginModule required username="broker" password="s3cret" user_broker="s3cret";'
OVER_SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.jaas.config": f"org.apache.kafka.common.security.plain.{PLAIN}",
}


@pytest.mark.parametrize(
    ("settings", "principal"),
    [({}, ANONYMOUS), (OVER_SASL, Principal("User", "broker"))],
)
def test_brokers_that_are_no_super_users_are_warned_about(
    settings: dict[str, object], principal: Principal, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig.from_values(settings)
    assert principal_of_brokers(config) == principal
    warn_about_brokers(config, World().authorizer)
    (record,) = caplog.records
    assert f"as {principal} (listener" in record.getMessage()
    assert "super.users" in record.getMessage()
    assert "s3cret" not in caplog.text
    caplog.clear()
    warn_about_brokers(config, World(super_users=f"User:x;{principal}").authorizer)
    assert not caplog.records
