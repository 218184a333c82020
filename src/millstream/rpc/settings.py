"""Settings of the Kafka clients of calls, the topic of replies, and share groups of servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from millstream.admin.settings import Resource, alter_settings
from millstream.client.cluster import Cluster
from millstream.client.security import Security, is_security_setting, security_settings
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 1_000_000  # librdkafka's default of message.max.bytes
RECORD_BYTES = 4096  # for a batch's header, the key, and the headers of a reply
REPLIES_SUFFIX = "-replies"
REPLY_PARTITIONS = 8
# Nobody reads a reply again; the caller waits seconds.
REPLY_SETTINGS = {"retention.ms": "600000", "segment.ms": "600000", "cleanup.policy": "delete"}


def client_settings(
    bootstrap_servers: str, settings: Mapping[str, str] | None, **extra: Any
) -> dict[str, Any]:
    """For a client of confluent-kafka: the settings file's, without delays."""
    given = dict(settings or {})
    security = Security.from_settings(security_settings(given))
    others = {name: it for name, it in given.items() if not is_security_setting(name)}
    return {
        "log_level": 0,
        "socket.nagle.disable": True,
        **others,
        **security.librdkafka(),
        "bootstrap.servers": bootstrap_servers,
        **extra,
    }


def message_bytes_max(settings: Mapping[str, Any]) -> int:
    """How large a value may be, for a client with these settings: a record has more than it."""
    return int(settings.get("message.max.bytes", MESSAGE_BYTES_MAX)) - RECORD_BYTES


def make_cluster(bootstrap_servers: str, settings: Mapping[str, str] | None) -> Cluster:
    return Cluster(
        bootstrap_servers,
        client_id="millstream-rpc",
        security=security_settings(settings or {}),
        timeout_seconds=20.0,
    )


def create_reply_topic(cluster: Cluster, topic: str) -> None:
    """Create the topic of replies, unless it exists."""
    create_topics(cluster, [NewTopic(topic, REPLY_PARTITIONS, REPLY_SETTINGS)])


def create_request_topic(cluster: Cluster, topic: str) -> None:
    """Create the topic of requests, unless it exists, with the broker's default partitions: members
    of a group do not join before it is there."""
    create_topics(cluster, [NewTopic(topic)])


def start_share_group_at_the_beginning(cluster: Cluster, group: str) -> None:
    """Have a new share group see requests that were sent before its first server came; those whose
    deadline has passed are skipped. By default such a group starts at the end."""
    try:
        alter_settings(cluster, Resource.GROUP, group, {"share.auto.offset.reset": "earliest"})
    except ApiError as error:
        logger.warning("group %s starts at the end of the requests: %s", group, error)
