"""Share groups: histories in which a record is settled twice, never, or retried too early."""

from __future__ import annotations

import pytest

from millstream.testing.histories import (
    Ack,
    Acknowledgement,
    Anomaly,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
    check,
)
from millstream.testing.histories.shares import settled_offsets

OK, INFO = Outcome.OK, Outcome.INFO
ACCEPT, RELEASE, REJECT = Acknowledgement
MS = 1_000_000

SENT = Operation(process="p", kind=Kind.SEND, sends=[Send("a-0", 7, 0)])
LOG = Operation(process="f", kind=Kind.POLL, reads=[Read("a-0", 0, 7)], moved=("a-0",), final=True)
GIVEN_TIME = Operation(process="f", kind=Kind.SHARE, group="g", moved=("a-0",), final=True)


def ack(
    kind: Acknowledgement,
    delivery_count: int,
    outcome: Outcome = OK,
    at_ms: int = 0,
    delay_ms: int = 0,
) -> Operation:
    return Operation(
        process=f"member at {at_ms}",
        kind=Kind.SHARE,
        outcome=outcome,
        commit_ns=at_ms * MS,
        reads=[Read("a-0", 0, 7)],
        acks=[Ack("a-0", 0, delivery_count, kind)],
        group="g",
        delay_ms=delay_ms,
    )


BROKEN = {
    "accepted by two members": (Anomaly.ACKNOWLEDGED_TWICE, [ack(ACCEPT, 1), ack(ACCEPT, 1)]),
    "delivered again after it was accepted": (
        Anomaly.ACKNOWLEDGED_TWICE,
        [ack(ACCEPT, 1), ack(RELEASE, 2), ack(ACCEPT, 3, INFO)],
    ),
    "delivered again after it was rejected": (
        Anomaly.ACKNOWLEDGED_TWICE,
        [ack(REJECT, 1), ack(ACCEPT, 2)],
    ),
    "a release was forgotten": (Anomaly.ACKNOWLEDGED_TWICE, [ack(RELEASE, 1), ack(ACCEPT, 1)]),
    "never delivered": (Anomaly.NOT_SHARED, []),
    "released and never delivered again": (Anomaly.NOT_SHARED, [ack(RELEASE, 1)]),
    "retried at once instead of later": (
        Anomaly.EARLY_RETRY,
        [ack(RELEASE, 1, at_ms=1000, delay_ms=300), ack(ACCEPT, 2, at_ms=1200, delay_ms=300)],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_share_is_found(name: str) -> None:
    anomaly, operations = BROKEN[name]
    report = check([SENT, *operations, LOG, GIVEN_TIME])
    assert report.counts == {anomaly: 1}, str(report)


GOOD = {
    "accepted": [ack(ACCEPT, 1)],
    "released, then rejected": [ack(RELEASE, 1), ack(REJECT, 2)],
    "a delivery was lost in between": [ack(RELEASE, 1), ack(ACCEPT, 3)],
    "no answer, so it may or may not be settled": [ack(ACCEPT, 1, INFO), ack(ACCEPT, 2)],
    "no answer, and it never came again": [ack(ACCEPT, 1, INFO)],
    "given up after too many deliveries": [ack(RELEASE, count) for count in range(1, 6)],
    "retried after the delay": [
        ack(RELEASE, 1, at_ms=1000, delay_ms=300),
        ack(ACCEPT, 2, at_ms=1300, delay_ms=300),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_share_is_none(name: str) -> None:
    report = check([SENT, *GOOD[name], LOG, GIVEN_TIME])
    assert report.is_good, str(report)


def test_group_without_the_time_to_settle_misses_nothing() -> None:
    assert check([SENT, LOG]).is_good


def test_groups_are_told_apart() -> None:
    other = Operation(process="x", kind=Kind.SHARE, acks=[Ack("a-0", 0, 1, ACCEPT)], group="other")
    assert check([SENT, ack(ACCEPT, 1), other, LOG, GIVEN_TIME]).is_good
    missed = check([SENT, other, LOG, GIVEN_TIME])
    assert missed.counts == {Anomaly.NOT_SHARED: 1}


def test_summary_counts_what_was_answered() -> None:
    acks = [ack(RELEASE, 1), ack(RELEASE, 2, INFO), ack(REJECT, 3)]
    summary = check([SENT, *acks, LOG]).summary
    assert (summary.settled, summary.released, summary.groups) == (1, 1, 0)


def test_settled_are_the_accepted_and_rejected_of_a_partition() -> None:
    acks = [
        Ack("a-0", 0, 1, ACCEPT),
        Ack("a-0", 1, 1, RELEASE),
        Ack("a-0", 2, 1, REJECT),
        Ack("a-1", 3, 1, ACCEPT),
    ]
    operation = Operation(process="x", kind=Kind.SHARE, outcome=INFO, acks=acks, group="g")
    assert settled_offsets([operation], "a-0") == {0, 2}
