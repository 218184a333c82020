"""The cluster at the other end: offsets by timestamp, suggestions, several failures in one line."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.cli import cluster
from millstream.cli.cluster import Cluster, suggestion, wait_each
from millstream.cli.failures import CommandFailed


def test_offsets_at_fall_back_to_the_end(
    ok: Callable[..., str], bootstrap_servers: str, topic: str
) -> None:
    ok("topic", "alter", topic, "--config", "retention.ms=-1")
    line = json.dumps({"value": "v", "timestamp_ms": 10**12})
    ok("produce", topic, "--envelope", "--partition", "0", stdin=line)
    connected = Cluster.connect(bootstrap_servers)
    places = [(topic, 0), (topic, 1)]
    assert connected.offsets_at(places, 10**12) == {(topic, 0): 0, (topic, 1): 0}
    assert connected.offsets_at(places, 10**12 + 1) == {(topic, 0): 1, (topic, 1): 0}


def test_address_that_accepts_connections_and_does_not_answer_is_given_up_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    metadata = Cluster.metadata

    def noted(connected: Cluster, timeout_s: float = cluster.REQUEST_TIMEOUT_S) -> Any:
        asked.append(timeout_s)
        return metadata(connected, timeout_s)

    monkeypatch.setattr(Cluster, "metadata", noted)
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CommandFailed, match=f"no broker answers at {address}"):
            Cluster.connect(address)
    assert asked == [0.2]


def test_partitions_of_an_unknown_topic_suggests(bootstrap_servers: str, topic: str) -> None:
    with pytest.raises(CommandFailed, match=f"did you mean '{topic}'"):
        Cluster.connect(bootstrap_servers).partitions_of(topic + "s")


def test_suggestion_is_silent_when_nothing_is_near() -> None:
    assert suggestion("orders", ["order", "audit"]) == "; did you mean 'order'?"
    assert suggestion("orders", ["audit"]) == ""


def test_wait_each_lists_all_failures() -> None:
    futures: dict[Any, Future[Any]] = {name: Future() for name in "abc"}
    futures["a"].set_result(None)
    for name in "bc":
        error = KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, f"{name} is there")
        futures[name].set_exception(KafkaException(error))
    with pytest.raises(CommandFailed, match="creating failed for b: b is there; c: c is there"):
        wait_each(futures, "creating")
