"""External lookup: rows with the answer of an external system to their key.

    def users_of(ids):                      # a list of keys, each once
        ...                                 # a database, a service: one call
        return {id: {"name": ..., "country": ...}}

    clicks.transform(lookup, "user_id", users_of, "name string, country string")

The function is called in Spark's workers with up to `batch_size` keys. It returns a dict that has,
for each known key, a dict by column or a tuple of the columns in order. Rows of other keys are
emitted with nulls (`how="left"`) or not at all ("inner"). With several columns in `on`, keys are
tuples. A null key is not looked up.

Each worker caches the answers to `cache_rows` keys for the time `cache_for`. A call that exceeds
`timeout`, or raises, is retried `retries` times. Then

    on_failure="error"      the query ends (Spark has retried the task before)
    on_failure="null"       rows are emitted with nulls, and counted in the query's progress
    on_failure="divert"     rows are emitted with nulls and the reason in `_error`, and
                            `split_failed` makes two outputs of them: results and dead letters

**A replay may yield other rows**: the answer depends on when the system is asked, and a repeated
batch asks again. If the table's changes are available as a topic, use `enrich`, which stores the
table itself, or `as_of_join`, which yields the same on every replay.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import as_column, check_choice, kind_of
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.hidden import hide_again, show_watermark
from millstream.pipelines.joins.external import (
    Fetch,
    LookupClient,
    LookupFailed,
    LookupSettings,
    NoAnswer,
)
from millstream.pipelines.joins.frames import keep_watermark
from millstream.pipelines.joins.matching import has_null_key, take_or_null
from millstream.pipelines.plans import BY_ARRIVAL
from millstream.pipelines.state.keys import Numbers, first_rows, key_codes, with_hash
from millstream.pipelines.workers import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

How = Literal["inner", "left"]
OnFailure = Literal["error", "null", "divert"]
ERROR = "_error"
FAILED = "lookup.failed"  # where the query's progress counts rows without an answer
CLIENTS_MAX = 8  # lookups whose answers a worker caches
_NESTED = ("array<", "struct<", "map<", "variant")

_clients: OrderedDict[str, LookupClient] = OrderedDict()


@dataclass(frozen=True)
class Lookup:
    """The definition of a lookup; it is pickled for Spark's workers."""

    lookup_id: str
    keys: tuple[str, ...]
    columns: pa.Schema  # of the answers
    how: How
    on_failure: OnFailure
    fetch: Fetch
    settings: LookupSettings

    def run(self, client: LookupClient, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the answers; the last column has the reason if there is none."""
        places, asked = self._distinct(rows)
        answers = client.find(asked)
        errors = [it.reason if isinstance(it, NoAnswer) else None for it in answers.values()]
        self._raise_first(errors)
        positions = {key: place for place, key in enumerate(answers)}
        order = np.array([positions[key] for key in asked], np.int64)
        places = np.where(places < 0, -1, order[places]) if len(order) else places
        found = self._table(
            [None if e else it for it, e in zip(answers.values(), errors, strict=True)]
        )
        result = pa.RecordBatch.from_arrays(
            [
                *rows.columns,
                *(take_or_null(column, places) for column in found.columns),
                take_or_null(pa.array(errors, pa.string()), places),
            ],
            schema=pa.schema([*rows.schema, *self.columns, (ERROR, pa.string())]),
        )
        if self.how == "left":
            return result
        is_known = np.array([it is not None for it in answers.values()], np.bool_)
        return result.filter(pa.array(np.append(is_known, False)[places]))

    def _distinct(self, rows: pa.RecordBatch) -> tuple[Numbers, list[Any]]:
        """For each row the index of its key among the distinct keys, -1 for null; and the keys."""
        keys = with_hash(rows.select(list(self.keys)), self.keys)
        codes = key_codes(keys, self.keys)
        firsts = first_rows(codes)
        is_null = has_null_key(keys, self.keys)
        lists = [keys.column(name).take(pa.array(firsts)).to_pylist() for name in self.keys]
        distinct = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
        known = np.flatnonzero(~is_null[firsts])
        renumbered = np.full(len(firsts) + 1, -1, np.int64)
        renumbered[known] = np.arange(len(known))
        return renumbered[codes], [distinct[at] for at in known]

    def _raise_first(self, errors: Sequence[str | None]) -> None:
        failed = next((it for it in errors if it is not None), None)
        if failed is not None and self.on_failure == "error":
            raise LookupFailed(
                f"the lookup by {', '.join(self.keys)} failed: {failed}. To continue without "
                'answers, use on_failure="null" or "divert"'
            )

    def _table(self, answers: Sequence[Any]) -> pa.RecordBatch:
        """The answers as columns."""
        names = self.columns.names
        rows = [self._by_name(it, names) for it in answers]
        try:
            arrays = [pa.array([row.get(it.name) for row in rows], it.type) for it in self.columns]
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise LookupFailed(f"an answer does not fit {self.columns}: {error}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)

    def _by_name(self, answer: Any, names: Sequence[str]) -> Mapping[str, Any]:
        if answer is None:
            return {}
        if isinstance(answer, Mapping):
            return answer
        if isinstance(answer, tuple | list) and len(answer) == len(names):
            return dict(zip(names, answer, strict=True))
        raise LookupFailed(
            f"the answer {answer!r} is neither a dict nor a tuple of {', '.join(names)}"
        )


def lookup(
    frame: DataFrame,
    on: str | Sequence[str],
    fetch: Fetch,
    schema: str | StructType,
    *,
    how: How = "left",
    on_failure: OnFailure = "error",
    batch_size: int = 500,
    timeout: Duration = "10 seconds",
    retries: int = 2,
    cache_rows: int = 100_000,
    cache_for: Duration = "10 minutes",
) -> DataFrame:
    """Rows with what `fetch` says of their key; see the head of this module.

    Raises `ConfigError` before anything runs.
    """
    from pyspark.sql.functions import col, count_if
    from pyspark.sql.pandas.types import from_arrow_schema

    from millstream.pipelines.state.spark import arrow_schema

    check_choice("how", how, How)
    check_choice("on_failure", on_failure, OnFailure)
    keys = (on,) if isinstance(on, str) else tuple(on)
    _check_keys(frame, keys)
    _check_least("batch_size", batch_size, 1)
    _check_least("retries", retries, 0)
    _check_least("cache_rows", cache_rows, 0)
    columns = arrow_schema(_struct(schema))
    taken = [it for it in columns.names if it in (*frame.columns, ERROR)]
    if taken or ERROR in frame.columns:
        raise ConfigError(
            f"the result would have two columns {(taken or [ERROR])[0]}: rename one of them"
        )
    given, frame = frame, show_watermark(frame)
    settings = LookupSettings(
        batch_size,
        duration_us(timeout, "timeout") // 1000,
        retries,
        cache_rows,
        duration_us(cache_for, "cache_for", zero_allowed=True) // 1000,
    )
    wanted = Lookup(uuid.uuid4().hex, keys, columns, how, on_failure, fetch, settings)
    inner = arrow_schema(frame.schema)
    answers = from_arrow_schema(pa.schema([*inner, *columns]))
    whole = answers.add(ERROR, "string", metadata={BY_ARRIVAL: "lookup"})
    answered = frame.mapInArrow(_runner(wanted, inner), whole)
    answered = hide_again(keep_watermark(answered, frame), given)
    if on_failure == "divert":
        return answered
    if on_failure == "null":
        answered = answered.observe(FAILED, count_if(col(ERROR).isNotNull()).alias("rows"))
    return answered.drop(ERROR)


def split_failed(frame: DataFrame, good: str, failed: str) -> DataFrame:
    """For a pipeline with two outputs of these names: rows with an answer, and dead letters."""
    from pyspark.sql.functions import col, struct, when

    columns = [it for it in frame.columns if it != ERROR]
    is_good = col(ERROR).isNull()
    return frame.select(
        when(is_good, struct(*map(as_column, columns))).alias(good),
        when(~is_good, struct(*map(as_column, [*columns, ERROR]))).alias(failed),
    )


def _runner(wanted: Lookup, inner: pa.Schema) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = client_of(wanted)
        for batch in batches:
            if batch.num_rows:
                yield wanted.run(client, batch.cast(inner))
        freeze_imports("lookup")

    return run


def client_of(wanted: Lookup) -> LookupClient:
    """That of this process: what it has learnt in one batch it knows in the next."""
    client = _clients.get(wanted.lookup_id)
    if client is None:
        client = _clients[wanted.lookup_id] = LookupClient(wanted.fetch, wanted.settings)
    _clients.move_to_end(wanted.lookup_id)
    while len(_clients) > CLIENTS_MAX:
        _clients.popitem(last=False)
    return client


def _check_keys(frame: DataFrame, keys: Sequence[str]) -> None:
    if not keys:
        raise ConfigError('a lookup needs a column to look up: on="user"')
    for name in keys:
        kind = kind_of(frame, name)
        if kind.startswith(_NESTED):
            raise ConfigError(f"{name} is {kind}, which cannot be a key: choose plain columns")


def _check_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name}={value}: it must be at least {least}")


def _struct(schema: str | StructType) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(found, StructType)
    return found
