"""The graph of a pipeline with its numbers."""

from __future__ import annotations

from dataclasses import replace

from millstream.admin.pipeline_board import Shown
from millstream.admin.pipeline_records import (
    About,
    Node,
    OperatorStatus,
    OutputStatus,
    Published,
    SourceStatus,
)
from millstream.console.pipeline_graphs import Fact, graph_of

NOW = 1_700_000_000_000
NODES = (
    Node(0, "source", "topic orders", (), (("format", "json"),), "orders"),
    Node(1, "step", "watermark on at, 10 minutes behind the newest", (0,)),
    Node(2, "step", 'late rows are dropped, and counted as "window"', (1,), (), "window"),
    Node(3, "state", "aggregate by product", (2,), (), "", (0, 1), True),
    Node(4, "sink", "topic sales", (3, 99), (), "out"),
    Node(5, "sink", "table sums", (3,), (), "sums"),
    Node(6, "letters", "dead letters dlq.orders", (0,), (), "orders"),
)
STATUS = Published(
    "p",
    "r",
    "working",
    rows_per_second=20.0,
    watermark_ms=NOW - 65_000,
    newest_ms=NOW - 5_000,
    late={"window": 4},
    sources={"orders": SourceStatus(1000, 20.0, 5000, 7)},
    operators=(OperatorStatus("a", 10, 1024, 1), OperatorStatus("b", 5, 1024, 0)),
    outputs={"out": OutputStatus(30, 2.0, 3, 1), "sums": OutputStatus(9, 0.0)},
)


def shown(status: Published = STATUS, nodes: tuple[Node, ...] = NODES) -> Shown:
    about = About("p", "1", "p", "r", nodes=nodes)
    return Shown(about, status, NOW, 0, False, (), ())


def test_nodes_have_their_numbers_and_links() -> None:
    source, mark, dropped, state, topic, table, letters = graph_of(shown(), NOW)
    assert source.facts == (Fact("rows", "1,000"), Fact("lag", "5,000", "warn"))
    assert (source.path, source.flow, source.is_flowing) == ("/topics/orders", "20/s", True)
    assert [it.value for it in mark.facts][1:] == ["1 min 5 s", "1 min"]
    assert dropped.facts == (Fact("dropped", "4", "warn"),)
    assert state.facts == (Fact("state", "15 rows, 2.0 KB"), Fact("late, dropped", "1", "warn"))
    assert state.grows
    assert topic.facts == (
        Fact("rows", "30"),
        Fact("late, diverted", "3", "warn"),
        Fact("corrected", "1"),
    )
    assert (topic.path, topic.flow, topic.is_flowing) == ("/topics/sales", "2/s", True)
    assert topic.inputs == (3,)  # one that is not there is left out
    assert (table.path, table.is_flowing) == ("", False)
    assert letters.facts == (Fact("letters", "7", "bad"),)
    assert (letters.title, letters.path, letters.is_flowing) == (
        "dlq.orders",
        "/topics/dlq.orders",
        False,
    )


def test_nothing_flows_in_a_pipeline_that_does_not_run() -> None:
    nodes = graph_of(shown(replace(STATUS, state="stopped")), NOW)
    assert not any(it.is_flowing or it.flow for it in nodes)


def test_state_is_left_out_where_it_cannot_be_told_whose_it_is() -> None:
    nodes = graph_of(shown(replace(STATUS, operators=STATUS.operators[:1])), NOW)
    assert nodes[3].facts == ()


def test_graph_before_the_first_batch_has_no_numbers() -> None:
    nodes = graph_of(shown(Published("p", "r", "starting")), NOW)
    assert [len(it.facts) for it in nodes] == [0, 0, 0, 0, 0, 0, 1]


def test_names_of_topics_are_escaped_in_links() -> None:
    nodes = (Node(0, "source", "topic a/b?c", (), (), "a/b?c"),)
    assert graph_of(shown(nodes=nodes), NOW)[0].path == "/topics/a%2Fb%3Fc"
