"""Operations of clients on a cluster and their outcomes: the input of the checker.

A history is a list of operations in the order in which they ended. Each belongs to a process, one
client that does one thing after the other; a recreated client is a new process. Every value
is sent once, to one partition, so that a reader who finds it knows who sent it, and when.

The outcome of an operation is what its client knows:

    ok    it happened: acknowledged, committed
    fail  it did not happen and never will: refused, aborted
    info  nobody can say: no answer came

A topic that is deleted and created again is another topic, and its partitions have other names:
`incarnation("orders-0", 2)`.

A history is kept as JSON lines: a header, then an operation a line, fields at their default left
out. It can be checked again at any time, by a later version too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import MillstreamError

FORMAT = "millstream-history"
FORMAT_VERSION = 1

Value = int | str


_INCARNATION = "#"  # is in no topic's name


def incarnation(partition: str, number: int) -> str:
    """The name of a partition of a topic that was created for the `number`th time."""
    return f"{partition}{_INCARNATION}{number}"


def differ_in_incarnation(one: str, other: str) -> bool:
    """Whether the names are those of one partition, but of different incarnations of its topic."""
    return one != other and one.partition(_INCARNATION)[0] == other.partition(_INCARNATION)[0]


class Kind(StrEnum):
    """What kind of operation a client performed."""

    SEND = "send"  # records outside of transactions
    POLL = "poll"  # records read by a consumer, read-committed
    TXN = "txn"  # a transaction: records sent, and the records read whose offsets it commits
    CLAIM = "claim"  # a conditional append of one version of a key
    SHARE = "share"  # records delivered to a member of a share group, which acknowledged them


class Outcome(StrEnum):
    """Whether an operation took effect: `OK`, it did; `FAIL`, it did not; `INFO`, unknown."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Send(NamedTuple):
    """A value sent to a partition, with its offset if that was acknowledged."""

    partition: str
    value: Value
    offset: int | None = None


class Read(NamedTuple):
    """A value found at an offset of a partition."""

    partition: str
    offset: int
    value: Value


class Acknowledgement(StrEnum):
    """Of a record by a member of a share group."""

    ACCEPT = "accept"
    RELEASE = "release"  # to be delivered again
    REJECT = "reject"


class Ack(NamedTuple):
    """An acknowledgement of a record, and the number of its deliveries until then."""

    partition: str
    offset: int
    delivery_count: int
    kind: Acknowledgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that one process did. Partitions are named as Kafka names them: `orders-0`.

    The times are of one monotonic clock for the whole history. `commit_ns` is when a transaction
    asked to be committed, nobody may see its records earlier; or when acknowledgements were sent.
    """

    process: str
    kind: Kind
    outcome: Outcome = Outcome.OK
    began_ns: int = 0
    ended_ns: int = 0
    commit_ns: int | None = None
    sends: Sequence[Send] = ()
    reads: Sequence[Read] = ()
    moved: Sequence[str] = ()  # partitions assigned, revoked or sought: their positions are reset
    group: str | None = None  # the consumer group that was read for
    # Of a reader that reads all there is, from the beginning, after all writes to the partitions.
    # Of a share group: it was given the time to deal with all records of the partitions `moved`.
    final: bool = False
    acks: Sequence[Ack] = ()
    delay_ms: int = 0  # of a released record, before it is delivered again
    key: str | None = None  # of a claim
    version: int = 0  # of the key, that was claimed
    error: str = ""  # why the outcome is not ok, for people

    def outcome_of(self, send: Send) -> Outcome:
        """Records of a transaction share its outcome; others have their own."""
        if self.kind in (Kind.SEND, Kind.CLAIM) and send.offset is not None:
            return Outcome.OK
        return self.outcome


class HistoryError(MillstreamError):
    """The history is invalid."""


class History:
    """Operations in the order in which they ended. Threads may record at the same time."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self.operations: list[Operation] = list(operations)

    def record(self, operation: Operation) -> None:
        """Add an operation that has ended."""
        self.operations.append(operation)

    def __len__(self) -> int:
        return len(self.operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def save(self, path: str | Path) -> None:
        """Write the history to a file, one operation per line, as JSON."""
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps({"format": FORMAT, "version": FORMAT_VERSION}) + "\n")
            for operation in self.operations:
                file.write(json.dumps(_to_json(operation), separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read a history that `save` wrote."""
        with Path(path).open(encoding="utf-8") as file:
            try:
                header = json.loads(file.readline())
                if header != {"format": FORMAT, "version": FORMAT_VERSION}:
                    raise HistoryError(f"{path}: not a history of format version {FORMAT_VERSION}")
                return cls(_from_json(json.loads(line)) for line in file)
            except (ValueError, TypeError, KeyError) as error:
                raise HistoryError(f"{path}: not a history: {error}") from error


_DEFAULTS = {field.name: field.default for field in fields(Operation)}


def _to_json(operation: Operation) -> dict[str, Any]:
    values = {name: getattr(operation, name) for name in _DEFAULTS}
    return {name: value for name, value in values.items() if value != _DEFAULTS[name]}


def _from_json(value: dict[str, Any]) -> Operation:
    value["kind"] = Kind(value["kind"])
    value["outcome"] = Outcome(value.get("outcome", Outcome.OK))
    value["sends"] = tuple(Send(*send) for send in value.get("sends", ()))
    value["reads"] = tuple(Read(*read) for read in value.get("reads", ()))
    value["moved"] = tuple(value.get("moved", ()))
    value["acks"] = tuple(
        Ack(partition, offset, count, Acknowledgement(kind))
        for partition, offset, count, kind in value.get("acks", ())
    )
    return Operation(**value)
