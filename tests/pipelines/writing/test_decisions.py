"""How a decision is written down; what becomes of it is test_completing.py's."""

from __future__ import annotations

import pytest

from millstream.client.producing import WrittenRange
from millstream.client.transactions import Transaction
from millstream.errors import MillstreamError
from millstream.pipelines.writing.decisions import (
    Decision,
    DriverEpoch,
    QueryState,
    TaskTransaction,
    decode_decision,
    encode_decision,
)

TASKS = (
    TaskTransaction(
        Transaction("query-0", 7, 3),
        (WrittenRange("out", 0, 5, 9, 4), WrittenRange("other", 2, 0, 1, 1)),
    ),
    TaskTransaction(Transaction("query-1", 8, 0), ()),
)


@pytest.mark.parametrize("ends", [None, {("in", 0): 17, ("in", 1): 0}])
def test_decision_is_read_as_it_was_written(ends: dict[tuple[str, int], int] | None) -> None:
    for decision in (
        Decision(12, TASKS, ends),
        Decision(12, TASKS, ends, "query", DriverEpoch(4, 2)),
    ):
        assert decode_decision(encode_decision(decision)) == decision


def test_decision_of_before_is_read() -> None:
    value = b'{"version":1,"batch":3,"ends":null,"tasks":[]}'
    assert decode_decision(value) == Decision(3)


def test_decision_of_a_newer_version_is_refused() -> None:
    newer = encode_decision(Decision(1)).replace(b'"version":1', b'"version":99')
    with pytest.raises(MillstreamError, match="version 99, written by a newer Millstream"):
        decode_decision(newer)


def test_query_is_completed_when_its_last_decision_is() -> None:
    assert QueryState().is_completed
    assert not QueryState(Decision(3), completed_batch_id=2).is_completed
    assert QueryState(Decision(3), completed_batch_id=3).is_completed


def test_query_is_not_completed_by_batches_of_another_checkpoint() -> None:
    decision = Decision(0, driver=DriverEpoch(7, 4))
    assert not QueryState(decision, completed_batch_id=50).is_completed
    assert not QueryState(decision, {7: 3, 8: 9}).is_completed
    assert QueryState(decision, {7: 4}).is_completed
    assert QueryState(decision, {7: 5}).is_completed
