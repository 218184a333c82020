"""Views that are right when rows leave, and a reader that sees its own writes.

millstream run examples/views.py         until Ctrl-C, with a broker of its own and SQLite
python examples/views.py                 the same with some orders, checked
"""

import json
import tempfile

from millstream.pipelines import pipeline, topic, view, views


@pipeline(
    reads=topic("orders", schema="id long, user string, amount decimal(10,2)", table_key="id"),
    writes={"by_user": view(key="user"), "big_spenders": view(key="user")},
)
def shop(orders):
    """What each user spent; and those who spent much, as long as they have."""
    totals = orders.transform(views.aggregate, key="user", spent="sum(amount)", orders="count(*)")
    return {"by_user": totals, "big_spenders": totals.where("spent >= 100")}


def main() -> None:
    from confluent_kafka import Producer
    from pyspark.sql import SparkSession

    from millstream import Broker

    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.streaming.stateStore.providerClass", rocksdb)
        .getOrCreate()
    )
    with Broker.start() as broker, tempfile.TemporaryDirectory() as directory:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

        def order(number: int, user: str | None, amount: int = 0) -> object:
            """Place, change or (without a user) cancel an order; returns its delivery report."""
            reports: list[object] = []
            value = None if user is None else json.dumps({"user": user, "amount": amount})
            producer.produce(
                "orders", value, key=str(number), on_delivery=lambda _, it: reports.append(it)
            )
            assert producer.flush(30) == 0
            return reports[0]

        order(1, "ada", 80)
        order(2, "bob", 30)
        store = f"sqlite:///{directory}/shop.db"
        query = shop.start(
            spark,
            broker=broker.bootstrap_servers,
            store=store,
            checkpoint=f"{directory}/checkpoints",
        )

        with shop.read(at_least=order(3, "ada", 40), store=store, timeout=300) as v:
            print("at", v.stamp.offsets, "big spenders:", v["big_spenders"].range())
            assert [row["user"] for row in v["big_spenders"].range()] == ["ada"]
            assert v["by_user"].get("ada")["orders"] == 2

        with shop.read(at_least=order(1, None), store=store, timeout=300) as v:
            print("at", v.stamp.offsets, "big spenders:", v["big_spenders"].range())
            assert v["big_spenders"].range() == []  # she has cancelled an order
            assert str(v["by_user"].get("ada")["spent"]) == "40.00"
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
