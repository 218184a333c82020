"""How results are shown: a table for the eye, JSON for the record, a plot for the README."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measurement import Measurement

COLOURS = {"aim reached": "bold green", "bar reached": "green", "bar missed": "bold red"}

TITLES = {"millstream": "Millstream", "kafka": "Apache Kafka"}


def show(measurements: Sequence[Measurement], console: Console) -> None:
    table = Table(title="Millstream beside Apache Kafka (best of the rounds, one machine, one run)")
    table.add_column("figure")
    names = list(dict.fromkeys(name for m in measurements for name in m.samples))
    for name in names:
        table.add_column(name, justify="right")
    for column in ("ratio", "bar", "aim"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for m in measurements:
        cells = [_number(m.best(name)) for name in names]
        goal = "≥" if m.direction == "higher is better" else "≤"
        table.add_row(
            f"{m.name} [dim]{m.unit}[/]",
            *cells,
            _number(m.ratio),
            f"{goal} {m.bar}" if m.bar is not None else "",
            f"{goal} {m.aim}" if m.aim is not None else "",
            f"[{COLOURS.get(m.verdict, 'default')}]{m.verdict}[/]",
        )
    console.print(table)
    for m in measurements:
        for target, note in m.notes.items():
            console.print(f"[dim]{m.name}, {target}: {note}[/]")


def markdown(measurements: Sequence[Measurement]) -> str:
    """The best of each as docs/benchmarks.md has them."""
    names = list(dict.fromkeys(name for m in measurements for name in m.samples))
    rows = [["", *(TITLES.get(it, it) for it in names)], ["---", *("---:" for _ in names)]]
    for m in measurements:
        best = [(m.best(name), m.unit) for name in names]
        cells = ["" if it is None else f"{_number(it)} {unit}" for it, unit in best]
        rows.append([m.name, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def save(measurements: Sequence[Measurement], directory: Path) -> Path:
    """Write results.json and ratios.png; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "measurements": [
            {
                "name": m.name,
                "unit": m.unit,
                "direction": m.direction,
                "samples": m.samples,
                "ratio": m.ratio,
                "bar": m.bar,
                "aim": m.aim,
                "verdict": m.verdict,
                "notes": m.notes,
            }
            for m in measurements
        ],
    }
    (directory / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    _plot(
        [m for m in measurements if m.ratio is not None and m.peer == "kafka"],
        directory / "ratios.png",
    )
    return directory


def _plot(measurements: Sequence[Measurement], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Every bar as "how many times better", whatever the figure's own direction.
    def gain(m: Measurement) -> float:
        ratio = m.ratio or 0.0
        if m.direction == "higher is better":
            return ratio
        return 1 / ratio if ratio else 0.0

    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.4 * len(measurements)))
    labels = [m.name for m in measurements]
    gains = [gain(m) for m in measurements]
    axes.barh(labels, gains, color=["#2a7f62" if g >= 1 else "#c0504d" for g in gains])
    axes.axvline(1.0, color="black", linewidth=1, linestyle="--")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("times better than Apache Kafka 4.3.1 (log scale; the dashed line is Kafka)")
    for row, value in enumerate(gains):
        axes.text(value, row, f" {value:.2f}x", va="center", fontsize=8)
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
