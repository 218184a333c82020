"""Which batches are written, skipped and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.errors import StoreError, WriterFenced
from millstream.pipelines.stores.fencing import is_due
from millstream.pipelines.stores.spec import FORGOTTEN, BatchMark, Progress

STORED = Progress("q", 3, 7, '{"t": {"0": 5}}', None, "checkpoint-a")


def mark(batch_id: int, offsets: str | None = None, checkpoint: str | None = None) -> BatchMark:
    return BatchMark("q", batch_id, offsets, None, checkpoint)


@pytest.mark.parametrize("batch_id", [0, 8, 100])
def test_first_batch_of_a_query_is_written_whatever_its_number(batch_id: int) -> None:
    assert is_due(Progress("q", 3), 3, mark(batch_id, "{}", "any"))


@pytest.mark.parametrize("batch_id", [8, 20])
def test_later_batch_is_written(batch_id: int) -> None:
    assert is_due(STORED, 3, mark(batch_id, '{"t": {"0": 9}}', "checkpoint-a"))


@pytest.mark.parametrize(
    "begins",
    [
        None,
        "{}",
        "not JSON",
        '{"t": {"0": 5}}',
        '{"t": {"0": 5, "1": 70}}',  # a partition that came since
        '{"t": {"0": 5}, "u": {"0": 70}}',  # a source
        '{"t": {"0": 4}}',  # the topic was recreated, and data may be lost
    ],
)
@pytest.mark.parametrize("batch_id", [8, 20])
def test_later_batch_is_written_where_no_records_lie_between(
    batch_id: int, begins: str | None
) -> None:
    assert is_due(STORED, 3, BatchMark("q", batch_id, '{"t": {"0": 9}}', begins=begins))
    assert is_due(Progress("q", 3, 7), 3, BatchMark("q", batch_id, begins=begins))


@pytest.mark.parametrize("kept", ["5", '{"t": 5}', "[]", "not JSON"])
def test_offsets_that_a_user_keeps_in_another_form_prove_no_gap(kept: str) -> None:
    begins = '{"t": {"0": 70}}'
    assert is_due(Progress("q", 3, 7, kept), 3, BatchMark("q", 8, "9", begins=begins))
    assert is_due(STORED, 3, BatchMark("q", 8, "9", begins=kept))


def test_batch_that_begins_past_the_tables_is_refused_with_a_cure() -> None:
    batch = BatchMark("q", 9, '{"t": {"0": 9}}', begins='{"u": {"0": 1}, "t": {"0": 6}}')
    with pytest.raises(StoreError, match=r"'q'.*offset 5 of t-0.*begins at 6.*forget\(\)"):
        is_due(STORED, 3, batch)
    assert is_due(Progress("q", 3, FORGOTTEN), 3, batch)


def test_store_without_the_query_refuses_a_batch_that_is_not_its_first() -> None:
    batch = BatchMark("q", 9, '{"t": {"0": 9}}', begins='{"t": {"0": 6}}')
    with pytest.raises(StoreError, match=r"nothing of query 'q'.*offset 6 of t-0.*forget\(\)"):
        is_due(Progress("q", 3), 3, batch)
    assert is_due(Progress("q", 3, FORGOTTEN), 3, batch)
    assert is_due(Progress("q", 3), 3, BatchMark("q", 0, '{"t": {"0": 9}}', begins="{}"))


def test_store_without_the_query_takes_a_batch_that_has_nothing_before_it() -> None:
    batch = BatchMark("q", 9, '{"t": {"0": 9}}', begins='{"t": {"0": 0, "1": 0}, "u": {"0": 0}}')
    assert is_due(Progress("q", 3), 3, batch)
    partly = replace(batch, begins='{"t": {"0": 0, "1": 2}}')
    with pytest.raises(StoreError, match="offset 2 of t-1"):
        is_due(Progress("q", 3), 3, partly)


def test_gap_is_reported_before_other_tables_whose_cure_would_hide_it() -> None:
    stored = replace(STORED, tables='{"users": "1"}')
    batch = BatchMark("q", 9, '{"t": {"0": 9}}', begins='{"t": {"0": 6}}', tables={"users": "2"})
    with pytest.raises(StoreError, match=r"offset 5 of t-0.*begins at 6"):
        is_due(stored, 3, batch)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"users": "2"}, "'users' was dropped and created again"),
        ({"users": "1", "orders": "3"}, "'orders' was added"),
    ],
)
@pytest.mark.parametrize("batch_id", [7, 8])
def test_other_tables_than_before_are_refused(
    batch_id: int, tables: dict[str, str], told: str
) -> None:
    stored = replace(STORED, tables='{"users": "1"}')
    with pytest.raises(StoreError, match=rf"{told}.*batch 7.*forget\(\)"):
        is_due(stored, 3, BatchMark("q", batch_id, STORED.offsets, tables=tables))
    same = BatchMark("q", 8, '{"t": {"0": 9}}', tables={"users": "1"})
    assert is_due(stored, 3, same)
    assert is_due(STORED, 3, same)
    assert is_due(Progress("q", 3, FORGOTTEN), 3, replace(same, tables=tables))


@pytest.mark.parametrize("offsets", [None, '{"t":{"0":5}}'])
@pytest.mark.parametrize("checkpoint", [None, "checkpoint-a"])
def test_same_batch_is_skipped(offsets: str | None, checkpoint: str | None) -> None:
    assert not is_due(STORED, 3, mark(7, offsets, checkpoint))


@pytest.mark.parametrize("epoch", [2, 4])
def test_run_of_another_epoch_is_fenced(epoch: int) -> None:
    with pytest.raises(WriterFenced, match="newer run"):
        is_due(STORED, epoch, mark(8))


@pytest.mark.parametrize(
    ("batch", "complaint"),
    [
        (mark(6), "behind the tables"),
        (mark(7, '{"t": {"0": 6}}'), "another batch of that number"),
        (mark(7, "not JSON"), "another batch of that number"),
        (mark(8, checkpoint="checkpoint-b"), "another checkpoint"),
    ],
)
def test_batch_of_another_history_is_refused_with_a_cure(batch: BatchMark, complaint: str) -> None:
    with pytest.raises(StoreError, match=rf"'q'.*{complaint}.*forget\(\)"):
        is_due(STORED, 3, batch)
