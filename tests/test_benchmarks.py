"""Benchmarks must not rot: each runs here on small sizes. What they measure is not asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.__main__ import DEFAULT, EXTRA, main
from benchmarks.measurement import Measurement


@pytest.mark.parametrize("name", [*DEFAULT, *EXTRA])
def test_benchmark_runs_on_a_small_scale(name: str, tmp_path: Path) -> None:
    main([name, "--quick", "--alone", "--results", str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    figures = [m["samples"].get("millstream") or m["samples"] for m in results["measurements"]]
    assert figures
    assert all(figures)


def test_measurement_judges_the_ratio_of_the_best_samples() -> None:
    rate = Measurement("rate", "1/s", bar=1.0, aim=1.5)
    rate.samples = {"millstream": [90.0, 120.0], "kafka": [100.0, 80.0]}
    latency = Measurement("latency", "ms", "lower is better", bar=0.7, aim=0.25)
    latency.samples = {"millstream": [3.0, 0.8], "kafka": [1.0, 2.0]}
    assert (rate.ratio, rate.verdict) == (1.2, "bar reached")
    assert (latency.ratio, latency.verdict) == (0.8, "bar missed")
