"""The batch over the shop's log: it agrees with what customers have written down."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream import Broker
from millstream.cli.shop.audit import Made, find_frauds, judge, spending
from millstream.cli.shop.history import COLUMNS, compute
from millstream.cli.shop.traffic import Customers
from millstream.cli.shop.watching import ALL
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.topics import check_topics
from tests.pipelines.conftest import spark  # noqa: F401 - the one session


@pytest.mark.slow
def test_batch_has_every_order_once(spark: SparkSession, tmp_path: Path) -> None:  # noqa: F811
    with Broker.start(in_process=False) as broker:
        settings = Settings(tmp_path, broker=broker.bootstrap_servers, create_topics=True)
        check_topics(settings, ALL)
        customers = Customers(broker.bootstrap_servers, rate=1, seed=1)
        for _ in range(500):
            customers.send_visit()
        customers.start()
        customers.stop()
        rows = compute(spark, broker.bootstrap_servers)
    assert rows.keys() == COLUMNS.keys()
    made = rows | {
        "customers": list(map(list, spending(rows["enriched"]).items())),
        "frauds": list(map(list, find_frauds(rows["enriched"]))),
    }
    assert judge(customers.ledger, rows, Made(made, customers.ledger.poison)).holds
    assert len(rows["enriched"]) == 500
    assert customers.ledger.again > 0
    assert 0 < len(rows["alerts"]) < 500
