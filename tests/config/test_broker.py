"""The broker's settings as a whole: Kafka's names and defaults, layers, derived settings."""

from __future__ import annotations

import pytest

from millstream.config.broker import (
    BROKER_SETTINGS,
    BrokerConfig,
    Source,
    SourcedValue,
    check_dynamic,
    check_topic,
)
from millstream.config.foreign import check_foreign
from millstream.errors import ConfigError
from tests.config.kafka import kafka_settings

# Settings whose default is not Kafka's; each one's documentation says why.
OTHER_DEFAULTS = {
    "controller.listener.names",
    "group.coordinator.rebalance.protocols",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "node.id",
    "offsets.topic.replication.factor",
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "ssl.keystore.type",
    "ssl.truststore.type",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
}


def test_every_setting_of_kafka_is_known_or_said_to_be_without_effect() -> None:
    unknown = []
    for name in kafka_settings("broker"):
        if name in BROKER_SETTINGS:
            continue
        try:
            if check_foreign(name) is None:
                unknown.append(name)
        except ConfigError:
            pass
    assert unknown == []


def test_every_setting_of_ours_is_kafkas_or_marked() -> None:
    # Of StandardAuthorizer, not of the broker.
    kafka = {*kafka_settings("broker"), "super.users", "allow.everyone.if.no.acl.found"}
    assert {name for name, it in BROKER_SETTINGS.items() if it.ours} == set(BROKER_SETTINGS) - kafka


def test_settings_have_type_default_and_mode_of_kafka() -> None:
    differences = {}
    for name, kafka in kafka_settings("broker").items():
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            continue
        assert setting.kind.name == kafka.kind, name
        assert setting.internal == kafka.internal, name
        if name not in ("listeners", "listener.security.protocol.map"):
            assert setting.mode.value == kafka.mode, name
        if setting.default_text != kafka.default:
            differences[name] = (setting.default_text, kafka.default)
    assert set(differences) == OTHER_DEFAULTS


def test_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"'log.retention.hour'. Did you mean 'log.retention.hours'"
    ):
        BrokerConfig.from_values({"log.retention.hour": 1})


def test_setting_without_effect_is_a_warning() -> None:
    config = BrokerConfig.from_values({"num.network.threads": 3})
    assert config.warnings == (
        "num.network.threads has no effect here: one event loop serves all connections",
    )


def test_sources_list_every_value_the_one_in_force_first() -> None:
    config = BrokerConfig.from_values({"message.max.bytes": 1}).with_dynamic(
        {"message.max.bytes": "2"}, {"message.max.bytes": "3"}
    )
    assert config.message_max_bytes == 3
    assert list(config.sources("message.max.bytes")) == [
        SourcedValue("message.max.bytes", "3", Source.DYNAMIC_BROKER),
        SourcedValue("message.max.bytes", "2", Source.DYNAMIC_DEFAULT_BROKER),
        SourcedValue("message.max.bytes", "1", Source.STATIC_BROKER),
        SourcedValue("message.max.bytes", "1048588", Source.DEFAULT),
    ]


def test_dynamic_settings_are_taken_back_when_gone() -> None:
    static = BrokerConfig.from_values({"message.max.bytes": 1})
    changed = static.with_dynamic({}, {"message.max.bytes": "3"})
    assert changed.with_dynamic({}, {}).message_max_bytes == 1
    assert static.with_dynamic({}, {}) is static


@pytest.mark.parametrize(
    ("name", "per_broker", "message"),
    [
        ("num.partitions", True, "Cannot update these configs dynamically: num.partitions"),
        ("no.such.thing", False, "Unknown broker config name: no.such.thing"),
    ],
)
def test_dynamic_change_of_a_fixed_setting_is_refused(
    name: str, per_broker: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_dynamic([name], per_broker=per_broker)


def test_topic_overrides_win_over_the_broker() -> None:
    config = BrokerConfig.from_values({"log.retention.ms": 5, "millstream.acks.all.flush": False})
    topic = config.topic_config({"retention.ms": "6", "cleanup.policy": "compact,delete"})
    assert topic.retention_ms == 6
    assert topic.cleanup_policy == {"compact", "delete"}
    assert topic.millstream_acks_all_flush is False


def test_internal_segment_bytes_goes_below_the_minimum() -> None:
    topic = BrokerConfig.from_values().topic_config({"internal.segment.bytes": "1000"})
    assert topic.segment_bytes == 1000


def test_unknown_topic_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Unknown topic config name: retention.m. Did you mean"):
        BrokerConfig.from_values().topic_config({"retention.m": "1"})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, "conflict topic config"),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled"),
    ],
)
def test_topic_settings_are_refused_when_they_contradict(
    overrides: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_topic(BrokerConfig.from_values().topic_config(overrides))


def test_listener_of_brokers_is_the_first_unless_it_is_named() -> None:
    listeners = "CLIENTS://localhost:0,BROKERS://localhost:0"
    values: dict[str, object] = {
        "listeners": listeners,
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    }
    assert BrokerConfig.from_values(values).inter_broker_listener == "CLIENTS"
    values["inter.broker.listener.name"] = "brokers"
    assert BrokerConfig.from_values(values).inter_broker_listener == "BROKERS"
    values["inter.broker.listener.name"] = "others"
    with pytest.raises(ConfigError, match="not in listeners"):
        BrokerConfig.from_values(values)
