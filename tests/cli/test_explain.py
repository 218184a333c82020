"""The picture of a pipeline in a terminal; one made by the whole command, without a broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.explain import lines_of
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.plan_steps import Explanation, Flow, Step

orders = topic("orders", schema="id long")
payments = topic("payments", schema="id long")


@pipeline(reads=orders, writes={"paid": table("paid", key="id"), "alerts": topic("alerts")})
def paid(orders: object) -> object:
    return orders


def drawn(*flows: Flow, width: int = 72) -> list[str]:
    explanation = Explanation(paid, "append", flows)
    return [line.plain.rstrip() for line in lines_of(explanation, width)]


def test_ways_that_meet_bend_into_the_first() -> None:
    left = Step("topic orders", details=(("format", "json"),))
    marked = Step("watermark on at, 1 minute behind the newest", (left,))
    join = Step("inner join", (marked, Step("topic payments")), (("kept", "a while"),), True)
    assert drawn(Flow(("paid", "alerts"), join)) == [
        "paid  in append mode",
        "",
        "● topic orders",
        "│   format        json",
        "○ watermark on at, 1 minute behind the newest",
        "│ ● topic payments",
        "├─╯",
        "◆ inner join",
        "│   kept          a while",
        "▶ table paid (upsert by id)",
        "▶ topic alerts",
        "    exactly once  by the store's transaction, which decides for the",
        "                  topics' transactions, too",
    ]


def test_three_ways_meet_in_one_line() -> None:
    union = Step("all of these rows", (Step("a"), Step("b"), Step("c")))
    assert drawn(Flow(("paid",), union))[2:7] == [
        "● a",
        "│ ● b",
        "│ │ ● c",
        "├─┴─╯",
        "○ all of these rows",
    ]


def test_long_details_are_wrapped_beside_their_lanes() -> None:
    step = Step("aggregate by id", (Step("topic orders"),), (("computes", "x " * 40),), True)
    lines = drawn(Flow(("paid",), step), width=50)
    assert all(len(line) <= 50 for line in lines[:6])
    assert lines[4].startswith("│   computes      x x")
    assert lines[5].startswith("│                 x x")


def test_lines_of_a_drawing_stay_apart() -> None:
    drawing = "start ─┬─ a ─▶ 1\n       └─ b ─▶ match"
    details = (("automaton", drawing), ("condition of small", "any row"))
    step = Step("pattern", (Step("topic orders"),), details, True)
    assert drawn(Flow(("paid",), step))[4:7] == [
        "│   automaton          start ─┬─ a ─▶ 1",
        "│                             └─ b ─▶ match",
        "│   condition of small any row",
    ]


def test_state_that_grows_and_watermarks_that_wait_for_each_other_are_told() -> None:
    marks = [f"watermark on {name}, 1 minute behind the newest" for name in ("at", "paid_at")]
    one, two = (Step(it, (Step("a"),)) for it in marks)
    join = Step("inner join", (one, two), (("kept", "forever"),), True, grows=True)
    text = " ".join(drawn(Flow(("paid",), join)))
    assert "The state of 'inner join' grows with every new key or row." in text
    assert "The slowest of its watermarks counts for all" in text


SALES = """
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.windows import tumbling

orders = topic(
    "orders",
    schema="shop string, at timestamp, amount double",
    watermark=("at", "10 seconds"),
)

@pipeline(reads=orders, writes=table("sales"))
def sales(orders):
    return orders.transform(tumbling("1 minute", key="shop", time="at", total="sum(amount)"))
"""


@pytest.mark.slow
def test_command_explains_without_a_broker_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "sales.py").write_text(SALES)
    environment = {it: value for it, value in os.environ.items() if "MILLSTREAM" not in it}
    done = subprocess.run(
        [sys.executable, "-m", "millstream.cli.entry", "run", "sales.py", "--explain"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    for expected in (
        "sales  in append mode",
        "● topic orders",
        "○ watermark on at, 10 seconds behind the newest",
        '○ late rows are dropped, and counted as "late.tumbling 1 minute"',
        "◆ aggregate by shop, window_start, window_end",
        "│   kept          until the watermark passes window_end",
        "▶ table sales (append)",
    ):
        assert expected in lines
    assert not (tmp_path / ".millstream").exists()
