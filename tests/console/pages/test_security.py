"""Users and access control, in a browser and as scripts use them."""

from __future__ import annotations

import base64
import json
import shlex
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from millstream.cli.main import main
from millstream.console.actions import Form, Refused
from millstream.console.pages.security import add_options, describe, entry_of, remove_options
from millstream.security.acls import AclEntry
from tests.console.conftest import USERS, Console, check_accessible

EVIL = "<script>window.pwned=1</script>\"'&{{7*7}}"


def as_user(user: str) -> dict[str, str]:
    secret = base64.b64encode(f"{user}:{USERS[user]}".encode()).decode()
    return {"Authorization": f"Basic {secret}"}


def log_in(console: Console, page: Page, user: str, path: str) -> None:
    page.goto(console.url + path)
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(USERS[user])
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**" + path)


def form(**fields: str) -> Form:
    given = {"principal": "alice", "operation": "read", "type": "topic", "name": "orders"}
    return Form(list((given | fields).items()))


def test_users_are_created_changed_and_deleted(console: Console, page: Page) -> None:
    page.goto(console.url + "/security")
    expect(page.get_by_text("No users yet")).to_be_visible()
    page.get_by_role("button", name="Create user").click()
    check_accessible(page)
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=user]").fill("billing")
    dialog.locator("[name=password]").fill("first secret")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_contain_text("User billing is created.")
    expect(page.get_by_role("status")).to_contain_text("millstream user create billing")
    assert "secret" not in page.content()
    check_accessible(page)

    page.get_by_role("button", name="New password").click()
    page.get_by_role("dialog").locator("[name=password]").fill("second secret")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("status")).to_contain_text("has a new password")

    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()  # nothing is typed yet
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("dialog").get_by_label("to confirm").fill("billing")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url("**/security?done=*")
    assert console.json("/security")["users"]["rows"] == []


def test_errors_stay_in_the_dialog_with_what_was_typed(console: Console, page: Page) -> None:
    assert console.post("/security/users", {"user": "twice", "password": "x"})[0] == 200
    page.expected_errors.append("400")  # type: ignore[attr-defined]
    page.goto(console.url + "/security")
    page.get_by_role("button", name="Create user").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=user]").fill("twice")
    dialog.locator("[name=password]").fill("y")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("user 'twice' exists")
    expect(dialog.locator("[name=user]")).to_have_value("twice")
    assert console.post("/security/users/twice/delete", {"confirmation": "Twice"})[0] == 400
    assert console.post("/security/users/twice/delete", {"confirmation": "twice"})[0] == 200
    assert console.post("/security/users/twice/delete", {"confirmation": "twice"})[0] == 404
    assert console.post("/security/users/nobody/password", {"password": "x"})[0] == 404
    assert console.post("/security/users", {"user": "nobody", "password": ""})[0] == 400


@pytest.mark.parametrize("name", [EVIL, "..", "a/b", "~", "%2e%2e"])
def test_any_name_has_its_page(name: str, console: Console, page: Page) -> None:
    status, done = console.post("/security/users", {"user": name, "password": "x"})
    assert status == 200
    assert shlex.split(done["command"])[:4] == ["millstream", "user", "create", name]
    page.goto(console.url + "/security")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_label("to confirm").fill(name)
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url("**/security?done=*")
    assert page.evaluate("window.pwned") is None


def test_cluster_without_an_authorizer_says_so(console: Console, page: Page) -> None:
    page.goto(console.url + "/security/acls")
    expect(page.get_by_text("the brokers have no authorizer")).to_be_visible()
    check_accessible(page)


def test_entries_are_added_and_removed(secured: Console, page: Page) -> None:
    log_in(secured, page, "admin", "/security/acls")
    expect(page.get_by_text("No entries yet")).to_be_visible()
    page.get_by_role("button", name="Add entry").click()
    check_accessible(page)
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=principal]").fill("alice")
    dialog.locator("[name=name]").fill(EVIL)
    dialog.locator("[name=pattern]").select_option("prefixed")
    dialog.get_by_role("button", name="Add").click()
    status = page.get_by_role("status")
    expect(status).to_contain_text("User:alice may read on topic names that begin with <script>")
    expect(status).to_contain_text("millstream acl add --allow-principal User:alice")
    expect(page.get_by_role("row", name="User:alice")).to_contain_text(EVIL)
    check_accessible(page)
    page.get_by_role("button", name="Remove: User:alice").click()
    expect(status).to_contain_text("Removed: User:alice may read")
    expect(page.get_by_text("No entries yet")).to_be_visible()
    assert page.evaluate("window.pwned") is None


