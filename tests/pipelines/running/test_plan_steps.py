"""Steps of a plan: their order, and those of operators that describe themselves.

`test_explaining.py` has those that are read from Spark's plans.
"""

from __future__ import annotations

from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.plan_steps import Explanation, Flow, Step, operator_step

ORDERS, PRODUCTS = Step("topic orders"), Step("topic products")


def test_steps_come_after_what_flows_into_them() -> None:
    union = Step("all of these rows", (ORDERS, PRODUCTS))
    declared = pipeline(reads=topic("orders"), writes=table("t"), name="p")(lambda frame: frame)
    explanation = Explanation(declared, "append", (Flow(("t",), union),))
    assert explanation.steps == [ORDERS, PRODUCTS, union]


def test_operator_with_several_inputs_takes_them_out_of_their_union() -> None:
    description = {
        "title": "as-of join",
        "inputs": {"left": ["id"], "right": ["id"]},
        "buckets": 4,
        "tables": {"left": "forever"},
        "details": {"order": "at"},
    }
    step = operator_step(description, (Step("all of these rows", (ORDERS, PRODUCTS)),))
    assert step.inputs == (ORDERS, PRODUCTS)
    assert step.has_state
    assert step.grows
    assert dict(step.details)["order"] == "at"
