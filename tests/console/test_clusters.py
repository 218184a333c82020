"""The console on clusters of several brokers: one that dies, partitions without leaders, replicas
that move, leaders that are not the preferred ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from millstream.admin.reassignments import reassign
from millstream.admin.topics import create_topic
from millstream.testing.cluster import ClusterProcesses
from tests.console.conftest import Console, check_accessible, start_console
from tests.peers.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with ClusterProcesses(directory) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def several(processes: ClusterProcesses) -> Iterator[Console]:
    console = start_console(processes.addresses)
    try:
        yield console
    finally:
        console.server.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_broker_that_dies_is_shown_and_its_leaders_are_given_back(
    several: Console, processes: ClusterProcesses, page: Page
) -> None:
    with several.cluster() as cluster:
        create_topic(cluster, "spread", partitions=6, replication_factor=3)
        create_topic(cluster, "alone", partitions=6, replication_factor=1)
    page.goto(f"{several.url}/cluster")
    brokers = page.get_by_role("table", name="Brokers")
    expect(brokers.get_by_role("row")).to_have_count(4)
    check_accessible(page)
    processes.brokers[2].kill()
    # By itself, while the page is open.
    expect(brokers).to_contain_text("not live")
    attention = page.get_by_role("table", name="Partitions that need attention")
    expect(attention).to_contain_text("under-replicated")
    expect(attention).to_contain_text("offline")
    check_accessible(page)
    page.goto(several.url)
    expect(page.locator("main")).to_contain_text("not live: 2")
    expect(page.get_by_role("table", name="Partitions that need attention")).to_contain_text(
        "offline"
    )
    check_accessible(page)
    page.goto(f"{several.url}/topics?show=attention")
    expect(page.get_by_role("row").filter(has_text="alone")).to_contain_text("offline")
    page.goto(f"{several.url}/topics/alone")
    expect(page.get_by_role("table", name="Partitions")).to_contain_text("offline")
    processes.brokers[2].start()
    wait_for(lambda: several.json("/cluster")["under_replicated"] == 0)
    if several.json("/cluster")["not_preferred"]:
        status, answer = several.post("/cluster/elect", {})
        assert status == 200, answer
    wait_for(lambda: several.json("/cluster")["not_preferred"] == 0)


def test_reassignment_is_shown_and_cancelled(
    several: Console, processes: ClusterProcesses, page: Page
) -> None:
    """To a broker that is frozen, so that it does not end meanwhile."""
    with several.cluster() as cluster:
        create_topic(cluster, "moving", partitions=1, replication_factor=1)
        leader = cluster.topic("moving").partitions[0].leader
        target = next(it for it in processes.brokers if it != leader)
        processes.brokers[target].pause()
        try:
            refused = reassign(cluster, {("moving", 0): [leader, target]})
            assert refused == {}
            page.goto(f"{several.url}/cluster")
            moves = page.get_by_role("table", name="Reassignments")
            expect(moves).to_contain_text("moving")
            moves.get_by_role("button", name="Cancel the reassignments of moving").click()
            expect(page.get_by_role("status")).to_contain_text("of moving are cancelled")
            expect(page.get_by_text("Nothing moves at the moment.")).to_be_visible()
        finally:
            processes.brokers[target].resume()


def test_replicas_are_moved_from_the_page_of_their_topic(
    several: Console, processes: ClusterProcesses, page: Page
) -> None:
    """A plan, its start, its progress with a throttle that lets nothing through, leaving off, and a
    whole move."""
    with several.cluster() as cluster:
        create_topic(cluster, "planned", partitions=2, replication_factor=1)
        leaders = {it.leader for it in cluster.topic("planned").partitions}
    producer = Producer({"bootstrap.servers": several.bootstrap_servers, "linger.ms": 0})
    for number in range(4_000):
        producer.produce("planned", b"x" * 4_000, partition=number % 2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    target = next(it for it in processes.brokers if it not in leaders)
    url = f"{several.url}/topics/planned/reassign"
    page.goto(url)
    for broker in processes.brokers:
        page.locator(f"input[name=broker][value='{broker}']").set_checked(broker == target)
    page.get_by_label("Throttle").fill("1")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("table", name="Plan").get_by_role("row")).to_have_count(3)
    check_accessible(page)
    page.get_by_role("button", name="Move them").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"--brokers {target}")
    dialog.get_by_role("textbox").fill("planned")
    dialog.get_by_role("button", name="Move").click()
    expect(page.get_by_role("status")).to_contain_text("2 partitions of planned are moving.")
    moving = page.get_by_role("table", name="Moving now")
    expect(moving.get_by_role("row")).to_have_count(3)
    expect(page.get_by_text("The move is throttled.")).to_be_visible()
    check_accessible(page)
    page.get_by_role("button", name="Cancel", exact=True).first.click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
    expect(page.get_by_role("status")).to_contain_text("of planned are cancelled")
    expect(page.get_by_text("Nothing of this topic moves")).to_be_visible()
    assert not several.json("/topics/planned/reassign")["is_throttled"]
    found = several.json(f"/topics/planned/reassign?plan=1&broker={target}")
    fields = {"broker": [str(target)], "plan": found["digest"], "confirmation": "planned"}
    assert several.post("/topics/planned/reassign", {**fields, "plan": "x"})[0] == 400
    status, answer = several.post("/topics/planned/reassign", {**fields, "throttle": "1000000000"})
    assert status == 200, answer
    assert "--throttle 1000000000" in answer["command"]

    def moved() -> bool:
        rows = several.json("/topics/planned/reassign")["partitions"]["rows"]
        return all(it["replicas"] == [target] for it in rows)

    wait_for(moved)
    page.goto(url)
    page.get_by_role("button", name="Remove the throttle").click()
    expect(page.get_by_role("status")).to_contain_text("The throttle of planned is removed.")
    assert not several.json("/topics/planned/reassign")["is_throttled"]
