"""The checker of histories: `check(history)` reports every anomaly.

It follows the Kafka workload of Jepsen. Each check is a function from the evidence to its cases;
all are linear in the length of the history, up to a logarithm. A record counts under one name:

- not read by anybody although a later one was: *lost*; if others of its transaction were read,
  *torn transaction*
- known to be there once, but not when everything was read at the end: *unseen at the end*
- read by others, but not by a consumer that read before and after it: *skipped poll*, or *torn
  transaction* if that consumer read others of its transaction
- read by a consumer of a group, but never by that group: *passed over by a group*

Conditional appends: see `conditions.py`. Share groups: see `shares.py`.

Reads have to be read-committed. Topics must be neither compacted nor shortened by retention, and
producers idempotent: without idempotence a retry may double and reorder records, and should not be
taken for a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from millstream.testing.histories.conditions import find_broken_conditions
from millstream.testing.histories.evidence import Evidence, Sighting
from millstream.testing.histories.history import (
    Acknowledgement,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
    Value,
    differ_in_incarnation,
)
from millstream.testing.histories.report import Anomaly, Case, Report, Summary
from millstream.testing.histories.shares import acknowledgements, find_broken_shares


def check(history: Iterable[Operation]) -> Report:
    """Find all anomalies of a history: lost, repeated, reordered and torn records, and more."""
    evidence = Evidence(history)
    cases = [case for find in CHECKS for case in find(evidence)]
    return Report(summarize(evidence), cases)


def summarize(evidence: Evidence) -> Summary:
    operations = evidence.operations
    transactions = [operation for operation in operations if operation.kind is Kind.TXN]
    outcomes = [operation.outcome for operation in transactions]
    groups = {operation.group for operation in operations if operation.kind is not Kind.SHARE}
    acks = [ack.kind for it, ack in acknowledgements(operations) if it.outcome is Outcome.OK]
    released = acks.count(Acknowledgement.RELEASE)
    return Summary(
        operations=len(operations),
        processes=len({operation.process for operation in operations}),
        sent=len(evidence.sent),
        acknowledged=sum(evidence.outcome(value) is Outcome.OK for value in evidence.sent),
        committed=outcomes.count(Outcome.OK),
        aborted=outcomes.count(Outcome.FAIL),
        undecided=outcomes.count(Outcome.INFO),
        read=sum(len(operation.reads) for operation in operations),
        groups=len(groups - {None}),
        settled=len(acks) - released,
        released=released,
    )


def find_aborted_reads(evidence: Evidence) -> Iterator[Case]:
    for value, reader in evidence.first_reader.items():
        if value in evidence.found and evidence.outcome(value) is Outcome.FAIL:
            writer = evidence.writer[value]
            yield Case(
                Anomaly.ABORTED_READ,
                evidence.sent[value].partition,
                f"value {value!r} at offset {evidence.found[value]} was read by "
                f"{evidence.name(reader)} although {evidence.name(writer)} did not happen",
                (writer, reader),
            )


def find_precommitted_reads(evidence: Evidence) -> Iterator[Case]:
    """The first reader of a value is the earliest: the history is ordered by end time."""
    for value, reader in evidence.first_reader.items():
        if value not in evidence.found or evidence.outcome(value) is Outcome.FAIL:
            continue
        writer = evidence.writer[value]
        asked_ns = evidence.operations[writer].commit_ns
        ended_ns = evidence.operations[reader].ended_ns
        if reader == writer or (asked_ns is not None and ended_ns < asked_ns):
            yield Case(
                Anomaly.PRECOMMITTED_READ,
                evidence.sent[value].partition,
                f"value {value!r} at offset {evidence.found[value]} was read by "
                f"{evidence.name(reader)} before {evidence.name(writer)} was committed",
                (writer, reader),
            )


def find_unread(evidence: Evidence) -> Iterator[Case]:
    """Torn transactions, lost records and those unseen at the end."""
    for value, send in evidence.sent.items():
        if not evidence.must_be_visible(value):
            continue
        writer = evidence.writer[value]
        at = "" if send.offset is None else f" at offset {send.offset}"
        highest = evidence.highest_read.get(send.partition, -1)
        if value in evidence.found:
            if send.partition in evidence.final_partitions and value not in evidence.final_values:
                reader = evidence.first_reader[value]
                yield Case(
                    Anomaly.UNSEEN,
                    send.partition,
                    f"value {value!r} was read at offset {evidence.found[value]} by "
                    f"{evidence.name(reader)}, and was not there at the end",
                    (writer, reader),
                )
            continue
        is_passed = send.offset is not None and send.offset < highest
        if not is_passed and send.partition not in evidence.final_partitions:
            continue
        if (sibling := read_sibling(evidence, writer)) is not None:
            yield Case(
                Anomaly.TORN_TRANSACTION,
                send.partition,
                f"value {value!r}{at} of {evidence.name(writer)} was never read, but its value "
                f"{sibling.value!r} in {sibling.partition} was",
                (writer, evidence.first_reader[sibling.value]),
            )
        elif is_passed:
            yield Case(
                Anomaly.LOST,
                send.partition,
                f"value {value!r}{at}, acknowledged to {evidence.name(writer)}, was never read, "
                f"though offset {highest} was",
                (writer,),
            )
        else:
            yield Case(
                Anomaly.UNSEEN,
                send.partition,
                f"value {value!r}{at}, acknowledged to {evidence.name(writer)}, was not there at "
                "the end",
                (writer,),
            )


def read_sibling(evidence: Evidence, writer: int) -> Send | None:
    """A record of the same transaction that was read."""
    operation = evidence.operations[writer]
    if operation.kind is not Kind.TXN:
        return None
    return next((send for send in operation.sends if send.value in evidence.found), None)


def find_duplicates(evidence: Evidence) -> Iterator[Case]:
    for read, reader in first_sightings(evidence.repeats):
        yield Case(
            Anomaly.DUPLICATED,
            read.partition,
            f"value {read.value!r} is at offsets {evidence.found[read.value]} and "
            f"{read.offset} ({evidence.name(reader)})",
            (evidence.first_reader[read.value], reader),
        )


def first_sightings(sightings: Iterable[Sighting]) -> Iterator[Sighting]:
    """An anomaly seen by several readers is one case."""
    told: set[Read] = set()
    for sighting in sightings:
        if sighting.read not in told:
            told.add(sighting.read)
            yield sighting


def find_inconsistent_offsets(evidence: Evidence) -> Iterator[Case]:
    for read, reader in first_sightings(evidence.conflicts):
        known = evidence.value_at[read.partition][read.offset]
        other = evidence.first_reader[known]
        yield Case(
            Anomaly.INCONSISTENT_OFFSET,
            read.partition,
            f"offset {read.offset} holds {known!r} for {evidence.name(other)} and "
            f"{read.value!r} for {evidence.name(reader)}",
            (other, reader),
        )
    yield from find_wrong_acknowledgements(evidence)


def find_wrong_acknowledgements(evidence: Evidence) -> Iterator[Case]:
    acknowledged: dict[tuple[str, int], Value] = {}
    for value, send in evidence.sent.items():
        if send.offset is None:
            continue
        writer = evidence.writer[value]
        other = acknowledged.setdefault((send.partition, send.offset), value)
        held = evidence.value_at.get(send.partition, {}).get(send.offset, other)
        found = evidence.found.get(value, send.offset)
        if held != value:
            what = f"that offset holds {held!r}"
        elif found != send.offset and send.offset not in evidence.value_at[send.partition]:
            what = f"it is at offset {found}"
        else:
            continue
        yield Case(
            Anomaly.INCONSISTENT_OFFSET,
            send.partition,
            f"value {value!r} was acknowledged to {evidence.name(writer)} at offset "
            f"{send.offset}, but {what}",
            (writer,),
        )


def find_strangers(evidence: Evidence) -> Iterator[Case]:
    """Values that were not sent to the partition, or to a deleted topic of the same name."""
    for read, reader in first_sightings(evidence.strangers):
        found = f"{evidence.name(reader)} found {read.value!r} at offset {read.offset}, which "
        sent = evidence.sent.get(read.value)
        if sent is not None and differ_in_incarnation(sent.partition, read.partition):
            writer = evidence.writer[read.value]
            yield Case(
                Anomaly.DELETED_TOPIC,
                read.partition,
                f"{found}{evidence.name(writer)} sent to {sent.partition}",
                (writer, reader),
            )
        else:
            yield Case(
                Anomaly.UNKNOWN_VALUE, read.partition, f"{found}nobody sent there", (reader,)
            )


def find_bad_polls(evidence: Evidence) -> Iterator[Case]:
    """Consumers that go back or skip records without a rebalance or seek."""
    positions: dict[tuple[str, str], tuple[int, int]] = {}  # (offset, operation) of the last read
    for number, operation in enumerate(evidence.operations):
        if operation.kind is Kind.SHARE:
            continue  # its members get records in any order
        moved = set(operation.moved)
        for read in operation.reads:
            place = (operation.process, read.partition)
            if read.partition in moved:
                continue  # the move may have come between any two of these
            last, before = positions.get(place, (read.offset - 1, number))
            positions[place] = (read.offset, number)
            if read.offset <= last:
                yield Case(
                    Anomaly.NON_MONOTONIC_POLL,
                    read.partition,
                    f"{evidence.name(number)} read offset {read.offset} after offset {last} "
                    f"({evidence.name(before)})",
                    (before, number),
                )
            elif read.offset > last + 1 and not operation.final:
                for skipped in evidence.visible_between(read.partition, last, read.offset):
                    yield skipped_poll(evidence, read.partition, skipped, before, number)
        for partition in moved:
            positions.pop((operation.process, partition), None)


def skipped_poll(
    evidence: Evidence, partition: str, skipped: int, before: int, number: int
) -> Case:
    """The name for leaving out a record between two operations of one consumer."""
    value = evidence.value_at[partition][skipped]
    writer = evidence.writer[value]
    process = evidence.operations[number].process
    siblings = {send.value for send in evidence.operations[writer].sends} - {value}
    is_transaction = evidence.operations[writer].kind is Kind.TXN
    seen = is_transaction and not siblings.isdisjoint(evidence.values_read_by[process])
    what = f"offset {skipped} (value {value!r})"
    if seen:
        explanation = f"{evidence.name(number)} read past {what} of {evidence.name(writer)}"
        explanation += ", of which it had read other records"
    else:
        explanation = f"{evidence.name(number)} skipped {what} after {evidence.name(before)}"
    anomaly = Anomaly.TORN_TRANSACTION if seen else Anomaly.SKIPPED_POLL
    return Case(anomaly, partition, explanation, (before, number))


def find_bad_sends(evidence: Evidence) -> Iterator[Case]:
    """Records of one producer must be in the log in the order sent."""
    last: dict[tuple[str, str], Value] = {}
    for number, operation in enumerate(evidence.operations):
        for send in operation.sends:
            offset = evidence.offset_of(send.value)
            if offset is None:
                continue
            place = (operation.process, send.partition)
            before = last.get(place, send.value)
            last[place] = send.value
            before_offset = evidence.offset_of(before)
            if before != send.value and before_offset is not None and offset <= before_offset:
                yield Case(
                    Anomaly.NON_MONOTONIC_SEND,
                    send.partition,
                    f"{evidence.name(number)} sent {send.value!r}, which is at offset {offset}, "
                    f"after {before!r}, which is at offset {before_offset}",
                    (evidence.writer[before], number),
                )


@dataclass
class Progress:
    """The progress of a group in one partition: the first operation by offset."""

    done_by: dict[int, int] = field(default_factory=dict)
    perhaps: set[int] = field(default_factory=set)  # by transactions without an answer


def find_bad_groups(evidence: Evidence) -> Iterator[Case]:
    """A group gets every record; where offsets are committed in transactions, exactly once."""
    progress: dict[str, dict[str, Progress]] = defaultdict(lambda: defaultdict(Progress))
    for number, operation in enumerate(evidence.operations):
        if operation.group is None or operation.kind is Kind.SHARE:
            continue
        committed = operation.kind is Kind.POLL or evidence.was_committed(number)
        for read in operation.reads:
            done = progress[operation.group][read.partition]
            if committed is None:
                done.perhaps.add(read.offset)
            elif committed:
                first = done.done_by.setdefault(read.offset, number)
                if first != number and operation.kind is Kind.TXN:
                    yield Case(
                        Anomaly.PROCESSED_TWICE,
                        read.partition,
                        f"group {operation.group} processed offset {read.offset} (value "
                        f"{read.value!r}) in {evidence.name(first)} and {evidence.name(number)}",
                        (first, number),
                    )
    for group, partitions in progress.items():
        for partition, done in partitions.items():
            yield from passed_over(evidence, group, partition, done)


def passed_over(evidence: Evidence, group: str, partition: str, done: Progress) -> Iterator[Case]:
    if not done.done_by:
        return
    first, last = min(done.done_by), max(done.done_by)
    for offset in evidence.visible_between(partition, first, last):
        if offset not in done.done_by and offset not in done.perhaps:
            value = evidence.value_at[partition][offset]
            after = done.done_by[last]
            yield Case(
                Anomaly.NOT_PROCESSED,
                partition,
                f"group {group} never had offset {offset} (value {value!r}), but had offset "
                f"{last} in {evidence.name(after)}",
                (evidence.writer[value], after),
            )


CHECKS: tuple[Callable[[Evidence], Iterator[Case]], ...] = (
    find_aborted_reads,
    find_precommitted_reads,
    find_unread,
    find_duplicates,
    find_inconsistent_offsets,
    find_strangers,
    find_bad_polls,
    find_bad_sends,
    find_bad_groups,
    find_broken_conditions,
    find_broken_shares,
)
