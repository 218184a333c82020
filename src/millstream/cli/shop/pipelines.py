"""The pipelines of a shop: what `millstream demo` runs, and a file to copy from.

    orders ──> enrich ──┬──> enriched (topic) ──┬──> sales (table: a row per product and 10 seconds)
                        └──> alerts (topic)     ├──> fraud (topic: small orders, then a large one)
                                                └──> customers (view: what each has spent)
    views ───> interest (table: a row per product and 10 seconds)

Orders come late, and twice, and broken. A late one is counted in the window in which it was placed.
A duplicate is dropped by its id. A record that does not decode becomes a dead letter in
`dlq.orders`, with the reason.

    millstream run pipelines.py            with a broker of its own, and tables in SQLite
"""

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from millstream.pipelines import patterns, pipeline, table, topic, view, views

PRODUCTS = [
    ("armchair", "living", 480),
    ("bookcase", "living", 220),
    ("candle", "dining", 6),
    ("carafe", "dining", 28),
    ("desk", "office", 390),
    ("lamp", "office", 75),
    ("mug", "dining", 12),
    ("rug", "living", 160),
]
SMALL_AMOUNT, LARGE_AMOUNT = 100, 1500
BUCKETS = 2  # of the keys: as many as there are cores
WINDOW = "10 seconds"

orders = topic(
    "orders",
    schema="""
        id long not null,
        customer string not null,
        product string not null,
        pieces int not null,
        at timestamp not null
    """,
    key="customer",
    watermark=("at", "10 minutes"),
    partitions=2,
)
page_views = topic(
    "views",
    schema="product string not null, at timestamp not null",
    watermark=("at", "10 minutes"),
    partitions=2,
)
enriched = topic(
    "enriched",
    schema="""
        id long,
        customer string,
        product string,
        department string,
        amount long,
        at timestamp,
        _offset long
    """,
    key="customer",
    watermark=("at", "10 minutes"),
    partitions=2,
)
alerts = topic("alerts", key="customer")
frauds = topic("frauds", key="customer")

# Somebody tries a stolen card with small orders, and then buys. It is reported at once: in the
# order of arrival, without waiting for the watermark.
tried_and_bought = patterns.match(
    "small{3,} large",
    key="customer",
    time="at",
    order="arrival",
    within="1 minute",
    buckets=BUCKETS,
    where={"small": f"amount < {SMALL_AMOUNT}", "large": f"amount >= {LARGE_AMOUNT}"},
    id="large.id",
    tries="count(small)",
    amount="large.amount",
)


@pipeline(reads=orders, writes={"enriched": enriched, "alerts": alerts})
def enrich(orders: DataFrame) -> DataFrame:
    """Each order once, with its department and amount; and the large ones again, as alerts."""
    products = orders.sparkSession.createDataFrame(
        pa.table([*zip(*PRODUCTS, strict=True)], names=["product", "department", "price"])
    )
    priced = (
        orders.dropDuplicates(["id", "at"])  # with the time in it, Spark can forget old ids
        .join(F.broadcast(products), "product")
        .withColumn("amount", F.col("pieces") * F.col("price"))
    )
    alert = F.struct("customer", "id", "product", "amount")
    return priced.select(
        F.struct("id", "customer", "product", "department", "amount", "at").alias("enriched"),
        F.when(F.col("amount") >= LARGE_AMOUNT, alert).alias("alerts"),  # null: no alert
    )


@pipeline(reads=enriched, writes=table("sales", key=("since", "product")))
def sales(enriched: DataFrame) -> DataFrame:
    """What was sold: orders and revenue, by window and product."""
    by_window = enriched.groupBy(F.window("at", WINDOW), "product").agg(
        F.count("*").alias("orders"), F.sum("amount").alias("revenue")
    )
    return by_window.selectExpr("window.start AS since", "product", "orders", "revenue")


@pipeline(reads=page_views, writes=table("interest", key=("since", "product")))
def interest(page_views: DataFrame) -> DataFrame:
    """What was looked at, by window and product."""
    by_window = page_views.groupBy(F.window("at", WINDOW), "product").agg(
        F.count("*").alias("views")
    )
    return by_window.selectExpr("window.start AS since", "product", "views")


@pipeline(reads=enriched, writes=frauds)
def fraud(enriched: DataFrame) -> DataFrame:
    """Small orders of a customer, and directly after them a large one."""
    return enriched.transform(tried_and_bought)


@pipeline(reads=enriched, writes=view("customers", key="customer"))
def customers(enriched: DataFrame) -> DataFrame:
    """What each customer has spent."""
    return enriched.transform(
        views.aggregate, key="customer", orders="count(*)", spent="sum(amount)", buckets=BUCKETS
    )
