"""Who enters: scripts, browsers that log in, tokens, and what is refused."""

from __future__ import annotations

import base64
import re
import urllib.parse

import pytest
from playwright.sync_api import Page, expect
from starlette.datastructures import Headers

from millstream.client.cluster import Cluster
from millstream.console.entrance import is_script, local_path
from tests.console.conftest import Console, start_console

FORM = "application/x-www-form-urlencoded"


def log_in(console: Console, user: str, password: str, next_: str = "/") -> tuple[int, str, str]:
    fields = urllib.parse.urlencode({"user": user, "password": password, "next": next_})
    status, headers, body = console.ask_once("POST", "/log-in", fields.encode(), Content_Type=FORM)
    return status, headers.get("set-cookie", ""), headers.get("location", body)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/topics?q=a", "/topics?q=a"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: x=y", "/"),
        ("", "/"),
        ("/a b<c>", "/a%20b%3Cc%3E"),
    ],
)
def test_next_page_is_one_of_this_console(path: str, expected: str) -> None:
    assert local_path(path) == expected


def test_scripts_are_no_browsers() -> None:
    assert is_script(Headers({"X-Millstream-Console": "1"}))
    assert not is_script(Headers({}))
    assert not is_script(Headers({"X-Millstream-Console": "1", "Origin": "http://localhost"}))


def test_nothing_is_shown_without_a_log_in(secured: Console) -> None:
    status, headers, _ = secured.ask_once("GET", "/?q=1", None)
    assert (status, headers["location"]) == (303, "/log-in?next=%2F%3Fq%3D1")
    assert secured.ask_once("GET", "/?format=json", None)[0] == 401
    assert secured.ask_once("GET", "/?live=1", None)[0] == 401
    assert secured.ask_once("POST", "/log-out", b"")[0] == 401
    assert secured.ask_once("GET", "/static/console.css", None)[0] == 200


def test_cookie_is_for_this_site_only_and_new_with_each_log_in(secured: Console) -> None:
    status, cookie, where = log_in(secured, "alice", "alice-secret", "//evil.example")
    assert (status, where) == (303, "/")
    port = secured.url.rpartition(":")[2]
    assert re.match(rf"millstream-console-{port}=[\w-]{{43}}; ", cookie)
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert log_in(secured, "alice", "alice-secret")[1] != cookie
    value = cookie.partition(";")[0]
    assert secured.ask_once("GET", "/?format=json", None, Cookie=value)[0] == 200
    assert secured.ask_once("GET", "/?format=json", None, Cookie=value[:-1])[0] == 401


def test_wrong_passwords_are_refused(secured: Console) -> None:
    for user, password in (("alice", "wrong"), ("nobody", "x"), ("", ""), ("a\0b", "x")):
        status, cookie, body = log_in(secured, user, password)
        assert status in (401, 502)  # the latter if the mechanism allows no such name
        assert not cookie
        assert "secret" not in body


def test_log_in_from_another_site_is_refused(secured: Console) -> None:
    fields = b"user=alice&password=alice-secret"
    foreign = secured.ask_once(
        "POST", "/log-in", fields, Content_Type=FORM, Origin="http://evil.example"
    )
    assert foreign[0] == 403


def test_script_sends_its_password_with_each_request(secured: Console) -> None:
    right = basic("alice", "alice-secret")
    for _ in range(2):
        assert secured.ask_once("GET", "/?format=json", None, Authorization=right)[0] == 200
    wrong = basic("alice", "wrong")
    assert secured.ask_once("GET", "/?format=json", None, Authorization=wrong)[0] == 401
    assert secured.ask_once("GET", "/?format=json", None, Authorization="Basic $")[0] == 400


def test_token_of_a_session_is_needed_for_actions(secured: Console) -> None:
    cookie = log_in(secured, "alice", "alice-secret")[1].partition(";")[0]
    other = log_in(secured, "admin", "admin-secret")[1].partition(";")[0]

    def token(of: str) -> str:
        page = secured.ask_once("GET", "/", None, Cookie=of)[2]
        found = re.search(r'name="csrf" value="(\w+)"', page)
        assert found is not None
        return found[1]

    for wrong in ("", "x", token(other)):
        body = urllib.parse.urlencode({"csrf": wrong}).encode()
        assert secured.ask_once("POST", "/log-out", body, Cookie=cookie)[0] == 403
    body = urllib.parse.urlencode({"csrf": token(cookie)}).encode()
    assert secured.ask_once("POST", "/log-out", body, Cookie=cookie)[0] == 303
    assert secured.ask_once("GET", "/?format=json", None, Cookie=cookie)[0] == 401
    assert secured.ask_once("GET", "/?format=json", None, Cookie=other)[0] == 200


def test_user_of_the_settings_is_shared_by_those_with_the_token(
    secured: Console, page: Page
) -> None:
    assert secured.broker is not None
    settings = secured.broker.client_settings("alice")
    servers = settings.pop("bootstrap.servers")
    shared = start_console(servers, client_settings=settings)
    try:
        assert shared.ask_once("GET", "/?format=json", None)[0] == 401
        assert shared.ask_once("GET", "/?token=wrong", None)[1]["location"].startswith("/log-in")
        token = shared.server.entrance.partition("token=")[2]
        bearer = {"Authorization": f"Bearer {token}"}
        assert shared.ask_once("GET", "/?format=json", None, **bearer)[0] == 200
        wrong = {"Authorization": "Bearer "}
        assert shared.ask_once("GET", "/?format=json", None, **wrong)[0] == 401
        page.goto(shared.server.entrance)
        expect(page.locator(".user")).to_have_text("alice")
        assert "token" not in page.url
        page.context.clear_cookies()
        page.goto(shared.url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".user")).to_have_text("alice")
    finally:
        shared.server.stop()


def test_fault_of_a_page_is_answered_inside_of_the_guards(
    console: Console, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Cluster, *arguments: object) -> None:
        raise ValueError("secret detail")

    monkeypatch.setattr(Cluster, "any_connection", broken)
    status, headers, body = console.get("/quotas")  # asks the cluster each time
    assert status == 500
    assert "secret detail" not in body
    assert "content-security-policy" in headers
    assert "secret detail" in caplog.text
