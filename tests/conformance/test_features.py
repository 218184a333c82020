"""Features: what is finalized, how UpdateFeatures moves it, which protocol clients then speak."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.brokers import BrokerUnderTest, eventually, unique
from tests.conformance.conftest import prepared
from tests.conformance.test_transactions import (
    committed_offsets,
    log_of,
    producer_of,
    stable_offset,
)
from tests.peers.java_runtime import ToolRunner
from tests.peers.transactional import NO_ERROR
from tests.peers.wire import Wire

UPGRADE, SAFE_DOWNGRADE = 1, 2
INVALID_UPDATE_VERSION = 95


def versions_answer(broker: BrokerUnderTest) -> Any:
    with Wire(broker.bootstrap) as wire:
        fields = {"client_software_name": "wire", "client_software_version": "1"}
        return wire.call("api_versions", 4, **fields)


def supported(broker: BrokerUnderTest) -> dict[str, tuple[int, int]]:
    return {
        feature.name: (feature.min_version, feature.max_version)
        for feature in versions_answer(broker).supported_features
    }


def finalized(broker: BrokerUnderTest) -> dict[str, int]:
    answer = versions_answer(broker)
    return {feature.name: feature.max_version_level for feature in answer.finalized_features}


def update(
    broker: BrokerUnderTest, feature: str, level: int, kind: int = UPGRADE, **options: Any
) -> int:
    change = {"feature": feature, "max_version_level": level, "upgrade_type": kind}
    with Wire(broker.bootstrap) as wire:
        answer = wire.call(
            "update_features", 2, timeout=10_000, feature_updates=(change,), **options
        )
    return int(answer.error_code)


def set_transaction_version(broker: BrokerUnderTest, level: int) -> None:
    current = finalized(broker).get("transaction.version", 0)
    if level != current:
        kind = UPGRADE if level > current else SAFE_DOWNGRADE
        assert update(broker, "transaction.version", level, kind) == NO_ERROR
        eventually(lambda: finalized(broker).get("transaction.version", 0) == level)


def test_new_broker_finalizes_transactions_and_share_groups(broker: BrokerUnderTest) -> None:
    levels = finalized(broker)
    assert (levels["transaction.version"], levels["share.version"]) == (2, 1)
    ranges = supported(broker)
    assert (ranges["transaction.version"], ranges["share.version"]) == ((0, 2), (0, 1))


def test_update_moves_a_feature_down_and_up(own_broker: BrokerUnderTest) -> None:
    epoch = versions_answer(own_broker).finalized_features_epoch
    for level in (1, 0, 1, 2):
        set_transaction_version(own_broker, level)
    assert versions_answer(own_broker).finalized_features_epoch > epoch


def test_update_refuses_what_it_must(own_broker: BrokerUnderTest) -> None:
    name = "transaction.version"
    assert finalized(own_broker)[name] == 2
    assert update(own_broker, name, 1, UPGRADE) == INVALID_UPDATE_VERSION
    assert update(own_broker, name, 9, UPGRADE) == INVALID_UPDATE_VERSION
    assert update(own_broker, "no.such.feature", 1, UPGRADE) == INVALID_UPDATE_VERSION
    assert update(own_broker, name, 1, kind=0) == INVALID_UPDATE_VERSION
    assert update(own_broker, name, 2, SAFE_DOWNGRADE) == NO_ERROR  # it is there already
    assert finalized(own_broker)[name] == 2


def test_update_can_be_tried_without_effect(own_broker: BrokerUnderTest) -> None:
    name = "transaction.version"
    assert update(own_broker, name, 1, SAFE_DOWNGRADE, validate_only=True) == NO_ERROR
    assert finalized(own_broker)[name] == 2


@pytest.mark.parametrize("level", [0, 1])
def test_transactions_work_by_protocol_1_at_lower_levels(
    own_broker: BrokerUnderTest, level: int
) -> None:
    topic = own_broker.create_topic()
    set_transaction_version(own_broker, level)
    try:
        with producer_of(own_broker, 1) as producer:
            producer.run(topic, [b"a"], committed=True)
            producer.run(topic, [b"b"], committed=False)
    finally:
        set_transaction_version(own_broker, 2)
    eventually(lambda: stable_offset(own_broker, topic) == 4)
    assert committed_offsets(own_broker, topic) == [0]


def test_transaction_that_is_open_when_the_level_changes_ends_well(
    own_broker: BrokerUnderTest,
) -> None:
    """Begun at level 1 and ended at 2, and the other way round, each by its own protocol."""
    topic = own_broker.create_topic()
    with producer_of(own_broker, 1) as old, producer_of(own_broker, 2) as new:
        new.produce(topic, [b"begun at 2"])
        set_transaction_version(own_broker, 1)
        assert new.end(committed=True).error_code == NO_ERROR
        old.begin(topic)
        old.produce(topic, [b"begun at 1"])
        set_transaction_version(own_broker, 2)
        assert old.end(committed=True).error_code == NO_ERROR
    eventually(lambda: stable_offset(own_broker, topic) == 4)
    assert committed_offsets(own_broker, topic) == [0, 2]


@pytest.mark.java
@pytest.mark.xdist_group("apache-tools")
@pytest.mark.parametrize("level", [0, 1, 2])
def test_java_client_follows_the_level(own_broker: BrokerUnderTest, level: int) -> None:
    """With protocol 2 the epoch of the marker is above that of the records; with 1 the same."""
    topic = own_broker.create_topic()
    set_transaction_version(own_broker, level)
    client = prepared("java")
    try:
        client.transact(own_broker.bootstrap, topic, unique("transactional"), [(True, [b"x"])])
    finally:
        set_transaction_version(own_broker, 2)
        client.close()
    eventually(lambda: len(log_of(own_broker, topic)) == 2)
    records, marker = log_of(own_broker, topic)
    assert marker.producer_epoch - records.producer_epoch == (1 if level == 2 else 0)


@pytest.mark.java
@pytest.mark.xdist_group("apache-tools")
def test_feature_command_moves_a_feature(own_broker: BrokerUnderTest, tools: ToolRunner) -> None:
    def command(*arguments: str) -> list[str]:
        server = ("--bootstrap-server", own_broker.bootstrap)
        return tools.check("FeatureCommand", *server, *arguments).lines

    def level() -> str:
        (line,) = [line for line in command("describe") if "transaction.version" in line]
        assert "SupportedMinVersion: 0" in line
        assert "SupportedMaxVersion: 2" in line
        return line.split("FinalizedVersionLevel: ")[1].split()[0]

    assert level() == "2"
    downgraded = command("downgrade", "--feature", "transaction.version=1")
    assert downgraded == ["transaction.version was downgraded to 1."]
    eventually(lambda: level() == "1")
    disabled = command("disable", "--feature", "transaction.version")
    assert disabled == ["transaction.version was disabled."]
    eventually(lambda: level() == "0")
    upgraded = command("upgrade", "--feature", "transaction.version=2")
    assert upgraded == ["transaction.version was upgraded to 2."]
    eventually(lambda: level() == "2")
