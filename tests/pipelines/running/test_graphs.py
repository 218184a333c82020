"""The graph that is published: nodes, their names, their places among Spark's operators."""

from __future__ import annotations

from millstream.pipelines import Pipeline, pipeline, table, topic, view
from millstream.pipelines.running.graphs import (
    AUTOMATON,
    DETAIL_MAX,
    NODES_MAX,
    GraphMaker,
    output_name,
    pattern_names,
)
from millstream.pipelines.running.plan_steps import Explanation, Flow, Step

ORDERS = Step("topic orders", details=(("format", "json"),))
DISTINCT = Step("one row for each id", (ORDERS,), has_state=True)
DROPPED = Step('late rows are dropped, and counted as "window"', (DISTINCT,))
COUNT = Step("aggregate by product", (DROPPED,), (("kept", "x" * 5000),), True, True)


def declared(**outputs: object) -> Pipeline:
    reads = topic("orders", schema="id long")
    writes = outputs or table("sales", key="product")
    return pipeline(reads=reads, writes=writes, name="p")(lambda orders: orders)  # type: ignore[arg-type]


def test_nodes_are_steps_outputs_and_dead_letters() -> None:
    nodes = GraphMaker(Explanation(declared(), "update", (Flow(("result",), COUNT),))).nodes()
    assert [(it.kind, it.name, it.inputs) for it in nodes] == [
        ("source", "orders", ()),
        ("state", "", (0,)),
        ("step", "window", (1,)),
        ("state", "", (2,)),
        ("sink", "sales", (3,)),
        ("letters", "orders", (0,)),
    ]
    assert [it.id for it in nodes] == list(range(6))
    assert (nodes[4].title, nodes[5].title) == ("table sales", "dead letters dlq.orders")
    assert nodes[4].details[0] == ("writes", "upsert by product")
    assert nodes[3].grows
    assert len(nodes[3].details[0][1]) == DETAIL_MAX


def test_steps_with_state_are_counted_from_the_outputs_on_and_shared_ones_have_two_places() -> None:
    flows = (Flow(("a",), COUNT), Flow(("b",), DISTINCT))
    pipe = declared(a=topic("counts"), b=view(key="id"))
    nodes = GraphMaker(Explanation(pipe, "update", flows)).nodes()
    found = {it.title: it.operators for it in nodes if it.kind == "state"}
    assert found == {"aggregate by product": (0,), "one row for each id": (1, 2)}
    sinks = [(it.title, it.name, it.inputs) for it in nodes if it.kind == "sink"]
    assert sinks == [("topic counts", "a", (3,)), ("view b", "b", (1,))]


def test_topic_whose_bad_records_are_dropped_has_no_dead_letters() -> None:
    reads = topic("orders", schema="id long", bad_records="drop")
    pipe = pipeline(reads=reads, writes=table("t"), name="p")(lambda orders: orders)
    nodes = GraphMaker(Explanation(pipe, "append", (Flow(("result",), ORDERS),))).nodes()
    assert [it.kind for it in nodes] == ["source", "sink"]


def test_graph_that_is_too_large_is_left_out() -> None:
    step = ORDERS
    for number in range(NODES_MAX):
        step = Step(f"step {number}", (step,))
    assert GraphMaker(Explanation(declared(), "append", (Flow(("result",), step),))).nodes() == ()


def test_outputs_are_called_as_their_rows_are_counted() -> None:
    assert output_name(declared(), "result") == "sales"
    assert output_name(declared(a=topic("counts")), "a") == "a"


def test_patterns_are_found_by_their_automaton() -> None:
    pattern = Step("small{3,} large", (ORDERS,), ((AUTOMATON, "..."),), True)
    flows = (Flow(("result",), Step("late", (pattern,))),)
    assert pattern_names(Explanation(declared(), "append", flows)) == ("small{3,} large",)
    assert pattern_names(Explanation(declared(), "append", (Flow(("result",), COUNT),))) == ()
