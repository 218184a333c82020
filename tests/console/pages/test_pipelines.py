"""The pages of pipelines, with pipelines that only publish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.following import TopicFollower, write_records
from millstream.admin.pipeline_records import (
    ABOUT,
    COMMANDS_TOPIC,
    DIFF,
    STATUS,
    STATUS_TOPIC,
    VERSIONS,
    About,
    Command,
    DiffShown,
    Node,
    OperatorStatus,
    OutputDiff,
    OutputStatus,
    Published,
    SourceStatus,
    VersionShown,
    VersionsShown,
    decode,
    encode,
)
from millstream.admin.pipelines import create_status_topics
from millstream.client.cluster import Cluster
from millstream.console.pages.pipelines import charts_of, phases_of
from tests.console.conftest import Console, check_accessible, start_console
from tests.peers.kafka import start_kafka
from tests.peers.patience import wait_until

EVERY_MS = 60_000  # so that a busy machine does not make pipelines look lost
NODES = (
    Node(0, "source", "topic orders", (), (("format", "json"),), "orders"),
    Node(1, "step", "watermark on at, 10 minutes behind the newest", (0,)),
    Node(2, "state", "aggregate by product", (1,), (("kept", "forever"),), "", (0,), True),
    Node(3, "sink", "table sales", (2,), (), "sales"),
    Node(4, "letters", "dead letters dlq.orders", (0,), (), "orders"),
)
SALES = About(
    "sales",
    "1",
    "sales",
    "r1",
    "q1",
    description="What was sold.",
    nodes=NODES,
    reads=("orders",),
    writes=("sales",),
    host="worker",
    process=7,
    command="millstream run shop.py",
    does=("stop", "restart", "diff"),
)
RUNNING = Published(
    "sales",
    "r1",
    "working",
    EVERY_MS,
    batch=3,
    batches=4,
    batch_ms=420,
    phases_ms={"addBatch": 300, "walCommit": 20, "triggerExecution": 420},
    rows=1000,
    rows_per_second=123.0,
    lag=5,
    bad=2,
    late={"stateStoreSave": 6},
    state_bytes=2048,
    sources={"orders": SourceStatus(1000, 123.0, 5, 2)},
    operators=(OperatorStatus("stateStoreSave", 8, 2048, 6),),
    outputs={"sales": OutputStatus(40, 4.0)},
)


def put(cluster: Cluster, *records: About | Published | VersionsShown | DiffShown) -> None:
    named: list[tuple[str, bytes | None]] = []
    for it in records:
        match it:
            case About():
                named.append((f"{ABOUT}{it.identity}", encode(it)))
            case Published():
                mark = time.time_ns() // 1_000_000 - 60_000
                named.append((f"{STATUS}{it.identity}", encode(replace(it, watermark_ms=mark))))
            case VersionsShown():
                named.append((f"{VERSIONS}{it.pipeline}", encode(it)))
            case DiffShown():
                named.append((f"{DIFF}{it.pipeline}", encode(it)))
    write_records(cluster, STATUS_TOPIC, named)


def called(name: str) -> tuple[About, Published]:
    """A pipeline of this name."""
    about = replace(SALES, pipeline=name, identity=name)
    return about, replace(RUNNING, identity=name)


@pytest.fixture
def cluster(console: Console) -> Iterator[Cluster]:
    with console.cluster() as cluster:
        create_status_topics(cluster)
        yield cluster


def commands_for(cluster: Cluster, identity: str) -> list[Command]:
    return [
        decode(Command, it.value or b"")
        for it in TopicFollower(COMMANDS_TOPIC).read(cluster)
        if it.key == identity.encode()
    ]


def test_without_pipelines_the_page_says_how_to_start_one(page: Page) -> None:
    from millstream import Broker

    with Broker.start() as broker:
        console = start_console(broker.bootstrap_servers)
        try:
            page.goto(f"{console.url}/pipelines")
            expect(page.get_by_text("No pipeline has reported yet")).to_be_visible()
            expect(page.get_by_text("millstream run shop.py")).to_be_visible()
            check_accessible(page)
            page.goto("about:blank")  # before its console goes
        finally:
            console.server.stop()


def test_list_shows_states_and_follows_them(console: Console, cluster: Cluster, page: Page) -> None:
    put(cluster, *called("listed"))
    lost = replace(RUNNING, identity="silent", state="failed", error="the disk is full")
    put(cluster, replace(SALES, identity="silent", pipeline="silent"), lost)
    page.goto(f"{console.url}/pipelines")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="listed"))
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("123/s")
    expect(row).to_contain_text("420 ms")
    expect(page.get_by_role("row").filter(has_text="silent")).to_contain_text("failed")
    put(cluster, replace(RUNNING, identity="listed", state="stopped", every_ms=EVERY_MS))
    expect(row).to_contain_text("stopped")
    check_accessible(page)
    found = console.json("/pipelines?q=listed")
    assert [it["identity"] for it in found["rows"]["rows"]] == ["listed"]


def test_graph_is_drawn_and_its_numbers_go_on(
    console: Console, cluster: Cluster, page: Page
) -> None:
    put(cluster, *called("drawn"))
    page.goto(f"{console.url}/pipelines/drawn")
    graph = page.locator(".graph svg")
    expect(graph.locator("g.node")).to_have_count(5)
    expect(graph.locator("g.edge")).to_have_count(4)
    expect(graph).to_contain_text("topic orders")
    expect(graph).to_contain_text("letters 2")
    expect(graph).to_contain_text("late, dropped 6")
    expect(graph.locator("text.flow").first).to_have_text("123/s")
    expect(page.get_by_role("heading", name="The last half hour")).to_be_visible()
    expect(page.locator(".chart canvas")).to_have_count(5)
    check_accessible(page)
    put(
        cluster,
        replace(
            RUNNING, identity="drawn", sources={"orders": SourceStatus(2000, 456.0, 5, 3)}, bad=3
        ),
    )
    expect(graph).to_contain_text("letters 3")
    expect(graph.locator("text.flow").first).to_have_text("456/s")


def test_graph_is_readable_without_scripts(console: Console, cluster: Cluster) -> None:
    put(cluster, *called("plain"))
    status, _, body = console.get("/pipelines/plain", Accept="text/html")
    assert status == 200
    for text in ("topic orders", "aggregate by product", "grows for ever", "forever", "As text"):
        assert text in body


def test_pipeline_is_stopped_and_restarted_from_its_page(
    console: Console, cluster: Cluster, page: Page
) -> None:
    put(cluster, *called("steered"))
    page.goto(f"{console.url}/pipelines/steered")
    page.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("millstream pipelines stop steered")
    dialog.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("steered stops after its running batch")).to_be_visible()
    wait_until(lambda: [it.action for it in commands_for(cluster, "steered")] == ["stop"])
    put(cluster, replace(RUNNING, identity="steered", state="stopped"))
    expect(page.get_by_text("Its process waits")).to_be_visible()
    expect(page.locator("#live-state").get_by_role("button", name="Stop")).to_have_count(0)
    page.get_by_role("button", name="Start").click()
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(page.get_by_text("steered restarts")).to_be_visible()
    wait_until(lambda: len(commands_for(cluster, "steered")) == 2)
    assert commands_for(cluster, "steered")[1].action == "restart"
    check_accessible(page)


def test_action_that_is_not_possible_is_refused(console: Console, cluster: Cluster) -> None:
    put(cluster, *called("refusing"))
    put(cluster, replace(RUNNING, identity="refusing", state="failed", every_ms=0))
    status, answer = console.post("/pipelines/refusing/stop", {})
    assert status == 400
    assert "its process has ended" in answer["message"]
    assert console.post("/pipelines/nobody/stop", {})[0] == 404
    assert commands_for(cluster, "refusing") == []


def test_forgotten_pipeline_is_gone_and_one_that_runs_stays(
    console: Console, cluster: Cluster
) -> None:
    put(cluster, *called("going"))
    assert console.post("/pipelines/going/forget", {})[0] == 400
    put(cluster, replace(RUNNING, identity="going", state="stopped", every_ms=0))
    status, answer = console.post("/pipelines/going/forget", {})
    assert (status, answer["command"].split()[1:3]) == (200, ["pipelines", "forget"])
    assert console.get("/pipelines/going")[0] == 404


def test_versions_are_side_by_side_and_can_be_compared(
    console: Console, cluster: Cluster, page: Page
) -> None:
    put(cluster, *called("twofold"))
    second = replace(SALES, pipeline="twofold", version="2", identity="twofold@2", run="r2")
    put(cluster, second, replace(RUNNING, identity="twofold@2", run="r2", lag=77_000))
    known = tuple(VersionShown(it, "caught up", (f"twofold__v{it}",)) for it in ("1", "2"))
    put(cluster, VersionsShown("twofold", "1", None, 0, known))
    page.goto(f"{console.url}/pipelines/twofold")
    table = page.get_by_role("table", name="Versions side by side")
    expect(table).to_contain_text("twofold__v2")
    expect(table).to_contain_text("77,000")
    expect(table.get_by_text("in force")).to_have_count(1)
    expect(page.get_by_text("millstream switch twofold 2")).to_be_visible()
    page.get_by_role("button", name="Compare two versions").click()
    page.get_by_label("Column of the rows' time").fill("since")
    page.get_by_role("dialog").get_by_role("button", name="Compare").click()
    expect(page.get_by_text("are being compared")).to_be_visible()
    wait_until(lambda: commands_for(cluster, "twofold"))
    (command,) = commands_for(cluster, "twofold")
    assert (command.action, command.versions, command.time) == ("diff", ("1", "2"), "since")
    differing = OutputDiff("table twofold", False, (3, 4), (0, 0), (0, 1), 2, {"revenue": 2})
    put(cluster, DiffShown("twofold", ("1", "2"), command.id, 1, outputs=(differing,)))
    expect(page.get_by_role("table", name="Differences")).to_contain_text("revenue 2")
    check_accessible(page)


@pytest.mark.slow
def test_pipeline_that_was_killed_is_shown_as_silent_with_how_it_was_started(
    console: Console, cluster: Cluster, page: Page
) -> None:
    about, status = called("killed")
    put(cluster, about, replace(status, every_ms=0))
    page.goto(f"{console.url}/pipelines/killed")
    expect(page.get_by_text("No sign of life for")).to_be_visible()
    expect(page.get_by_text("millstream run shop.py").first).to_be_visible()
    expect(page.locator("#live-state").get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.locator("text.flow")).to_have_count(0)
    check_accessible(page)


def test_what_pipelines_say_of_themselves_is_shown_as_text(
    console: Console, cluster: Cluster, page: Page
) -> None:
    evil = "<script>document.title='gone'</script><img src=x onerror=alert(1)>"
    nodes = (
        Node(0, "source", f"topic {evil}", (), ((evil, evil),), evil),
        Node(1, "sink", f"topic {evil}", (0, 7), (), evil),
    )
    about = replace(
        SALES,
        pipeline=evil,
        identity=evil,
        description=evil,
        nodes=nodes,
        command=evil,
        host=evil,
        patterns=(evil,),
    )
    put(cluster, about, replace(RUNNING, identity=evil, state="failed", error=evil))
    page.goto(f"{console.url}/pipelines")
    page.get_by_role("link", name=evil).click()
    expect(page.locator(".graph g.node")).to_have_count(2)
    expect(page.get_by_role("heading", level=1)).to_have_text(evil)
    assert page.locator("img[src=x]").count() == 0
    assert page.title() != "gone"


def test_history_is_answered_by_series(console: Console, cluster: Cluster) -> None:
    put(cluster, *called("plotted"))
    charts = console.json("/pipelines/plotted/history")
    assert charts["rows"]["series"][0]["values"] == [123.0]
    assert console.json("/pipelines/plotted/history?of=lag")["series"][0]["values"] == [5]
    assert console.get("/pipelines/plotted/history?of=mood")[0] == 404
    assert console.get("/pipelines/nobody")[0] == 404


def test_series_and_phases() -> None:
    assert charts_of([])["rows"] == {"times": [], "series": [{"label": "rows", "values": []}]}
    assert phases_of({"triggerExecution": 9, "b": 1, "a": 8, "c": 0}) == (("a", 8), ("b", 1))


@pytest.mark.slow
def test_pages_on_apache_kafka(tmp_path: Any, page: Page) -> None:
    server = start_kafka(tmp_path, {})
    try:
        console = start_console(server.bootstrap)
        with console.cluster() as cluster:
            create_status_topics(cluster)
            put(cluster, *called("there"))
            page.goto(f"{console.url}/pipelines/there")
            expect(page.locator(".graph g.node")).to_have_count(5)
            assert console.post("/pipelines/there/stop", {})[0] == 200
            assert [it.action for it in commands_for(cluster, "there")] == ["stop"]
        page.goto("about:blank")  # before its console goes
        console.server.stop()
    finally:
        server.stop()
