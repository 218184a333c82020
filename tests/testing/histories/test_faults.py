"""Faults: a real broker that dies, stands still and comes back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream.errors import MillstreamError
from millstream.testing.histories.faults import BrokerProcess, Fault, Nemesis, free_port
from tests.peers.patience import wait_until


def answers(broker: BrokerProcess, seconds: float) -> bool:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    try:
        admin.list_topics(timeout=seconds)
    except KafkaException:
        return False
    return True


@pytest.mark.slow
def test_broker_answers_again_after_every_fault(tmp_path: Path) -> None:
    with BrokerProcess.millstream(tmp_path) as broker:
        assert answers(broker, 30)
        broker.pause()
        assert not answers(broker, 0.5)
        broker.resume()
        assert answers(broker, 30)
        broker.kill()
        assert not answers(broker, 0.5)
        broker.start()
        broker.stop()
        assert not answers(broker, 0.5)
        broker.start()
        assert answers(broker, 30)


def test_broker_that_ends_at_its_start_says_why(tmp_path: Path) -> None:
    broker = BrokerProcess.millstream(tmp_path, {"log.retention.ms": "soon"})
    with pytest.raises(MillstreamError, match=r"ended at its start: .*log\.retention\.ms"):
        broker.start()


def test_broker_may_be_any_command(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with BrokerProcess(command, f"127.0.0.1:{port}", tmp_path / "log") as broker:
        assert broker.pid is not None


class Dummy(BrokerProcess):
    """Notes what is done to it."""

    def __init__(self) -> None:
        super().__init__([], "", Path())
        self.calls: list[str] = []

    def start(self) -> float:
        self.calls.append("start")
        return 0.0

    def stop(self) -> None:
        self.calls.append("stop")

    def kill(self) -> None:
        self.calls.append("kill")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


@pytest.mark.parametrize(
    ("fault", "calls"),
    [
        (Fault.KILL, ["kill", "start"]),
        (Fault.PAUSE, ["pause", "resume"]),
        (Fault.RESTART, ["stop", "start"]),
    ],
)
def test_nemesis_heals_what_it_broke(fault: Fault, calls: list[str]) -> None:
    broker = Dummy()
    nemesis = Nemesis([broker], 1, [fault], healthy_s=(0, 0.001), broken_s=(0, 0.001))
    nemesis.start()
    wait_until(lambda: len(broker.calls) >= 6)
    nemesis.heal()
    assert broker.calls == calls * (len(broker.calls) // 2)
    assert nemesis.events[-1].endswith("healthy again")


def test_nemesis_reports_a_broker_that_does_not_come_back(tmp_path: Path) -> None:
    broker = BrokerProcess([sys.executable, "-c", ""], "127.0.0.1:1", tmp_path / "log")
    nemesis = Nemesis([broker], 1, [Fault.RESTART], healthy_s=(0, 0.001), broken_s=(0, 0.001))
    nemesis.start()
    wait_until(lambda: nemesis.failure is not None)
    with pytest.raises(MillstreamError, match="ended at its start"):
        nemesis.heal()
