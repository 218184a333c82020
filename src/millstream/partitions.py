"""Names of partitions."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

TopicPartition: TypeAlias = tuple[str, int]
TopicIdPartition: TypeAlias = tuple[UUID, int]
