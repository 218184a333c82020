"""`millstream topic reassign` and `topic elect`, against clusters of three brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.testing.cluster import ClusterProcesses
from tests.cli.conftest import Run
from tests.peers.kafka_cluster import start_kafka_cluster
from tests.peers.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture(scope="module", params=["millstream", "apache-kafka"])
def addresses(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "millstream":
        with ClusterProcesses(directory) as ours:
            yield ours.addresses
    else:
        kafkas = start_kafka_cluster(directory)
        yield kafkas.bootstrap
        kafkas.stop()


class Topic:
    """A topic of three partitions with two replicas, and the command line on its cluster."""

    def __init__(self, run: Run, addresses: str, name: str) -> None:
        self._run = run
        self._addresses = addresses
        self.name = name
        options = ["--partitions", "3", "--replication-factor", "2"]
        self.command("topic", "create", name, *options)

    def command(self, *arguments: str, exit_code: int = 0) -> str:
        outcome = self._run(*arguments, "--bootstrap-server", self._addresses)
        assert outcome.exit_code == exit_code, outcome
        return outcome.err if exit_code else outcome.out

    def partitions(self) -> list[dict[str, Any]]:
        """Asked again while brokers have not yet heard of their new roles."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            outcome = self._run(
                *("topic", "describe", self.name, "--json"),
                *("--bootstrap-server", self._addresses),
            )
            if outcome.exit_code == 0:
                [described] = json.loads(outcome.out)
                return list(described["partitions"])
            assert time.monotonic() < deadline, outcome
            time.sleep(0.1)


@pytest.fixture
def topic(run: Run, addresses: str, request: pytest.FixtureRequest) -> Topic:
    return Topic(run, addresses, request.function.__name__)


def test_replicas_move_to_the_brokers_named(topic: Topic) -> None:
    topic.command("topic", "reassign", topic.name, "--brokers", "2,3")
    for partition in topic.partitions():
        assert set(partition["replicas"]) == {2, 3}
        assert set(partition["in_sync"]) == {2, 3}
    again = topic.command("topic", "reassign", topic.name, "--brokers", "2,3")
    assert "where they should be" in again


def test_throttle_is_set_while_replicas_move_and_removed_then(topic: Topic) -> None:
    name = topic.name
    topic.command("topic", "reassign", name, "--brokers", "1,2")
    rate = ("--throttle", "1000000")
    topic.command("topic", "reassign", name, "--brokers", "2,3", *rate, "--no-wait")
    described = json.loads(topic.command("topic", "describe", name, "--json"))
    assert "leader.replication.throttled.replicas" in json.dumps(described)
    topic.command("topic", "reassign", name, "--brokers", "1,3", *rate)
    assert {it for each in topic.partitions() for it in each["in_sync"]} == {1, 3}
    described = json.loads(topic.command("topic", "describe", name, "--json"))
    assert "throttled" not in json.dumps(described)
    topic.command("topic", "reassign", "--throttle", "0")


def test_number_of_replicas_changes(topic: Topic) -> None:
    topic.command("topic", "reassign", topic.name, "--replication-factor", "3")
    assert [len(it["in_sync"]) for it in topic.partitions()] == [3, 3, 3]
    topic.command("topic", "reassign", topic.name, "--replication-factor", "1")
    assert [len(it["replicas"]) for it in topic.partitions()] == [1, 1, 1]


def test_dry_run_changes_nothing(topic: Topic) -> None:
    before = topic.partitions()
    command = ["topic", "reassign", topic.name, "--brokers", "1,2", "--dry-run", "--json"]
    planned = json.loads(topic.command(*command))
    assert all(set(move["new_replicas"]) == {1, 2} for move in planned)
    assert topic.partitions() == before


def test_nothing_moves(topic: Topic) -> None:
    assert "no reassignment is in progress" in topic.command("topic", "reassign")
    assert topic.command("topic", "reassign", topic.name, "--cancel") == ""


def test_mistakes_are_named(topic: Topic) -> None:
    broker = ["topic", "reassign", topic.name, "--brokers"]
    assert "no broker 9" in topic.command(*broker, "1,9", exit_code=1)
    assert "broker ids" in topic.command(*broker, "one", exit_code=2)
    factor = ["topic", "reassign", topic.name, "--replication-factor", "4"]
    assert "4 replicas" in topic.command(*factor, exit_code=1)
    assert "name the topics" in topic.command("topic", "reassign", "--brokers", "1", exit_code=2)
    assert "--all" in topic.command("topic", "elect", exit_code=2)


def test_preferred_replicas_lead(topic: Topic) -> None:
    topic.command("topic", "reassign", topic.name, "--brokers", "1,2")
    topic.command("topic", "elect", topic.name)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(it["leader"] != it["replicas"][0] for it in topic.partitions()):
        assert time.monotonic() < deadline, topic.partitions()
        time.sleep(0.1)
    topic.command("topic", "elect", topic.name)
