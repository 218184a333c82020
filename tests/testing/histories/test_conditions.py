"""Conditional appends: histories that no order of the claims explains, and those that one does."""

from __future__ import annotations

import pytest

from millstream.testing.histories import Anomaly, Kind, Operation, Outcome, Read, Send, check

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO
PLACE = "claims-0"


def claim(
    value: int,
    version: int,
    began: int,
    ended: int,
    outcome: Outcome = OK,
    offset: int | None = None,
    key: str = "k",
) -> Operation:
    return Operation(
        process=f"p{value}",
        kind=Kind.CLAIM,
        outcome=outcome,
        began_ns=began,
        ended_ns=ended,
        sends=[Send(PLACE, value, offset)],
        key=key,
        version=version,
    )


def transaction(
    value: int,
    version: int,
    began: int,
    ended: int,
    outcome: Outcome = OK,
    offset: int | None = None,
    process: str = "t.1",
) -> Operation:
    """A claim in a transaction."""
    return Operation(
        process=process,
        kind=Kind.TXN,
        outcome=outcome,
        began_ns=began,
        ended_ns=ended,
        commit_ns=None if outcome is FAIL else 0,  # before the log is read, which is at 0
        sends=[Send(PLACE, value, offset)],
        key="k",
        version=version,
    )


def log(*values: int) -> Operation:
    reads = [Read(PLACE, offset, value) for offset, value in enumerate(values)]
    return Operation(process="final", kind=Kind.POLL, reads=reads, moved=(PLACE,), final=True)


BROKEN = {
    "a version is appended twice": (
        Anomaly.VERSION_TWICE,
        [claim(1, 1, 0, 5, OK, 0), claim(2, 1, 0, 5, OK, 1), log(1, 2)],
    ),
    "a version is left out": (
        Anomaly.VERSION_ORDER,
        [claim(1, 1, 0, 5, OK, 0), claim(2, 3, 6, 8, OK, 1), log(1, 2)],
    ),
    "the first version is not 1": (Anomaly.VERSION_ORDER, [claim(1, 2, 0, 5, OK, 0), log(1)]),
    "a version is acknowledged before the one before it is sent": (
        Anomaly.VERSION_ORDER,
        [claim(2, 2, 0, 1, OK, 1), claim(1, 1, 2, 3, OK, 0), log(1, 2)],
    ),
    "the first version is refused and never appended": (
        Anomaly.UNFOUNDED_REFUSAL,
        [claim(1, 1, 0, 1, FAIL), log()],
    ),
    "the next version is refused": (
        Anomaly.UNFOUNDED_REFUSAL,
        [claim(1, 1, 0, 1, OK, 0), claim(2, 2, 2, 3, FAIL), claim(3, 2, 4, 5, OK, 1), log(1, 3)],
    ),
    "a refused claim is in the log": (
        Anomaly.ABORTED_READ,
        [claim(1, 1, 0, 1, FAIL), log(1)],
    ),
    "an acknowledged claim is lost": (Anomaly.UNSEEN, [claim(1, 1, 0, 1, OK, 0), log()]),
    "a version is appended in and outside of a transaction": (
        Anomaly.VERSION_TWICE,
        [transaction(1, 1, 0, 5, OK, 0), claim(2, 1, 0, 5, OK, 1), log(1, 2)],
    ),
    "a version is left out by a transaction": (
        Anomaly.VERSION_ORDER,
        [claim(1, 1, 0, 1, OK, 0), transaction(2, 3, 2, 5, OK, 1), log(1, 2)],
    ),
    "the next version is refused before a transaction begins": (
        Anomaly.UNFOUNDED_REFUSAL,
        [claim(1, 1, 0, 1, FAIL), transaction(2, 1, 2, 5, OK, 0), log(2)],
    ),
    "the next version is refused long after a transaction": (
        Anomaly.UNFOUNDED_REFUSAL,
        [
            transaction(1, 1, 0, 5, FAIL),
            transaction(2, 1, 6, 8, OK, 0, process="t.2"),
            transaction(3, 2, 9, 12, FAIL, process="t.2"),
            Operation(process="t.3", kind=Kind.SEND, began_ns=13, ended_ns=14),
            claim(4, 2, 20, 21, FAIL),
            log(2),
        ],
    ),
}

SOUND = {
    "one of two wins": [claim(1, 1, 0, 5, OK, 0), claim(2, 1, 0, 5, FAIL), log(1)],
    "versions of two keys": [
        claim(1, 1, 0, 1, OK, 0),
        claim(2, 1, 0, 1, OK, 1, key="other"),
        claim(3, 2, 2, 3, OK, 2),
        log(1, 2, 3),
    ],
    "a version that is too high is refused": [claim(1, 5, 0, 1, FAIL), log()],
    "a claim without an answer wins later": [
        claim(2, 1, 2, 9, FAIL),
        claim(1, 1, 0, 20, INFO),
        log(1),
    ],
    "a claim without an answer may have come after the refused one": [
        claim(1, 1, 0, 3, INFO),
        claim(2, 2, 4, 5, FAIL),
        log(1),
    ],
    "a claim without an answer never wins": [
        claim(1, 1, 0, 9, INFO),
        claim(2, 1, 10, 12, OK, 0),
        log(2),
    ],
    "overlapping versions": [claim(2, 2, 1, 4, OK, 1), claim(1, 1, 0, 5, OK, 0), log(1, 2)],
    "a transaction holds the key, and is aborted": [
        transaction(1, 1, 0, 5, FAIL),
        claim(2, 1, 3, 4, FAIL),
        log(),
    ],
    "a transaction without an answer holds the key for long": [
        transaction(1, 1, 0, 5, INFO),
        claim(2, 1, 30, 31, FAIL),
        log(),
    ],
    "versions in and outside of transactions": [
        claim(1, 1, 0, 1, OK, 0),
        transaction(2, 2, 2, 5, OK, 1),
        claim(3, 3, 6, 7, OK, 2),
        log(1, 2, 3),
    ],
    "nobody has read the log": [claim(1, 1, 0, 1, FAIL)],
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_condition_is_named(what: str) -> None:
    anomaly, history = BROKEN[what]
    report = check(history)
    assert set(report.counts) == {anomaly}, str(report)


@pytest.mark.parametrize("what", SOUND)
def test_claims_that_an_order_explains_pass(what: str) -> None:
    report = check(SOUND[what])
    assert report.is_good, str(report)
