"""Event sourcing on Spark: a pipeline keeps a table of the current holder of each seat.

    python examples/projection.py

Commands are decided on the events in the log; the table is derived from the same events. It can be
dropped and computed again at any time, also by another function.
"""

import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from millstream.events import Aggregate, CommandHandler, Event, EventLog, Refusal
from millstream.pipelines import pipeline, table, topic


@dataclass(frozen=True)
class Seat:
    holder: str | None = None


@dataclass(frozen=True)
class Claim:
    person: str


@dataclass(frozen=True)
class Release:
    person: str


def decide(seat: Seat, command: Claim | Release) -> list[Event] | Refusal:
    if isinstance(command, Release):
        is_theirs = seat.holder == command.person
        return [Event("released")] if is_theirs else Refusal("not your seat")
    if seat.holder is not None:
        return Refusal(f"taken by {seat.holder}")
    return [Event("claimed", {"by": command.person})]


def evolve(seat: Seat, event: Event) -> Seat:
    return Seat(event.data["by"]) if event.type == "claimed" else Seat()


seat = Aggregate("seat", Seat(), decide, evolve)

# The key of a record is the seat; type and version of an event are in its headers.
events = topic(
    "seats", schema="by string, _key binary, _headers array<struct<key: string, value: binary>>"
)


def header(name):
    found = F.filter("_headers", lambda it: it["key"] == name)
    return F.get(found, F.lit(0))["value"].cast("string")


@pipeline(reads=events, writes=table("holders", key="seat"))
def holders(events):
    """The last event of each seat decides; `version` shows how far the row is."""
    named = events.select(
        F.col("_key").cast("string").alias("seat"),
        "by",
        header("event-type").alias("type"),
        header("millstream-version").cast("long").alias("version"),
    )
    return named.groupBy("seat").agg(
        F.max_by("by", "version").alias("holder"),
        F.max("version").alias("version"),
        F.count(F.when(F.col("type") == "claimed", 1)).alias("claims"),
    )


def main() -> None:
    from pyspark.sql import SparkSession

    from millstream import Broker

    settings = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    with Broker.start() as broker, tempfile.TemporaryDirectory() as directory:
        address = broker.bootstrap_servers
        with EventLog(address, "seats") as log:
            log.create()
            handler = CommandHandler(log, seat)
            handler.handle("12a", Claim("ada"))
            handler.handle("12b", Claim("bob"))
            assert handler.handle("12b", Claim("eve")) == Refusal("taken by bob")
            handler.handle("12b", Release("bob"))
            store = Path(directory) / "seats.db"
            options = {
                "broker": address,
                "store": f"sqlite:///{store}",
                "checkpoint": f"{directory}/checkpoints",
                "once": True,
            }
            holders.start(spark, **options).awaitTermination()
            handler.handle("12b", Claim("eve"))
            holders.start(spark, **options).awaitTermination()

            query = "SELECT seat, holder, version, claims FROM holders ORDER BY seat"
            rows = sqlite3.connect(store).execute(query).fetchall()
            print(*rows, sep="\n")
            assert rows == [("12a", "ada", 1, 1), ("12b", "eve", 3, 2)]
            for number, holder, version, _ in rows:  # as the events themselves say
                loaded = handler.load(number)
                assert (loaded.state.holder, loaded.version) == (holder, version)
    spark.stop()


if __name__ == "__main__":
    main()
