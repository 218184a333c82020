"""How a decision is written down; what becomes of it is test_completing.py's."""

from __future__ import annotations

import pytest

from millstream.client.producing import WrittenRange
from millstream.client.transactions import Transaction
from millstream.errors import MillstreamError
from millstream.pipelines.writing.decisions import (
    NO_BATCH,
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


OLD, NEW = "checkpoint of before", "new checkpoint"


@pytest.mark.parametrize(
    ("in_topic", "stored", "is_last"),
    [
        # Of one producer id the epoch counts, also if the numbers begin again.
        (Decision(57, (), None, OLD, DriverEpoch(1, 3)), (0, NEW, DriverEpoch(1, 4)), False),
        (Decision(0, (), None, NEW, DriverEpoch(1, 4)), (57, OLD, DriverEpoch(1, 3)), True),
        (Decision(57, (), None, OLD, DriverEpoch(1, 3)), (57, OLD, DriverEpoch(1, 3)), True),
        # The producer id changed: epochs begin again, and numbers count within a checkpoint.
        (Decision(57, (), None, OLD, DriverEpoch(1, 9)), (58, OLD, DriverEpoch(2, 0)), False),
        (Decision(58, (), None, OLD, DriverEpoch(2, 0)), (57, OLD, DriverEpoch(1, 9)), True),
        (Decision(57, (), None, OLD, DriverEpoch(1, 9)), (57, OLD, DriverEpoch(1, 9)), True),
        # It changed after a reset, which has no checkpoint.
        (Decision(NO_BATCH, driver=DriverEpoch(1, 9)), (0, NEW, DriverEpoch(2, 0)), False),
        # The store was no output when the query started over.
        (Decision(3, (), None, NEW, DriverEpoch(2, 0)), (57, OLD, DriverEpoch(1, 9)), True),
        # Nothing is decided yet, or its driver was not noted.
        (Decision(NO_BATCH), (0, NEW, DriverEpoch(1, 0)), False),
        (Decision(4), (5, OLD, DriverEpoch(1, 0)), False),
        (Decision(5), (5, OLD, DriverEpoch(1, 0)), True),
    ],
)
def test_decision_in_the_topic_replaces_an_older_one_of_a_store(
    in_topic: Decision, stored: tuple[int, str, DriverEpoch], is_last: bool
) -> None:
    batch_id, query_id, driver = stored
    assert in_topic.replaces(Decision(batch_id, (), None, query_id, driver)) is is_last
