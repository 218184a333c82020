"""The operator as a stream, cut in many ways, against backtracking; and broken on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.patterns import matching
from millstream.pipelines.patterns._matcher import open_since
from millstream.pipelines.patterns.matcher import StateBytes
from millstream.pipelines.patterns.matching import PatternMatch
from millstream.pipelines.state import BucketState
from millstream.pipelines.state.trial import Trial
from millstream.testing.streams import Disorder, StreamDiffers, check_operator
from tests.drawing import draws
from tests.pipelines.patterns.operators import SCHEMA, by_backtracking, operator_of, row, source

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 1
EXAMPLES = 5


def is_late(row: Any) -> bool:
    return bool(row["_kind"] == "late")


def check(operator: PatternMatch, **rest: Any) -> None:
    settings = {"seed": SEED, "examples": EXAMPLES, "leave_out": is_late, "rows": 30} | rest
    check_operator(operator, {"events": source(operator)}, **settings)


ORDERS = pytest.mark.parametrize("order", ["time", "arrival"])


@pytest.mark.parametrize(
    ("order", "pattern"),
    [
        ("time", "a b+ c"),
        ("time", "a b*? c"),
        ("time", "a then c"),
        ("time", "(a | b)+ c"),
        ("time", "a{2,3} b?"),
        ("time", "permute(a, b, c)"),
        ("time", "a* c??"),
        ("time", "^ (a | b) c | b c"),
        ("arrival", "a b+ c"),
        ("arrival", "a{2,3} b?"),
        ("arrival", "^ a b*"),
    ],
)
def test_stream_equals_backtracking(order: Any, pattern: str) -> None:
    check(operator_of(pattern, order=order), reference=by_backtracking(pattern, order=order))


@ORDERS
def test_late_rows_are_left_out(order: Any) -> None:
    check(
        operator_of("a b+ c", order=order),
        reference=by_backtracking("a b+ c", order=order),
        disorder=Disorder(late=0.3),
        late_when="0 seconds",
    )


def test_rows_of_a_match_by_arrival_are_kept_as_long_as_its_first_one() -> None:
    """Also those that are older than the first one, and come with a low watermark."""
    check(
        operator_of("a then c", order="arrival", within="12 seconds"),
        reference=by_backtracking("a then c", 12, order="arrival"),
        disorder=Disorder(within="9 seconds"),
    )


def fed(operator: PatternMatch, rows: list[tuple[int, int, int]]) -> list[list[dict[str, Any]]]:
    """Results of rows that arrive one by one, as seconds, u, and the seconds of the watermark."""
    trial = Trial(operator)
    found = []
    for place, (second, u, mark) in enumerate(rows):
        made = row("abc", "x", BEGIN + timedelta(seconds=second), u) | {"_offset": place}
        mark_us = round((BEGIN + timedelta(seconds=mark)).timestamp() * 1e6)
        batch = pa.RecordBatch.from_pylist([made], schema=SCHEMA)
        found.append(trial.feed({"events": batch}, mark_us).to_pylist())
    return [*found, trial.finish().to_pylist()]


def test_by_arrival_matches_come_with_their_last_row() -> None:
    rows = [(10, 1, 0), (5, 5, 0), (7, 9, 0), (8, 1, 0), (20, 5, 0)]  # the second is the oldest
    found = fed(operator_of("a b+ c", order="arrival"), rows)
    assert [len(it) for it in found] == [0, 0, 1, 0, 0, 0]


# The third row is late. In its batch, the second one is further behind the watermark than `within`.
OLD_ROW = [(20, 1, 10), (11, 5, 10), (12, 5, 25), (28, 9, 25)]


def test_rows_that_are_older_than_the_first_are_kept_as_long() -> None:
    found = fed(operator_of("a b c", order="arrival", within="12 seconds"), OLD_ROW)
    assert [it["m2_0"] for it in found[3]] == [3]
    broken = operator_of("a b c", order="arrival", within="12 seconds", kind=WithoutClocks)
    with pytest.raises((AssertionError, IndexError, pa.ArrowException)):
        assert fed(broken, OLD_ROW) == found


def test_key_is_not_scanned_for_an_attempt_that_is_over() -> None:
    """When the first attempt would end, the key has another one, which is due later."""
    trial = Trial(operator_of("a b c"), buckets=1)
    rows = [
        row("abc", "x", BEGIN + timedelta(seconds=second), u) | {"_offset": second}
        for second, u in [(1, 1), (2, 9), (30, 1)]
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    pages = []
    none = batch[:0]
    for new, mark in [(batch[:1], 0), (none, 1), (batch[1:], 1), (none, 35), (none, 45)]:
        mark_us = round((BEGIN + timedelta(seconds=mark)).timestamp() * 1e6)
        trial.feed({"events": new}, mark_us)
        state = BucketState(trial.operator, 1, trial.buckets[0])
        pages.append((state["due"].row_count, list(state["open"].pages)))
    assert [due for due, _ in pages] == [0, 1, 1, 2, 1]
    *_, (_, first), (_, second), (_, kept) = pages
    assert first != second == kept


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
        examples=draws(20),
    )


def test_prev_reaches_rows_of_earlier_batches() -> None:
    def holds(name: str, place: int, taken: Any, us: list[int]) -> bool:
        return name != "a" or (place >= 2 and us[place] < us[place - 1] + us[place - 2])

    check(
        operator_of("a b+ c", {"a": "u < prev(u) + prev(a.u, 2)"}),
        reference=by_backtracking("a b+ c", holds=holds),
    )


@ORDERS
def test_prev_of_measures_reaches_rows_before_the_match(order: Any) -> None:
    def expected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        columns = ("at", "_offset") if order == "time" else ("_offset",)
        ordered = sorted(events, key=lambda it: tuple(it[name] for name in columns))
        return [
            {"key": it["key"], "m0_0": it["u"], "m1_0": before and before["u"], "_kind": "final"}
            for key in ("x", "y", None)
            for rows in [[it for it in ordered if it["key"] == key]]
            for before, it in zip([None, None, *rows], rows, strict=False)
            if it["u"] >= 6
        ]

    operator = operator_of(
        "c", order=order, first_at="u", last_at="prev(c.u, 2)", n="match_number()"
    )
    check(operator, reference=expected, ignore=["m2_0"])


@pytest.mark.slow_with("arrival")
@ORDERS
@pytest.mark.parametrize("rows", ["all", "all omitting empty", "all with unmatched"])
def test_all_rows_equal_a_batch(rows: Any, order: Any) -> None:
    measures = {"n": "count(b)", "whole": "final count(*)", "which": "classifier()"}
    measures |= {"number": "match_number()", "before": "prev(u)"}
    check(operator_of("a b* c?", rows=rows, order=order, **measures))


@pytest.mark.slow_with("arrival")
@ORDERS
def test_time_outs_equal_a_batch(order: Any) -> None:
    check(operator_of("a b{2,} c", order=order, wants_time_outs=True), examples=draws(20))


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
        self._rows = replace(self._rows, order=())
        return super()._sorted(state, ripe, *rest)


class ByTime(PatternMatch):
    """Orders rows that arrive together by time."""

    def _sorted(self, state: BucketState, ripe: pa.RecordBatch, *rest: Any) -> Any:
        self._rows = replace(self._rows, order=("at", "_offset"))
        return super()._sorted(state, ripe, *rest)


class WithoutClocks(PatternMatch):
    """Keeps the rows of a match by their own time."""

    def _numbered(self, new: Any, scanned: Any) -> pa.RecordBatch:
        rows = super()._numbered(new, scanned)
        place = rows.schema.get_field_index("_clock")
        return rows.set_column(place, rows.schema.field(place), rows.column("at"))


class FirstAgain(PatternMatch):
    """Forgets which keys it has seen."""

    def _keep(self, state: BucketState, keys: Any, new: Any, scanned: Any, *rest: Any) -> None:
        is_open = pa.array(open_since(*StateBytes.of(scanned.states), -1) != -1)
        states = pc.if_else(is_open, scanned.states, None)
        super()._keep(state, keys, new, scanned._replace(states=states), *rest)


class WithoutPrevious(PatternMatch):
    """Keeps no rows for PREV."""

    def _last_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.slice(0, 0)


@pytest.mark.parametrize(
    ("broken", "pattern", "settings"),
    [
        pytest.param(NotWaiting, "a b+", {}, marks=pytest.mark.slow),
        pytest.param(Forgetful, "a b+", {}, marks=pytest.mark.slow),
        pytest.param(NeverDue, "a b+", {}, marks=pytest.mark.slow),
        pytest.param(Unordered, "a b+", {}, marks=pytest.mark.slow),
        pytest.param(ByTime, "a b+", {"order": "arrival"}, marks=pytest.mark.slow),
        (FirstAgain, "^ a", {}),
        pytest.param(WithoutPrevious, "a", {"before": "prev(u)"}, marks=pytest.mark.slow),
    ],
)
def test_harness_finds_what_is_broken(
    broken: type[PatternMatch], pattern: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(StreamDiffers):
        check(
            operator_of(pattern, kind=broken, **settings),
            examples=200,
            reference=batch_of(operator_of(pattern, **settings)),
        )


def batch_of(operator: PatternMatch) -> Any:
    """The results of a correct operator for all rows at once."""

    def expected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        trial = Trial(operator)
        rows = pa.RecordBatch.from_pylist(events, schema=SCHEMA)
        found: list[dict[str, Any]] = trial.feed({"events": rows}).to_pylist()
        found += trial.finish().to_pylist()
        return found

    return expected


def test_skip_to_the_first_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="first row of a match"):
        check(operator_of("a b", skip="to first a"))


def test_kept_names_the_limits() -> None:
    kept = operator_of("a b+ c", {"a": "u < prev(u)"}).kept()
    assert kept[matching._ROWS].endswith("for 40 seconds and 10000 rows of a match at most")
    assert kept[matching._PREVIOUS] == "forever, the last 1 rows of each key"
