"""Names of topics and partitions."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

TopicPartition: TypeAlias = tuple[str, int]
TopicIdPartition: TypeAlias = tuple[UUID, int]

DEAD_LETTER_PREFIX = "dlq."  # of a topic of dead letters, if it is not configured
