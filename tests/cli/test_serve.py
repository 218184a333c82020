"""`millstream serve`: where settings come from, the ready line, a clean stop, clear refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.failures import CommandFailed
from millstream.cli.serving import (
    ServeOptions,
    check_servers,
    gather_settings,
    parse_plainly,
    with_cluster,
)
from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MILLSTREAM_")]:
        monkeypatch.delenv(name)


def serve(data: Path, *options: str) -> subprocess.Popen[str]:
    command = [MILLSTREAM, "serve", "--data", str(data), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_serve_has_safe_defaults() -> None:
    settings = gather_settings(None, None, None, [])
    assert settings.static["listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert settings.static["log.dirs"] == "./millstream-data"


def test_serve_settings_override_each_other_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.dirs=/from/file\nnum.partitions=2\nlisteners=PLAINTEXT://127.0.0.1:1111\n")
    settings = gather_settings(None, None, file, [])
    assert settings.static["log.dirs"] == "/from/file"
    assert settings.static["listeners"] == "PLAINTEXT://127.0.0.1:1111"
    monkeypatch.setenv("MILLSTREAM_NUM_PARTITIONS", "3")
    assert gather_settings(None, None, file, []).num_partitions == 3
    chosen = gather_settings("127.0.0.1:2222", "/d", file, ["num.partitions=4"])
    assert chosen.num_partitions == 4
    assert chosen.static["listeners"] == "PLAINTEXT://127.0.0.1:2222"
    assert chosen.static["log.dirs"] == "/d"


def test_serve_takes_its_address_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_LISTENERS", "PLAINTEXT://127.0.0.1:3333")
    settings = gather_settings(None, None, None, [])
    assert settings.static["listeners"] == "PLAINTEXT://127.0.0.1:3333"


def test_serve_names_an_unknown_setting_and_the_nearest(run: Run, tmp_path: Path) -> None:
    outcome = run("serve", "--data", str(tmp_path), "--set", "num.partition=3")
    assert outcome.exit_code == 1
    assert "num.partitions" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("address", ["9092", "localhost", "127.0.0.1:99999", "127.0.0.1:x"])
def test_serve_refuses_an_address_it_cannot_read(run: Run, address: str) -> None:
    outcome = run("serve", "--listen", address)
    assert outcome.exit_code == 2
    assert "HOST:PORT" in outcome.err


def test_serve_says_when_it_is_ready_and_stops_cleanly(tmp_path: Path) -> None:
    port = free_port()
    with serve(tmp_path / "data", "--listen", f"127.0.0.1:{port}") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert f"127.0.0.1:{port}" in line
        assert str(tmp_path / "data") in line
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert out == ""


def test_serve_refuses_a_directory_that_is_in_use(tmp_path: Path) -> None:
    with serve(tmp_path / "data", "--listen", "127.0.0.1:0") as first:
        assert first.stdout is not None
        first.stdout.readline()
        with serve(tmp_path / "data", "--listen", "127.0.0.1:0") as second:
            _, err = second.communicate(timeout=PATIENCE_SECONDS)
        first.terminate()
        first.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 1
    assert str(tmp_path / "data") in err
    assert err.count("\n") == 1


def test_serve_refuses_a_port_that_is_in_use(tmp_path: Path) -> None:
    with serve(tmp_path / "one", "--listen", "127.0.0.1:0") as first:
        assert first.stdout is not None
        address = first.stdout.readline().split(" on ")[1].split(",")[0]
        with serve(tmp_path / "two", "--listen", address) as second:
            _, err = second.communicate(timeout=PATIENCE_SECONDS)
        first.terminate()
        first.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 1
    assert address.rpartition(":")[2] in err
    assert err.count("\n") == 1


def test_zookeeper_and_node_id_are_short_for_settings() -> None:
    options = parse_plainly(["--zookeeper", "a:1,b:2/c", "--node-id", "7", "--set", "x=y"])
    assert options == ServeOptions(assignments=("x=y",), zookeeper="a:1,b:2/c", node_id=7)
    assert with_cluster(options) == ("x=y", "zookeeper.connect=a:1,b:2/c", "node.id=7")
    settings = gather_settings(None, None, None, with_cluster(options)[1:])
    assert (settings.zookeeper_connect, settings.id) == ("a:1,b:2/c", 7)
    assert parse_plainly(["--node-id", "x"]) is None


@pytest.mark.parametrize("servers", ["a", "a:1,b", "a:1,", ":1", "a:x/c", "a:70000"])
def test_addresses_of_zookeeper_without_a_port_are_refused(servers: str) -> None:
    with pytest.raises(CommandFailed, match="HOST:PORT/CHROOT"):
        check_servers(servers)


def test_workers_and_zookeeper_exclude_each_other(run: Run) -> None:
    outcome = run("serve", "--workers", "2", "--zookeeper", "127.0.0.1:1")
    assert outcome.exit_code == 2
    assert "--workers and --zookeeper exclude each other" in outcome.err
