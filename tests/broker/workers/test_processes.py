"""The processes of workers."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from millstream.broker.workers.layout import Layout
from millstream.broker.workers.processes import Spare, Worker, WorkerFailed
from millstream.broker.workers.worker import Assignment
from millstream.storage.filesystem import OsFileSystem


def worker_in(path: Path, spare: Spare) -> Worker:
    layout = Layout(OsFileSystem(), [path])
    layout.create(1)
    assert layout.cluster_id is not None
    layout.prepare_worker(1, layout.cluster_id)

    def assign(ports: dict[str, int]) -> Assignment:
        port = ports.get("PLAINTEXT", 0)
        settings = {
            "log.dirs": layout.worker_directories(1)[0],
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }
        return Assignment(1, settings, layout.cluster, layout.presence_lock(1), [])

    return Worker(1, assign, spare)


def test_killed_worker_is_started_again_from_the_spare_process_on_its_port(tmp_path: Path) -> None:
    async def scenario() -> None:
        spare = Spare()
        worker = worker_in(tmp_path, spare)
        await worker.start()
        ports, pid = worker.ports, worker.pid
        await spare.prepare()
        prepared = spare._process
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert await worker.died() == "signal SIGKILL"
        await worker.start()
        assert prepared is not None
        assert worker.pid == prepared.pid != pid
        assert worker.ports == ports
        await worker.stop()
        assert await worker.died() == "exit code 0"
        await spare.prepare()
        await spare.stop()

    asyncio.run(scenario())


def test_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = worker_in(tmp_path, Spare())
        (tmp_path / "cluster" / "meta.properties").unlink()
        with pytest.raises(WorkerFailed, match=r"worker 1 cannot start: .* is missing"):
            await worker.start()
        await worker.stop()

    asyncio.run(scenario())
