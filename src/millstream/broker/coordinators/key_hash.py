"""Which partition of an internal topic a key belongs to, and with it which coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.metadata.store import MetadataStore


class InternalTopic:
    """The partitions of an internal topic, which may not exist yet."""

    def __init__(
        self, name: str, metadata: MetadataStore, *, if_missing: tuple[ErrorCode, str]
    ) -> None:
        """`if_missing` is the error for a key while the topic does not exist."""
        self.name = name
        self._metadata = metadata
        self._if_missing = if_missing

    @property
    def partition_count(self) -> int:
        """0 if the topic does not exist."""
        return self._metadata.image.partition_count_of(self.name)

    def check_exists(self) -> int:
        """The number of partitions. Raises `ApiError` if the topic does not exist."""
        count = self.partition_count
        if not count:
            raise ApiError(*self._if_missing)
        return count

    def led_epoch(self, broker_id: int, index: int) -> int | None:
        """The leader epoch of a partition that this broker leads; None for any other."""
        partition = self._metadata.image.partition(self.name, index)
        if partition is None or partition.leader != broker_id:
            return None
        return partition.leader_epoch

    def index_of(self, key: str) -> int:
        """The partition that a group or transactional id belongs to. Raises `ApiError`."""
        return partition_for(key, self.check_exists())


def partition_for(key: str, partition_count: int) -> int:
    """Kafka's rule: the absolute value of Java's hash modulo the partitions; of -2**31 it is 0.

    Not its lower 31 bits, which clients take of a record's key: those differ for negative hashes.
    """
    value = java_hash(key)
    signed = value - 2**32 if value >= 2**31 else value
    return 0 if signed == -(2**31) else abs(signed) % partition_count


def java_hash(text: str) -> int:
    """`String.hashCode()`: over UTF-16 code units, in 32 bits, unsigned here."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    return value
