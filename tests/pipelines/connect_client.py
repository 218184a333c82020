"""What `test_connect.py` starts: a client of Spark Connect, and with it a server (`local[2]`).

connect_client.py BROKER TOPIC EMPTY_TOPIC DIRECTORY     prints what it saw, as JSON
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream.errors import ConfigError
from millstream.pipelines import pipeline, table, topic


def main(broker: str, source: str, target: str, directory: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    session: Any = spark
    assert type(session).__module__ == "pyspark.sql.connect.session"
    options = {
        "kafka.bootstrap.servers": broker,
        "subscribe": source,
        "startingOffsets": "earliest",
    }
    typed = options | {"valueFormat": "json"}
    stream = spark.readStream.format("millstream").schema("id long").options(**typed).load()
    reader = spark.read.format("millstream")
    raw = reader.options(**options).load()
    batch = spark.read.format("millstream").schema("id long").options(**typed).load()
    seen: dict[str, Any] = {
        "raw": sorted(row.value.decode() for row in raw.collect()),
        "typed": sorted(row.id for row in batch.collect()),
    }

    in_memory = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True)
    assert in_memory.start().awaitTermination(240)
    seen["streamed"] = sorted(row.id for row in spark.sql("select id from seen").collect())

    writer = stream.selectExpr("cast(id as string) as value").writeStream.format("millstream")
    writer = writer.option("kafka.bootstrap.servers", broker).option("topic", target)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    assert writer.trigger(availableNow=True).start().awaitTermination(240)
    written = spark.read.format("millstream").options(**options | {"subscribe": target}).load()
    seen["written"] = sorted(row.value.decode() for row in written.collect())

    declare = pipeline(
        reads=topic(source, schema="id long"), writes=table("large", key="id"), name="large"
    )
    large = declare(lambda frame: frame.where("id > 1"))
    seen["history"] = sorted(row.id for row in large.batch(spark, broker=broker).collect())
    try:
        large.start(spark, broker=broker, checkpoint=directory, store=f"sqlite:///{directory}/db")
    except ConfigError as error:
        seen["refusal"] = f"ConfigError: {error}"
    try:
        wrong = options | {"subscribe": "nowhere"}
        spark.read.format("millstream").options(**wrong).load().collect()
    except PySparkException as error:
        seen["missing"] = str(error)
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
