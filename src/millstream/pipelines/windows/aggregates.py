"""What to compute of a window, as people write it.

    "count(*)"  "count(amount)"  "sum(price * quantity)"  "avg(x)"  "stddev(x)"  "min(x)"  "max(x)"
    "percentile(x, 0.95)"  "collect(x)"

What is aggregated is any expression that Spark understands, or a Column with `Aggregate("sum",
col("price"))`. `collect` gathers the values of the window in an array, in the order of time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

KINDS = ("count", "sum", "avg", "stddev", "min", "max", "percentile", "collect")
EXAMPLE = 'write it like n="count(*)", spent="sum(amount)" or p95="percentile(amount, 0.95)"'
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)


@dataclass(frozen=True)
class Aggregate:
    """`of` is None for count(*)."""

    kind: str
    of: str | Column | None = None
    fraction: float = 0.5


def parse_aggregates(given: Mapping[str, str | Aggregate]) -> dict[str, Aggregate]:
    """By the name of the result. Raises `ConfigError`."""
    if not given:
        raise ConfigError(f"a window without aggregates has no result: {EXAMPLE}")
    return {name: parse_aggregate(it, name) for name, it in given.items()}


def parse_aggregate(given: str | Aggregate, name: str) -> Aggregate:
    aggregate = given if isinstance(given, Aggregate) else _parse(given, name)
    if aggregate.kind not in KINDS:
        raise ConfigError(f"{name}={aggregate.kind!r}: it can be {', '.join(KINDS)}; {EXAMPLE}")
    if aggregate.of is None and aggregate.kind != "count":
        raise ConfigError(f"{name}={aggregate.kind!r} of what? {EXAMPLE}")
    if not 0 <= aggregate.fraction <= 1:
        raise ConfigError(f"{name}: a percentile lies between 0 and 1, like 0.95 for the 95th")
    return aggregate


def _parse(text: str, name: str) -> Aggregate:
    call = _CALL.fullmatch(text)
    if call is None:
        raise ConfigError(f"{name}={text!r} is no aggregate: {EXAMPLE}")
    kind, inside = call[1].lower(), call[2].strip()
    kind = {"mean": "avg", "median": "percentile"}.get(kind, kind)
    if kind == "percentile" and call[1].lower() != "median":
        inside, _, fraction = (part.strip() for part in inside.rpartition(","))
        try:
            return Aggregate(kind, inside or None, float(fraction))
        except ValueError:
            raise ConfigError(f"{name}={text!r}: which percentile? {EXAMPLE}") from None
    return Aggregate(kind, None if inside in ("*", "") else inside)
