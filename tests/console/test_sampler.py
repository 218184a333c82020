"""A sampler sees a real cluster: offsets, sizes, groups, what retention threatens; it outlives a
broker that is gone, and stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream import Broker
from millstream.admin.topics import create_topic, delete_topic
from millstream.client.cluster import Cluster
from millstream.console import sampler as module
from millstream.console.sampler import Sampler, Samplers, pause, take_sample
from millstream.console.sessions import Session
from tests.peers.patience import PATIENCE_SECONDS

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.start() as started:
        yield started


def produce(broker: Broker, topic: str, count: int, timestamp_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(count):
        producer.produce(topic, b"x" * 100, b"k", partition=0, timestamp=timestamp_ms)
    assert producer.flush(PATIENCE_SECONDS) == 0


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sample_has_offsets_sizes_settings_and_groups(broker: Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "seen", partitions=2, settings={"cleanup.policy": "compact"})
        produce(broker, "seen", 10)
        commit(broker, "readers", "seen", 4)
        sample = take_sample(cluster)
        assert sample.records_of("seen") == 10
        assert (sample.bytes_of("seen") or 0) > 1000
        assert (sample.total_bytes or 0) >= (sample.bytes_of("seen") or 0)
        assert sample.settings["seen"]["cleanup.policy"] == "compact"
        (readers,) = [it for it in sample.groups if it.group == "readers"]
        assert readers.lag == 6
        assert sample.problems == ()
        later = take_sample(cluster, sample, refresh=False)
        assert later.settings is sample.settings


def test_unread_records_close_to_their_end_are_at_risk(broker: Broker) -> None:
    now_ms = round(time.time() * 1000)
    with Cluster(broker.bootstrap_servers) as cluster:
        for name in ("old", "young"):
            create_topic(cluster, name, partitions=1, settings={"retention.ms": str(HOUR_MS)})
        produce(broker, "old", 3, now_ms - HOUR_MS * 9 // 10)
        produce(broker, "old", 3, now_ms)
        produce(broker, "young", 3, now_ms)
        for group, offset in (("late", 0), ("later", 2), ("in-time", 3)):
            commit(broker, group, "old", offset)
        commit(broker, "fine", "young", 0)
        found = take_sample(cluster).at_risk
    risks = {it.group: it for it in found if it.topic == "old"}
    assert set(risks) == {"late", "later"}
    assert (risks["late"].unread, risks["later"].unread) == (6, 4)
    expires = risks["late"].expires_ms
    assert expires is not None
    assert now_ms < expires <= now_ms + HOUR_MS // 10
    assert not [it for it in found if it.topic == "young"]


def test_thread_fills_the_history_and_rates(broker: Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "watched", partitions=1)
        sampler = Sampler(lambda: Cluster(broker.bootstrap_servers), interval_seconds=0.05)
        sampler.start()
        try:
            wait_for(lambda: bool(sampler.rates))
            produce(broker, "watched", 50)
            wait_for(lambda: any(sampler.history.points(("records", "watched")).values))
            assert sampler.current(cluster).records_of("watched") == 50
            commit(broker, "w", "watched", 20)
            wait_for(lambda: 30 in sampler.trend("lag", "w"))
            delete_topic(cluster, "watched")
            create_topic(cluster, "watched", partitions=1)
            wait_for(lambda: sampler.current(cluster).records_of("watched") == 0)
        finally:
            sampler.stop()
            sampler.join(PATIENCE_SECONDS)
    assert sampler._thread is not None
    assert not sampler._thread.is_alive()


def test_thread_survives_a_broker_that_restarts() -> None:
    with Broker.start(in_process=False) as broker:
        servers = broker.bootstrap_servers
        sampler = Sampler(lambda: Cluster(servers, timeout_seconds=2.0), interval_seconds=0.05)
        sampler.start()
        try:
            wait_for(lambda: bool(sampler.rates))
            broker.kill()
            wait_for(lambda: not sampler.rates)
            broker.restart()
            wait_for(lambda: bool(sampler.rates))
        finally:
            sampler.stop()
            sampler.join(PATIENCE_SECONDS)


def test_thread_survives_a_fault_of_its_own(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter((KeyError("one"), KeyError("two")))

    def broken(*arguments: object, **more: object) -> object:
        for fault in faults:
            raise fault
        return take_sample(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "take_sample", broken)
    sampler = Sampler(partial(Cluster, broker.bootstrap_servers), interval_seconds=0.01)
    sampler.start()
    try:
        wait_for(lambda: sampler.history.last(("size", "")) is not None)
    finally:
        sampler.stop()
        sampler.join(PATIENCE_SECONDS)
    assert caplog.text.count("cannot be sampled") == 1


def test_page_of_a_large_cluster_takes_the_last_sample(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        sampler = Sampler(lambda: cluster)
        first = sampler.current(cluster)
        assert sampler.current(cluster) is first
        monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
        assert sampler.current(cluster) is not first
        monkeypatch.setattr(module, "SMALL_MAX", 0)
        last = sampler.current(cluster)
        assert sampler.current(cluster) is last


def test_sampling_takes_a_small_part_of_the_time() -> None:
    assert pause(0.01, 5.0) == pytest.approx(5.0)
    assert pause(1.0, 5.0) == pytest.approx(19.0)
    assert pause(60.0, 5.0) == pytest.approx(1140.0)
    assert pause(500.0, 5.0) == 1800.0


def test_sessions_of_a_user_share_a_sampler_that_ends_with_them(broker: Broker) -> None:
    samplers = Samplers(samplers_max=2)
    first, second = (Session(broker.bootstrap_servers, {}, "alice") for _ in range(2))
    sampler = samplers.of(first)
    assert samplers.of(second) is sampler
    first.close()
    assert sampler.is_running
    assert samplers.of(second) is sampler
    others = [Session(broker.bootstrap_servers, {}, name) for name in ("bob", "carol")]
    started = [samplers.of(it) for it in others]
    assert not sampler.is_running  # it was the least recently used of three
    assert samplers.of(second) is not sampler
    second.close()
    samplers.close()
    assert not any(it.is_running for it in started)


def test_sampler_ends_when_its_user_has_left(broker: Broker) -> None:
    wanted = [True]
    connect = partial(Cluster, broker.bootstrap_servers)
    sampler = Sampler(connect, interval_seconds=0.02, is_wanted=lambda: wanted[0])
    sampler.start()
    wait_for(lambda: bool(sampler.rates))
    wanted[0] = False
    wait_for(lambda: not sampler.is_running)


def test_sessions_that_ended_are_forgotten_with_their_passwords(broker: Broker) -> None:
    samplers = Samplers()
    first, second = (Session(broker.bootstrap_servers, {}, "user") for _ in range(2))
    samplers.of(first)
    samplers.of(second)
    assert samplers._sessions["user"][-1] is second
    first.close()
    samplers.tidy()
    assert samplers._sessions == {"user": [second]}
    second.close()
    samplers.tidy()
    assert samplers._sessions == {}
    samplers.close()
