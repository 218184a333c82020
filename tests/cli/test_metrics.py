"""`millstream metrics`."""

from __future__ import annotations

import json

from tests.cli.conftest import Run


def test_the_dashboard_is_json_and_the_alerts_are_rules(run: Run) -> None:
    assert json.loads(run("metrics", "dashboard").out)["title"] == "Millstream"
    assert "groups:\n  - name: millstream-brokers\n" in run("metrics", "alerts").out
