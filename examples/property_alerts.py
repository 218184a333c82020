"""Property alerts: everybody stores a search, and gets an alert for every flat that fits it.

millstream run examples/property_alerts.py     until Ctrl-C, with a broker of its own and SQLite
python examples/property_alerts.py             300 searches and 500 flats, and checked

Searches are records of a topic: they come, change and go while flats are offered. A search is in
force from the time of its record on, so the alerts do not depend on when they are computed.
"""

import json
import random
import sqlite3
import tempfile
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.standing import match_queries

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
CITIES = ("Bonn", "Köln", "Mainz", "Trier")
Search = tuple[str, Decimal, int] | None  # a city, a budget, rooms; None if it is removed

flats = topic(
    "flats",
    schema="flat long, at timestamp, rent decimal(9,2), rooms int, place struct<city: string>",
    queries="searches",
)


@pipeline(reads=flats, writes=table("alerts", key=("flat", "search")))
def alerts(flats):
    found = flats.transform(match_queries, time="at")
    why = "array_join(_why, ' and ') as why"
    return found.selectExpr("flat", "_query as search", "_version as version", why)


def make_searches(rng: random.Random) -> list[tuple[int, str, Search]]:
    """The minute, the person and the search, in the order of time."""
    made: list[tuple[int, str, Search]] = []
    for minute in range(300):
        person = f"person{rng.randrange(200)}"
        budget = Decimal(rng.randrange(40_000, 120_000)) / 100
        search = (rng.choice(CITIES), budget, rng.randint(1, 4))
        made.append((minute, person, None if rng.random() < 0.1 else search))
    return made


def make_flats(rng: random.Random) -> list[dict[str, object]]:
    return [
        {
            "flat": number,
            "at": (BEGIN + timedelta(minutes=rng.randrange(300))).isoformat(),
            "rent": str(Decimal(rng.randrange(40_000, 120_000)) / 100),
            "rooms": rng.randint(1, 4),
            "place": {"city": rng.choice(CITIES)},
        }
        for number in range(500)
    ]


def where_of(search: Search) -> bytes | None:
    """The value of a search's record; none removes the search."""
    if search is None:
        return None
    city, budget, rooms = search
    where = f"place.city = '{city}' AND rent <= {budget} AND rooms >= {rooms}"
    return json.dumps({"where": where}).encode()


def by_hand(
    searches: list[tuple[int, str, Search]], flats: list[dict[str, object]]
) -> list[tuple[int, str, int]]:
    """Each flat with each person whose newest search at that time fits it."""
    found = []
    for flat in flats:
        newest: dict[str, tuple[int, Search]] = {}
        for version, (minute, person, search) in enumerate(searches):
            if BEGIN + timedelta(minutes=minute) <= datetime.fromisoformat(str(flat["at"])):
                newest[person] = version, search
        for person, (version, search) in newest.items():
            if search is None or flat["place"] != {"city": search[0]}:
                continue
            if Decimal(str(flat["rent"])) <= search[1] and int(str(flat["rooms"])) >= search[2]:
                found.append((int(str(flat["flat"])), person, version))
    return sorted(found)


def main() -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic
    from pyspark.sql import SparkSession

    from millstream import Broker

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    with Broker.start() as broker, tempfile.TemporaryDirectory() as directory:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = [
            NewTopic("flats", 2),
            NewTopic("searches", 1, config={"cleanup.policy": "compact"}),
        ]
        for created in admin.create_topics(topics).values():
            created.result(30)
        rng = random.Random(4)
        searches, offered = make_searches(rng), make_flats(rng)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for minute, person, search in searches:
            time_ms = int((BEGIN + timedelta(minutes=minute)).timestamp() * 1000)
            producer.produce("searches", where_of(search), key=person, timestamp=time_ms)
        for flat in offered:
            producer.produce("flats", json.dumps(flat), key=str(flat["flat"]))
        assert producer.flush(30) == 0
        store = Path(directory) / "alerts.db"
        settings = {
            "broker": broker.bootstrap_servers,
            "store": f"sqlite:///{store}",
            "checkpoint": f"{directory}/checkpoints",
        }
        alerts.start(spark, **settings, once=True).awaitTermination()

        rows = sqlite3.connect(store).execute("select flat, search, version, why from alerts")
        found = sorted(rows.fetchall())
        for flat, person, _, why in found[:3]:
            print(f"{person}: flat {flat}, because {why}")
        assert [it[:3] for it in found] == by_hand(searches, offered)
        print(f"{len(found)} alerts, as by hand")
    spark.stop()


if __name__ == "__main__":
    main()
