"""Benchmarks must not rot: each runs here on small sizes. What they measure is not asserted.

Most of them run in `make test-all`: `make test` runs a few, and imports all.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import bench_latency
from benchmarks.__main__ import DEFAULT, EXTRA, _parser
from benchmarks.measurement import Measurement

ROOT = Path(__file__).resolve().parent.parent
ALWAYS_RUN = {"latency", "slow_clients"}
NAMES = (*DEFAULT, *EXTRA)
BENCHMARKS = [
    name if name in ALWAYS_RUN else pytest.param(name, marks=pytest.mark.slow) for name in NAMES
]


def test_every_benchmark_can_be_run() -> None:
    """Each can be imported, and the command line accepts the names of those that it runs."""
    modules = {
        path.stem.removeprefix("bench_"): importlib.import_module(f"benchmarks.{path.stem}")
        for path in ROOT.glob("benchmarks/bench_*.py")
    }
    assert all(callable(modules[name].run) for name in NAMES)
    assert _parser().parse_args([*NAMES, "--quick", "--alone"]).names == list(NAMES)
    assert set(NAMES) >= ALWAYS_RUN


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_runs_on_a_small_scale(name: str, tmp_path: Path) -> None:
    # In a process of its own: one process has one Spark, and this one's may have other settings.
    command = [name, "--quick", "--alone", "--results", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
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


def test_measurement_of_pairs_judges_the_median_of_their_ratios() -> None:
    rate = Measurement("rate", "1/s", bar=0.98, is_paired=True)
    assert rate.ratio is None
    rate.samples = {"millstream": [99.0, 80.0, 49.0], "kafka": [100.0, 100.0, 50.0]}
    assert (rate.ratio, rate.verdict) == (0.98, "bar reached")


def test_latency_with_a_flush_is_compared_with_kafkas_and_one_fdatasync() -> None:
    p50 = Measurement("latency, p50", "ms", "lower is better")
    p50.samples = {"millstream": [1.0, 0.9], "kafka": [0.8, 0.7]}
    compared = bench_latency.with_one_sync(p50, [0.5, 0.3])
    assert compared.samples[bench_latency.KAFKA_AND_SYNC] == [1.0]
    assert (compared.ratio, compared.verdict) == (0.9, "bar reached")
    del p50.samples["kafka"]
    assert bench_latency.with_one_sync(p50, [0.5]).ratio is None


def test_report_of_nexmark_says_what_is_missed_and_what_plain_spark_cannot() -> None:
    from benchmarks.nexmark_report import query_table

    reached = {"samples": {"millstream": [9.0, 10.0], "connector": [4.0, 5.0]}, "bar": 2.0}
    missed = {"samples": {"millstream": [8.0], "connector": [10.0]}, "bar": 0.9}
    alone = {"samples": {"millstream": [7.0]}, "bar": 0.9}
    table = list(query_table({"q10": reached, "q9": alone, "q5": missed}))[2:]
    assert table == [
        "| q5 | 8 | 10 | 0.80 | 0.8 | ≥ 0.9, missed |",
        "| q9 | 7 | cannot | | | |",
        "| q10 | 10 | 5 | 2.00 | 2.2, 2.0 | ≥ 2.0 |",
    ]
