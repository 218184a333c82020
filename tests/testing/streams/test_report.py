"""What a failure says: enough to see what happened, and to have it happen again."""

from __future__ import annotations

from millstream.pipelines.spec import ONLY
from millstream.testing.streams.case import Batch, Case
from millstream.testing.streams.comparing import Difference
from millstream.testing.streams.report import (
    Failure,
    Shrunk,
    StreamDiffers,
    note_case,
    note_seed,
)
from millstream.testing.streams.sink import ChangedBatch
from tests.testing.streams.orders import arrivals, order

CASE = Case((Batch(arrivals(order(1, 1)), "restart"), Batch(arrivals(order(2, 2)))))
DIFFERENCE = Difference(("shop", "n"), [("a", 2)], [("a", 1)])


def test_failure_tells_case_difference_and_seed() -> None:
    failure = Failure(CASE, {ONLY: DIFFERENCE})
    code = "trial = StreamTrial(counts, spark=spark)"
    error = StreamDiffers("counts", Shrunk(failure, 9), 4711, 3, code)
    assert str(error).splitlines() == [
        "counts as a stream is not counts as a batch.",
        "",
        "The smallest case found (2 rows, 2 batches, 1 fault; 9 tries to make it smaller):",
        "",
        "    trial = StreamTrial(counts, spark=spark)",
        "    trial.batch(orders=[{'id': 1, 'shop': 'a', 'at': '2026-01-01 00:00:01.000'}])",
        "    trial.restart()",
        "    trial.batch(orders=[{'id': 2, 'shop': 'a', 'at': '2026-01-01 00:00:02.000'}])",
        "    trial.check()",
        "",
        "                        shop  n",
        "    only in the stream  a     2",
        "    only in the batch   a     1",
        "",
        "The same again: check_stream(..., seed=4711), or MILLSTREAM_SEED=4711 in the "
        "environment (3 examples).",
    ]


def test_batch_that_changed_is_told_with_both_contents() -> None:
    changed = [ChangedBatch(3, "late", DIFFERENCE)]
    text = "\n".join(Failure(CASE, {}, changed).lines())
    assert "batch 3 had other rows of late when it was repeated after a crash" in text
    assert "only the second time  a     2" in text


def test_error_says_in_which_case_it_came_and_how_to_have_it_again() -> None:
    error = ZeroDivisionError()
    note_case(error, CASE)
    note_seed(error, "check_stream", 7, 1)
    assert error.__notes__[0].splitlines()[:2] == [
        "it failed in this case:",
        "    trial.batch(orders=[{'id': 1, 'shop': 'a', 'at': '2026-01-01 00:00:01.000'}])",
    ]
    assert error.__notes__[1].startswith("The same again: check_stream(..., seed=7)")


def test_story_told_by_hand_has_no_seed() -> None:
    error = StreamDiffers("counts", Shrunk(Failure(CASE, {"late": DIFFERENCE}), 0), None, 1)
    assert "again" not in str(error)
    assert "    late:" in str(error)
