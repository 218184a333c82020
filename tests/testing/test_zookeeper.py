"""ZooKeeper from PySpark's jars: alone, as an ensemble, and when it cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError, MillstreamError
from millstream.testing.zookeeper import ZooKeeperProcess, server_jars
from tests.peers.servers import free_port

pytestmark = pytest.mark.java
TICK_MS = 100


@pytest.mark.slow
def test_server_serves_again_after_a_kill(tmp_path: Path) -> None:
    server = ZooKeeperProcess(tmp_path, free_port(), tick_ms=TICK_MS)
    try:
        server.start()
        assert server.mode() == "standalone"
        server.kill()
        assert not server.is_running
        assert server.mode() is None
        server.start()
        assert server.mode() == "standalone"
    finally:
        server.kill()


@pytest.mark.slow
def test_ensemble_elects_one_leader(tmp_path: Path) -> None:
    ensemble = [f"127.0.0.1:{free_port()}:{free_port()}" for _ in range(3)]
    servers = [
        ZooKeeperProcess(
            tmp_path / str(number), free_port(), tick_ms=500, ensemble=ensemble, number=number
        )
        for number in (1, 2, 3)
    ]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_serving()
        assert sorted(str(it.mode()) for it in servers) == ["follower", "follower", "leader"]
    finally:
        for server in servers:
            server.kill()


def test_server_says_why_it_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    server = ZooKeeperProcess(tmp_path, free_port(), tick_ms=TICK_MS)
    with pytest.raises((MillstreamError, OSError)):
        server.start()
    server = ZooKeeperProcess(tmp_path / "other", 1, host="256.0.0.1", tick_ms=TICK_MS)
    with pytest.raises(MillstreamError, match="does not start"):
        server.start()


def test_java_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "nowhere")
    with pytest.raises(ConfigError, match="needs Java"):
        ZooKeeperProcess(tmp_path, free_port()).start()


def test_jars_are_those_of_the_server() -> None:
    names = {path.name.rpartition("-")[0] for path in server_jars()}
    assert {"zookeeper", "zookeeper-jute", "snappy-java", "metrics-core"} <= names
