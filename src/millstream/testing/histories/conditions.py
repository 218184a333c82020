"""Checks of conditional appends: the versions of each key, as if the claims came one by one.

A claim is an append of one version of a key. Claims of a key are linearizable if each can be given
a moment between its beginning and its end at which it happened, or was refused, such that the next
version is always the one appended. For a key whose versions are in the log this means:

- each version is in the log once, and versions are in order, without gaps;
- a version does not end before the one before it begins;
- a refused claim of version n does not lie between the end of the claim of n - 1 and the beginning
  of that of n: all that time, n was the next version.

A claim without an answer may have happened at any time after its beginning.

A claim in a transaction is a transaction with a key. It holds the key from its beginning until its
client has begun something else, since markers are written after the answer. A claim of others that
is refused meanwhile needs no other reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.testing.histories.evidence import Evidence
from millstream.testing.histories.history import Kind, Outcome
from millstream.testing.histories.report import Anomaly, Case


class Appended(NamedTuple):
    """A claim that is in the log."""

    offset: int
    version: int
    operation: int


class Hold(NamedTuple):
    """A transaction that may hold a key; until None: forever."""

    began_ns: int
    until_ns: int | None


def find_broken_conditions(evidence: Evidence) -> Iterator[Case]:
    keys: dict[tuple[str, str], list[Appended]] = defaultdict(list)
    refused: dict[tuple[str, str], list[int]] = defaultdict(list)
    holds = _find_holds(evidence)
    for number, operation in enumerate(evidence.operations):
        if operation.kind not in (Kind.CLAIM, Kind.TXN) or operation.key is None:
            continue
        for send in operation.sends:
            place = (send.partition, operation.key)
            offset = evidence.found.get(send.value)
            if offset is not None:
                keys[place].append(Appended(offset, operation.version, number))
            elif operation.outcome is Outcome.FAIL and operation.kind is Kind.CLAIM:
                refused[place].append(number)
    for place, appended in keys.items():
        yield from _check_log(evidence, *place, sorted(appended))
    for place, numbers in refused.items():
        if place[0] in evidence.final_partitions:
            versions = {it.version: it.operation for it in keys.get(place, ())}
            for number in numbers:
                if _is_held(evidence, holds.get(place, ()), number):
                    continue
                yield from _check_refusal(evidence, *place, versions, number)


def _find_holds(evidence: Evidence) -> dict[tuple[str, str], list[Hold]]:
    """How long transactions may have held keys."""
    holds: dict[tuple[str, str], list[Hold]] = defaultdict(list)
    next_of: dict[str, int] = {}  # by client: when its next operation has ended
    for operation in sorted(evidence.operations, key=lambda it: it.began_ns, reverse=True):
        client = operation.process.rpartition(".")[0] or operation.process
        if operation.kind is Kind.TXN and operation.key is not None:
            until_ns = next_of.get(client)
            for send in operation.sends:
                hold = Hold(operation.began_ns, until_ns)
                holds[send.partition, operation.key].append(hold)
        next_of[client] = operation.ended_ns
    return holds


def _is_held(evidence: Evidence, holds: Iterable[Hold], number: int) -> bool:
    operation = evidence.operations[number]
    return any(
        hold.began_ns < operation.ended_ns
        and (hold.until_ns is None or hold.until_ns > operation.began_ns)
        for hold in holds
    )


def _check_log(
    evidence: Evidence, partition: str, key: str, appended: list[Appended]
) -> Iterator[Case]:
    first_of: dict[int, Appended] = {}
    last: Appended | None = None
    for claim in appended:
        other = first_of.setdefault(claim.version, claim)
        if other is not claim:
            yield Case(
                Anomaly.VERSION_TWICE,
                partition,
                f"version {claim.version} of {key} is at offsets {other.offset} "
                f"({evidence.name(other.operation)}) and {claim.offset} "
                f"({evidence.name(claim.operation)})",
                (other.operation, claim.operation),
            )
            continue
        before = 0 if last is None else last.version
        if claim.version != before + 1:
            yield Case(
                Anomaly.VERSION_ORDER,
                partition,
                f"{key} is at version {before}, then at version {claim.version} at offset "
                f"{claim.offset} ({evidence.name(claim.operation)})",
                (claim.operation,),
            )
        elif last is not None and _ends_before(evidence, claim.operation, last.operation):
            yield Case(
                Anomaly.VERSION_ORDER,
                partition,
                f"version {claim.version} of {key} was acknowledged to "
                f"{evidence.name(claim.operation)} before {evidence.name(last.operation)} began to "
                f"append version {last.version}",
                (claim.operation, last.operation),
            )
        last = claim


def _check_refusal(
    evidence: Evidence, partition: str, key: str, versions: dict[int, int], number: int
) -> Iterator[Case]:
    version = evidence.operations[number].version
    before, after = versions.get(version - 1), versions.get(version)
    was_next = version == 1 or (before is not None and _ends_before(evidence, before, number))
    if was_next and (after is None or _begins_after(evidence, after, number)):
        involved = tuple(it for it in (before, number, after) if it is not None)
        yield Case(
            Anomaly.UNFOUNDED_REFUSAL,
            partition,
            f"version {version} of {key} was refused to {evidence.name(number)} although it was "
            "the next one",
            involved,
        )


def _ends_before(evidence: Evidence, one: int, other: int) -> bool:
    """Whether one operation had certainly happened when the other began."""
    first, second = evidence.operations[one], evidence.operations[other]
    return first.outcome is Outcome.OK and first.ended_ns < second.began_ns


def _begins_after(evidence: Evidence, one: int, other: int) -> bool:
    return evidence.operations[one].began_ns > evidence.operations[other].ended_ns
