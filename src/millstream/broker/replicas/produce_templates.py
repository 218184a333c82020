"""Templates of Produce requests: the fast path for repeated requests.

A producer sends the same request repeatedly, with different records. All bytes before the records
(acks, timeout, one topic, one partition) are the same, and all bytes after them too. So the first
such request is decoded in full and its prefix is remembered, with its partition and the fixed parts
of its response; the next is recognised by one dictionary look-up. This halves the cost of a small
request. Requests of any other form have no template. What is done for every request is compiled.

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

from typing import TYPE_CHECKING, TypeAlias

from millstream.broker._core import TemplateCore, request_prefix
from millstream.broker.replicas.partition import Partition
from millstream.errors import ApiError
from millstream.protocol.produce import (
    FIRST_FLEXIBLE,
    ProducedPartition,
    ProduceRequest,
    encode_produce_response,
)
from millstream.protocol.wire import Buffer
from millstream.records.batch import PRODUCER, PRODUCER_ID_OFFSET
from millstream.records.validation import InvalidRecords

if TYPE_CHECKING:
    from millstream.broker.replicas.table import PartitionTable

TEMPLATES_MAX = 16_384  # each is about a kilobyte
KEY_LENGTH_MAX = 1024  # of client id and prefix: clients choose how long their ids are

Sender: TypeAlias = tuple[str | None, str]
"""Client id and listener."""

FIRST_WITH_LOG_START = 5


class ProduceTemplate(TemplateCore):
    """The partition of requests with one prefix, and the form of their response."""

    __slots__ = ("acks", "encoded_topic", "timeout_ms", "topic", "transactional_id")

    def __init__(
        self, version: int, prefix_bytes: int, request: ProduceRequest, partition: Partition
    ) -> None:
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.encoded_topic = request.topics[0].encoded
        self.topic: str = partition.topic
        self.transactional_id = request.transactional_id
        answer = encode_produce_response(
            version, [(self.encoded_topic, [ProducedPartition(partition.index)])]
        )
        # The offsets follow the topic, the number of partitions, the index and the error.
        length_bytes = 1 if version >= FIRST_FLEXIBLE else 4
        start = length_bytes + len(self.encoded_topic) + length_bytes + 4 + 2
        offsets_bytes = 24 if version >= FIRST_WITH_LOG_START else 16
        head, tail = answer[:start], answer[start + offsets_bytes :]
        super().__init__(version, partition, prefix_bytes, head, tail)

    def encode_refusal(self, error: ApiError) -> bytes:
        """The response to an append that failed."""
        entry = refused(self.partition.index, error)
        return encode_produce_response(self.version, [(self.encoded_topic, [entry])])

    def _is_open(self, body: Buffer, start: int) -> bool:
        """Whether the transaction of the batch at `start` is open in the partition."""
        if self.transactional_id is None:
            return False
        producer_id, epoch, _ = PRODUCER.unpack_from(body, start + PRODUCER_ID_OFFSET)
        return self.partition.is_in_transaction(producer_id, epoch)


class ProduceTemplates:
    """All templates of a broker."""

    def __init__(self) -> None:
        # By the prefix, for each version and sender: a prefix is all that a look-up has to read of
        # the template of one partition among many.
        self._templates: dict[tuple[int, Sender], dict[bytes | None, ProduceTemplate]] = {}
        self._prefixes: dict[Partition, list[tuple[tuple[int, Sender], bytes]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, version: int, sender: Sender, body: Buffer) -> ProduceTemplate | None:
        templates = self._templates.get((version, sender))
        return None if templates is None else templates.get(request_prefix(version, body))

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
        prefix = request_prefix(version, body)
        if prefix is None or len(sender[0] or "") + len(prefix) > KEY_LENGTH_MAX:
            return
        partition = partitions.find(topic.key, index)
        template = ProduceTemplate(version, len(prefix), request, partition)
        if template.records_of(body) != records:  # an unusual encoding, with tagged fields perhaps
            return
        if self._count >= TEMPLATES_MAX:
            self._templates.clear()
            self._prefixes.clear()
            self._count = 0
        kind = version, sender
        templates = self._templates.setdefault(kind, {})
        if prefix not in templates:  # one of a deleted partition was forgotten with it
            self._count += 1
            self._prefixes.setdefault(partition, []).append((kind, prefix))
        templates[prefix] = template

    def forget(self, partition: Partition) -> None:
        """The partition was deleted."""
        for kind, prefix in self._prefixes.pop(partition, ()):
            templates = self._templates[kind]
            del templates[prefix]
            self._count -= 1
            if not templates:
                del self._templates[kind]


def refused(index: int, error: ApiError) -> ProducedPartition:
    """The part of a response for a partition to which nothing was appended."""
    record_errors = error.record_errors if isinstance(error, InvalidRecords) else ()
    return ProducedPartition(index, error.code, message=error.message, record_errors=record_errors)
