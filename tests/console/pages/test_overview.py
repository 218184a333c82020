"""The overview in a browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.console.conftest import Console, check_accessible


def test_overview_shows_brokers(console: Console, page: Page) -> None:
    page.goto(console.url)
    expect(page.get_by_role("table", name="Brokers")).to_contain_text("controller")
    check_accessible(page)
    assert len(console.json("/")["brokers"]["rows"]) == 1
