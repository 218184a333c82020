"""What it costs to read values as typed rows: our decoder beside DuckDB's.

    python -m benchmarks.bench_decoding

Bids of 198 bytes with 7 fields, 100,000 in a column, with 0, 0.1 and 1 % that do not decode; CPU
time on one core, the best of several repetitions. The figures stand in
docs/decisions/0010-json-decoding.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import duckdb
import pyarrow as pa

from benchmarks.bids import make_bids
from millstream.pipelines.reading.decoding import make_decoder
from millstream.pipelines.reading.options import parse_read_options
from millstream.records.columns import Columns, decode_columns
from millstream.records.record import Record, encode_batch

ROWS = 100_000
REPETITIONS = 5
BAD_SHARES = (0.0, 0.001, 0.01)
OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "bids"}
TYPES = {
    "auction": (pa.int64(), "BIGINT", "UBIGINT"),
    "bidder": (pa.int64(), "BIGINT", "UBIGINT"),
    "price": (pa.int64(), "BIGINT", "UBIGINT"),
    "channel": (pa.string(), "VARCHAR", "VARCHAR"),
    "url": (pa.string(), "VARCHAR", "VARCHAR"),
    "dateTime": (pa.timestamp("us", tz="UTC"), "TIMESTAMPTZ", "VARCHAR"),
    "extra": (pa.string(), "VARCHAR", "VARCHAR"),
}
SCHEMA = pa.schema([(name, it[0]) for name, it in TYPES.items()])


def columns_of(values: list[bytes]) -> Columns:
    return decode_columns(encode_batch(Record(i, 0, None, it) for i, it in enumerate(values)))


def rate(work: Callable[[], object]) -> float:
    """Million rows per second of CPU time."""
    best = float("inf")
    for _ in range(REPETITIONS):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return ROWS / best / 1e6


def ours(value_format: str, values: list[bytes]) -> float:
    options = parse_read_options(OPTIONS | {"valueFormat": value_format}, streaming=False)
    decoder, columns = make_decoder(options, SCHEMA), columns_of(values)
    return rate(lambda: decoder.decode(columns))


def duck(values: list[bytes], query: str) -> float:
    connection = duckdb.connect()
    connection.execute("set threads = 1")
    connection.execute("set timezone = 'UTC'")
    table = pa.table({"v": pa.array([it.decode() for it in values])})
    connection.register("t", table)
    return rate(lambda: connection.sql(query).to_arrow_table())


def main() -> None:
    structure = json.dumps({name: it[1] for name, it in TYPES.items()})
    paths = [f"$.{name}" for name in TYPES]
    kinds = [it[2] for it in TYPES.values()]
    lenient = f"select from_json(v, '{structure}') from t where json_valid(v)"
    strict = (
        f"select from_json(v, '{structure}') from t "
        f"where json_valid(v) and json_type(v, {paths}) = {kinds}"
    )
    print(f"{'bad':>6} {'our JSON':>9} {'our CSV':>9} {'DuckDB, coercing':>17} {'with types':>11}")
    for share in BAD_SHARES:
        bids = make_bids(ROWS, share)
        lines = [json.dumps(it).encode() for it in bids]
        rows = [",".join(map(str, it.values())).encode() for it in bids]
        print(
            f"{share:6.1%} {ours('json', lines):9.2f} {ours('csv', rows):9.2f} "
            f"{duck(lines, lenient):17.2f} {duck(lines, strict):11.2f}"
        )


if __name__ == "__main__":
    main()
