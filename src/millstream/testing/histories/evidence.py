"""Facts derived from a history: senders, offsets and required visibility of values.

One pass over the sends and one over the reads; everything that the checks ask for afterwards is a
lookup. What two operations contradict each other in is noted on the way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from millstream.testing.histories.history import (
    HistoryError,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
    Value,
)


class Sighting(NamedTuple):
    """An unexpected read, and its operation."""

    read: Read
    operation: int


class Evidence:
    """The facts of a history. Operations are known by their numbers in it."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = list(operations)
        self.sent: dict[Value, Send] = {}
        self.writer: dict[Value, int] = {}
        self.found: dict[Value, int] = {}  # the first offset a value was read at
        self.first_reader: dict[Value, int] = {}
        self.value_at: dict[str, dict[int, Value]] = defaultdict(dict)
        self.final_partitions: set[str] = set()
        self.final_values: set[Value] = set()
        self.strangers: list[Sighting] = []  # values that nobody sent there
        self.repeats: list[Sighting] = []  # values that were found at another offset before
        self.conflicts: list[Sighting] = []  # offsets that held another value before
        self._committed: dict[int, bool | None] = {}
        self._gather_sends()
        self._gather_reads()
        self.highest_read = {partition: max(at) for partition, at in self.value_at.items()}

    def _gather_sends(self) -> None:
        for number, operation in enumerate(self.operations):
            for send in operation.sends:
                if send.value in self.sent:
                    raise HistoryError(
                        f"value {send.value!r} is sent by operations {self.writer[send.value]} and "
                        f"{number}: every value may be sent once only"
                    )
                self.sent[send.value] = send
                self.writer[send.value] = number

    def _gather_reads(self) -> None:
        for number, operation in enumerate(self.operations):
            for read in operation.reads:
                if self.value_at[read.partition].setdefault(read.offset, read.value) != read.value:
                    self.conflicts.append(Sighting(read, number))
                is_known = self.found.get(read.value) == read.offset
                if not is_known or self.sent[read.value].partition != read.partition:
                    self._gather_new(read, number)
            if operation.final and operation.kind is not Kind.SHARE:
                self.final_partitions.update(operation.moved)
                self.final_partitions.update(read.partition for read in operation.reads)
                self.final_values.update(read.value for read in operation.reads)

    def _gather_new(self, read: Read, number: int) -> None:
        """A value that is not known to be at this place."""
        self.first_reader.setdefault(read.value, number)
        send = self.sent.get(read.value)
        if send is None or send.partition != read.partition:
            self.strangers.append(Sighting(read, number))
        elif read.value in self.found:
            self.repeats.append(Sighting(read, number))
        else:
            self.found[read.value] = read.offset

    def outcome(self, value: Value) -> Outcome:
        """What is known of the fate of a value that was sent."""
        return self.operations[self.writer[value]].outcome_of(self.sent[value])

    def was_committed(self, number: int) -> bool | None:
        """Whether an operation took effect as a whole; None where nothing tells.

        An unanswered transaction that anybody saw anything of was committed; one that nobody saw
        anything of, at the end, was not.
        """
        if number not in self._committed:
            self._committed[number] = self._judge(self.operations[number])
        return self._committed[number]

    def _judge(self, operation: Operation) -> bool | None:
        if operation.outcome is not Outcome.INFO:
            return operation.outcome is Outcome.OK
        if any(send.value in self.found for send in operation.sends):
            return True
        read_out = all(send.partition in self.final_partitions for send in operation.sends)
        return False if operation.sends and read_out else None

    def must_be_visible(self, value: Value) -> bool:
        """Whether consumers must see this value."""
        if self.outcome(value) is Outcome.OK:
            return True
        number = self.writer[value]
        if self.operations[number].kind is Kind.TXN:
            return self.was_committed(number) is True
        return value in self.found and self.outcome(value) is not Outcome.FAIL

    def offset_of(self, value: Value) -> int | None:
        """Where a value is, by its readers or by its acknowledgement."""
        found = self.found.get(value)
        return self.sent[value].offset if found is None else found

    @cached_property
    def visible(self) -> dict[str, list[int]]:
        """By partition the offsets that somebody found a record at which nobody took back."""
        return {
            partition: sorted(
                offset
                for offset, value in at.items()
                if value in self.found and self.must_be_visible(value)
            )
            for partition, at in self.value_at.items()
        }

    def visible_between(self, partition: str, after: int, before: int) -> list[int]:
        """Visible offsets with others on both sides of them."""
        offsets = self.visible[partition]
        return offsets[bisect_right(offsets, after) : bisect_left(offsets, before)]

    @cached_property
    def values_read_by(self) -> dict[str, set[Value]]:
        """By process everything that it read."""
        values: dict[str, set[Value]] = defaultdict(set)
        for operation in self.operations:
            values[operation.process].update(read.value for read in operation.reads)
        return values

    def name(self, number: int) -> str:
        """An operation as explanations call it."""
        operation = self.operations[number]
        kind = "transaction" if operation.kind is Kind.TXN else operation.kind.value
        return f"{operation.process}'s {kind} (operation {number})"
