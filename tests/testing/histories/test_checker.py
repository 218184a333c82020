"""The checker: a history for each anomaly that shows that one and no other."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millstream.testing.histories import (
    Anomaly,
    HistoryError,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
    check,
)
from tests.drawing import draws
from tests.testing.histories.simulation import FAULTS, Fault, simulate


def send(process: str, *sends: Send, outcome: Outcome = Outcome.OK) -> Operation:
    return Operation(process=process, kind=Kind.SEND, outcome=outcome, sends=sends)


def txn(
    process: str, *parts: Send | Read, outcome: Outcome = Outcome.OK, group: str | None = None
) -> Operation:
    return Operation(
        process=process,
        kind=Kind.TXN,
        outcome=outcome,
        sends=tuple(part for part in parts if isinstance(part, Send)),
        reads=tuple(part for part in parts if isinstance(part, Read)),
        group=group,
    )


def poll(
    process: str, *reads: Read, moved: tuple[str, ...] = (), group: str | None = None
) -> Operation:
    return Operation(process=process, kind=Kind.POLL, reads=reads, moved=moved, group=group)


def final(*reads: Read, partitions: tuple[str, ...] = ("a-0", "b-0")) -> Operation:
    return Operation(process="final", kind=Kind.POLL, reads=reads, moved=partitions, final=True)


A = [Send("a-0", 1, 0), Send("a-0", 2, 1), Send("a-0", 3, 2)]
A_READ = [Read("a-0", 0, 1), Read("a-0", 1, 2), Read("a-0", 2, 3)]

HISTORIES = {
    "an aborted transaction is read": (
        Anomaly.ABORTED_READ,
        [txn("p", A[0], outcome=Outcome.FAIL), poll("c", A_READ[0])],
    ),
    "a refused record is read": (
        Anomaly.ABORTED_READ,
        [send("p", Send("a-0", 1), outcome=Outcome.FAIL), poll("c", A_READ[0])],
    ),
    "a record is read before its transaction asks to be committed": (
        Anomaly.PRECOMMITTED_READ,
        [
            Operation(process="c", kind=Kind.POLL, reads=[A_READ[0]], ended_ns=5),
            Operation(process="p", kind=Kind.TXN, sends=[A[0]], commit_ns=6, ended_ns=7),
        ],
    ),
    "a transaction reads itself": (Anomaly.PRECOMMITTED_READ, [txn("p", A[0], A_READ[0])]),
    "half of a transaction is never read": (
        Anomaly.TORN_TRANSACTION,
        [
            txn("p", A[0], Send("b-0", 9, 0)),
            send("q", A[1]),
            poll("c", Read("b-0", 0, 9), A_READ[1]),
        ],
    ),
    "half of an unanswered transaction is not there at the end": (
        Anomaly.TORN_TRANSACTION,
        [
            txn("p", Send("a-0", 1), Send("b-0", 9), outcome=Outcome.INFO),
            final(Read("b-0", 0, 9)),
        ],
    ),
    "a consumer misses a part of a transaction that others see": (
        Anomaly.TORN_TRANSACTION,
        [
            send("q", Send("a-0", 1, 0), Send("a-0", 3, 2)),
            txn("p", Send("a-0", 2, 1), Send("b-0", 9, 0)),
            poll("c", A_READ[0], Read("b-0", 0, 9), A_READ[2]),
            poll("d", *A_READ),
        ],
    ),
    "an acknowledged record is never read though a later one is": (
        Anomaly.LOST,
        [send("p", *A), poll("c", A_READ[0]), poll("d", A_READ[2])],
    ),
    "a whole transaction is never read": (
        Anomaly.LOST,
        [txn("p", A[0]), txn("p", A[1]), poll("c", A_READ[1])],
    ),
    "an acknowledged record is not there at the end": (
        Anomaly.UNSEEN,
        [send("p", *A), final(*A_READ[:2])],
    ),
    "a record without an offset is not there at the end": (
        Anomaly.UNSEEN,
        [send("p", A[0], Send("a-0", 2)), final(A_READ[0])],
    ),
    "a record was read and is not there at the end": (
        Anomaly.UNSEEN,
        [send("p", *A), poll("c", *A_READ), final(*A_READ[:2])],
    ),
    "a value is at two offsets": (
        Anomaly.DUPLICATED,
        [send("p", A[0]), poll("c", A_READ[0], Read("a-0", 1, 1))],
    ),
    "an offset holds two values": (
        Anomaly.INCONSISTENT_OFFSET,
        [
            send("p", Send("a-0", 1), Send("b-0", 4), outcome=Outcome.INFO),
            send("q", Send("a-0", 2), outcome=Outcome.INFO),
            poll("c", Read("a-0", 0, 1)),
            poll("d", Read("a-0", 0, 2)),
        ],
    ),
    "a value is not where the acknowledgement said": (
        Anomaly.INCONSISTENT_OFFSET,
        [send("p", Send("a-0", 1, 5)), poll("c", A_READ[0])],
    ),
    "two values are acknowledged at one offset": (
        Anomaly.INCONSISTENT_OFFSET,
        [send("p", Send("a-0", 1, 5)), send("q", Send("a-0", 2, 5))],
    ),
    "nobody sent the value": (Anomaly.UNKNOWN_VALUE, [poll("c", A_READ[0])]),
    "the value was sent elsewhere": (
        Anomaly.UNKNOWN_VALUE,
        [send("p", Send("b-0", 1), outcome=Outcome.INFO), poll("c", A_READ[0])],
    ),
    "the value was sent to a deleted topic of that name": (
        Anomaly.DELETED_TOPIC,
        [
            send("p", Send("a-0#1", 1, 0), Send("a-0#2", 2, 1)),
            poll("c", Read("a-0#2", 0, 1), Read("a-0#2", 1, 2)),
        ],
    ),
    "a value is read from a topic and, at the same offset, from the next of that name": (
        Anomaly.DELETED_TOPIC,
        [
            send("p", Send("a-0#1", 1, 0)),
            final(Read("a-0#1", 0, 1), partitions=("a-0#1",)),
            final(Read("a-0#2", 0, 1), partitions=("a-0#2",)),
        ],
    ),
    "a record of a recreated topic is not there before it is deleted again": (
        Anomaly.UNSEEN,
        [
            send("p", Send("a-0#1", 1, 0)),
            final(Read("a-0#1", 0, 1), partitions=("a-0#1",)),
            send("p", Send("a-0#2", 2, 0)),
            final(partitions=("a-0#2",)),
            send("p", Send("a-0#3", 3, 0)),
            final(Read("a-0#3", 0, 3), partitions=("a-0#3",)),
        ],
    ),
    "a consumer skips within a poll": (
        Anomaly.SKIPPED_POLL,
        [send("p", *A), poll("c", A_READ[0], A_READ[2]), poll("d", *A_READ)],
    ),
    "a consumer skips between polls": (
        Anomaly.SKIPPED_POLL,
        [send("p", *A), poll("d", *A_READ), poll("c", A_READ[0]), poll("c", A_READ[2])],
    ),
    "a consumer goes back": (
        Anomaly.NON_MONOTONIC_POLL,
        [send("p", *A), poll("c", A_READ[0], A_READ[1]), poll("c", A_READ[1])],
    ),
    "a producer's records change places": (
        Anomaly.NON_MONOTONIC_SEND,
        [send("p", Send("a-0", 1, 1)), send("p", Send("a-0", 2, 0))],
    ),
    "a group processes a record twice": (
        Anomaly.PROCESSED_TWICE,
        [
            send("p", A[0]),
            txn("w1", A_READ[0], Send("b-0", 8, 0), group="g"),
            txn("w2", A_READ[0], Send("b-0", 9, 1), group="g"),
        ],
    ),
    "a group processes a record twice, once without an answer": (
        Anomaly.PROCESSED_TWICE,
        [
            send("p", A[0]),
            txn("w1", A_READ[0], Send("b-0", 8), outcome=Outcome.INFO, group="g"),
            txn("w2", A_READ[0], Send("b-0", 9), group="g"),
            final(A_READ[0], Read("b-0", 0, 8), Read("b-0", 1, 9)),
        ],
    ),
    "a group passes a record over": (
        Anomaly.NOT_PROCESSED,
        [
            send("p", *A),
            poll("d", *A_READ),
            poll("c1", A_READ[0], group="g"),
            poll("c2", A_READ[2], group="g"),
        ],
    ),
    "a group commits the offset of an aborted transaction": (
        Anomaly.NOT_PROCESSED,
        [
            send("p", *A),
            txn("w1", A_READ[0], group="g"),
            txn("w1", A_READ[1], outcome=Outcome.FAIL, group="g"),
            txn("w2", A_READ[2], group="g"),
        ],
    ),
}


@pytest.mark.parametrize("what", HISTORIES)
def test_check_names_the_anomaly(what: str) -> None:
    anomaly, history = HISTORIES[what]
    report = check(history)
    assert report.counts == {anomaly: 1}, str(report)


INNOCENT = {
    "nothing at all": [],
    "a recreated topic begins again at offset 0": [
        send("p", Send("a-0#1", 1, 0)),
        final(Read("a-0#1", 0, 1), partitions=("a-0#1",)),
        send("p", Send("a-0#2", 2, 0)),
        final(Read("a-0#2", 0, 2), partitions=("a-0#2",)),
    ],
    "a rebalance moves the position": [
        send("p", *A),
        poll("c", *A_READ),
        poll("c", moved=("a-0",)),
        poll("c", A_READ[0]),
    ],
    "a rebalance comes in the middle of a poll": [
        send("p", *A),
        poll("c", *A_READ),
        poll("c", A_READ[2], A_READ[0], moved=("a-0",)),
        poll("c", A_READ[0]),
    ],
    "markers and aborted records leave gaps": [
        send("p", Send("a-0", 1, 0), Send("a-0", 2, 7)),
        txn("q", Send("a-0", 3, 4), outcome=Outcome.FAIL),
        poll("c", Read("a-0", 0, 1), Read("a-0", 7, 2)),
    ],
    "an unanswered send is never read": [
        send("p", Send("a-0", 1), outcome=Outcome.INFO),
        send("q", Send("a-0", 2, 1)),
        final(Read("a-0", 1, 2)),
    ],
    "what comes after the last read is not missed before the end": [
        send("p", *A),
        poll("c", *A_READ[:2]),
    ],
    "an unanswered transaction processed nothing, as its output shows": [
        send("p", A[0]),
        txn("w1", A_READ[0], Send("b-0", 8), outcome=Outcome.INFO, group="g"),
        txn("w2", A_READ[0], Send("b-0", 9), group="g"),
        final(A_READ[0], Read("b-0", 1, 9)),
    ],
    "an unanswered transaction without output may have processed": [
        send("p", *A),
        txn("w1", A_READ[0], group="g"),
        txn("w1", A_READ[1], outcome=Outcome.INFO, group="g"),
        txn("w2", A_READ[2], group="g"),
    ],
    "groups outside of transactions get records at least once": [
        send("p", *A),
        poll("c1", *A_READ, group="g"),
        poll("c2", *A_READ, group="g"),
    ],
}


@pytest.mark.parametrize("what", INNOCENT)
def test_check_lets_pass(what: str) -> None:
    report = check(INNOCENT[what])
    assert report.is_good, str(report)


def test_check_refuses_a_value_that_is_sent_twice() -> None:
    with pytest.raises(HistoryError, match="value 1 is sent by operations 0 and 1"):
        check([send("p", A[0]), send("q", A[0])])


def test_summary_counts_what_was_checked() -> None:
    history = [
        send("p", Send("a-0", 1, 0), Send("a-0", 2), outcome=Outcome.INFO),
        txn("q", Send("a-0", 3, 2)),
        txn("q", Send("a-0", 4, 4), outcome=Outcome.FAIL),
        txn("q", Send("a-0", 5), outcome=Outcome.INFO),
        poll("c", A_READ[0], group="g"),
    ]
    summary = check(history).summary
    assert summary._asdict() == {
        "operations": 5,
        "processes": 3,
        "sent": 5,
        "acknowledged": 2,
        "committed": 1,
        "aborted": 1,
        "undecided": 1,
        "read": 1,
        "groups": 1,
        "settled": 0,
        "released": 0,
    }


@given(seed=st.integers(0, 2**32), length=st.integers(1, 300))
@settings(max_examples=draws(150), deadline=None)
def test_perfect_log_shows_no_anomaly(seed: int, length: int) -> None:
    report = check(simulate(seed, length))
    assert report.is_good, str(report)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=draws(25), deadline=None)
def test_injected_fault_is_found(fault: Fault, seed: int) -> None:
    history = simulate(seed, 400, fault)
    assume(history.fault_struck)
    assert fault.anomaly in check(history).counts
