"""The aggregates of a window, as users write them: SQL text, or a Column.

    n="count(*)"   spent="sum(price * quantity)"   last=F.max("at")   p95="percentile(x, 0.95)"

A window that Spark computes itself takes any aggregate that Spark has. State in Python knows these,
as one call each:

    count sum avg min max     in all windows
    stddev percentile median  where rows are kept: sliding windows
    collect                   the same: the values of the window, in order of time
    count(distinct x)         the same; Spark has none for streams

Text is checked when a window is defined, without a session: its form, and that Spark has the
functions that it calls. A function of your own must be registered before. The argument of an
aggregate is any expression of Spark SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

Given: TypeAlias = "str | Column | Aggregate"

DISTINCT = "distinct"
ADDABLE_KINDS = ("count", "sum", "avg", "min", "max")
KINDS = (*ADDABLE_KINDS, "stddev", "percentile", "collect", DISTINCT)
EXAMPLE = 'write it like n="count(*)", spent="sum(amount)" or p95="percentile(amount, 0.95)"'
_SYNONYMS = {
    "mean": "avg",
    "std": "stddev",
    "stddev_samp": "stddev",
    "collect_list": "collect",
    "median": "percentile",
}
_FRACTIONS = ("percentile", "approx_percentile")
_CALL = re.compile(r"\s*(\w+)\s*\(")
_NAME_BEFORE = re.compile(r"\w\s*\Z")
_DISTINCT = re.compile(r"distinct\b\s*", re.IGNORECASE)
_QUOTES = "'\"`"
_FUNCTION = re.compile(r"(?<![\w.`])([A-Za-z_]\w*)\s*\Z")
# Functions that only SQL has; then keywords and types that can stand before a parenthesis.
_SQL_WORDS = """
any approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate bigint binary
boolean collations date double float from_avro from_protobuf if int len localtime luhn_check map
measure mod percentile_cont percentile_disc python_worker_logs range schema_of_avro smallint space
sql_keywords string time timestamp tinyint to_avro to_protobuf variant_explode
variant_explode_outer

all and as between by case char character dec decimal distinct div else end escape exists from group
ilike in interval is like not numeric on or over then using values varchar when where with within
"""


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of one expression; `of` is None for count(*)."""

    kind: str
    of: str | Column | None = None
    fraction: float = 0.5


def check_aggregates(
    given: Mapping[str, Given], function: Callable[..., Any] | None = None
) -> None:
    """Raises `ConfigError` for what cannot be an aggregate of any window. `function` is the one
    that they were given to by name: its keywords may be meant."""
    if not given:
        raise ConfigError(f"a window without aggregates has no result: {EXAMPLE}")
    for name, it in given.items():
        if not _is_aggregate(it):
            raise ConfigError(_not_one(it, name, function))
        if isinstance(it, str):
            _check_text(it, name)


def parse_aggregates(
    given: Mapping[str, Given],
    kinds: Sequence[str] = KINDS,
    function: Callable[..., Any] | None = None,
) -> dict[str, Aggregate]:
    """Each as one call of a kind that state in Python knows. Raises `ConfigError`."""
    check_aggregates(given, function)
    return {name: parse_aggregate(it, name, kinds) for name, it in given.items()}


def parse_aggregate(given: Given, name: str, kinds: Sequence[str] = KINDS) -> Aggregate:
    check_aggregates({name: given})
    if isinstance(given, Aggregate):
        found = given
    elif isinstance(given, str):
        found = _parse_text(given, name, kinds)
    else:
        found = _parse_column(given, name, kinds)
    if found.kind not in kinds:
        raise ConfigError(
            f"{name}: there is no {_listed([found.kind])} in this window, only {_listed(kinds)}"
        )
    if found.of is None and found.kind not in ("count", "rate"):
        raise ConfigError(f"{name}: {found.kind} needs a column or an expression: {EXAMPLE}")
    if not 0 <= found.fraction <= 1:
        raise ConfigError(f"{name}: a percentile lies between 0 and 1, like 0.95 for the 95th")
    return found


