"""A cache that follows its topic is tested with the runner; here are its server and its rebuild."""

from __future__ import annotations

import threading

import pytest

from millstream.connect.sinks import SinkRunner
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place
from millstream.errors import ConfigError, StoreError
from tests.connect.sinks.conftest import Cache, Log, set_row, wait_for
from tests.connect.sinks.test_runner import run_once
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.redis import RedisServer


def test_rows_are_json_that_any_client_reads(redis: RedisServer, log: Log) -> None:
    cache = Cache(redis)
    log.put((1, "one"))
    run_once(cache.config(log))
    assert cache.client.get("items:1") == '{"id": 1, "name": "one"}'
    kept = cache.client.hgetall("millstream:positions:shop")
    assert kept.keys() == {f"{log.topic}/0", f"written_at {log.topic}"}


def test_positions_of_an_earlier_version_continue(redis: RedisServer, log: Log) -> None:
    """They have not the record before the offset, and one time for all topics."""
    cache = Cache(redis)
    log.put((1, "one"))
    run_once(cache.config(log))
    place, key = f"{log.topic}/0", "millstream:positions:shop"
    position, *_ = cache.client.hget(key, place).split("/")
    cache.client.hset(key, mapping={place: position, "written_at": "12.5"})
    cache.client.hdel(key, f"written_at {log.topic}")
    with open_sink(cache.config(log)) as sink:
        sink.open()
        assert sink.written_at(sink.targets[0]) == 12.5
    log.put((2, "two"))
    assert run_once(cache.config(log)).progress.records == 1
    assert cache.rows() == {1: "one", 2: "two"}


def test_server_that_is_killed_keeps_rows_and_position_together(
    redis: RedisServer, log: Log
) -> None:
    cache = Cache(redis)
    stop = threading.Event()
    runner = threading.Thread(target=lambda: SinkRunner(cache.config(log), stop=stop).run())
    runner.start()
    try:
        for number in range(3):
            log.send(*(set_row(id, f"v{number}") for id in range(200)))
            redis.kill()
            redis.start()
        wait_for(lambda: cache.rows() == dict.fromkeys(range(200), "v2"))
    finally:
        stop.set()
        runner.join(PATIENCE_SECONDS)


def test_rebuild_needs_databases_of_its_own(redis: RedisServer, log: Log) -> None:
    cache = Cache(redis)
    run_once(cache.config(log))
    cache.client.set("other", "x")
    with pytest.raises(StoreError, match="'other', which is not of sink shop"):
        SinkRunner(cache.config(log)).rebuild()
    with pytest.raises(ConfigError, match=r"add \?rebuild=1"):
        SinkRunner(cache.config(log, to=redis.url)).rebuild()


def test_policy_that_evicts_positions_is_refused(redis: RedisServer, log: Log) -> None:
    cache = Cache(redis)
    cache.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with open_sink(cache.config(log)) as sink, pytest.raises(ConfigError, match="may evict"):
            sink.open()
    finally:
        cache.client.config_set("maxmemory-policy", "noeviction")


def test_truncation_deletes_the_keys_of_its_table_alone(redis: RedisServer, log: Log) -> None:
    cache = Cache(redis)
    log.put((1, "one"))
    run_once(cache.config(log))
    cache.client.set("items*:1", "another table's")
    log.send((None, {"op": "t"}))
    run_once(cache.config(log))
    assert cache.rows() == {}
    assert cache.client.get("items*:1") == "another table's"
    with open_sink(cache.config(log)) as sink:
        sink.open()
        assert sink.positions()[Place(log.topic, 0)].offset == 2


@pytest.mark.parametrize("to", ["redis://h/x", "redis://h/0?rebuild=a", "redis://h/0?db=1"])
def test_ill_formed_address_is_refused(log: Log, redis: RedisServer, to: str) -> None:
    with pytest.raises(ConfigError, match="write redis://"):
        open_sink(Cache(redis).config(log, to=to))


def test_unreachable_server_is_waited_for_and_then_reported(log: Log, redis: RedisServer) -> None:
    config = Cache(redis).config(log, to="redis://127.0.0.1:1/0", patience_seconds=0)
    with pytest.raises(StoreError, match="cannot be reached"):
        run_once(config)
