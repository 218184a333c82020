"""A log that is not the one that was applied; see the runner's tests for logs that lost records."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import Broker
from millstream.client.cluster import Cluster
from millstream.connect.sinks import OutOfStep, SinkRunner
from millstream.connect.sinks.checks import refuse_divergence
from millstream.connect.sinks.positions import Place, Position
from millstream.connect.sinks.reading import timestamp_at
from tests.connect.sinks.conftest import Log, SqliteTables, wait_for
from tests.connect.sinks.test_runner import run_once
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port


class Restored:
    """A broker that can be brought back to an older copy of its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._port = directory, free_port()
        self._broker = self._start()
        self.log = Log(self._broker.bootstrap_servers, "shop.items")

    def _start(self) -> Broker:
        return Broker.start(self._directory / "data", port=self._port, in_process=False)

    def back_up(self) -> None:
        self._broker.stop()
        shutil.copytree(self._directory / "data", self._directory / "copy")
        self._broker = self._start()

    def restore(self) -> None:
        self._broker.stop()
        shutil.rmtree(self._directory / "data")
        shutil.copytree(self._directory / "copy", self._directory / "data")
        self._broker = self._start()

    def kill(self) -> None:
        self._broker.kill()
        self._broker.restart()

    def close(self) -> None:
        self._broker.stop()


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    broker = Restored(tmp_path)
    yield broker
    broker.close()


def test_log_that_ends_before_the_position_is_refused(restored: Restored, tmp_path: Path) -> None:
    tables, log = SqliteTables(tmp_path), restored.log
    log.put((1, "one"))
    restored.back_up()
    log.put((2, "two"))
    run_once(tables.config(log))
    restored.restore()
    with pytest.raises(OutOfStep, match=r"at offset 2, and the log has offsets 0 to 1.*--rebuild"):
        run_once(tables.config(log))
    SinkRunner(tables.config(log)).rebuild()
    assert tables.rows() == {1: "one"}


@pytest.mark.parametrize("epoch", ["the same epoch", "a later epoch"])
def test_log_with_other_records_is_refused(restored: Restored, tmp_path: Path, epoch: str) -> None:
    """A broker that was stopped continues with its epoch; one that was killed with the next one."""
    tables, log = SqliteTables(tmp_path), restored.log
    log.put((1, "one"))
    restored.back_up()
    if epoch == "a later epoch":
        restored.kill()
    log.put((2, "two"), (3, "three"))
    run_once(tables.config(log))
    restored.restore()
    log.put((4, "four"), (5, "five"), (6, "six"))
    wrong = (
        "has another record at offset 2" if epoch == "the same epoch" else "the log does not have"
    )
    with pytest.raises(OutOfStep, match=f"{wrong}.*--rebuild"):
        run_once(tables.config(log))
    SinkRunner(tables.config(log)).rebuild()
    assert tables.rows() == {1: "one", 4: "four", 5: "five", 6: "six"}


def test_log_that_is_restored_under_a_running_sink_stops_it(
    restored: Restored, tmp_path: Path
) -> None:
    tables, log, failures = SqliteTables(tmp_path), restored.log, list[BaseException]()
    log.put((1, "one"))
    restored.back_up()
    log.put((2, "two"))
    applied = threading.Event()

    def follow() -> None:
        try:
            SinkRunner(
                tables.config(log), report=lambda it: it.records == 2 and applied.set()
            ).run()
        except OutOfStep as error:
            failures.append(error)

    runner = threading.Thread(target=follow)
    runner.start()
    assert applied.wait(PATIENCE_SECONDS)
    restored.restore()
    log.put((3, "three"), (4, "four"))
    runner.join(PATIENCE_SECONDS)
    assert [str(it) for it in failures if "restored from an older copy" in str(it)]
    assert tables.rows() == {1: "one", 2: "two"}


def test_epoch_that_ends_before_the_position_is_refused(restored: Restored) -> None:
    """As after an unclean election, which leaves no trace if compaction removes the new record."""
    log = restored.log
    log.put((1, "one"))
    restored.kill()
    log.put((2, "two"))
    place = Place(log.topic, 0)
    with Cluster(log.bootstrap) as cluster:
        wait_for(lambda: timestamp_at(cluster, place, 1) > 0)
        id = str(cluster.topic(log.topic).id)
        refuse_divergence(cluster, place, Position(id, 1, 0))
        refuse_divergence(cluster, place, Position(id, 2, 1))
        refuse_divergence(cluster, place, Position(id, 2))  # of an earlier version
        with pytest.raises(OutOfStep, match="of leader epoch 0, which ends at offset 1 now"):
            refuse_divergence(cluster, place, Position(id, 2, 0))
