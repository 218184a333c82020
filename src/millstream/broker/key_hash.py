"""Which partition of an internal topic a key belongs to, and with it which coordinator."""

from __future__ import annotations


def partition_for(key: str, partition_count: int) -> int:
    """Kafka's rule: Java's hash of the key, made positive, modulo the partitions."""
    return (java_hash(key) & 0x7FFFFFFF) % partition_count


def java_hash(text: str) -> int:
    """`String.hashCode()`: over UTF-16 code units, in 32 bits, unsigned here."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    return value
