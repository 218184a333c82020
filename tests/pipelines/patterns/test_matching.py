"""The operator as a stream, cut in many ways, against backtracking; and broken on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.patterns import matching
from millstream.pipelines.patterns.matching import PatternMatch
from millstream.pipelines.state import BucketState
from millstream.testing.streams import Disorder, StreamDiffers, check_operator
from tests.pipelines.patterns.operators import by_backtracking, operator_of, source

SEED = 1
EXAMPLES = 8


def is_late(row: Any) -> bool:
    return bool(row["_kind"] == "late")


def check(operator: PatternMatch, **rest: Any) -> None:
    settings = {"seed": SEED, "examples": EXAMPLES, "leave_out": is_late, "rows": 30} | rest
    check_operator(operator, {"events": source(operator)}, **settings)


@pytest.mark.parametrize(
    "pattern",
    ["a b+ c", "a b*? c", "a then c", "(a | b)+ c", "a{2,3} b?", "permute(a, b, c)", "a* c??"],
)
def test_stream_equals_backtracking(pattern: str) -> None:
    check(operator_of(pattern), reference=by_backtracking(pattern))


def test_late_rows_are_left_out() -> None:
    check(
        operator_of("a b+ c"),
        reference=by_backtracking("a b+ c"),
        disorder=Disorder(late=0.3),
        late_when="0 seconds",
    )


@pytest.mark.parametrize(
    ("skip", "mode", "variable"),
    [
        ("to next row", "to next row", ""),
        ("to last b", "to last", "b"),
        ("to first c", "to first", "c"),
    ],
)
def test_next_match_begins_where_skip_says(skip: str, mode: str, variable: str) -> None:
    expected = by_backtracking("a b+ c", skip=mode, skip_to=variable)
    check(operator_of("a b+ c", skip=skip), reference=expected)


def test_conditions_read_the_match_over_batches() -> None:
    where = {
        "b": "u >= avg(b.u) and u > last(a.u) - 3 and count(b) <= 3",
        "c": "u > first(a.u) + 2 and u <> last(b.u, 1)",
    }

    def holds(name: str, place: int, taken: Any, us: list[int]) -> bool:
        u = us[place]
        first, bs = us[taken[0][1]], [us[row] for label, row in taken if label == "b"]
        if name == "b":
            return u >= sum(bs) / len(bs) and u > first - 3 and len(bs) <= 3
        if name == "c":
            return u > first + 2 and len(bs) > 1 and u != bs[-2]
        return True

    check(
        operator_of("a b+ c", where),
        reference=by_backtracking("a b+ c", holds=holds),
        examples=20,
    )


def test_prev_reaches_rows_of_earlier_batches() -> None:
    def holds(name: str, place: int, taken: Any, us: list[int]) -> bool:
        return name != "a" or (place >= 2 and us[place] < us[place - 1] + us[place - 2])

    check(
        operator_of("a b+ c", {"a": "u < prev(u) + prev(a.u, 2)"}),
        reference=by_backtracking("a b+ c", holds=holds),
    )


@pytest.mark.parametrize("rows", ["all", "all omitting empty", "all with unmatched"])
def test_all_rows_equal_a_batch(rows: Any) -> None:
    measures = {"n": "count(b)", "whole": "final count(*)", "which": "classifier()"}
    check(operator_of("a b* c?", rows=rows, number="match_number()", **measures))


def test_time_outs_equal_a_batch() -> None:
    check(operator_of("a b{2,} c", wants_time_outs=True), examples=20)


def test_long_attempts_are_given_up_alike() -> None:
    check(operator_of("a b+ c", max_rows=3, wants_time_outs=True))


class NotWaiting(PatternMatch):
    """Scans rows when they arrive."""

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        new = rows["events"]
        due = state["due"].select(None, watermark_us)
        state["due"].expire(watermark_us + 1)
        if not new.num_rows and not due.num_rows:
            return self.nothing
        found = self._advance(state, new, due, watermark_us)
        state.keyed("open").merge(self._newest)
        return found


class Forgetful(PatternMatch):
    """Keeps no threads between batches."""

    def _keep(self, state: BucketState, *rest: Any) -> None:
        pass


class NeverDue(PatternMatch):
    """Does not end attempts whose time is over."""

    def _wake_us(self, state: BucketState, late_us: int) -> int | None:
        pages = state["waiting"].pages.values()
        return min((max(page.first_us, late_us + 1) for page in pages), default=None)


class Unordered(PatternMatch):
    """Orders rows of one time by chance."""

    def _sorted(self, state: BucketState, ripe: pa.RecordBatch, *rest: Any) -> Any:
        self._rows = self._rows.__class__(
            self._rows.schema, self._rows.keys, self._rows.time, (), self._rows.values
        )
        return super()._sorted(state, ripe, *rest)


@pytest.mark.parametrize("broken", [NotWaiting, Forgetful, NeverDue, Unordered])
def test_harness_finds_what_is_broken(broken: type[PatternMatch]) -> None:
    pattern = "a b+"
    with pytest.raises(StreamDiffers):
        check(
            operator_of(pattern, kind=broken),
            reference=by_backtracking(pattern),
            examples=100,
        )


def test_skip_to_the_first_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="first row of a match"):
        check(operator_of("a b", skip="to first a"))


def test_kept_names_the_limits() -> None:
    kept = operator_of("a b+ c", {"a": "u < prev(u)"}).kept()
    assert kept[matching._ROWS].endswith("for 40 seconds and 10000 rows of a match at most")
    assert kept[matching._PREVIOUS] == "forever, the last 1 rows of each key"
