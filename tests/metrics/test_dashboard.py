"""The dashboard and the alerts: understood by Prometheus, and answered from real metrics."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.broker.embedded import Broker
from millstream.cli.metrics import read_alerts
from millstream.metrics.dashboard import WIDTH, dashboard, expressions
from millstream.metrics.threaded import MetricsThread
from millstream.pipelines.running.metrics import all_families
from millstream.pipelines.running.status import Status
from tests.broker.metrics.scraping import Metrics, scrape
from tests.peers.cache import PeerMissing, require_command
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.prometheus import HOW_TO_GET_IT, running_prometheus

HERE = Path(__file__).parent
# Series that exist only after something has gone wrong.
RARE = {"millstream_dead_letters_total", "millstream_backlog_dropped_records_total"}


def concrete(expression: str) -> str:
    """With Grafana's variables replaced."""
    replaced = expression.replace("$__rate_interval", "1m")
    return re.sub(r"\$(job|instance|topic)", ".*", replaced)


def alert_expressions() -> list[str]:
    return re.findall(r"^ +expr: (.*)$", read_alerts(), re.MULTILINE)


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:kafka|millstream|process)_\w+", expression))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"millstream.metrics.listener": "127.0.0.1:0", "millstream.metrics.token": "hunter2"}
    with Broker.start(tmp_path_factory.mktemp("dashboard"), settings) as started:
        producer = Producer({"bootstrap.servers": started.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", str(number).encode())
        assert producer.flush(PATIENCE_SECONDS) == 0
        consumer = Consumer(
            {"bootstrap.servers": started.bootstrap_servers, "group.id": "billing"}
            | {"enable.auto.commit": False}
        )
        consumer.assign([TopicPartition("orders", 0, 0)])
        read = 0
        while read < 4:
            read += len(consumer.consume(10, 1.0))
        consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
        yield started
        consumer.close()


@pytest.fixture(scope="module")
def pipelines() -> Iterator[MetricsThread]:
    """What a run with one pipeline serves."""
    status = Status("revenue", state="working", rows=100, batches=3, batch_ms=200, lag=5)
    status.late = {"late.tumbling 10 minutes": 2}
    status.watermark_ms = int(time.time() * 1000) - 60_000
    served = MetricsThread(
        "127.0.0.1:0", lambda: all_families([status], time.time()), token="hunter2"
    )
    yield served
    served.stop()


def served_names(broker: Broker, pipelines: MetricsThread) -> set[str]:
    assert broker.metrics_url is not None
    found: list[Metrics] = [scrape(it, "hunter2") for it in (broker.metrics_url, pipelines.url)]
    return {name for it in found for name in it.names}


def test_every_expression_is_promql() -> None:
    every = [*expressions(), *alert_expressions()]
    assert len(every) > 40
    for expression in every:
        promql_parser.parse(concrete(expression))


def test_every_name_is_served(broker: Broker, pipelines: MetricsThread) -> None:
    served = served_names(broker, pipelines) | RARE
    for expression in (*expressions(), *alert_expressions()):
        assert names_in(expression) <= served, expression


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels: list[dict[str, Any]] = dashboard()["panels"]
    assert len({it["id"] for it in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.fixture
def promtool() -> str:
    try:
        return require_command("promtool", HOW_TO_GET_IT)
    except PeerMissing as missing:
        pytest.skip(str(missing))


def run(*command: str | Path, cwd: Path) -> None:
    result = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_accepts_the_alerts_and_they_fire_when_they_should(
    promtool: str, tmp_path: Path
) -> None:
    (tmp_path / "millstream.rules.yml").write_text(read_alerts())
    (tmp_path / "alerts_test.yaml").write_text((HERE / "alerts_test.yaml").read_text())
    run(promtool, "check", "rules", "millstream.rules.yml", cwd=tmp_path)
    run(promtool, "test", "rules", "alerts_test.yaml", cwd=tmp_path)


@pytest.mark.slow
def test_a_real_prometheus_answers_every_expression(
    broker: Broker, pipelines: MetricsThread, promtool: str, tmp_path: Path
) -> None:
    assert broker.metrics_url is not None
    rules = tmp_path / "millstream.rules.yml"
    rules.write_text(read_alerts())
    jobs = {
        name: url.removeprefix("http://").removesuffix("/metrics")
        for name, url in (("millstream", broker.metrics_url), ("pipelines", pipelines.url))
    }
    unanswered = [concrete(it) for it in expressions()]
    with running_prometheus(tmp_path, jobs, rules, token="hunter2") as prometheus:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while unanswered and time.monotonic() < deadline:
            unanswered = [it for it in unanswered if not prometheus.query(it)]
            time.sleep(0.5)
        assert {it["health"] for it in prometheus.targets()} == {"up"}, prometheus.targets()
        assert unanswered == []
        (lag,) = prometheus.query('kafka_consumergroup_lag{consumergroup="billing"}')
        assert lag["value"][1] == "6"
        assert "MillstreamBrokerNotReady" in prometheus.alerts()
