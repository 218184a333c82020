"""Changed definitions over the state of the old ones: continued exactly, or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.analytics.deduplication import Deduplication
from millstream.pipelines.joins.as_of import AsOfJoin, Events, History
from millstream.pipelines.joins.changes import Changes
from millstream.pipelines.joins.stream_table import ChangeLog, Enrich
from millstream.pipelines.joins.table_table import Side, TableJoin
from millstream.pipelines.joins.weights import WEIGHT_FIELD
from millstream.pipelines.lateness import Lateness, Stragglers
from millstream.pipelines.state import BucketState, InputSpec, Operator
from millstream.pipelines.state.pages import INDEX_MAGIC, StateMismatch, seal, unseal
from millstream.pipelines.state.stored_columns import NO_GENERATIONS, Generations
from millstream.pipelines.state.trial import MemoryStore, Trial
from millstream.pipelines.views.aggregate import Grouped
from millstream.pipelines.views.aggregate import Measure as Grouping
from millstream.pipelines.views.top import TopRows
from millstream.pipelines.windows.emission import NOW, Emission, Emit
from millstream.pipelines.windows.kept import WithLate
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.parts import Measure as PartMeasure
from millstream.pipelines.windows.revisions import RevisedWindows
from millstream.pipelines.windows.sessions import RevisedSessions
from millstream.pipelines.windows.sliding import SlidingWindow
from tests.drawing import draws
from tests.pipelines.catalog import Catalog

TIME = pa.timestamp("us", tz="UTC")
SECOND = 1_000_000
PAYMENTS = [("id", pa.int64()), ("card", pa.string()), ("amount", pa.float64()), ("at", TIME)]
COUNT = Measure("n", "count", None)
SUM = Measure("spent", "sum", "amount")
DROP = Lateness("drop", 10 * SECOND)
Fields = Sequence[tuple[str, pa.DataType]]


def sliding(
    fields: Fields = PAYMENTS,
    measures: Sequence[Measure] = (COUNT,),
    lateness: Lateness = DROP,
    emit: Emit = Emit("final"),  # noqa: B008 - a tuple
) -> SlidingWindow:
    schema = pa.schema(list(fields))
    return SlidingWindow(
        schema, ("card",), "at", 10 * SECOND, measures, lateness, schema.names, emit=emit
    )


def rows(fields: Fields, *given: dict[str, Any]) -> pa.RecordBatch:
    """Times in seconds; what is not given is null."""
    schema = pa.schema(list(fields))
    columns = []
    for name, kind in fields:
        values = [it.get(name) for it in given]
        if kind == TIME:
            values = [None if it is None else int(it * SECOND) for it in values]
        columns.append(pa.array(values, pa.int64() if kind == TIME else kind).cast(kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def payment(number: int, at: float, amount: float = 1.0) -> dict[str, Any]:
    return {"id": number, "card": "c", "amount": amount, "at": at}


def continued(operator: Operator, trial: Trial, generations: Generations = NO_GENERATIONS) -> Trial:
    """The operator over the state of another one."""
    follower = Trial(operator, len(trial.buckets), generations)
    follower.buckets, follower.watermark_us = trial.buckets, trial.watermark_us
    return follower


def begun(operator: Operator | None = None) -> Trial:
    trial = Trial(operator or sliding())
    trial.feed({"events": rows(PAYMENTS, payment(1, 100, amount=2.0))}, 95 * SECOND)
    return trial


def finals(found: pa.RecordBatch) -> list[dict[str, Any]]:
    return sorted(
        (it for it in found.to_pylist() if it["_kind"] == "final"), key=lambda it: it["id"]
    )


@pytest.mark.parametrize(
    "fields",
    [
        [*PAYMENTS, ("country", pa.string())],
        [PAYMENTS[1], PAYMENTS[0], *PAYMENTS[2:]],
        [it for it in PAYMENTS if it[0] != "amount"],
    ],
    ids=["added", "swapped", "removed"],
)
def test_columns_that_no_aggregate_uses_may_change(fields: Fields) -> None:
    trial = continued(sliding(fields), begun())
    second = payment(2, 101) | {"country": "at"}
    trial.feed({"events": rows(fields, second)})
    found = finals(trial.finish())
    assert [(it["id"], it["card"], it["n"]) for it in found] == [(1, "c", 1), (2, "c", 2)]
    if "country" in dict(fields):
        assert [it["country"] for it in found] == [None, "at"]


def test_aggregate_may_be_added_over_a_column_that_was_stored() -> None:
    trial = continued(sliding(measures=[COUNT, SUM]), begun())
    trial.feed({"events": rows(PAYMENTS, payment(2, 101))})
    assert [it["spent"] for it in finals(trial.finish())] == [2.0, 3.0]
    fields = [*PAYMENTS, ("fee", pa.float64())]
    other = sliding(fields, [Measure("fees", "sum", "fee")])
    with pytest.raises(StateMismatch, match="fee in addition"):
        continued(other, begun()).feed({"events": rows(fields, payment(2, 101))})


@pytest.mark.parametrize("later", ["otherwise", None])
def test_expression_is_found_under_the_name_of_an_earlier_version(later: str | None) -> None:
    """Also once it is written in another way, which an earlier version would have named so."""
    schema = [*PAYMENTS, ("earlier", pa.float64())]
    trial = Trial(sliding(schema, [Measure("twice", "sum", "earlier")]))
    trial.feed({"events": rows(schema, payment(1, 100) | {"earlier": 2.0})}, 95 * SECOND)
    schema = [*PAYMENTS, ("doubled", pa.float64())]
    for number, earlier in enumerate(["earlier", later], 2):
        twice = Measure("twice", "sum", "doubled", earlier=earlier)
        trial = continued(sliding(schema, [twice]), trial)
        trial.feed({"events": rows(schema, payment(number, 101) | {"doubled": 3.0})})
    assert [it["twice"] for it in finals(trial.finish())] == [2.0, 8.0, 8.0]
    with pytest.raises(StateMismatch, match="doubled in addition"):
        continued(sliding(schema, [Measure("twice", "sum", "doubled")]), begun()).finish()


def test_windows_and_views_go_on_under_the_identity_of_an_earlier_version() -> None:
    payments = pa.schema(PAYMENTS)
    window = [pa.field("window_start", TIME), pa.field("window_end", TIME)]
    windowed = pa.schema([*payments, *window, pa.field("_now", TIME), pa.field("_time", TIME)])
    lateness = Lateness("correct", SECOND)

    def operators(column: str, earlier: str) -> list[Operator]:
        schema = windowed.set(2, pa.field(column, pa.float64()))
        spent = [Measure("spent", "sum", column, earlier=earlier)]
        grouped = [Grouping("spent", "sum", "_0", column, earlier)]
        weighted = pa.schema([("card", pa.string()), ("_0", pa.float64()), WEIGHT_FIELD])
        windows = RevisedWindows(schema, ["card"], spent, lateness, "tumbling 1 hour")
        return [
            windows,
            RevisedSessions(schema, ["card"], spent, SECOND, lateness),
            WithLate(windows, pa.struct([("id", pa.int64())])),
            Grouped(weighted, ["card"], grouped),
        ]

    for old, new, other in zip(
        operators("written", ""),
        operators("analyzed", "written"),
        operators("analyzed", "otherwise"),
        strict=True,
    ):
        store = MemoryStore()
        state = BucketState(old, 4, store)
        state.advance("late", 1)
        state.finish(0)
        with pytest.raises(StateMismatch, match="other settings"):
            BucketState(other, 4, store)
        BucketState(new, 4, store).finish(0)
        BucketState(other, 4, store)


def test_type_of_a_column_and_length_of_a_window_may_not_change() -> None:
    fields = [("id", pa.string()), *PAYMENTS[1:]]
    with pytest.raises(StateMismatch, match="other type of id: int64, the operator has string"):
        continued(sliding(fields), begun()).finish()
    schema = pa.schema(PAYMENTS)
    longer = SlidingWindow(schema, ("card",), "at", 20 * SECOND, [COUNT], DROP, schema.names)
    with pytest.raises(StateMismatch, match="other settings: sliding window of 10000000 us"):
        continued(longer, begun()).finish()


POLICIES = [
    Lateness(it, seconds * SECOND) for it in get_args(Stragglers) for seconds in (5, 10, 20)
]


@pytest.mark.parametrize("emission", ["final", "change"])
@pytest.mark.parametrize("after", POLICIES, ids=str)
@pytest.mark.parametrize("before", [DROP, Lateness("correct", 10 * SECOND)], ids=str)
def test_each_row_is_final_once_when_the_policy_changes(
    before: Lateness, after: Lateness, emission: Any
) -> None:
    """Or late: a row that would have been late before the change stays late."""
    trial = begun(sliding(lateness=before))
    found = [trial.feed({"events": rows(PAYMENTS, payment(2, 104))}, 108 * SECOND)]
    follower = continued(sliding(lateness=after, emit=Emit(emission)), trial)
    late = [payment(3, 97), payment(4, 99), payment(5, 107), payment(6, 111)]
    found += [follower.feed({"events": rows(PAYMENTS, *late)}, 109 * SECOND), follower.finish()]
    rows_out = [row for batch in found for row in batch.to_pylist()]
    settled = [
        row["id"]
        for row in rows_out
        if row["_kind"] in ("final", "late")
        or (row["_kind"] == "correction" and row["_old"] is None)
    ]
    assert sorted(settled) == [1, 2, 3, 4, 5, 6]
    kinds = {row["id"]: row["_kind"] for row in rows_out if row["_kind"] == "late"}
    assert 3 in kinds, "it was behind what the old policy allowed"
    counts = {row["id"]: row["n"] for row in rows_out if row["_kind"] in ("final", "correction")}
    on_time = [it for it in (1, 2, 3, 4, 5, 6) if it not in kinds]
    assert sorted(counts) == on_time
    assert counts[6] == len([it for it in on_time if it != 6]) - (1 in on_time) - (4 in on_time) + 1


@pytest.mark.parametrize("after", get_args(Emission))
@pytest.mark.parametrize("before", get_args(Emission))
def test_emission_may_change_if_each_row_has_one_result(before: Emission, after: Emission) -> None:
    fields = {it: [*PAYMENTS, *([(NOW, TIME)] if it == "every" else [])] for it in (before, after)}
    trial = Trial(sliding(fields[before], emit=Emit(before, 5 * SECOND)))
    first = rows(fields[before], payment(1, 100) | {NOW: 1})
    found = [trial.feed({"events": first}, 101 * SECOND)]
    follower = continued(sliding(fields[after], emit=Emit(after, 5 * SECOND)), trial)
    second = {"events": rows(fields[after], payment(2, 104) | {NOW: 2})}
    reason = ""
    if before != after == "every":
        reason = "other columns of events: .*_now in addition"
    if before != after and "arrival" in (before, after):
        reason = "other time of results: (on arrival|when final), the operator has"
    if reason:
        with pytest.raises(StateMismatch, match=reason):
            follower.feed(second)
        return
    found += [follower.feed(second, 108 * SECOND), follower.finish()]
    settled = [it for batch in found for it in batch.to_pylist() if it["_kind"] != "preliminary"]
    assert sorted((it["id"], it["n"]) for it in settled) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("emission", "results"), [("arrival", 0), ("final", 2)])
def test_sliding_window_accepts_state_that_does_not_tell_when_rows_have_results(
    emission: Emission, results: int
) -> None:
    """Earlier versions did not write it."""
    trial = begun()
    for store in trial.buckets:
        if store.index is not None:
            index = json.loads(bytes(unseal(INDEX_MAGIC, store.index)))
            assert index.pop("settles") == "when final"
            store.index = seal(INDEX_MAGIC, json.dumps(index).encode())
    follower = continued(sliding(emit=Emit(emission)), trial)
    follower.feed({"events": rows(PAYMENTS, payment(2, 101))})
    assert follower.finish().num_rows == results


def test_table_of_an_enriched_stream_may_get_a_column() -> None:
    clicks = InputSpec(pa.schema([("user", pa.string())]), ("user",))
    fields = [("user", pa.string()), ("name", pa.string()), ("version", pa.int64())]
    log = ChangeLog(pa.schema(fields), ("user",), ("name",), "version")
    trial = Trial(Enrich(clicks, log, "left"))
    trial.feed({"table": rows(fields, {"user": "ann", "name": "Ann", "version": 1})})
    fields = [("town", pa.string()), *fields]
    log = ChangeLog(pa.schema(fields), ("user",), ("name", "town"), "version")
    trial = continued(Enrich(clicks, log, "inner"), trial)
    click = rows([("user", pa.string())], {"user": "ann"})
    assert trial.feed({"stream": click}).to_pylist() == [
        {"user": "ann", "name": "Ann", "town": None}
    ]
    newer = rows(fields, {"user": "ann", "name": "Ann", "town": "Graz", "version": 2})
    (row,) = trial.feed({"stream": click, "table": newer}).to_pylist()
    assert row["town"] == "Graz"


def test_enriched_stream_refuses_another_condition_on_its_table() -> None:
    """Rows that the old condition excluded were stored without their values."""
    clicks = InputSpec(pa.schema([("user", pa.string())]), ("user",))
    fields = [("user", pa.string()), ("version", pa.int64()), ("out", pa.bool_())]
    log = ChangeLog(pa.schema(fields), ("user",), (), "version", None, "out", "(age > 17)")
    trial = Trial(Enrich(clicks, log, "left"))
    trial.feed({"table": rows(fields, {"user": "ann", "version": 1, "out": True})})
    click = {"stream": rows([("user", pa.string())], {"user": "ann"})}
    continued(Enrich(clicks, log, "left"), trial).feed(click)
    for where in ("(age > 20)", None):
        other = Enrich(clicks, replace(log, where=where), "left")
        with pytest.raises(StateMismatch, match=r"other settings: .*where \(age > 17\)"):
            continued(other, trial).feed(click)


def test_changes_and_joins_of_tables_may_get_a_column() -> None:
    fields = [("id", pa.int64()), ("text", pa.string()), ("version", pa.int64())]
    trial = Trial(Changes(pa.schema(fields), ["id"], "version", None))
    trial.feed({"changes": rows(fields, {"id": 1, "text": "a", "version": 1})})
    fields = [("mood", pa.string()), *fields]
    trial = continued(Changes(pa.schema(fields), ["id"], "version", None), trial)
    newer = {"id": 1, "text": "b", "mood": "good", "version": 2}
    found = trial.feed({"changes": rows(fields, newer)}).to_pylist()
    assert [(it["text"], it["mood"], it["_weight"]) for it in found] == [
        ("a", None, -1),
        ("b", "good", 1),
    ]


MOVES = st.tuples(
    st.lists(st.integers(0, 9), max_size=4, unique=True),
    st.lists(st.sampled_from(["cat0", "cat1", "cat2"]), max_size=2, unique=True),
    st.sets(st.sampled_from([0, 1, 2, 3, "cat0", "cat1"]), max_size=2),
)


@settings(max_examples=draws(60), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(MOVES, max_size=4)), min_size=3, max_size=6))
def test_maintained_join_is_right_while_a_column_is_removed_and_comes_back(
    definitions: list[tuple[bool, list[Any]]],
) -> None:
    catalog = Catalog()
    catalog.define(has_c=True)
    catalog.change(range(10), ["cat0", "cat1", "cat2"])
    for has_c, moves in definitions:
        catalog.define(has_c=has_c)
        for items, cats, gone in moves:
            catalog.change(items, cats, gone)
            catalog.check()
    catalog.change(range(10), ["cat0", "cat1", "cat2"])
    catalog.check()


def test_ranking_refuses_a_column_that_comes_back() -> None:
    """In every bucket: it compares whole rows, with those of operators that have it as null."""
    fields = [("user", pa.string()), ("spent", pa.int64()), ("c", pa.string())]

    def ranking(of: Fields) -> TopRows:
        return TopRows(pa.schema([*of, WEIGHT_FIELD]), ["user"], "spent", 3)

    def spent(of: Fields, user: str) -> dict[str, pa.RecordBatch]:
        return {"rows": rows([*of, ("_weight", pa.int64())], {"user": user, "spent": 1, "c": "x"})}

    trial = Trial(ranking(fields), buckets=2)
    users = [f"user {number}" for number in range(8)]
    for user in users:
        trial.feed(spent(fields, user))
    trial = continued(ranking(fields[:-1]), trial)
    trial.feed(spent(fields[:-1], users[0]))
    for user in users:
        with pytest.raises(StateMismatch, match="c in addition"):
            continued(ranking(fields), trial, {"rows": {"c": 1}}).feed(spent(fields, user))


def test_history_of_an_as_of_join_may_get_a_column_and_another_lateness() -> None:
    sales = [("land", pa.string()), ("sold", TIME)]
    rates = [("land", pa.string()), ("since", TIME), ("rate", pa.int64())]

    def join(lateness_us: int, more: Fields = ()) -> AsOfJoin:
        schema = pa.schema([*more, *rates])
        carried = tuple(name for name in schema.names if name != "land")
        return AsOfJoin(
            Events(pa.schema(sales), ("land",), "sold"),
            History(schema, ("land",), "since", carried),
            "left",
            lateness_us,
        )

    trial = Trial(join(10 * SECOND))
    first = {"events": rows(sales, {"land": "at", "sold": 100})}
    first["versions"] = rows(rates, {"land": "at", "since": 1, "rate": 19})
    trial.feed(first, 108 * SECOND)
    trial = continued(join(20 * SECOND, [("note", pa.string())]), trial)
    late = rows(sales, *({"land": "at", "sold": at} for at in (97, 99)))
    found = trial.feed({"events": late}, 109 * SECOND).to_pylist() + trial.finish().to_pylist()
    kinds = {it["sold"].second + 60 * it["sold"].minute: it["_kind"] for it in found}
    assert kinds == {97: "late", 99: "final", 100: "final"}
    assert {it["rate"] for it in found if it["_kind"] == "final"} == {19}


def test_identities_have_the_settings_and_no_names_of_classes() -> None:
    schema = pa.schema(PAYMENTS)
    window = [pa.field("window_start", TIME), pa.field("window_end", TIME)]
    windowed = pa.schema([*schema, *window, pa.field("_now", TIME), pa.field("_time", TIME)])
    lateness = Lateness("correct", SECOND)
    parts = [PartMeasure("n", "count", None), PartMeasure("total", "sum", "amount")]
    side = Side(pa.schema([*schema, ("_weight", pa.int64())]), ("card",), ("id",))
    log = ChangeLog(schema, ("card",), ("amount",), "id")
    operators = [
        sliding(),
        RevisedWindows(windowed, ["card"], parts, lateness, "tumbling 1 hour"),
        RevisedSessions(windowed, ["card"], parts, SECOND, lateness),
        Deduplication(schema, ["card"], "at", SECOND, 0),
        AsOfJoin(Events(schema, ("card",), "at"), History(schema, ("card",), "at", ()), "left"),
        Enrich(InputSpec(schema, ("card",)), log, "left"),
        TableJoin(side, side, "left"),
        Changes(schema, ["card"], "id", None),
    ]
    assert [it.identity for it in operators] == [
        "sliding window of 10000000 us",
        "revised windows, tumbling 1 hour by time, n=count(*), total=sum(amount)",
        "revised sessions of 1000000 us by time, n=count(*), total=sum(amount), corrected",
        "deduplication within 1000000 us",
        "as-of join by at, deletes by None",
        "stream-table join by id, deletes by None",
        "table join, left",
        "changes by id, deletes by None",
    ]
    assert not any(re.search(r"[A-Z]\w+\(", it.identity) for it in operators)
