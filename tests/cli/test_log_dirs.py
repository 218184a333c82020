"""`millstream topic log-dirs`, against a broker with two log directories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.cli import log_dirs
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed
from tests.cli.conftest import Run
from tests.peers.kafka import start_kafka
from tests.peers.servers import start_millstream


class TwoDisks:
    """A broker, and the command line on it."""

    def __init__(self, run: Run, bootstrap: str, first: Path, second: Path) -> None:
        self._run = run
        self.bootstrap = bootstrap
        self.paths = {str(first), str(second)}

    def command(self, *arguments: str, exit_code: int = 0) -> str:
        outcome = self._run(*arguments, "--bootstrap-server", self.bootstrap)
        assert outcome.exit_code == exit_code, outcome
        return outcome.err if exit_code else outcome.out

    def places(self, topic: str) -> dict[int, str]:
        rows = json.loads(self.command("topic", "log-dirs", topic, "--json"))
        return {row["partition"]: row["log_dir"] for row in rows}


@pytest.fixture(
    params=[
        "millstream",
        pytest.param("apache-kafka", marks=[pytest.mark.slow, pytest.mark.java]),
    ]
)
def disks(request: pytest.FixtureRequest, run: Run, tmp_path: Path) -> Iterator[TwoDisks]:
    first, second = tmp_path / "first", tmp_path / "second"
    both = f"{first},{second}"
    start = start_millstream if request.param == "millstream" else start_kafka
    server = start(tmp_path / "server", {"log.dirs": both})
    yield TwoDisks(run, server.bootstrap, first, second)
    server.stop()


def test_replicas_are_moved_and_shown(disks: TwoDisks) -> None:
    disks.command("topic", "create", "orders", "--partitions", "2")
    before = disks.places("orders")
    assert set(before.values()) <= disks.paths
    for path in sorted(disks.paths):
        out = disks.command("topic", "log-dirs", "orders", "--to", path, "--broker", "1")
        assert f"moved 2 replicas to {path}" in out
        assert set(disks.places("orders").values()) == {path}
    (other,) = disks.paths - {path}
    disks.command(
        *("topic", "log-dirs", "orders", "--to", other, "--broker", "1", "--partitions", "1")
    )
    assert disks.places("orders") == {0: path, 1: other}
    assert "LOG DIRECTORY" in disks.command("topic", "log-dirs")


def test_mistakes_are_named(disks: TwoDisks) -> None:
    disks.command("topic", "create", "orders")
    to = ("topic", "log-dirs", "orders", "--to")
    path = sorted(disks.paths)[0]
    wrong = disks.command(*to, "/nowhere", "--broker", "1", exit_code=1)
    assert "/nowhere is not one of the log.dirs of broker 1" in wrong
    assert "no replica of orders" in disks.command(*to, path, "--broker", "7", exit_code=1)
    many = disks.command(*to, path, "--broker", "1", "--partitions", "9", exit_code=1)
    assert "orders has no partition 9" in many
    assert "--broker" in disks.command(*to, path, exit_code=2)
    assert "--to" in disks.command("topic", "log-dirs", "orders", "--broker", "1", exit_code=2)


def test_replica_that_disappears_is_not_called_moved(
    disks: TwoDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dirs, "GRACE_SECONDS", 0.2)
    path = sorted(disks.paths)[0]
    with pytest.raises(CommandFailed, match="deleted-0 is no longer on broker 1"):
        log_dirs._follow(Cluster(disks.bootstrap), 1, path, [("deleted", 0)])
