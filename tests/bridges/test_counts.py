"""Counters of bridges."""

from __future__ import annotations

import pytest

from millstream.bridges import counts as counting
from millstream.bridges.counts import Counts
from millstream.metrics.exposition import render


def test_counts_are_summed_by_labels_and_rendered() -> None:
    counts = Counts()
    counts.add("http_requests", route="/a", status="200")
    counts.add("http_requests", 2, route="/a", status="404")
    counts.add("records_in", 4, topic="t")
    counts.series("records_in", topic="t")()
    assert counts.of("http_requests") == 3
    assert counts.of("http_requests", status="404") == 2
    assert counts.of("records_in", topic="t") == 5
    assert counts.of("records_out") == 0
    text = "".join(render(counts.families()))
    assert 'millstream_bridge_http_requests_total{route="/a",status="404"} 2' in text
    assert "# HELP millstream_bridge_records_in_total Records that" in text


def test_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "SERIES_MAX", 2)
    counts = Counts()
    for topic in "abc":
        counts.add("records_in", topic=topic)
    counts.add("records_in", topic="a")
    assert counts.of("records_in") == 3
