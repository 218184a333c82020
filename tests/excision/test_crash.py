"""A client that is killed at any step of an excision leaves a job that another one completes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.client.cluster import Cluster
from millstream.excision.history import History
from millstream.excision.jobs import finish
from millstream.excision.selection import Access
from millstream.excision.verification import verify_receipt
from tests.excision.conftest import ALICE
from tests.excision.test_sinks import Scene
from tests.peers.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def die_at(step: int, scene: Scene, *options: str) -> list[str]:
    """The steps that it came to; the last one is the one where it died, or "done"."""
    arguments = [scene.access.bootstrap_servers, scene.topic, "alice", str(step), *options]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.excision.dying", *arguments],
        cwd=scene.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return [it for it in ended.stdout.splitlines() if it.startswith(("before", "after", "done"))]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_client_killed_at_every_step_of_a_sink(
    cluster: Cluster, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, died_at = 0, ""
    while died_at != "done":
        step += 1
        directory = tmp_path / str(step)
        directory.mkdir()
        scene = Scene(cluster, access, directory)
        monkeypatch.chdir(directory)
        scene.declare()
        scene.put("alice", "bob", "carol")
        scene.follow()
        died_at = die_at(step, scene, "--sink", str(scene.file))[-1]
        jobs = [it for it in History(cluster).jobs().values() if it.topics[0].topic == scene.topic]
        if not jobs:  # nothing was asked for yet: the user does it again
            assert died_at.endswith(("append_to_setting", "before put_job"))  # a dry run
            assert "alice" in scene.rows()
            jobs = [scene.begin([scene.plan()])]
        (job,) = jobs
        receipt = finish(cluster, job, timeout_seconds=PATIENCE_SECONDS, selector=ALICE)
        assert scene.rows() == {"bob": "Bath", "carol": "Bath"}, died_at
        (report,) = receipt.derived
        assert report["rows_after"] == {"customers": 2}
        if "switch" not in died_at or died_at.startswith("before"):
            assert report["rows_before"] == {"customers": 3}, died_at
        assert verify_receipt(cluster, receipt, selector=ALICE, access=access).problems == []
        receipts = [it for it in History(cluster).receipts() if it.job.id == job.id]
        assert len(receipts) == 1
        files = [it for it in directory.rglob("*") if it.is_file()]
        assert not any(b"alice@example.org" in it.read_bytes() for it in files), died_at
        scene.put("dora")
        scene.follow()
        assert sorted(scene.rows()) == ["bob", "carol", "dora"]
    assert step > 15
