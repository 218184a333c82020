"""Templates of Produce requests: the fast path for repeated requests.

A producer sends the same request repeatedly, with different records. All bytes before the records
(acks, timeout, one topic, one partition) are the same, and all bytes after them too. So the first
such request is decoded in full and its prefix is remembered, with its partition and the fixed parts
of its response; the next is recognised by one dictionary look-up. This halves the cost of a small
request. Requests of any other form have no template.

    v3-8    ff ff, or length 2 and transactional id | acks 2 | timeout 4 | 00 00 00 01
            | name length 2, name | 00 00 00 01 | partition 4 || records length 4, records
    v9-12   00, or length + 1 and transactional id | acks 2 | timeout 4 | 02
            | name length + 1, name | 02 | partition 4
            || records length + 1 as varint, records | 00 00 00
    v13     as v9, with a topic id of 16 bytes for the name

A transactional batch takes the fast path only if its transaction is open in the partition already:
opening one needs the checks of the slow path.

A template skips the checks that a request passes before its records are looked at, so it serves
only requests that would pass them too: what these checks depend on is in the beginning of a request
or in its sender, and both are part of the key.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import PendingAppend
from millstream.protocol.produce import (
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_IDS,
    ProducedPartition,
    ProduceRequest,
    encode_produce_response,
)
from millstream.protocol.wire import INT32, Buffer
from millstream.records.batch import (
    FLAGS_OFFSET,
    HEADER_SIZE_BYTES,
    PRODUCER,
    PRODUCER_ID_OFFSET,
    TRANSACTIONAL_FLAG,
)

if TYPE_CHECKING:
    from millstream.broker.replicas.table import PartitionTable

TEMPLATES_MAX = 16_384  # each is about a kilobyte

Sender: TypeAlias = tuple[str | None, str]
"""Client id and listener."""

_NO_TAGS_AT_ALL = b"\0\0\0"  # of partition, topic and request
_OFFSETS = Struct(">qqq")
_OFFSETS_BEFORE_V5 = Struct(">qq")


class ProduceTemplate:
    """The partition of requests with one prefix, and the form of their response."""

    __slots__ = (
        "_head",
        "_is_transactional",
        "_records_start",
        "_tail",
        "acks",
        "encoded_topic",
        "partition",
        "version",
    )

    def __init__(
        self, version: int, prefix_bytes: int, request: ProduceRequest, partition: Partition
    ) -> None:
        self.version = version
        self.acks = request.acks
        self.partition = partition
        self.encoded_topic = request.topics[0].encoded
        self._is_transactional = request.transactional_id is not None
        self._records_start = prefix_bytes
        answer = encode_produce_response(
            version, [(self.encoded_topic, [ProducedPartition(partition.index)])]
        )
        # The offsets follow the topic, the number of partitions, the index and the error.
        length_bytes = 1 if version >= FIRST_FLEXIBLE else 4
        start = length_bytes + len(self.encoded_topic) + length_bytes + 4 + 2
        offsets = _OFFSETS if version >= 5 else _OFFSETS_BEFORE_V5
        self._head = answer[:start]
        self._tail = answer[start + offsets.size :]

    def records_of(self, body: Buffer) -> Buffer | None:
        """The records of a request with this prefix.

        None if its end is not as expected, or if they belong to a transaction that is not open in
        the partition.
        """
        position = self._records_start
        size = len(body)
        if size < position + HEADER_SIZE_BYTES:
            return None
        if self.version < FIRST_FLEXIBLE:
            start, end = position + 4, size
            if INT32.unpack_from(body, position)[0] != size - start:
                return None
        else:
            length = body[position]
            start = position + 1
            if length >= 0x80:
                length = length & 0x7F | body[position + 1] << 7
                start = position + 2
                if length >= 0x4000:
                    length = length & 0x3FFF | body[position + 2] << 14
                    start = position + 3
                    if length >= 0x200000:
                        return None
            end = start + length - 1
            if end + 3 != size or body[end:] != _NO_TAGS_AT_ALL:
                return None
        if end - start < HEADER_SIZE_BYTES or (
            body[start + FLAGS_OFFSET] & TRANSACTIONAL_FLAG and not self._is_open(body, start)
        ):
            return None
        return body[start:end]

    def _is_open(self, body: Buffer, start: int) -> bool:
        """Whether the transaction of the batch at `start` is open in the partition."""
        if not self._is_transactional:
            return False
        producer_id, epoch, _ = PRODUCER.unpack_from(body, start + PRODUCER_ID_OFFSET)
        return self.partition.is_in_transaction(producer_id, epoch)

    def encode(self, pending: PendingAppend) -> bytes:
        """The response to an append that succeeded."""
        start_offset = self.partition.log_start_offset
        if self.version >= 5:
            offsets = _OFFSETS.pack(pending.first_offset, pending.log_append_time_ms, start_offset)
        else:
            offsets = _OFFSETS_BEFORE_V5.pack(pending.first_offset, pending.log_append_time_ms)
        return self._head + offsets + self._tail


class ProduceTemplates:
    """All templates of a broker."""

    def __init__(self) -> None:
        self._templates: dict[tuple[int, Sender, bytes], ProduceTemplate] = {}

    def find(self, version: int, sender: Sender, body: Buffer) -> ProduceTemplate | None:
        try:
            return self._templates.get(
                (version, sender, bytes(body[: _prefix_bytes(version, body)]))
            )
        except IndexError:
            return None

    def learn(
        self,
        version: int,
        sender: Sender,
        body: Buffer,
        request: ProduceRequest,
        partitions: PartitionTable,
    ) -> None:
        """Remember the prefix of a request that was decoded in full."""
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return
        topic = request.topics[0]
        index, records = topic.partitions[0]
        prefix = bytes(body[: _prefix_bytes(version, body)])
        template = ProduceTemplate(
            version,
            len(prefix),
            request,
            partitions.find(topic.key, index),
        )
        if template.records_of(body) != records:  # an unusual encoding, with tagged fields perhaps
            return
        if len(self._templates) >= TEMPLATES_MAX:
            self._templates.clear()
        self._templates[version, sender, prefix] = template


def _prefix_bytes(version: int, body: Buffer) -> int:
    """How long the beginning is, if the request has the shape of a template."""
    if version < FIRST_FLEXIBLE:
        id_bytes = 0 if body[0] else body[1]  # of the transactional id; ff ff is null
        return 22 + id_bytes + body[13 + id_bytes]
    id_bytes = body[0]  # null is 0, an empty one 1
    if id_bytes:
        id_bytes -= 1
    if version >= FIRST_WITH_TOPIC_IDS:
        return 29 + id_bytes
    return 13 + id_bytes + body[8 + id_bytes]
