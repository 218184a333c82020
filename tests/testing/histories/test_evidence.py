"""Evidence: what a history proves, and what it leaves open."""

from __future__ import annotations

import pytest

from millstream.testing.histories import Kind, Operation, Outcome, Read, Send
from millstream.testing.histories.evidence import Evidence

SEEN = Operation(process="c", kind=Kind.POLL, reads=[Read("a-0", 0, 1)])
FINAL = Operation(process="f", kind=Kind.POLL, moved=["a-0", "b-0"], final=True)


def unanswered(*sends: Send) -> Operation:
    return Operation(process="p", kind=Kind.TXN, outcome=Outcome.INFO, sends=sends)


@pytest.mark.parametrize(
    ("others", "committed"),
    [([], None), ([SEEN], True), ([FINAL], False)],
    ids=["nobody looked", "somebody saw it", "nobody saw it at the end"],
)
def test_unanswered_transaction_is_judged_by_what_was_seen(
    others: list[Operation], committed: bool | None
) -> None:
    evidence = Evidence([unanswered(Send("a-0", 1), Send("b-0", 2)), *others])
    assert evidence.was_committed(0) is committed
    assert evidence.must_be_visible(2) is (committed is True)


def test_unanswered_transaction_without_records_stays_open() -> None:
    assert Evidence([unanswered(), FINAL]).was_committed(0) is None


def test_visible_are_offsets_that_were_read_and_not_aborted() -> None:
    sends = [Send("a-0", value, value) for value in range(6)]
    evidence = Evidence(
        [
            Operation(process="p", kind=Kind.SEND, sends=sends[:4]),
            Operation(process="q", kind=Kind.TXN, outcome=Outcome.FAIL, sends=sends[4:]),
            Operation(
                process="c", kind=Kind.POLL, reads=[Read("a-0", n, n) for n in (0, 1, 3, 4, 5)]
            ),
        ]
    )
    assert evidence.visible == {"a-0": [0, 1, 3]}
    assert evidence.visible_between("a-0", 0, 3) == [1]
    assert evidence.visible_between("a-0", -1, 99) == [0, 1, 3]


def test_offset_is_where_it_was_read_before_where_it_was_acknowledged() -> None:
    send = Operation(process="p", kind=Kind.SEND, sends=[Send("a-0", 1, 7), Send("a-0", 2, 8)])
    evidence = Evidence([send, SEEN])
    assert [evidence.offset_of(1), evidence.offset_of(2)] == [0, 8]
