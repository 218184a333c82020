"""`millstream demo`: short ones, which kill real processes and find every record that counts."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from millstream.cli.shop.database import why_missing
from tests.cli.conftest import Run

FIGURE = re.compile(r"│ +(\w+) +([\d,]+) +│")
SUMMARY = re.compile(r"sent ([\d,]+) +counted ([\d,]+) +lost (\d+) +doubled (\d+)")
PATIENCE_S = 600


def test_demo_crash_loses_nothing_over_a_kill(run: Run) -> None:
    outcome = run("demo", "crash", "--seconds", "2", "--kills", "1", "--rate", "2000")
    assert outcome.exit_code == 0, outcome.err
    assert "kill -9" in outcome.out
    assert "nothing lost, nothing doubled, order kept" in outcome.out
    figures = {name: int(count.replace(",", "")) for name, count in FIGURE.findall(outcome.out)}
    assert figures["acknowledged"] > 0
    assert figures["found"] >= figures["acknowledged"]
    assert figures["lost"] == figures["doubled"] == 0


def test_demo_says_how_to_get_java(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "nowhere")
    outcome = run("demo")
    assert outcome.exit_code == 1
    assert "apt install openjdk-17-jre-headless" in outcome.err


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_demo_counts_every_order_once_over_a_kill() -> None:
    command = [sys.executable, "-m", "millstream.cli.entry", "demo", "--seconds", "6"]
    done = subprocess.run(
        [*command, "--rate", "100"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    summary = SUMMARY.search(done.stdout)
    assert summary is not None, done.stdout
    sent, counted, lost, doubled = (int(it.replace(",", "")) for it in summary.groups())
    assert sent == counted > 0
    assert lost == doubled == 0
    assert "millstream switch sales 2" in done.stdout
    for compared in ("topic frauds", "view customers: spent"):
        assert compared in done.stdout
    if why_missing() is None:
        assert "also of the capture and the index" in done.stdout
        assert "products in the index" in done.stdout
