"""The pipelines of a shop: what `millstream demo` runs, and a file to copy from.

    orders ──> enrich ──┬──> enriched (topic) ──> sales (table: a row per product and 10 seconds)
                        └──> alerts (topic)
    views ───> interest (table: a row per product and 10 seconds)

Orders come late, and twice, and broken. A late one is counted in the window in which it was placed.
A duplicate is dropped by its id. What does not decode is a dead letter in `dlq.orders`, with the
reason, and nobody has to wait for it.

    millstream run pipelines.py            with a broker of its own, and tables in SQLite
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from millstream.pipelines import pipeline, table, topic

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
LARGE_AMOUNT = 1500
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
views = topic(
    "views",
    schema="product string not null, at timestamp not null",
    watermark=("at", "10 minutes"),
    partitions=2,
)
enriched = topic(
    "enriched",
    schema="id long, customer string, product string, department string, amount long, at timestamp",
    key="customer",
    watermark=("at", "10 minutes"),
    partitions=2,
)
alerts = topic("alerts", key="customer")


@pipeline(reads=orders, writes={"enriched": enriched, "alerts": alerts})
def enrich(orders: DataFrame) -> DataFrame:
    """Each order once, with its department and amount; and the large ones again, as alerts."""
    products = orders.sparkSession.createDataFrame(
        PRODUCTS, "product string, department string, price long"
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


@pipeline(reads=views, writes=table("interest", key=("since", "product")))
def interest(views: DataFrame) -> DataFrame:
    """What was looked at, by window and product."""
    by_window = views.groupBy(F.window("at", WINDOW), "product").agg(F.count("*").alias("views"))
    return by_window.selectExpr("window.start AS since", "product", "views")
