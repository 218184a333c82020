"""`millstream demo`, short: it kills a real server and finds every acknowledged record."""

from __future__ import annotations

import re

from tests.cli.conftest import Run


def test_demo_loses_nothing_over_a_kill(run: Run) -> None:
    outcome = run("demo", "--seconds", "2", "--kills", "1", "--rate", "2000")
    assert outcome.exit_code == 0, outcome.err
    assert "kill -9" in outcome.out
    assert "nothing lost, nothing doubled, order kept" in outcome.out
    figures = {name: int(count.replace(",", "")) for name, count in FIGURE.findall(outcome.out)}
    assert figures["acknowledged"] > 0
    assert figures["found"] >= figures["acknowledged"]
    assert figures["lost"] == figures["doubled"] == 0


FIGURE = re.compile(r"│ +(\w+) +([\d,]+) +│")
