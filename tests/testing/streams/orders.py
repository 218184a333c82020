"""What tests of the harness share: orders, as an input and as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from millstream.pipelines.spec import topic
from millstream.testing.streams.case import Arrival
from millstream.testing.streams.inputs import BEGIN, Input, Source, make_input

# Not as text: that takes a Spark session to read.
SCHEMA = StructType().add("id", "integer").add("shop", "string").add("at", "timestamp")
CLICKS = StructType().add("at", "timestamp")


def at(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{BEGIN:%Y-%m-%d} 00:{minutes:02.0f}:{rest:06.3f}"


def order(number: int, seconds: float, shop: str = "a") -> dict[str, Any]:
    return {"id": number, "shop": shop, "at": at(seconds)}


def arrivals(*orders: Mapping[str, Any]) -> tuple[Arrival, ...]:
    return tuple(Arrival("orders", it) for it in orders)


def orders_input(delay: str = "10 seconds") -> Input:
    return make_input("orders", topic("orders", schema=SCHEMA, watermark=("at", delay)), None)


def orders_source(rows: Sequence[Mapping[str, Any]] = (), delay: str = "10 seconds") -> Source:
    return Source(rows, schema=SCHEMA, watermark=("at", delay))
