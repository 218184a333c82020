"""Checks of share groups: every record is settled once, and retried no sooner than it may be.

A member of a share group accepts, rejects or releases each record that it gets. A record is settled
when it is accepted or rejected. A group may get a record several times: a lock expires, an answer
is lost, a leader moves. What it may not do is to have two acknowledgements answered with success
for the same delivery, or one for a delivery after the record was settled: then the first one was
forgotten. In the order of their delivery counts, all acknowledgements of a record that succeeded
must be releases, but for the last.

Deliveries themselves prove nothing: a client may have had the record in its buffer all the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from millstream.testing.histories.evidence import Evidence
from millstream.testing.histories.history import Ack, Acknowledgement, Kind, Operation, Outcome
from millstream.testing.histories.report import Anomaly, Case

DELIVERIES_MAX = 5  # Kafka's default: a group gives up a record that was delivered this often

CLOCK_TOLERANCE = 0.9  # delays are measured by another clock


class Place(NamedTuple):
    """A record as a share group knows it."""

    group: str
    partition: str
    offset: int


class Answered(NamedTuple):
    """An acknowledgement that succeeded."""

    delivery_count: int
    operation: int
    kind: Acknowledgement


def acknowledgements(operations: Iterable[Operation]) -> Iterator[tuple[Operation, Ack]]:
    """All that were sent, with their operations."""
    for operation in operations:
        if operation.kind is Kind.SHARE:
            for ack in operation.acks:
                yield operation, ack


def settled_offsets(operations: Iterable[Operation], partition: str) -> set[int]:
    """Those that members accepted or rejected, even if they got no answer."""
    return {
        ack.offset
        for _, ack in acknowledgements(operations)
        if ack.partition == partition and ack.kind is not Acknowledgement.RELEASE
    }


def find_broken_shares(evidence: Evidence) -> Iterator[Case]:
    answered: dict[Place, list[Answered]] = defaultdict(list)
    for number, operation in enumerate(evidence.operations):
        if operation.kind is Kind.SHARE and operation.outcome is Outcome.OK:
            for ack in operation.acks:
                place = Place(operation.group or "", ack.partition, ack.offset)
                answered[place].append(Answered(ack.delivery_count, number, ack.kind))
    for place, acks in answered.items():
        for before, after in pairwise(sorted(acks)):
            yield from _compare(evidence, place, before, after)
    for number, operation in enumerate(evidence.operations):
        if operation.kind is Kind.SHARE and operation.final:
            yield from _find_missed(evidence, number)


def _compare(evidence: Evidence, place: Place, before: Answered, after: Answered) -> Iterator[Case]:
    """Two acknowledgements of one record, in the order of their deliveries."""
    first, second = evidence.operations[before.operation], evidence.operations[after.operation]
    involved = (before.operation, after.operation)
    told = (
        f"offset {place.offset} for group {place.group}: {before.kind} of delivery "
        f"{before.delivery_count} in {evidence.name(before.operation)}, {after.kind} of delivery "
        f"{after.delivery_count} in {evidence.name(after.operation)}"
    )
    was_settled = before.kind is not Acknowledgement.RELEASE
    if was_settled or before.delivery_count == after.delivery_count:
        yield Case(Anomaly.ACKNOWLEDGED_TWICE, place.partition, told, involved)
    elif first.commit_ns is not None and second.commit_ns is not None:
        waited_ms = (second.commit_ns - first.commit_ns) / 1e6
        if waited_ms < first.delay_ms * CLOCK_TOLERANCE:
            told += f" after {waited_ms:.0f} ms instead of {first.delay_ms}"
            yield Case(Anomaly.EARLY_RETRY, place.partition, told, involved)


def _find_missed(evidence: Evidence, number: int) -> Iterator[Case]:
    """Records that a share group should have settled by now. Those that it may have given up after
    too many deliveries are not counted."""
    final = evidence.operations[number]
    mine = [it for it in evidence.operations if it.kind is Kind.SHARE and it.group == final.group]
    for partition in final.moved:
        done = settled_offsets(mine, partition) | {
            ack.offset
            for _, ack in acknowledgements(mine)
            if ack.partition == partition and ack.delivery_count >= DELIVERIES_MAX
        }
        for offset in evidence.visible.get(partition, ()):
            if offset not in done:
                value = evidence.value_at[partition][offset]
                yield Case(
                    Anomaly.NOT_SHARED,
                    partition,
                    f"group {final.group} settled all but offset {offset} (value {value!r})",
                    (evidence.writer[value], number),
                )
