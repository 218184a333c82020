"""Webhooks that are written once because the broker checks that (`exact = true`): exact for any
number of bridges, and for all ids that the topic retains.

A record has its hook and its id as the key, and the condition that it is the first of its key: the
topic has `millstream.conditional.append=version`. A repeat has the same event id, so the broker
answers it with the place of the first one. One record that is refused refuses its batch, so each is
a batch of its own, from a producer without sequence numbers: the condition takes their place.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from millstream.admin.outgoing import Outgoing
from millstream.errors import ConfigError, MillstreamError

VERSION, EVENT_ID = "millstream-version", "millstream-event-id"
CONDITION, WANTED = "millstream.conditional.append", "version"
ADMIN_SECONDS = 30.0
PRODUCER = {"enable.idempotence": False, "batch.num.messages": 1, "linger.ms": 0}


def conditional(record: Outgoing, hook: str, message_id: str) -> Outgoing:
    """The record with the condition that the topic has none with its id. Webhooks without an id are
    written each time."""
    message_id = message_id or uuid.uuid4().hex
    condition = [(VERSION, b"1"), (EVENT_ID, message_id.encode())]
    key = f"{hook}/{message_id}".encode()
    return record._replace(key=key, headers=[*record.headers, *condition])


def prepare_topic(settings: Mapping[str, Any], topic: str) -> None:
    """Create a topic whose records are checked, if it does not exist. Raises `ConfigError` if it
    exists without the setting, or if the cluster does not have it; `MillstreamError` if the cluster
    does not answer."""
    admin = AdminClient({"log_level": 0, **settings})
    try:
        admin.create_topics(
            [NewTopic(topic, config={CONDITION: WANTED})], request_timeout=ADMIN_SECONDS
        )[topic].result()
        return
    except KafkaException as error:
        if error.args[0].name() == "INVALID_CONFIG":
            raise ConfigError(
                f"exact webhooks need {CONDITION}, which the cluster does not have: leave out exact"
            ) from error
        # It exists, or may not be created by us: its settings decide.
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        described = admin.describe_configs([resource], request_timeout=ADMIN_SECONDS)
        found = described[resource].result()
    except KafkaException as error:
        raise MillstreamError(
            f"the settings of topic {topic} cannot be read: {error.args[0].str()}"
        ) from error
    value = found[CONDITION].value if CONDITION in found else None
    if value != WANTED:
        raise ConfigError(
            f"exact webhooks need a topic with {CONDITION}={WANTED}: topic {topic} has {value}; "
            "set it, or leave out exact"
        )
