"""Media monitoring: customers store words and phrases, and get every article that has them.

millstream run examples/media_monitoring.py     until Ctrl-C, with a broker of its own
python examples/media_monitoring.py             400 articles, and checked

Queries of text are made of words, "phrases", prefixes*, OR, NOT and parentheses. Each mention says
which of them were found.
"""

import json
import random
import re
import tempfile
from collections.abc import Callable

from millstream.pipelines import pipeline, topic
from millstream.pipelines.standing import match_queries

Test = Callable[[str, str], bool]  # of the words of an article, with spaces, and its language
QUERIES: dict[str, tuple[str, Test]] = {
    "mill": (
        """matches(body, 'millstream OR "mill stream"') AND lang = 'en'""",
        lambda words, lang: lang == "en" and (" millstream " in words or " mill stream " in words),
    ),
    "tea": (
        """matches(body, '"green tea" NOT (bag* OR powder)')""",
        lambda words, lang: " green tea " in words and not re.search(r" (bag\w*|powder) ", words),
    ),
    "rivers": (
        """lang IN ('de', 'en') AND (matches(body, 'rhine') OR matches(body, 'river*'))""",
        lambda words, lang: lang in ("de", "en") and bool(re.search(r" (rhine|river\w*) ", words)),
    ),
    "silent": ("""lang IS NULL AND matches(body, 'tea')""", lambda words, lang: False),
}
WORDS = (
    "the",
    "Mill",
    "stream",
    "Millstream",
    "green",
    "Tea,",
    "bags",
    "powder!",
    "Rhine",
    "rivers",
)

articles = topic(
    "articles",
    schema="article long, lang string, body string, _timestamp timestamp",
    queries="customers",
)


@pipeline(reads=articles, writes=topic("mentions", key="customer"))
def mentions(articles):
    found = articles.transform(match_queries, time="_timestamp")
    return found.selectExpr("_query as customer", "article", "_why as why")


def make_articles() -> list[dict[str, object]]:
    rng = random.Random(4)
    return [
        {
            "article": number,
            "lang": rng.choice(["de", "en", "fr"]),
            "body": " ".join(rng.choices(WORDS, k=rng.randint(1, 12))),
        }
        for number in range(400)
    ]


def by_hand(articles: list[dict[str, object]]) -> list[tuple[str, int]]:
    found = []
    for article in articles:
        words = " ".join(["", *re.findall(r"\w+", str(article["body"]).lower()), ""])
        for customer, (_, test) in QUERIES.items():
            if test(words, str(article["lang"])):
                found.append((customer, int(str(article["article"]))))
    return sorted(found)


def read_all(bootstrap: str) -> list[dict[str, object]]:
    from confluent_kafka import Consumer

    settings = {"group.id": "reader", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe(["mentions"])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(json.loads(message.value()))
    consumer.close()
    return found


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
        bootstrap = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(it, 1) for it in ("articles", "customers", "mentions")]
        for created in admin.create_topics(topics).values():
            created.result(30)
        written = make_articles()
        producer = Producer({"bootstrap.servers": bootstrap})
        for customer, (where, _) in QUERIES.items():
            producer.produce("customers", json.dumps({"where": where}), key=customer)
        for article in written:
            producer.produce("articles", json.dumps(article))
        assert producer.flush(30) == 0
        settings = {"broker": bootstrap, "checkpoint": f"{directory}/checkpoints"}
        mentions.start(spark, **settings, once=True).awaitTermination()

        found = read_all(bootstrap)
        for it in found[:3]:
            print(f"{it['customer']}: article {it['article']}, because of {it['why']}")
        assert sorted((it["customer"], it["article"]) for it in found) == by_hand(written)
        print(f"{len(found)} mentions, as by hand")
    spark.stop()


if __name__ == "__main__":
    main()
