"""A topic's settings are Kafka 4.3's, and ours."""

from __future__ import annotations

import pytest

from millstream.config.broker import BROKER_SETTINGS, TOPIC_SETTINGS
from millstream.config.topic import TopicConfig
from tests.config.kafka import KafkaSetting, kafka_settings


def test_topic_settings_are_those_of_kafka_and_ours() -> None:
    ours = {name for name, setting in TOPIC_SETTINGS.items() if setting.ours}
    assert set(TOPIC_SETTINGS) - ours == set(kafka_settings("topic"))


@pytest.mark.parametrize("kafka", kafka_settings("topic").values(), ids=lambda it: it.name)
def test_topic_setting_has_type_and_default_of_kafka(kafka: KafkaSetting) -> None:
    setting = TOPIC_SETTINGS[kafka.name]
    assert setting.kind.name == kafka.kind
    assert setting.default_text == kafka.default
    assert setting.internal == kafka.internal


def test_synonyms_are_settings_of_the_broker_of_the_same_type() -> None:
    for setting in TOPIC_SETTINGS.values():
        for synonym in setting.synonyms:
            broker = BROKER_SETTINGS[synonym.name]
            assert broker.options == setting.options
            assert (broker.kind is setting.kind) or synonym.scale > 1


def test_policies_are_told_apart() -> None:
    both = TopicConfig(cleanup_policy=frozenset({"compact", "delete"}))
    assert (both.compact, both.delete) == (True, True)
    assert (TopicConfig().compact, TopicConfig().delete) == (False, True)