def refuse_distinct(given: Mapping[str, Given]) -> None:
    """Raises `ConfigError` for aggregates that Spark does not compute of streams."""
    for name, it in given.items():
        if isinstance(it, str):
            is_distinct = any(_DISTINCT.match(inside) for inside in _insides(it))
        elif isinstance(it, Aggregate):
            is_distinct = it.kind == DISTINCT
        else:
            call = _function_of(it)
            is_distinct = call is not None and bool(call.isDistinct())
        if is_distinct:
            raise ConfigError(
                f"{name}: Spark computes no distinct aggregates of streams: use "
                "analytics.count_distinct, or approx_count_distinct(x)"
            )


def spark_aggregate(given: Given) -> Column:
    """An aggregate as Spark's own expression."""
    from pyspark.sql import functions as F  # noqa: N812

    if isinstance(given, str):
        return F.expr(given)
    if not isinstance(given, Aggregate):
        return given
    of = F.expr(given.of) if isinstance(given.of, str) else given.of
    if of is None:
        return F.count(F.lit(1))
    if given.kind == "percentile":
        return F.percentile(of, given.fraction)
    return F.collect_list(of) if given.kind == "collect" else getattr(F, given.kind)(of)


def _is_aggregate(given: object) -> bool:
    """Whether it has the form of one: a text with a call in it, or a Column."""
    if not isinstance(given, str):
        return isinstance(given, Aggregate) or _is_column(given)
    opened = (place for place, _ in _parentheses(given, opening=True))
    return any(_NAME_BEFORE.search(given[:place]) for place in opened)


def _not_one(given: object, name: str, function: Callable[..., Any] | None) -> str:
    known = {} if function is None else signature(function).parameters
    keywords = [it.name for it in known.values() if it.kind is it.KEYWORD_ONLY]
    meant = get_close_matches(name, keywords, 1, cutoff=0.75)
    hint = f"; did you mean {meant[0]}=?" if meant else ""
    return f"{name}={given!r} is no aggregate{hint}: {EXAMPLE}"


def _listed(kinds: Sequence[str]) -> str:
    return ", ".join("count(distinct x)" if it == DISTINCT else it for it in kinds)


def _check_text(text: str, name: str) -> None:
    """Its parentheses must be in pairs, and Spark must have its functions."""
    opened = [place for place, _ in _parentheses(text, opening=True)]
    depth = 0
    for _, character in _parentheses(text):
        depth += 1 if character == "(" else -1
        if depth < 0:
            break
    if depth:
        raise ConfigError(f"{name}={text!r}: a parenthesis is not closed, or not opened")
    for place in opened:
        called = _FUNCTION.search(text[:place])
        if called is not None:
            _check_function(called[1].lower(), text, name)


def _check_function(function: str, text: str, name: str) -> None:
    """Raise `ConfigError` if neither Spark nor the active session has the function."""
    known = _functions()
    if function in known or _is_registered(function):
        return
    close = get_close_matches(function, known, 1, cutoff=0.75)
    raise ConfigError(
        f"{name}={text!r}: Spark has no function {function}"
        + (f"; did you mean {close[0]}? " if close else ". ")
        + "A function of your own must be registered before the window is defined"
    )


@cache
def _functions() -> frozenset[str]:
    """The functions of Spark SQL and of aggregates in Python, and what else can stand before a
    parenthesis."""
    from pyspark.sql import functions

    names = {it.lower() for it in dir(functions) if not it.startswith("_")}
    return frozenset({*names, *_SQL_WORDS.split(), *KINDS, *_SYNONYMS, "rate", "approx_distinct"})


