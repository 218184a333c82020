"""Metadata records that Millstream does not interpret, carried as bytes.

Apache Kafka keeps delegation tokens and its controllers in the metadata log. Millstream does not
use them, but a snapshot replaces the log, so it must contain them, byte for byte. Where the key of
a record is known, only the newest record of each key is kept and a removal drops it:

    set by                               removed by                              key
    10  DelegationTokenRecord            26  RemoveDelegationTokenRecord         token id
    21  ZkMigrationStateRecord                                                   (there is one)
    27  RegisterControllerRecord                                                 controller id

Records of any other type, or of a version newer than these (all are at version 0), have no key: all
are kept, in their order, removals included. From the first such record on, the same holds for every
record of its kind, since what it changed is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from millstream.coordination.record_codec import (
    INT32,
    INT64,
    STRING,
    ArrayOf,
    Reader,
)

VERSION = 0  # the only version of each of these records in Apache Kafka 4.3

Key: TypeAlias = tuple[object, ...]
CarriedKey: TypeAlias = tuple[int, Key | int]
"""A kind, and the key of a record, or the ordinal of one that has no key."""


class CarriedRecord(NamedTuple):
    """A record in Kafka's bytes."""

    kind: int  # the type that sets what this one sets or removes
    key: Key | None
    removes: bool
    value: bytes  # the whole value of the record, frame included


_read_string = STRING.reader(VERSION, True)
_read_strings = ArrayOf(STRING).reader(VERSION, True)
_read_int32 = INT32.reader(VERSION, True)
_read_int64 = INT64.reader(VERSION, True)

# What reads the key of a record, and whether the record is a removal.
_KeyReader: TypeAlias = Callable[[Reader], tuple[Key, bool]]


def _token(reader: Reader) -> tuple[Key, bool]:
    for read in (_read_string, _read_string, _read_strings, *(_read_int64,) * 3):
        read(reader)  # owner, requester, renewers, three timestamps
    return (_read_string(reader),), False


def _removed_token(reader: Reader) -> tuple[Key, bool]:
    return (_read_string(reader),), True


def _migration(reader: Reader) -> tuple[Key, bool]:
    return (), False


def _controller(reader: Reader) -> tuple[Key, bool]:
    return (_read_int32(reader),), False


_KINDS: Mapping[int, tuple[int, _KeyReader]] = {
    10: (10, _token),
    21: (21, _migration),
    26: (10, _removed_token),
    27: (27, _controller),
}


def read_carried(number: int, version: int, value: bytes, position: int) -> CarriedRecord:
    """A record of type `number` whose message is at `position`. Raises `CorruptRecord`."""
    known = _KINDS.get(number)
    if known is None:
        return CarriedRecord(number, None, False, value)
    kind, read_key = known
    if version > VERSION:
        return CarriedRecord(kind, None, False, value)
    key, removes = read_key(Reader(value, position))
    return CarriedRecord(kind, key, removes, value)


class CarriedDraft:
    """Carried records while a batch is applied. Their order is that of the last changes."""

    def __init__(self, base: Mapping[CarriedKey, bytes]) -> None:
        self.records = dict(base)
        self._unkeyed = Counter(kind for kind, key in base if isinstance(key, int))

    def apply(self, record: CarriedRecord) -> None:
        ordinal = self._unkeyed[record.kind]
        if record.key is None or ordinal:
            self.records[record.kind, ordinal] = record.value
            self._unkeyed[record.kind] += 1
            return
        self.records.pop((record.kind, record.key), None)
        if not record.removes:
            self.records[record.kind, record.key] = record.value
