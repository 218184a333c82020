"""The rights that commands need, for the error of a user who lacks one.

What confluent-kafka reports is only which kind of resource was refused. Names are those of Kafka's
ACLs; docs/guides/security.md has the same as a table.
"""

from __future__ import annotations

from collections.abc import Sequence

RIGHTS = {
    "topic create": "Create on the topic, or on the cluster",
    "topic describe": "Describe and DescribeConfigs on the topic",
    "topic alter": "AlterConfigs on the topic, and Alter for more partitions",
    "topic delete": "Delete on the topic",
    "topic reassign": "Alter on the cluster, and AlterConfigs on it with --throttle",
    "topic elect": "Alter on the cluster",
    "produce": "Write on the topic",
    "consume": "Read on the topic, and on the group if there is one",
    "group describe": "Describe on the group and on its topics",
    "group reset": "Read on the group and on its topics",
    "group config": "DescribeConfigs on the group, and AlterConfigs for changes",
    "group delete": "Delete on the group",
    "dlq show": "Read on the dead-letter topic, and Describe on the group millstream-dlq-replay",
    "dlq replay": "Read on the dead-letter topic and the group millstream-dlq-replay, Write on the "
    "topics of the letters and on transactional ids with the prefix millstream-dlq-replay",
    "dlq purge": "Delete on the dead-letter topic",
    "queries create": "Create on the topic, or on the cluster",
    "queries add": "Read and Write on the topic of the queries",
    "queries list": "Read on the topic of the queries",
    "queries remove": "Read and Write on the topic of the queries",
    "queries test": "Read on the topic of the queries",
    "query": "Read on the topics",
    "excise": "Read and AlterConfigs on the topic, and Create, Read and Write on __excisions and "
    "__excision_receipts",
    "pipelines list": "Read on the topic __millstream_pipelines",
    "pipelines stop": "Read on the topic __millstream_pipelines, and Write on "
    "__millstream_pipeline_commands",
    "pipelines restart": "Read on the topic __millstream_pipelines, and Write on "
    "__millstream_pipeline_commands",
    "pipelines forget": "Read and Write on the topic __millstream_pipelines",
    "quota set": "AlterConfigs on the cluster",
    "quota list": "DescribeConfigs on the cluster",
    "quota remove": "DescribeConfigs and AlterConfigs on the cluster",
    "transaction describe": "Describe on the transactional id",
    "transaction abort": "Write on the transactional id, or Alter on the cluster",
    "acl add": "Alter on the cluster",
    "acl list": "Describe on the cluster",
    "acl remove": "Alter and Describe on the cluster",
    "cluster": "Describe on the cluster",
    "user create": "Alter on the cluster",
    "user list": "Describe on the cluster",
    "user delete": "Alter on the cluster",
}
_REFUSED = "authorization failed"


def with_rights(message: str, arguments: Sequence[str]) -> str:
    """The message, and the rights that the command needs if that is what it lacks."""
    plain = message.lower().replace("_", " ")
    needed = _needed(arguments)
    if _REFUSED not in plain or needed is None or "the user needs" in plain:
        return message
    return f"{message.rstrip('.')}; the user needs {needed}"


def _needed(arguments: Sequence[str]) -> str | None:
    words = [it for it in arguments if not it.startswith("-")]
    for place, word in enumerate(words):
        for name in (" ".join(words[place : place + 2]), word):
            if name in RIGHTS:
                return RIGHTS[name]
    return None