def test_user_without_rights_sees_what_it_lacks(secured: Console, page: Page) -> None:
    page.expected_errors.append("403")  # type: ignore[attr-defined]
    log_in(secured, page, "alice", "/security")
    expect(page.get_by_role("alert")).to_contain_text("the user needs Describe on the cluster")
    check_accessible(page)
    page.goto(secured.url + "/security/acls")
    expect(page.get_by_text("CLUSTER_AUTHORIZATION_FAILED")).to_be_visible()
    refused = secured.post("/security/users", {"user": "eve", "password": "x"}, **as_user("alice"))
    assert refused[0] == 403
    entry = {"principal": "alice", "operation": "all", "type": "topic", "name": "*"}
    assert secured.post("/security/acls", entry, **as_user("alice"))[0] == 403
    assert secured.post("/security/acls", entry, **as_user("admin"))[0] == 200
    assert secured.post("/security/acls/remove", entry, **as_user("alice"))[0] == 403
    assert secured.post("/security/acls/remove", entry, **as_user("admin"))[0] == 200
    assert secured.post("/security/acls/remove", entry, **as_user("admin"))[0] == 404


def test_command_lines_do_the_same(secured: Console, tmp_path: Any, capsys: Any) -> None:
    """Each line that an action shows is run, and leaves nothing for the console to do."""
    assert secured.broker is not None
    settings = secured.broker.client_settings("admin")
    file = tmp_path / "admin.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def run(line: str) -> None:
        words = [*shlex.split(line)[1:], "--client-config", str(file)]
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0, capsys.readouterr()

    fields = {
        "principal": "a b",
        "permission": "deny",
        "operation": "read",
        "type": "group",
        "name": "it's",
        "host": "10.0.0.9",
    }
    admin = as_user("admin")
    added = secured.post("/security/acls", fields, **admin)[1]["command"]
    removed = secured.post("/security/acls/remove", fields, **admin)[1]["command"]
    run(added)
    listed = json.loads(secured.get("/security/acls?format=json", **admin)[2])["entries"]["rows"]
    assert [it["principal"] for it in listed] == ["User:a b"]
    run(removed)
    listed = json.loads(secured.get("/security/acls?format=json", **admin)[2])["entries"]["rows"]
    assert listed == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"principal": " "}, "The user is missing"),
        ({"operation": "fly"}, "The operation on a topic is one of all, read"),
        ({"operation": "cluster-action"}, "The operation on a topic is one of"),
        ({"type": "any"}, "The type is one of topic"),
        ({"type": "planet"}, "The type 'planet' does not exist"),
        ({"name": ""}, "The name of the resource is missing"),
        ({"name": "*", "pattern": "prefixed"}, "No name begins with *"),
        ({"pattern": "match"}, "The pattern is literal or prefixed"),
        ({"permission": "any"}, "The permission is allow or deny"),
        ({"host": "10.0.0.0/8"}, "The host is one address"),
        ({"host": "example.com"}, "The host is one address"),
    ],
)
def test_entries_that_would_do_nothing_are_refused(fields: dict[str, str], expected: str) -> None:
    with pytest.raises(Refused) as refused:
        entry_of(form(**fields))
    assert expected in str(refused.value)


def test_entries_are_described() -> None:
    entry = entry_of(form(permission="deny", host="10.0.0.9", pattern="prefixed"))
    assert isinstance(entry, AclEntry)
    assert describe(entry) == (
        "User:alice may not read on topic names that begin with orders from 10.0.0.9"
    )
    assert add_options(entry) == [
        *("--deny-principal", "User:alice", "--operation", "read", "--topic", "orders"),
        *("--prefixed", "--deny-host", "10.0.0.9"),
    ]
    cluster = entry_of(form(type="cluster", operation="alter", name="ignored"))
    assert remove_options(cluster) == [
        *("--principal", "User:alice", "--operation", "alter", "--cluster", "--yes")
    ]
