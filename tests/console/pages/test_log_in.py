"""The log-in in a browser; what is refused is in test_entrance."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.console.conftest import Console, check_accessible


def test_browser_logs_in_and_out(secured: Console, page: Page) -> None:
    page.goto(secured.url + "/?sort=-id")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    check_accessible(page)
    page.expected_errors.append("401")  # type: ignore[attr-defined]
    page.get_by_label("User").fill("alice")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("User")).to_have_value("alice")
    assert "wrong" not in page.content()
    page.get_by_label("Password").fill("alice-secret")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/?sort=-id")
    expect(page.locator(".user")).to_have_text("alice")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/log-in")
    page.goto(secured.url)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
