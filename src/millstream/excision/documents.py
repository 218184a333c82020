"""What an excision leaves in writing: the job that was asked for, and the receipt. No I/O.

Neither contains what was removed: a selector is kept as a salted hash, by which a person who knows
the key can check that it was meant. Receipts form a chain: each has the hash of the one before, so
that none can be changed or taken out unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from functools import cached_property
from typing import Any

from millstream.config.excised import ExcisedOffsets, OffsetRanges, parse_ranges
from millstream.errors import MillstreamError
from millstream.models import dataclass

KEY, WHERE = "key", "where"
FIRST_IN_CHAIN = ""
NOT_SEARCHED = "not searched: "  # rows of a sink, in a report; then the reason

NOT_REACHED = (
    "copies that consumers have made, other than the sinks and pipelines that were named: tables, "
    "caches, files, checkpoints and state",
    "backups and snapshots of the brokers' disks, until they expire; a log restored from one is "
    "excised again when its broker starts",
    "free blocks of the disks, until they are written over",
)


class BadDocument(MillstreamError):
    """A job or a receipt cannot be read."""


class Undecidable(MillstreamError):
    """Rows do not have what a selector asks for; the message says what."""


@dataclass(frozen=True)
class Selector:
    """Which records: those of a key, or those for which a predicate in SQL holds."""

    kind: str
    text: bytes

    def describe(self) -> str:
        shown = self.text.decode(errors="backslashreplace")
        return f"key {shown!r}" if self.kind == KEY else f"where {shown}"

    def digest(self, salt: str) -> str:
        content = f"{salt}\0{self.kind}\0".encode() + self.text
        return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class PlacePlan:
    """The records of one partition that are to go."""

    partition: int
    offsets: str  # ranges, as `OffsetRanges` writes them
    records: int
    searched_from: int
    searched_to: int  # exclusive: later records are not part of it
    leader_epoch: int  # at that time: records of later epochs are others

    @cached_property
    def excised(self) -> ExcisedOffsets:
        return ExcisedOffsets({self.leader_epoch: self.ranges})

    @cached_property
    def ranges(self) -> OffsetRanges:
        return parse_ranges(self.offsets)


@dataclass(frozen=True)
class TopicPlan:
    """The records of one topic that are to go."""

    topic: str
    topic_id: str
    role: str  # "topic", or "dead letters" of it
    partitions: tuple[PlacePlan, ...] = ()  # all that were searched

    @property
    def places(self) -> list[PlacePlan]:
        """The partitions that have records to remove."""
        return [it for it in self.partitions if it.records]

    @property
    def records(self) -> int:
        return sum(it.records for it in self.partitions)


@dataclass(frozen=True)
class DerivedPlan:
    """A sink or a pipeline that has rows, or state, of the records."""

    kind: str  # "sink" or "pipeline"
    declared: str  # where: the sink's file, or the pipeline's and its name
    host: str  # on which machine that is
    directory: str  # in which the command runs: addresses may be relative
    name: str
    how: str  # see `derived.py`
    tables: tuple[str, ...] = ()
    store: str = ""  # its address, without a password


@dataclass(frozen=True)
class Job:
    """An excision that was asked for."""

    id: str
    requested_ms: int
    requested_by: str
    reason: str
    selector_kind: str
    selector_digest: str
    salt: str
    topics: tuple[TopicPlan, ...]
    derived: tuple[DerivedPlan, ...] = ()

    @property
    def records(self) -> int:
        return sum(it.records for it in self.topics)

    def fields(self) -> dict[str, Any]:
        """Without what it has nothing of, so that jobs from before that was known stay the same."""
        fields = asdict(self)
        if not self.derived:
            del fields["derived"]
        return fields

    def to_json(self) -> bytes:
        return canonical(self.fields())

    @classmethod
    def from_json(cls, content: bytes) -> Job:
        try:
            return _job(json.loads(content))
        except (ValueError, TypeError, KeyError) as error:
            raise BadDocument(f"not a job of an excision: {error}") from error


@dataclass(frozen=True)
class Receipt:
    """An excision that is complete."""

    number: int
    previous: str  # the hash of the receipt before, or FIRST_IN_CHAIN
    job: Job
    completed_ms: int
    replicas: tuple[Mapping[str, Any], ...]  # the brokers' reports
    deleted_topics: tuple[str, ...]  # meanwhile, and all their records with them
    verified_records: int  # read after the excision, and none was found
    not_reached: tuple[str, ...] = NOT_REACHED
    derived: tuple[Mapping[str, Any], ...] = ()  # what was done to each of the job's sinks, ...
    digest: str = field(default="", compare=False)

    def sealed(self) -> Receipt:
        """The same with its hash."""
        return Receipt(**{**self.__dict__, "digest": self.expected_digest()})

    def expected_digest(self) -> str:
        fields = self._fields()
        del fields["digest"]
        return hashlib.sha256(canonical(fields)).hexdigest()

    def to_json(self) -> bytes:
        return canonical(self._fields())

    def _fields(self) -> dict[str, Any]:
        fields = {**asdict(self), "job": self.job.fields()}
        if not self.derived:
            del fields["derived"]
        return fields

    @classmethod
    def from_json(cls, content: bytes) -> Receipt:
        try:
            fields = json.loads(content)
            return cls(
                **fields
                | {
                    "job": _job(fields["job"]),
                    "replicas": tuple(fields["replicas"]),
                    "deleted_topics": tuple(fields["deleted_topics"]),
                    "not_reached": tuple(fields["not_reached"]),
                    "derived": tuple(fields.get("derived", ())),
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadDocument(f"not a receipt of an excision: {error}") from error


def canonical(fields: Any) -> bytes:
    """JSON of which there is only one form, so that it can be hashed."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def check_chain(receipts: Sequence[Receipt]) -> list[str]:
    """What is wrong with all receipts so far, in their order; empty if they are intact."""
    problems = []
    previous = FIRST_IN_CHAIN
    for number, receipt in enumerate(receipts, 1):
        if receipt.digest != receipt.expected_digest():
            problems.append(f"receipt {receipt.number} was changed: its hash does not match")
        if receipt.number != number or receipt.previous != previous:
            problems.append(f"a receipt before receipt {receipt.number} is missing or was changed")
        previous = receipt.digest
    return problems


def _job(fields: Mapping[str, Any]) -> Job:
    topics = tuple(
        TopicPlan(**{**topic, "partitions": tuple(PlacePlan(**it) for it in topic["partitions"])})
        for topic in fields["topics"]
    )
    for topic in topics:
        for place in topic.partitions:
            if len(place.ranges) < place.records:
                raise ValueError(f"{topic.topic}-{place.partition} has too few offsets")
    derived = tuple(
        DerivedPlan(**{**it, "tables": tuple(it["tables"])}) for it in fields.get("derived", ())
    )
    return Job(**{**fields, "topics": topics, "derived": derived})
