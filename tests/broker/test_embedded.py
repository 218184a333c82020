"""A broker inside a Python program: its life, its data, its errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millstream import Broker
from millstream.broker import embedded
from millstream.broker.server import BrokerServer
from millstream.errors import ConfigError, DirectoryLocked, MillstreamError
from millstream.testing.clock import ManualClock
from tests.peers.servers import free_port
from tests.peers.wire import Wire, batch

BOTH_KINDS = pytest.mark.parametrize("in_process", [True, False])


def produce(broker: Broker, value: bytes) -> int:
    """Append to the topic `topic`, flushed; the offset."""
    with Wire(broker.bootstrap_servers) as wire:
        wire.call("metadata", 9, topics=[{"name": "topic"}], allow_auto_topic_creation=True)
        data = [{"index": 0, "records": batch([value])}]
        topics = [{"name": "topic", "partition_data": data}]
        answer = wire.call("produce", 9, acks=-1, timeout=1000, topic_data=topics)
        partition = answer.responses[0].partition_responses[0]
        assert partition.error_code == 0
        return int(partition.base_offset)


def test_broker_serves_from_a_temporary_directory_that_goes_with_it() -> None:
    with Broker.start() as broker:
        assert produce(broker, b"a") == 0
        assert (broker.data_dir / "topic-0").is_dir()
    assert not broker.data_dir.exists()
    assert not broker.is_running


@BOTH_KINDS
def test_broker_keeps_data_and_port_over_a_restart(tmp_path: Path, in_process: bool) -> None:
    with Broker.start(tmp_path, port=free_port(), in_process=in_process) as broker:
        address = broker.bootstrap_servers
        assert produce(broker, b"a") == 0
        broker.restart()
        assert broker.bootstrap_servers == address
        assert produce(broker, b"b") == 1
    assert (tmp_path / "topic-0").is_dir()


def test_killed_broker_has_lost_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    with Broker.start(tmp_path, port=free_port(), in_process=False) as broker:
        assert produce(broker, b"a") == 0
        broker.kill()
        assert not broker.is_running
        broker.restart()
        assert produce(broker, b"b") == 1


def test_broker_in_this_process_cannot_be_killed() -> None:
    with Broker.start() as broker, pytest.raises(MillstreamError, match="in_process=False"):
        broker.kill()


def test_settings_are_kafkas_by_name() -> None:
    with (
        Broker.start(config={"num.partitions": 3}) as broker,
        Wire(broker.bootstrap_servers) as wire,
    ):
        answer = wire.call("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        assert len(answer.topics[0].partitions) == 3


@BOTH_KINDS
def test_error_at_the_start_reaches_the_caller(tmp_path: Path, in_process: bool) -> None:
    kind = ConfigError if in_process else MillstreamError
    with pytest.raises(kind, match=r"num\.partitions"):
        Broker.start(tmp_path, {"num.partitons": 3}, in_process=in_process)


def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Broker.start(tmp_path, in_process=False), pytest.raises(DirectoryLocked):
        Broker.start(tmp_path)


def test_data_stay_when_the_broker_does_not_stop_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not taken from under a broker that still writes to them."""
    may_stop, stop = threading.Event(), BrokerServer.stop

    async def stop_late(server: BrokerServer) -> None:
        await asyncio.to_thread(may_stop.wait)
        await stop(server)

    monkeypatch.setattr(BrokerServer, "stop", stop_late)
    monkeypatch.setattr(embedded, "STOP_SECONDS_MAX", 0.1)
    others = set(threading.enumerate())
    broker = Broker.start()
    (thread,) = (it for it in set(threading.enumerate()) - others if it.name == "millstream-broker")
    try:
        with pytest.raises(MillstreamError, match="did not stop in time"):
            broker.stop()
        assert broker.data_dir.is_dir()
    finally:
        may_stop.set()
        thread.join()
    broker.stop()
    assert not broker.data_dir.exists()


def test_port_in_use_is_refused_in_words(tmp_path: Path) -> None:
    with Broker.start() as broker:
        port = int(broker.bootstrap_servers.split(":")[1])
        with pytest.raises(MillstreamError, match=f"cannot listen on 127.0.0.1:{port}"):
            Broker.start(tmp_path, port=port)


def test_stopped_broker_says_so() -> None:
    broker = Broker.start()
    broker.stop()
    with pytest.raises(MillstreamError, match="stopped"):
        _ = broker.bootstrap_servers
    broker.stop()


@pytest.mark.parametrize("name", ["log.dir", "log.dirs"])
def test_broker_refuses_a_second_word_on_where_its_data_go(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="data_dir"):
        Broker.start(config={name: str(tmp_path)})


def test_program_that_ends_without_stopping_its_broker_stops_it(tmp_path: Path) -> None:
    program = f"from millstream import Broker; Broker.start({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_caller_hears_of_a_server_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "millstream.broker.server", None)
    with pytest.raises(ImportError):
        Broker.start()


def test_clock_of_a_test_is_that_of_the_broker() -> None:
    clock = ManualClock(1_600_000_000_000)
    with Broker.start(
        config={"log.message.timestamp.type": "LogAppendTime"}, clock=clock
    ) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        seen: list[int] = []
        for _ in range(2):
            producer.produce("t", b"v", on_delivery=lambda _, it: seen.append(it.timestamp()[1]))
            assert producer.flush(60) == 0
            clock.advance(3_600_000)
    assert seen == [1_600_000_000_000, 1_600_003_600_000]
    with pytest.raises(ConfigError, match="in this process"):
        Broker.start(in_process=False, clock=clock)
