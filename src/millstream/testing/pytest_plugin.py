"""The pytest fixtures `millstream`, a broker, and `millstream_spark`, for the test session.

    def test_something(millstream):
        topic = millstream.unique_topic()
        producer = confluent_kafka.Producer({"bootstrap.servers": millstream.bootstrap_servers})

The broker starts with the first test that uses it and stops after the last. It is shared, so tests
use unique topic and group names: see `unique_topic`. Settings are given in the project's pytest
configuration:

    [tool.pytest.ini_options]
    millstream_config = ["num.partitions=4", "group.initial.rebalance.delay.ms=0"]
    millstream_security = "SASL_SSL"
    millstream_users = ["alice=secret"]

With security, clients are made with `millstream.client_settings("alice")`.

`millstream_spark` is a Spark session on two cores of this machine, fit for pipelines; one that the
tests have made before is taken as it is.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.broker.embedded import Broker


# A test's batches are small: code that is compiled well, or into one function, does not get its
# time back. With this compiler alone, a JVM has less room for code, and collects all garbage to
# find some.
_SMALL_BATCHES = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    "spark.sql.codegen.wholeStage": "false",
}


class SharedBroker:
    """The session's broker, and names that no other test uses."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._session = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)

    @property
    def bootstrap_servers(self) -> str:
        return self.broker.bootstrap_servers

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """The settings of a client, with librdkafka's names; see `Broker.client_settings`."""
        return self.broker.client_settings(user)

    def unique_topic(self, prefix: str = "topic") -> str:
        """A name that is not in use; the topic is created when it is first used."""
        return f"{prefix}-{self._session}-{next(self._numbers)}"

    def unique_group(self, prefix: str = "group") -> str:
        """The name of a group that no other test uses."""
        return f"{prefix}-{self._session}-{next(self._numbers)}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "millstream_config",
        "settings of the `millstream` fixture's broker, as name=value",
        type="linelist",
        default=["group.initial.rebalance.delay.ms=0"],
    )
    parser.addini(
        "millstream_security",
        "security protocol of the `millstream` fixture's broker, such as SASL_SSL",
        default="",
    )
    parser.addini(
        "millstream_users",
        "users of the `millstream` fixture's broker, as name=password",
        type="linelist",
        default=[],
    )


@pytest.fixture(scope="session")
def millstream(pytestconfig: pytest.Config) -> Iterator[SharedBroker]:
    """A Millstream broker for this test session."""
    from millstream.broker.embedded import Broker
    from millstream.config.sources import parse_assignments

    settings = parse_assignments(pytestconfig.getini("millstream_config"))
    security = pytestconfig.getini("millstream_security") or None
    users = parse_assignments(pytestconfig.getini("millstream_users"))
    with Broker.start(config=settings, security=security, users=users) as broker:
        yield SharedBroker(broker)


@pytest.fixture(scope="session")
def millstream_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session for pipelines; its JVM logs to a file."""
    from millstream.pipelines.running.prerequisites import check_spark
    from millstream.pipelines.running.session import create_session

    check_spark()
    from pyspark.sql import SparkSession

    from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER

    existing = SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    settings = {STORE_PROVIDER: ROCKSDB, **_SMALL_BATCHES}
    session = create_session("local[2]", settings, "millstream-tests", log)
    _warm_up(session)
    yield session
    session.stop()


def _warm_up(session: SparkSession) -> None:
    """Run a small stream, so that the first test does not pay for the JVM's warm-up."""
    from pyspark.sql.functions import window

    from millstream.testing.streams import Source, StreamTrial

    def counted(rows: DataFrame) -> DataFrame:
        return rows.groupBy(window("at", "1 minute")).count()

    rows = Source([], schema="at timestamp", watermark=("at", "1 minute"))
    with StreamTrial(counted, {"rows": rows}, spark=session) as trial:
        trial.batch(rows=[{"at": "2026-01-01 00:00:00"}], crash="after sink")
        trial.check()
