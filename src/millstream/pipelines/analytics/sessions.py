"""Summaries of sessions: one row per session, with an id, its duration, first and last values.

    visits.transform(summarize_sessions, "30 minutes", key="user", time="at",
                     landing="first(page)", exit="last(page)", bought="bool_or(page = 'buy')")

A session consists of the events of a key that are at most `gap` apart. It is emitted when it is
final: the key, `session_id`, `session_start` and `session_end` (the times of the first and the last
event), `events`, `duration` in seconds, and

    first(x), last(x)    x of the first and the last event that has one; of events at the same time
                         the smaller, or the greater value, so that a replay yields the same
    any other text       an aggregate of Spark SQL: "bool_or(page = 'buy')", "sum(amount)"

It is computed by Spark's session window in append mode, like `windows.session`, which has the
bounds of windows, an allowed lateness and corrections instead. `session_id` is a hash of key and
start, and the same on a replay. The session of a key that never pauses, for example of a bot, never
ends: filter out such keys first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.analytics.stages import final_window, lateness_of
from millstream.pipelines.columns import as_column
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.lateness import DropOrDivert
from millstream.pipelines.windows.aggregates import Aggregate, check_aggregates
from millstream.pipelines.windows.kinds import Session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ID = "session_id"
FIRST = "session_start"
LAST = "session_end"
EVENTS = "events"
DURATION = "duration"
_EDGE = re.compile(r"\s*(first|last)\s*\((.+)\)\s*", re.DOTALL | re.IGNORECASE)


def summarize_sessions(
    frame: DataFrame,
    gap: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    stragglers: DropOrDivert = "drop",
    count_as: str | None = None,
    **attributes: str | Column,
) -> DataFrame:
    """The sessions of each key; see the head of this module. Raises `ConfigError`."""
    from pyspark.sql.functions import col, count, lit, max, min, sha2, struct, to_json, unix_micros

    moment = as_column(time)
    reserved = {ID, FIRST, LAST, EVENTS, DURATION}
    for name in attributes:
        if name in reserved:
            raise ConfigError(f"a session has {name} already: choose another name")
    if attributes:
        check_aggregates(attributes, summarize_sessions)
    aggregates: dict[str, str | Column | Aggregate] = {
        FIRST: min(moment),
        LAST: max(moment),
        EVENTS: count(lit(1)),
        **{name: _attribute(it, moment) for name, it in attributes.items()},
    }
    gap_us = duration_us(gap, "gap")
    kind = Session(gap_us)
    lateness = lateness_of(stragglers, None, count_as, "sessions", gap_us)
    window = final_window(kind, key, time, aggregates, lateness)
    names = window.key_names(frame)
    for name in names:
        if name in reserved:
            raise ConfigError(f'a session has {name} already: give the key an .alias("...")')
    found = window(frame)
    lasted_us = unix_micros(LAST) - unix_micros(FIRST)
    start_us = unix_micros(FIRST).alias(FIRST)
    identity = sha2(to_json(struct(*map(as_column, names), start_us)), 256).substr(1, 16)
    return found.select(
        *map(as_column, names),
        identity.alias(ID),
        col(FIRST),
        col(LAST),
        col(EVENTS),
        (lasted_us / 1e6).alias(DURATION),
        *map(as_column, attributes),
    )


def _attribute(given: str | Column, time: Column) -> Column | str:
    edge = _EDGE.fullmatch(given) if isinstance(given, str) else None
    if edge is None:
        return given
    from pyspark.sql.functions import expr, max_by, min_by, struct, when

    value = expr(edge[2])
    order = when(value.isNotNull(), struct(time.alias("t"), value.alias("v")))
    return (min_by if edge[1].lower() == "first" else max_by)(value, order)
