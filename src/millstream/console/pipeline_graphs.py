"""The graph of a pipeline with its numbers, as the page draws it: pure."""

from __future__ import annotations

from datetime import UTC, datetime

from millstream.admin.pipeline_board import Shown
from millstream.admin.pipeline_records import Node
from millstream.console.formats import moment, number, rate, short, size, span
from millstream.console.paths import link
from millstream.models import dataclass

WATERMARK = "watermark on "
HEADLINES = {
    "source": "reads",
    "step": "",
    "state": "keeps state",
    "sink": "writes",
    "letters": "dead letters",
}


@dataclass(frozen=True)
class Fact:
    """A number of a node; tone: "", "warn" or "bad"."""

    label: str
    value: str
    tone: str = ""


@dataclass(frozen=True)
class GraphNode:
    """A step as it is drawn. `flow` is written at the edge that leads to it, or from it if it is a
    source."""

    id: int
    kind: str
    headline: str
    title: str
    path: str
    inputs: tuple[int, ...]
    facts: tuple[Fact, ...]
    details: tuple[tuple[str, str], ...]
    flow: str
    is_flowing: bool
    grows: bool


def graph_of(shown: Shown, now_ms: int) -> tuple[GraphNode, ...]:
    nodes = {it.id: it for it in shown.about.nodes}
    is_matching = _count_operators(shown) == len(shown.status.operators)
    return tuple(
        GraphNode(
            it.id,
            it.kind,
            HEADLINES[it.kind],
            it.title.removeprefix("dead letters "),
            path_of(it),
            tuple(one for one in it.inputs if one in nodes),
            tuple(facts_of(it, shown, now_ms, is_matching)),
            it.details,
            flow_of(it, shown),
            is_flowing(it, shown),
            it.grows,
        )
        for it in nodes.values()
    )


def _count_operators(shown: Shown) -> int:
    return sum(len(it.operators) for it in shown.about.nodes)


def path_of(node: Node) -> str:
    if node.kind == "source" and node.name:
        return link("topics", node.name)
    if node.kind == "sink" and node.title.startswith("topic "):
        return link("topics", node.title.removeprefix("topic "))
    if node.kind == "letters":
        return link("topics", node.title.removeprefix("dead letters "))
    return ""


def facts_of(node: Node, shown: Shown, now_ms: int, is_matching: bool) -> list[Fact]:
    status = shown.status
    if node.kind == "source":
        source = status.sources.get(node.name)
        if source is None:
            return []
        has_lag = source.lag is not None
        tone = "warn" if (source.lag or 0) > max(10 * source.rows_per_second, 1000) else ""
        return [
            Fact("rows", number(source.rows)),
            *([Fact("lag", number(source.lag), tone)] if has_lag else []),
        ]
    if node.kind == "sink":
        output = status.outputs.get(node.name)
        if output is None:
            return []
        late = [Fact("late, diverted", number(output.late), "warn")] if output.late else []
        corrected = [Fact("corrected", number(output.corrections))] if output.corrections else []
        return [Fact("rows", number(output.rows)), *late, *corrected]
    if node.kind == "letters":
        bad = status.sources[node.name].bad if node.name in status.sources else 0
        return [Fact("letters", number(bad), "bad" if bad else "")]
    if node.kind == "state" and is_matching:
        kept = [status.operators[it] for it in node.operators if it < len(status.operators)]
        dropped = sum(it.dropped for it in kept)
        late = [Fact("late, dropped", number(dropped), "warn")] if dropped else []
        rows = sum(it.rows for it in kept)
        return [Fact("state", f"{short(rows)} rows, {size(sum(it.bytes for it in kept))}"), *late]
    if node.title.startswith(WATERMARK) and status.watermark_ms is not None:
        at = time_of_day(status.watermark_ms)
        behind = span(max(now_ms - status.watermark_ms, 0))
        facts = [Fact("at", at), Fact("behind clock", behind)]
        if status.newest_ms is not None:
            newest = span(max(status.newest_ms - status.watermark_ms, 0))
            facts.append(Fact("behind newest", newest))
        return facts
    if node.name and node.name in status.late:
        dropped = status.late[node.name]
        return [Fact("dropped", number(dropped), "warn" if dropped else "")]
    return []


def time_of_day(time_ms: int) -> str:
    """In UTC. Event times may be anything, such as microseconds taken for milliseconds."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return moment(time_ms)


def flow_of(node: Node, shown: Shown) -> str:
    if not shown.is_running:
        return ""
    if node.kind == "source" and node.name in shown.status.sources:
        return rate(shown.status.sources[node.name].rows_per_second)
    if node.kind == "sink" and node.name in shown.status.outputs:
        return rate(shown.status.outputs[node.name].rows_per_second)
    return ""


def is_flowing(node: Node, shown: Shown) -> bool:
    """Whether rows come out of a source, or arrive at an output."""
    if not shown.is_running:
        return False
    if node.kind == "sink":
        output = shown.status.outputs.get(node.name)
        return output is not None and output.rows_per_second > 0
    if node.kind == "letters":
        return False
    return shown.status.rows_per_second > 0
