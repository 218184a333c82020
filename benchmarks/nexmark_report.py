"""`python -m benchmarks.nexmark_report`: what `results/nexmark.json` has gathered, as tables in
Markdown and as a plot, `docs/images/nexmark.png`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench_nexmark_engines import ENGINES
from benchmarks.nexmark import RESULTS
from benchmarks.spark import CONNECTOR, OURS

PLOT = Path(__file__).parent.parent / "docs" / "images" / "nexmark.png"
NAMES = {OURS: "Millstream", CONNECTOR: "plain Spark", "flink": "PyFlink", "quix": "Quix Streams"}
# Events a second and core, by Flink, as the benchmark's own guide has them (GUIDE_V1.md): 8 task
# managers, 100 million events, which a generator within them makes: no broker, no JSON.
PUBLISHED = {
    "q0": 155_020, "q1": 157_940, "q2": 175_210, "q3": 152_120, "q4": 34_330, "q5": 22_140,
    "q7": 12_330, "q8": 146_140, "q9": 14_240, "q10": 57_810, "q11": 39_700, "q12": 75_670,
    "q13": 130_730, "q14": 161_230, "q15": 72_420, "q16": 18_650, "q17": 116_800, "q18": 53_700,
    "q19": 44_040, "q20": 18_980, "q21": 98_490, "q22": 129_960,
}  # fmt: skip
GOOD, BAD, ALONE = "#2a7f62", "#c0504d", "#8c8c8c"


def main() -> None:
    kept = json.loads(RESULTS.read_text())
    print("\n".join(query_table(kept.get("queries", {}))), end="\n\n")
    print("\n".join(core_table(kept.get("queries", {}))), end="\n\n")
    print("\n".join(engine_table(kept.get("engines", {}))))
    plot(kept.get("queries", {}), PLOT)


def query_table(queries: Mapping[str, Any]) -> Iterator[str]:
    heads = ("query", "Millstream, rows/s", "plain Spark, rows/s", "ratio", "by round", "goal")
    yield f"| {' | '.join(heads)} |"
    yield "|---|---:|---:|---:|---|---|"
    for name in in_order(queries):
        figure = queries[name]
        best = {reader: max(values) for reader, values in figure["samples"].items()}
        if CONNECTOR not in best:
            yield f"| {name} | {best[OURS]:,.0f} | cannot | | | |"
            continue
        ratio = best[OURS] / best[CONNECTOR]
        by_round = ", ".join(f"{it:.1f}" for it in ratios(figure))
        goal = f"≥ {figure['bar']}{'' if ratio >= figure['bar'] else ', missed'}"
        yield (
            f"| {name} | {best[OURS]:,.0f} | {best[CONNECTOR]:,.0f} | {ratio:.2f} | {by_round} "
            f"| {goal} |"
        )


def core_table(queries: Mapping[str, Any]) -> Iterator[str]:
    """Events a second and core: all CPU time, that of the broker included, by all events of the
    stream, also by those that a query does not read."""
    yield "| query | Millstream | plain Spark | Flink, published |"
    yield "|---|---:|---:|---:|"
    for name in in_order(queries):
        figure = queries[name]
        rates = {it: figure["events"] / used for it, used in figure["cpu_seconds"].items()}
        rates["published"] = PUBLISHED.get(name, 0)
        cells = [rates.get(it) for it in (OURS, CONNECTOR, "published")]
        yield f"| {name} | {' | '.join(f'{it:,.0f}' if it else '' for it in cells)} |"


def engine_table(engines: Mapping[str, Any]) -> Iterator[str]:
    shown = [name for name in ENGINES if name in engines]
    queries = in_order({query for name in shown for query in engines[name]["rates"]})
    yield f"| | {' | '.join(NAMES[name] for name in shown)} |"
    yield f"|---|{'---:|' * len(shown)}"
    for query in queries:
        rates = [engines[name]["rates"].get(query) for name in shown]
        yield f"| {query}, rows/s | {' | '.join(f'{it:,.0f}' if it else '' for it in rates)} |"
    for label, key in (("until ready, s", "ready_seconds"), ("peak memory, MB", "peak_mb")):
        yield f"| {label} | {' | '.join(f'{engines[name][key]:,.0f}' for name in shown)} |"


def ratios(figure: Mapping[str, Any]) -> list[float]:
    pairs = zip(figure["samples"][OURS], figure["samples"][CONNECTOR], strict=True)
    return [ours / theirs for ours, theirs in pairs]


def in_order(names: Any) -> list[str]:
    return sorted(names, key=lambda name: int(name[1:]))


def plot(queries: Mapping[str, Any], path: Path) -> None:
    """How many times as many rows a second as plain Spark; the dashes are the goals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    compared = [name for name in in_order(queries) if CONNECTOR in queries[name]["samples"]]
    if not compared:
        return
    best = [
        max(queries[name]["samples"][OURS]) / max(queries[name]["samples"][CONNECTOR])
        for name in compared
    ]
    bars = [queries[name]["bar"] for name in compared]
    colours = [GOOD if value >= bar else BAD for value, bar in zip(best, bars, strict=True)]
    figure, axes = pyplot.subplots(figsize=(9, 3.6))
    axes.bar(compared, best, color=colours)
    axes.hlines(bars, [at - 0.4 for at in range(len(bars))], [at + 0.4 for at in range(len(bars))],
                colors="black", linestyles="--", linewidth=1)  # fmt: skip
    axes.axhline(1.0, color=ALONE, linewidth=1)
    for at, value in enumerate(best):
        axes.text(at, value, f"{value:.1f}", ha="center", va="bottom", fontsize=8)
    axes.set_ylabel("times plain Spark's rows/s")
    axes.set_title("Nexmark: Millstream on Spark beside Spark's own connector (dashes: goals)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
