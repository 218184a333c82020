"""The graph of a pipeline as it is published: nodes of `--explain`, each once, with their names.

Steps that are the same become one node. Outputs and dead-letter topics are nodes, too. Spark lists
operators with state from the outputs to the sources, and each node has its places in that list.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.admin.pipeline_records import Node, shortened
from millstream.pipelines.running.plan_steps import Explanation, Step, delivery
from millstream.pipelines.spec import ONLY, PipelineSpec, Topic, View

NODES_MAX = 200
DETAIL_MAX = 1_000
AUTOMATON = "automaton"  # the detail that every pattern has
_COUNTED = ' rows are dropped, and counted as "'


class GraphMaker:
    """Numbers the steps of an explanation."""

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self._pipeline = explanation.pipeline
        self._topics = {f"topic {it.name}": it for it in self._pipeline.reads.values()}
        self._ids: dict[Step, int] = {}
        self._nodes: dict[int, Node] = {}
        self._operators: dict[Step, list[int]] = {}

    def nodes(self) -> tuple[Node, ...]:
        """Inputs before what they flow into; none at all if there are too many to be drawn."""
        for number, step in enumerate(self._stateful()):
            self._operators.setdefault(step, []).append(number)
        for flow in self._explanation.flows:
            last = self._add(flow.last)
            for name in flow.outputs:
                self._add_sink(name, last)
        for name, topic in self._topics.items():
            self._add_letters(name, topic)
        found = tuple(self._nodes[it] for it in sorted(self._nodes))
        return found if len(found) <= NODES_MAX else ()

    def _stateful(self) -> Iterator[Step]:
        """Steps with state, outputs first, as Spark lists them."""

        def walk(step: Step) -> Iterator[Step]:
            if step.has_state:
                yield step
            for it in step.inputs:
                yield from walk(it)

        for flow in self._explanation.flows:
            yield from walk(flow.last)

    def _add(self, step: Step) -> int:
        if step in self._ids:
            return self._ids[step]
        inputs = tuple(self._add(it) for it in step.inputs)
        node_id = len(self._nodes)
        topic = self._topics.get(step.title)
        name = "" if topic is None else topic.name
        if _COUNTED in step.title:
            name = step.title.partition(_COUNTED)[2].rstrip('"')
        self._ids[step] = node_id
        self._nodes[node_id] = Node(
            node_id,
            "source" if not inputs else "state" if step.has_state else "step",
            shortened(step.title, DETAIL_MAX),
            inputs,
            tuple((key, shortened(text, DETAIL_MAX)) for key, text in step.details),
            name,
            tuple(self._operators.get(step, ())),
            step.grows,
        )
        return node_id

    def _add_sink(self, name: str, last: int) -> None:
        output = self._pipeline.writes[name]
        by = f"by {', '.join(output.key)}" if output.key else ""
        if isinstance(output, Topic):
            title, mode = f"topic {output.name}", by
        else:
            kind = "view" if isinstance(output, View) else "table"
            title, mode = f"{kind} {output.name}", f"{output.mode} {by}".strip()
        details = [("writes", mode)] if mode else []
        details.append(("exactly once", f"by {delivery(self._pipeline.writes.values())}"))
        shown = output_name(self._pipeline, name)
        node_id = len(self._nodes)
        self._nodes[node_id] = Node(node_id, "sink", title, (last,), tuple(details), shown)

    def _add_letters(self, title: str, topic: Topic) -> None:
        if topic.schema is None or topic.bad_records != "deadletter":
            return
        sources = [it.id for it in self._nodes.values() if it.title == title and not it.inputs]
        if sources:
            node_id = len(self._nodes)
            self._nodes[node_id] = Node(
                node_id,
                "letters",
                f"dead letters {topic.dead_letters}",
                tuple(sources),
                (),
                topic.name,
            )


def output_name(pipeline: PipelineSpec, name: str) -> str:
    """What an output is called where its rows are counted."""
    return pipeline.writes[name].name if name == ONLY else name


def pattern_names(explanation: Explanation) -> tuple[str, ...]:
    """The steps that search for patterns."""
    return tuple(
        dict.fromkeys(
            it.title for it in explanation.steps if any(name == AUTOMATON for name, _ in it.details)
        )
    )