def _is_registered(function: str) -> bool:
    """Whether the active session has such a function."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return session is not None and session.catalog.functionExists(function)


def _parentheses(text: str, *, opening: bool = False) -> Iterator[tuple[int, str]]:
    """Those outside of quotes."""
    quote = None
    for place, character in enumerate(text):
        if quote is not None:
            quote = None if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character == "(" or (character == ")" and not opening):
            yield place, character


def _insides(text: str) -> Iterator[str]:
    """What follows each opening parenthesis."""
    return (text[place + 1 :].lstrip() for place, _ in _parentheses(text, opening=True))


def _outer_call(text: str) -> tuple[str, str] | None:
    """The function and what is in its parentheses, if the text is one call and nothing else."""
    found = _CALL.match(text)
    if found is None:
        return None
    depth = 0
    for place, character in _parentheses(text):
        depth += 1 if character == "(" else -1
        if depth == 0:
            is_whole = not text[place + 1 :].strip()
            return (found[1].lower(), text[found.end() : place].strip()) if is_whole else None
    return None


def _parse_text(text: str, name: str, kinds: Sequence[str]) -> Aggregate:
    call = _outer_call(text)
    if call is None:
        raise ConfigError(
            f"{name}={text!r}: here an aggregate is one call, of {_listed(kinds)}; compute with "
            "its results behind the window"
        )
    function, inside = call
    kind = _SYNONYMS.get(function, function)
    distinct = _DISTINCT.match(inside)
    if distinct is not None:
        _check_distinct(kind, name)
        return Aggregate(DISTINCT, inside[distinct.end() :] or None)
    if kind in _FRACTIONS and function != "median":
        inside, _, fraction = (part.strip() for part in inside.rpartition(","))
        try:
            return Aggregate(kind, inside or None, float(fraction))
        except ValueError:
            raise ConfigError(f"{name}={text!r}: which percentile? {EXAMPLE}") from None
    return Aggregate(kind, None if inside in ("*", "") else inside)


def _check_distinct(kind: str, name: str) -> None:
    if kind != "count":
        raise ConfigError(f"{name}: only count has distinct values here, and {kind} has not")


def _is_column(given: object) -> bool:
    from pyspark.sql import Column

    return isinstance(given, Column)


def _function_of(column: Any) -> Any:
    """The function that a Column calls, as Spark's own node; None if it is no call."""
    node = column._jc.node() if hasattr(column, "_jc") else None
    while node is not None and _class_of(node) == "Alias":
        node = node.child()
    return node if node is not None and _class_of(node) == "UnresolvedFunction" else None


def _class_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _parse_column(column: Any, name: str, kinds: Sequence[str]) -> Aggregate:
    """`F.sum("amount")`, as if it were the text "sum(amount)"."""
    if not hasattr(column, "_jc"):
        raise ConfigError(f'{name}: with Spark Connect, write it as text, like {name}="sum(x)"')
    node = column._jc.node()
    if _class_of(node) == "SqlExpression":
        return _parse_text(str(node.expression()), name, kinds)
    call = _function_of(column)
    if call is None:
        raise ConfigError(
            f'{name}: this Column is not one call of {_listed(kinds)}: write it like F.sum("x")'
        )
    function = str(call.functionName()).lower()
    kind = _SYNONYMS.get(function, function)
    arguments = [call.arguments().apply(index) for index in range(call.arguments().length())]
    of = arguments[0] if arguments else None
    if kind == "count" and of is not None and _is_any_row(of):
        return Aggregate("count")
    inner = None if of is None else _column_of(column, of)
    if call.isDistinct():
        _check_distinct(kind, name)
        return Aggregate(DISTINCT, inner)
    if kind in _FRACTIONS and function != "median":
        return Aggregate(kind, inner, _fraction_of(arguments, name))
    return Aggregate(kind, inner)


def _is_any_row(node: Any) -> bool:
    """Whether it counts all rows: count(*), count(1)."""
    kind = _class_of(node)
    return kind == "UnresolvedStar" or (kind == "Literal" and node.value() is not None)


def _column_of(column: Any, node: Any) -> Column:
    from pyspark.sql import SparkSession

    jvm: Any = SparkSession.active()._jvm
    made: Column = type(column)(jvm.org.apache.spark.sql.Column(node))
    return made


def _fraction_of(arguments: Sequence[Any], name: str) -> float:
    if len(arguments) < 2 or _class_of(arguments[1]) != "Literal":
        raise ConfigError(f"{name}: which percentile? {EXAMPLE}")
    return float(arguments[1].value())
