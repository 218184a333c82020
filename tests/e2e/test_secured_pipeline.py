"""A pipeline on a secured cluster: exactly once with few rights, and no secret left anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic

from millstream.client.security import Security
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secured import ADMIN, Secured, password_of, start_secured
from tests.peers.secured_clients import KINDS, admin_of, allow, properties_of, settings_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PIPELINE = """\
from millstream.pipelines import pipeline, topic

@pipeline(reads=topic("orders", schema="a int"), writes=topic("doubled"))
def doubles(orders):
    return orders.selectExpr("a * 2 AS b")

@pipeline(reads=topic("orders", schema="a int"), writes=topic("tripled"))
def triples(orders):
    return orders.selectExpr("a * 3 AS b")
"""
SETTINGS = """\
[spark]
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.dir" = "file:{directory}/events"
"spark.sql.ui.explainMode" = "extended"
"spark.log.level" = "INFO"
"""
# As in docs/guides/security.md.
RIGHTS = [
    "READ topic orders",
    "WRITE topic doubled",
    "WRITE topic dlq.orders",
    "CREATE topic dlq.orders",
    "READ group doubles",
    "WRITE transactional_id millstream-doubles*",
    "READ topic __millstream_decisions",
    "WRITE topic __millstream_decisions",
    "CREATE topic __millstream_decisions",
]


@pytest.fixture(scope="module", params=KINDS)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    running = start_secured(request.param, directory, ["pipe", "poor", "deployer"])
    try:
        admin = admin_of(running)
        topics = [NewTopic(name, 2) for name in ("orders", "doubled", "tripled")]
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_SECONDS)
        produce(running, [b'{"a":1}', b'{"a":2}', b"bad"])
        yield running
    finally:
        running.stop()


def client_of(secured: Secured, **more: object) -> dict[str, object]:
    settings = Security.from_settings(settings_of(secured, ADMIN)).librdkafka()
    return {**settings, "bootstrap.servers": secured.address("SASL_SSL"), "log_level": 0, **more}


def produce(secured: Secured, values: list[bytes]) -> None:
    producer = Producer(client_of(secured))
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(PATIENCE_SECONDS) == 0


def consume(secured: Secured, topic: str, count: int) -> list[bytes]:
    more = {"group.id": "test", "auto.offset.reset": "earliest", "enable.partition.eof": False}
    consumer = Consumer(client_of(secured, **more))
    consumer.subscribe([topic])
    found: list[bytes] = []
    try:
        while len(found) < count:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
    finally:
        consumer.close()
    return sorted(found)


def run(directory: Path, client_config: Path, *options: str) -> tuple[int, str]:
    return command(directory, client_config, "run", "shop.py:doubles", *options)


def command(directory: Path, client_config: Path, *words: str) -> tuple[int, str]:
    """One of `millstream`, with all that Spark can write switched on."""
    (directory / "shop.py").write_text(PIPELINE)
    (directory / "events").mkdir(exist_ok=True)
    (directory / "millstream.toml").write_text(SETTINGS.format(directory=directory))
    done = subprocess.run(
        [str(Path(sys.executable).parent / "millstream"), *words],
        cwd=directory,
        env=os.environ | {"MILLSTREAM_CLIENT_CONFIG": str(client_config)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def files_with(directory: Path, secret: str) -> list[str]:
    return [
        str(file.relative_to(directory))
        for file in directory.rglob("*")
        if file.is_file() and secret.encode() in file.read_bytes()
    ]


def test_pipeline_runs_with_the_rights_it_needs_and_leaves_no_secret(
    secured: Secured, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    client_config = properties_of(secured, "pipe", tmp_path)
    allow(secured, "pipe", RIGHTS)
    code, output = run(home, client_config, "--explain")
    assert code == 0, output
    code, more = run(home, client_config, "--once")
    assert code == 0, more
    assert consume(secured, "doubled", 2) == [b'{"b":2}', b'{"b":4}']
    produce(secured, [b'{"a":3}'])
    code, again = run(home, client_config, "--once")
    assert code == 0, again
    assert consume(secured, "doubled", 1) == [b'{"b":6}']
    assert consume(secured, "dlq.orders", 1) == [b"bad"]
    assert password_of("pipe") not in output + more + again
    events = list((home / "events").rglob("events_*"))
    assert any("SparkListenerSQLExecutionStart" in it.read_text() for it in events)
    assert files_with(home, password_of("pipe")) == []


def test_pipeline_without_a_right_says_which(secured: Secured, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    client_config = properties_of(secured, "poor", tmp_path)
    code, output = run(home, client_config, "--once")
    assert code == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in output
    assert "the user needs Describe" in output
    given = [it for it in RIGHTS if "doubled" not in it]
    allow(secured, "poor", [*given, "DESCRIBE topic doubled"])
    code, output = run(home, client_config, "--once", "--allow-new-checkpoint")
    assert code == 1
    assert "doubled" in output
    assert "the user needs Write on the topic" in output


VERSION_RIGHTS = [
    "READ topic orders",
    "WRITE topic dlq.orders",
    "CREATE topic dlq.orders",
    "READ topic tripled*",
    "WRITE topic tripled*",
    "CREATE topic tripled.v*",
    "DELETE topic tripled.v*",
    "READ group triples*",
    "DELETE group triples*",
    "WRITE transactional_id millstream-triples*",
    "READ topic __millstream_decisions",
    "WRITE topic __millstream_decisions",
    "CREATE topic __millstream_decisions",
]


def test_versions_run_with_the_rights_they_need(secured: Secured, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    client_config = properties_of(secured, "deployer", tmp_path)
    allow(secured, "deployer", VERSION_RIGHTS)
    for words in (
        ["deploy", "shop.py:triples", "--once"],
        ["deploy", "shop.py:triples", "--version", "2", "--once"],
        ["diff", "triples", "1", "2"],
        ["switch", "triples", "2"],
        ["rollback", "triples"],
        ["versions", "remove", "triples", "2", "--yes"],
    ):
        code, output = command(home, client_config, *words)
        assert code == 0, (words, output)
        assert password_of("deployer") not in output
    assert files_with(home, password_of("deployer")) == []
