"""The pages of bridges, with bridges that only publish."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.bridges import SETTINGS, TOPIC, BridgeStatus, Count, Sample
from millstream.admin.following import create_missing, write_records
from millstream.admin.pipeline_records import encode
from millstream.client.cluster import Cluster
from millstream.console.pages.bridges import charts_of, count_rows
from millstream.console.paths import link
from tests.console.conftest import Console, check_accessible

EVERY_MS = 60_000  # so that a busy machine does not make bridges look lost
HOSTILE = "<script>document.title = 'owned'</script>/../'\"{{ 7 * 7 }}"
EDGE = BridgeStatus(
    "edge",
    "r1",
    every_ms=EVERY_MS,
    host="worker",
    process=7,
    command="millstream bridge edge.toml",
    started_ms=1_763_415_243_123,
    addresses=("http://127.0.0.1:9093", "mold udp://239.1.1.1:26477"),
    counts=(
        Count("records_in", 1200, {"topic": "orders"}),
        Count("records_out", 40, {"topic": "trades"}),
        Count("mold_lost", 3, {"stream": "prices"}),
        Count("hooks_refused", 5, {"hook": "shop", "reason": "signature"}),
        Count("http_requests", 77, {"route": "/topics/orders", "status": "200"}),
    ),
)


def put(cluster: Cluster, *bridges: BridgeStatus) -> None:
    write_records(cluster, TOPIC, [(f"status:{it.name}", encode(it)) for it in bridges])


@pytest.fixture(scope="module")
def cluster(console: Console) -> Iterator[Cluster]:
    with console.cluster() as cluster:
        yield cluster


def test_without_bridges_the_page_says_how_to_start_one(console: Console, page: Page) -> None:
    """The first test of the module: nothing was published yet."""
    page.goto(f"{console.url}/bridges")
    expect(page.get_by_text("No bridge has reported yet")).to_be_visible()
    expect(page.get_by_text("millstream bridge edge.toml")).to_be_visible()
    check_accessible(page)


def test_bridges_are_listed_and_followed(console: Console, cluster: Cluster, page: Page) -> None:
    create_missing(cluster, {TOPIC: SETTINGS})
    failing = replace(EDGE, name="failing", problems=("statsd app: OSError: port in use",))
    put(cluster, EDGE, failing, replace(EDGE, name=HOSTILE, host=HOSTILE, addresses=(HOSTILE,)))
    page.goto(f"{console.url}/bridges")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="edge", exact=True))
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("1,200")
    expect(page.get_by_role("row").filter(has_text="failing").first).to_contain_text("failing")
    check_accessible(page)
    put(cluster, replace(EDGE, state="stopped", every_ms=0))
    expect(row).to_contain_text("stopped")
    put(cluster, EDGE)
    found = console.json("/bridges?q=worker+edge")
    assert [it["name"] for it in found["rows"]["rows"]] == ["edge"]
    assert found["commands"]["list"].startswith("millstream bridges list")


def test_bridge_shows_what_was_lost_and_why(console: Console, cluster: Cluster, page: Page) -> None:
    create_missing(cluster, {TOPIC: SETTINGS})
    put(cluster, EDGE)
    page.goto(f"{console.url}/bridges/edge")
    missing = page.get_by_role("table", name="Lost and bad, by reason")
    expect(missing.get_by_role("row").nth(1)).to_contain_text("hooks refused")
    expect(missing.get_by_role("row").nth(1)).to_contain_text("signature")
    expect(missing).to_contain_text("stream prices")
    expect(page.get_by_role("table", name="In and out")).to_contain_text("1,200")
    expect(page.get_by_role("table", name="Other counters")).to_contain_text("http requests")
    expect(page.locator(".chart canvas")).to_have_count(2)
    check_accessible(page)
    more = replace(EDGE, counts=(Count("mold_lost", 4711, {"stream": "prices"}),))
    put(cluster, more)
    expect(missing).to_contain_text("4,711")
    for name, data in console.json("/bridges/edge/history").items():
        assert data == console.json(f"/bridges/edge/history?of={name}")
    assert console.get("/bridges/edge/history?of=x")[0] == 404
    assert console.get("/bridges/absent")[0] == 404


def test_hostile_names_stay_text(console: Console, cluster: Cluster, page: Page) -> None:
    create_missing(cluster, {TOPIC: SETTINGS})
    by = {"reason": HOSTILE, HOSTILE: HOSTILE}
    put(
        cluster,
        replace(
            EDGE,
            name=HOSTILE,
            command=HOSTILE,
            problems=(HOSTILE,),
            counts=(Count("mold_lost", 1, by), Count(HOSTILE, 1, by)),
        ),
    )
    page.goto(console.url + link("bridges", HOSTILE))
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(page.get_by_role("table", name="Lost and bad, by reason")).to_contain_text("{{ 7 * 7 }}")
    assert "owned" not in page.title().partition(" · ")[0].replace(HOSTILE, "")
    check_accessible(page)


def test_only_a_bridge_that_has_ended_is_forgotten(
    console: Console, cluster: Cluster, page: Page
) -> None:
    create_missing(cluster, {TOPIC: SETTINGS})
    put(cluster, replace(EDGE, name="ended"))
    status, answer = console.post("/bridges/ended/forget", {})
    assert (status, "is running: stop it first" in answer["message"]) == (400, True)
    put(cluster, replace(EDGE, name="ended", state="stopped"))
    page.goto(f"{console.url}/bridges/ended")
    expect(page.get_by_text("Stopped.")).to_be_visible()
    expect(page.get_by_text("It was started with")).to_be_visible()
    check_accessible(page)
    page.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page.get_by_role("status")).to_contain_text("ended is removed from the list.")
    expect(page.get_by_text("millstream bridges forget ended")).to_be_visible()
    assert console.get("/bridges/ended")[0] == 404


def test_counts_are_sorted_by_how_many_there_are() -> None:
    rows = count_rows(EDGE, ("lost", "bad"), most_first=True)
    assert [(it.what, it.reason, it.where, it.value) for it in rows] == [
        ("hooks refused", "signature", "hook shop", 5),
        ("mold lost", "", "stream prices", 3),
    ]
    charts = charts_of([Sample(2_000, 1.5, 2.5, 3)])
    assert (charts["passed"].times, charts["lost"].series[0].values) == ([2.0], [3])
