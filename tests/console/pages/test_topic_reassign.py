"""Plans for the replicas of a topic, on one broker; `test_clusters.py` moves some."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.reassignments import Move
from millstream.admin.topics import create_topic
from millstream.console.actions import Refused
from millstream.console.pages.topic_reassign import Wish, digest_of
from tests.console.conftest import Console, check_accessible


def test_plan_on_one_broker_has_nothing_to_move(console: Console, page: Page) -> None:
    with console.cluster() as cluster:
        create_topic(cluster, "placed", partitions=3)
    page.goto(f"{console.url}/topics/placed")
    page.get_by_role("link", name="Replicas").click()
    expect(page.get_by_role("table", name="Replicas now").get_by_role("row")).to_have_count(4)
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_text("Nothing has to move")).to_be_visible()
    expect(page.get_by_text("--replication-factor 1 --dry-run")).to_be_visible()
    check_accessible(page)
    page.get_by_label("Replicas of each partition").fill("3")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("alert")).to_contain_text("3 replicas need as many brokers")
    check_accessible(page)
    broker = console.json("/cluster")["brokers"][0]["id"]
    found = console.json(f"/topics/placed/reassign?plan=1&broker={broker}")
    assert (found["plan"], found["moving"]) == ([], [])


def test_start_needs_the_name_and_the_plan_that_was_shown(console: Console) -> None:
    with console.cluster() as cluster:
        create_topic(cluster, "typed")
    broker = console.json("/cluster")["brokers"][0]["id"]
    fields = {"broker": [str(broker)], "plan": "x", "confirmation": "typed"}
    for change, part in (
        ({"confirmation": "other"}, "type 'typed' to confirm"),
        ({"plan": ""}, "the plan is missing"),
        ({"broker": []}, "choose the brokers"),
        ({"broker": ["4711"]}, "there is no broker 4711"),
        ({"factor": "²"}, "must be a whole number"),
        ({}, "nothing has to move"),
    ):
        status, answer = console.post("/topics/typed/reassign", {**fields, **change})
        assert (status, part in answer["message"]) == (400, True), answer
    assert console.get("/topics/absent/reassign")[0] == 404
    status, answer = console.post("/topics/typed/reassign/throttle", {})
    assert (status, answer["message"]) == (200, "The throttle of typed is removed.")


def test_wish_is_a_command_line() -> None:
    wish = Wish.of(["2", "1", "2"], "3", "1000000", True)
    assert wish.options() == [
        "--brokers", "1,2", "--replication-factor", "3", "--throttle", "1000000",
    ]  # fmt: skip
    assert Wish.of([], "", "", False).options() == []
    for brokers, factor in ((["x"], ""), (["-1"], ""), (["1"], "9" * 20)):
        with pytest.raises(Refused):
            Wish.of(brokers, factor, "", True)


def test_plans_that_differ_have_different_names() -> None:
    move = Move("t", 0, (1, 2), (2, 3))
    assert (move.adding, move.removing) == ((3,), (1,))
    assert digest_of([move]) != digest_of([Move("t", 0, (1, 2), (3, 2))])
    assert move.throttled == ("t", 0, (1, 2), (3,))
