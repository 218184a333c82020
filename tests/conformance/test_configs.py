"""Settings: described with their sources, altered in every way, refused when ill-typed."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_produce import produce_one
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.wire import Wire

ALSO_ON_A_WORKER = True

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32


def describe(broker: BrokerUnderTest, kind: ResourceType, name: str) -> dict[str, Any]:
    resource = ConfigResource(kind, name)
    entries: dict[str, Any] = broker.admin.describe_configs([resource])[resource].result(
        PATIENCE_SECONDS
    )
    return entries


def alter(broker: BrokerUnderTest, topic: str, *entries: ConfigEntry) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))
    broker.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)


def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def test_topic_settings_show_value_source_and_default(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(retention_ms=86_400_000)
    settings = describe(broker, ResourceType.TOPIC, topic)
    assert settings["retention.ms"].value == "86400000"
    assert settings["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert settings["cleanup.policy"].value == "delete"
    assert settings["cleanup.policy"].is_default
    assert settings["segment.bytes"].value == "1073741824"
    assert settings["max.message.bytes"].value == "1048588"
    assert settings["min.insync.replicas"].value == "1"


def test_topic_knows_every_setting_that_apache_kafka_knows(broker: BrokerUnderTest) -> None:
    known = set(describe(broker, ResourceType.TOPIC, broker.create_topic()))
    assert known >= {
        *("cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type"),
        *("compression.zstd.level", "delete.retention.ms", "file.delete.delay.ms"),
        *("flush.messages", "flush.ms", "follower.replication.throttled.replicas"),
        *("index.interval.bytes", "leader.replication.throttled.replicas", "local.retention.bytes"),
        *("local.retention.ms", "max.compaction.lag.ms", "max.message.bytes"),
        *("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"),
        *("message.timestamp.type", "min.cleanable.dirty.ratio", "min.compaction.lag.ms"),
        *("min.insync.replicas", "preallocate", "remote.storage.enable", "retention.bytes"),
        *("retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms"),
        *("segment.ms", "unclean.leader.election.enable"),
    }


def test_incremental_changes_set_delete_append_and_subtract(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()

    def becomes(name: str, *values: str) -> None:
        wait_until(lambda: describe(broker, ResourceType.TOPIC, topic)[name].value in values)

    alter(broker, topic, entry("retention.ms", "5000000", AlterConfigOpType.SET))
    becomes("retention.ms", "5000000")
    alter(broker, topic, entry("retention.ms", None, AlterConfigOpType.DELETE))
    becomes("retention.ms", "604800000")
    alter(broker, topic, entry("cleanup.policy", "compact", AlterConfigOpType.APPEND))
    becomes("cleanup.policy", "delete,compact", "compact,delete")
    alter(broker, topic, entry("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    becomes("cleanup.policy", "compact")


@pytest.mark.parametrize(
    ("name", "value"),
    [("retention.ms", "a while"), ("no.such.setting", "1"), ("max.message.bytes", "-5")],
)
def test_bad_change_is_refused_and_changes_nothing(
    broker: BrokerUnderTest, name: str, value: str
) -> None:
    topic = broker.create_topic()
    with pytest.raises(KafkaException) as refused:
        alter(
            broker,
            topic,
            entry("segment.ms", "1000000", AlterConfigOpType.SET),
            entry(name, value, AlterConfigOpType.SET),
        )
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert describe(broker, ResourceType.TOPIC, topic)["segment.ms"].is_default


def test_legacy_alter_replaces_everything(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(retention_ms=1_000_000)
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.ms": "2000000"})
    broker.admin.alter_configs([resource])[resource].result(PATIENCE_SECONDS)

    def values() -> tuple[str, str]:
        settings = describe(broker, ResourceType.TOPIC, topic)
        return settings["segment.ms"].value, settings["retention.ms"].value

    wait_until(lambda: values() == ("2000000", "604800000"))


def test_validate_only_changes_nothing(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    change = entry("retention.ms", "5000000", AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    broker.admin.incremental_alter_configs([resource], validate_only=True)[resource].result(
        PATIENCE_SECONDS
    )
    assert describe(broker, ResourceType.TOPIC, topic)["retention.ms"].is_default


def test_change_takes_effect_at_once(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    produce_one(broker, topic, value=b"x" * 5000)
    alter(broker, topic, entry("max.message.bytes", "2000", AlterConfigOpType.SET))
    wait_until(
        lambda: describe(broker, ResourceType.TOPIC, topic)["max.message.bytes"].value == "2000"
    )
    with pytest.raises(KafkaException) as refused:
        produce_one(broker, topic, value=b"x" * 5000)
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_broker_settings_show_what_the_file_and_the_default_say(broker: BrokerUnderTest) -> None:
    settings = describe(broker, ResourceType.BROKER, "1")
    static = settings["group.initial.rebalance.delay.ms"]
    assert (static.value, static.source) == ("0", ConfigSource.STATIC_BROKER_CONFIG.value)
    assert settings["num.partitions"].value == "1"
    assert settings["num.partitions"].source == ConfigSource.DEFAULT_CONFIG.value
    assert settings["log.retention.hours"].value == "168"


def test_unknown_topic_has_no_settings(broker: BrokerUnderTest) -> None:
    with pytest.raises(KafkaException) as refused:
        describe(broker, ResourceType.TOPIC, unique("absent"))
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_description_carries_synonyms_types_and_documentation(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(retention_ms=1_000_000)
    wanted = {
        "resource_type": TOPIC_RESOURCE,
        "resource_name": topic,
        "configuration_keys": ("retention.ms",),
    }
    with Wire(broker.bootstrap) as wire:
        answer = wire.call(
            "describe_configs",
            4,
            resources=(wanted,),
            include_synonyms=True,
            include_documentation=True,
        )
    (setting,) = answer.results[0].configs
    assert (setting.name, setting.value, setting.config_type) == ("retention.ms", "1000000", 5)
    assert setting.synonyms[0].name == "retention.ms"
    assert len(setting.documentation) > 20


def test_config_resources_are_listed(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        answer = wire.call(
            "list_config_resources", 1, resource_types=(TOPIC_RESOURCE, BROKER_RESOURCE)
        )
    found = {(entry.resource_type, entry.resource_name) for entry in answer.config_resources}
    assert {(TOPIC_RESOURCE, topic), (BROKER_RESOURCE, "1")} <= found


def test_group_settings_can_be_altered(broker: BrokerUnderTest) -> None:
    group = unique("group")
    with Wire(broker.bootstrap) as wire:
        configs = (
            {"name": "consumer.session.timeout.ms", "value": "46000", "config_operation": 0},
        )
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": configs}
        answer = wire.call("incremental_alter_configs", 1, resources=(resource,))
        assert answer.responses[0].error_code == 0
        wanted = {
            "resource_type": GROUP_RESOURCE,
            "resource_name": group,
            "configuration_keys": None,
        }
        described = wire.call("describe_configs", 4, resources=(wanted,)).results[0]
    values = {setting.name: setting.value for setting in described.configs}
    assert values["consumer.session.timeout.ms"] == "46000"
