"""The cluster and its brokers in a browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from millstream.admin.cluster_state import parse_metadata
from millstream.admin.log_dirs import DirectoryState, LogDirs, ReplicaState
from millstream.admin.reassignments import Reassignment
from millstream.admin.replica_lag import Replica, ReplicaLag
from millstream.admin.topics import create_topic
from millstream.console.pages.cluster import broker_rows, progress_of
from tests.admin.test_cluster_state import metadata, partition
from tests.console.conftest import Console, check_accessible


def test_cluster_shows_brokers_directories_quorum_and_features(
    console: Console, page: Page
) -> None:
    with console.cluster() as cluster:
        create_topic(cluster, "cl", partitions=3)
    page.goto(f"{console.url}/cluster")
    expect(page.get_by_role("table", name="Brokers")).to_contain_text(console.bootstrap_servers)
    expect(page.get_by_role("table", name="Brokers")).to_contain_text("controller")
    expect(page.get_by_role("table", name="Log directories")).to_contain_text("GB")
    expect(page.get_by_role("table", name="Metadata quorum")).to_contain_text("controller")
    expect(page.get_by_role("table", name="Features")).to_contain_text("metadata.version")
    expect(page.get_by_text("Nothing moves at the moment.")).to_be_visible()
    check_accessible(page)
    found = console.json("/cluster")
    assert (found["offline"], found["under_replicated"], len(found["brokers"])) == (0, 0, 1)


def test_broker_shows_its_settings_with_their_source(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/cluster")
    page.get_by_role("table", name="Brokers").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Broker")
    table = page.get_by_role("table", name="Settings")
    expect(table).to_contain_text("log.dirs")
    check_accessible(page)
    page.get_by_role("link", name="All", exact=True).click()
    page.get_by_label("Search settings").fill("num.partitions")
    page.keyboard.press("Enter")
    expect(table).to_contain_text("num.partitions")
    expect(table).to_contain_text("default")


def test_broker_that_is_not_there_is_not_found(console: Console, page: Page) -> None:
    page.expected_errors.append("404")  # type: ignore[attr-defined]
    page.goto(f"{console.url}/cluster/brokers/4711")
    expect(page.locator("main")).to_contain_text("there is no live broker 4711")


def test_leaders_are_elected_and_nothing_is_cancelled(console: Console) -> None:
    status, answer = console.post("/cluster/elect", {})
    assert (status, "already has" in answer["message"]) == (200, True)
    assert answer["command"].startswith("millstream topic elect --all")
    status, answer = console.post("/cluster/cancel", {"topic": "cl"})
    assert (status, answer["message"]) == (200, "0 reassignments of cl are cancelled.")
    assert "millstream topic reassign cl --cancel" in answer["command"]


def test_brokers_that_are_gone_are_listed_with_their_replicas() -> None:
    state = parse_metadata(metadata(partition(2, (2, 1, 3), (2, 1))))
    directories = [DirectoryState(1, "/x", log_bytes=5), DirectoryState(2, "", problem="no right")]
    lags = [
        ReplicaLag(Replica(1, "t", 0), 7, is_in_sync=True),
        ReplicaLag(Replica(3, "t", 0), None, is_in_sync=False),
    ]
    rows = broker_rows(state, LogDirs(directories, []), lags, fenced=[5])
    assert [(it.id, it.is_live, it.replicas, it.lag, it.log_bytes) for it in rows] == [
        (1, True, 1, 7, 5),
        (2, True, 1, 0, None),
        (3, False, 1, None, None),
        (5, False, 0, None, None),
    ]


def test_progress_of_a_move_is_what_new_replicas_have() -> None:
    moving = Reassignment("t", 0, (1, 2, 3), adding=(2, 3), removing=(1,))
    replicas = [
        ReplicaState("t", 0, 1, "/x", 100),
        ReplicaState("t", 0, 2, "/x", 40),
        ReplicaState("t", 0, 3, "/x", 130),
        ReplicaState("t", 1, 2, "/x", 7),
    ]
    move = progress_of(moving, replicas)
    assert (move.copied_bytes, move.total_bytes) == (140, 200)
