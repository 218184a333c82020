"""Queries and events by chance, over few values, so that they meet."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("city", pa.string()),
        ("sold", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("text", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("total", pa.decimal128(38, 10)),
        ("is", pa.struct([("in", pa.struct([("n", pa.int64()), ("text", pa.string())]))])),
        ("tags", pa.list_(pa.string())),
    ]
)
WORDS = ("tea", "teas", "green", "leaf", "größe", "a1", "Leaf")
CITIES = ("Bonn", "bonn", "", "Köln", "it's", "\U0001f600", "\uffee")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

moments = st.integers(0, 5).map(lambda it: BEGIN + timedelta(hours=it))
days = st.integers(0, 3).map(lambda it: date(2026, 1, 1) + timedelta(days=it))
texts = st.lists(st.sampled_from((*WORDS, "GREEN", "-", "“tea”", "_")), max_size=5).map(" ".join)
prices = st.sampled_from(("-0.01", "0.00", "0.10", "0.30", "19.99", "9999999.99")).map(Decimal)
totals = st.sampled_from(
    ("0", "-0.0000000001", "9223372036.8547758080", "18446744073709551616.5", f"-{'9' * 28}")
).map(Decimal)
inner = st.fixed_dictionaries({"n": st.none() | st.integers(-1, 2), "text": st.none() | texts})
events: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-2, 5),
        "x": st.none() | st.sampled_from((-0.0, 0.0, 0.5, 1.0, 2.5, math.inf, -math.inf, math.nan)),
        "city": st.none() | st.sampled_from(CITIES),
        "sold": st.none() | st.booleans(),
        "at": st.none() | moments,
        "day": st.none() | days,
        "text": st.none() | texts,
        "price": st.none() | prices,
        "total": st.none() | totals,
        "is": st.none() | st.fixed_dictionaries({"in": st.none() | inner}),
        "tags": st.none() | st.just(["a"]),
    }
)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


LITERALS = {
    "n": st.integers(-2, 5).map(str),
    "x": st.sampled_from(("0", "-0", "0.5", "-1", "1e0", "2.5", ".5")),
    "city": st.sampled_from(CITIES).map(_quoted),
    "at": moments.map(lambda it: _quoted(it.isoformat())),
    "day": days.map(lambda it: _quoted(it.isoformat())),
    "price": st.sampled_from(("-0.01", "0", "1e-1", "0.3", "19.990", "9999999.99", "1e30")),
    "total": st.sampled_from(("0", "-1e-10", "9223372036.854775808", "18446744073709551616.5")),
    "`is`.in.n": st.integers(-1, 2).map(str),
}
RANGES = ("<", "<=", ">", ">=")
NULLABLE = ("`is`", "`is`.in", "`is`.`in`.text", "tags")
_operators = st.sampled_from(("=", "<>", "!=", "<", "<=", ">", ">="))


def _of_column(name: str) -> st.SearchStrategy[str]:
    literal = LITERALS[name]
    negation = st.sampled_from(("", "NOT "))
    several = st.lists(literal, min_size=1, max_size=4).map(", ".join)
    return st.one_of(
        st.builds(f"{name} {{}} {{}}".format, _operators, literal),
        st.builds(f"{{}} {{}} {name}".format, literal, _operators),
        st.builds(f"{name} {{}}IN ({{}})".format, negation, several),
        st.builds(f"{name} {{}}BETWEEN {{}} AND {{}}".format, negation, literal, literal),
        st.builds(f"{name} IS {{}}NULL".format, negation),
    )


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    joint = st.sampled_from((" AND ", " OR "))
    several = st.lists(parts, min_size=2, max_size=3)
    joined = st.builds(lambda joint, several: f"({joint.join(several)})", joint, several)
    return st.one_of(joined, parts.map("NOT {}".format))


_phrases = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
_terms = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(("t*", "te*", "grö*", "l*", "green-leaf")),
    _phrases.map('"{}"'.format),
)
_text_queries = st.recursive(_terms, _joined, max_leaves=4)
_fractions = st.builds("price {} {}".format, st.sampled_from(RANGES), st.just("0.305"))
_nulls = st.builds("{} IS {}NULL".format, *map(st.sampled_from, (NULLABLE, ("", "NOT "))))
_conditions = st.one_of(
    *map(_of_column, LITERALS),
    _fractions,
    _nulls,
    _text_queries.map("matches(`is`.in.text, '{}')".format),
    st.sampled_from(("sold", "sold = TRUE", "NOT sold", "sold <> FALSE")),
    _text_queries.map("matches(text, '{}')".format),
    _text_queries.map("matches(text, '{}')".format),
)
queries = st.recursive(_conditions, _joined, max_leaves=5)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)
