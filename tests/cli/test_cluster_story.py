"""`millstream demo cluster`: real brokers are killed and frozen, and every record is there."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from millstream.cli.cluster_run import ClusterVerdict
from millstream.cli.cluster_story import verdict_table
from millstream.cli.crash_run import Verdict
from tests.cli.conftest import Run

SOUND = Verdict(acknowledged=10, found=10, lost=0, doubled=0, misplaced=0, disordered=0)


def shown(verdict: ClusterVerdict) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(verdict_table(verdict))
    return out.getvalue()


def test_verdict_is_told_in_its_title() -> None:
    assert "nothing lost, nothing doubled" in shown(ClusterVerdict(SOUND, 0, 2, 1.5))
    assert "the results differ" in shown(ClusterVerdict(SOUND, 1, 0, 1.5))


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(600)
def test_demo_cluster_loses_nothing(run: Run) -> None:
    outcome = run("demo", "cluster", "--seconds", "8", "--rate", "300")
    assert outcome.exit_code == 0, outcome.out + outcome.err
    assert outcome.out.count("kill -9") == 2
    assert "is frozen" in outcome.out
    assert "nothing lost, nothing doubled, order kept" in outcome.out
