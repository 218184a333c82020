"""The page of the archive: without one, with one that goes on, and with one that fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.archive import ArchivedPartition
from millstream.console.lists import Wanted
from millstream.console.pages.archive import listed_partitions
from tests.broker.archiving.scenes import archiving_broker, create, produce
from tests.console.conftest import Console, check_accessible, start_console
from tests.peers.patience import wait_until

ONE = ArchivedPartition("t", 0, 1, 0, 10, 5, 30, 2, 10, 400, 1000, 0, 1, 2, None)


@pytest.fixture
def archiving(tmp_path: Path) -> Iterator[Console]:
    with archiving_broker(tmp_path) as broker:
        console = start_console(broker.bootstrap_servers)
        console.broker = broker
        try:
            yield console
        finally:
            console.server.stop()


def test_without_an_archive_the_page_says_how_to_turn_it_on(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/archive")
    expect(page.get_by_text("There is no archive")).to_be_visible()
    expect(page.get_by_text("--set millstream.archive.path=/var/archive")).to_be_visible()
    expect(page.get_by_text("--config remote.storage.enable=true")).to_be_visible()
    check_accessible(page)
    found = console.json("/archive")
    assert (found["is_known"], found["partitions"]["total"], found["path"]) == (True, 0, None)


@pytest.mark.slow
def test_archive_is_shown_as_it_goes_on_and_fails(
    archiving: Console, page: Page, tmp_path: Path
) -> None:
    assert archiving.broker is not None
    create(archiving.broker)
    page.goto(f"{archiving.url}/archive")
    table = page.get_by_role("table", name="Archived partitions")
    expect(table).to_contain_text("orders")
    produce(archiving.broker, 0, 150)
    wait_until(lambda: archiving.json("/archive")["files"] > 0)
    expect(table).to_contain_text("up to date")
    expect(table.get_by_role("row").nth(1)).to_contain_text("0–")
    expect(page.get_by_text(str(tmp_path / "archive")).first).to_be_visible()
    expect(page.get_by_text("millstream archive verify")).to_be_visible()
    check_accessible(page)
    shutil.rmtree(tmp_path / "archive")
    (tmp_path / "archive").write_text("in the way")
    produce(archiving.broker, 150, 250)
    # By itself, while the page is open.
    expect(table).to_contain_text("failing")
    expect(table.locator("tr.why")).to_contain_text("Broker")
    check_accessible(page)
    found = archiving.json("/archive?q=failing")
    assert (found["failing"], found["partitions"]["found"]) == (1, 1)
    page.goto("about:blank")  # before its console goes


def test_state_is_the_worst_that_is_known() -> None:
    rows = [ONE, replace(ONE, lag_bytes=7), replace(ONE, files=None), replace(ONE, problem="x")]
    assert ONE.lag_records == 20
    found = listed_partitions(rows, Wanted(sort="state")).rows
    assert [it.state for it in found] == ["failing", "behind", "loading", "up to date"]
