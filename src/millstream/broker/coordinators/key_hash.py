"""Which partition of an internal topic a key belongs to, and with it which coordinator."""

from __future__ import annotations


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
