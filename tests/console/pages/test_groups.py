"""The pages of consumer groups, in a browser and as JSON."""

from __future__ import annotations

from urllib.parse import quote

from playwright.sync_api import Page, expect

from millstream.admin.groups import committed_offsets, delete_group
from tests.console.conftest import Console, check_accessible
from tests.console.pages.groups_scene import HOSTILE, make_group, make_topic, reader
from tests.peers.patience import wait_until


def test_list_is_searched_sorted_and_paged_on_the_server(console: Console, page: Page) -> None:
    make_topic(console, "orders", 10)
    for number in range(12):
        make_group(console, f"list-{number:02}", "orders", number % 10)
    make_group(console, HOSTILE, "orders", 3)
    page.goto(console.url + "/groups?q=list-&size=5&sort=-lag")
    table = page.get_by_role("table", name="Groups")
    expect(table.get_by_role("row")).to_have_count(6)
    expect(table.get_by_role("row").nth(1)).to_contain_text("list-00")
    expect(page.get_by_text("12 of ")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("6–10 of 12")).to_be_visible()
    page.goto(console.url + "/groups?q=onerror")
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    check_accessible(page)
    found = console.json("/groups?q=list-&sort=-lag&size=2")["groups"]
    assert [(it["group"], it["lag"]) for it in found["rows"]] == [("list-00", 10), ("list-10", 10)]
    assert all(it["behind_ms"] >= 0 and it["members"] == 0 for it in found["rows"])


def test_lag_is_updated_by_itself(console: Console, page: Page) -> None:
    make_topic(console, "live", 5)
    make_group(console, "live-group", "live", 5)
    page.goto(console.url + "/groups?q=live-group")
    row = page.get_by_role("row", name="live-group")
    expect(row).to_contain_text("up to date")
    make_group(console, "live-group", "live", 1)
    expect(row.get_by_role("cell", name="4", exact=True)).to_be_visible()


def test_group_shows_members_and_the_lag_of_each_partition(console: Console, page: Page) -> None:
    make_topic(console, "parts", 8, partitions=2)
    make_group(console, "readers", "parts", 3)
    with reader(console, "readers", "parts", client=HOSTILE[:40]):
        page.goto(console.url + "/groups/readers")
        members = page.get_by_role("table", name="Members")
        expect(members).to_contain_text(HOSTILE[:40])
        expect(members).to_contain_text("parts 0, 1")
        offsets = page.get_by_role("table", name="Offsets")
        expect(offsets.get_by_role("row", name="parts[0]")).to_contain_text("5")
        check_accessible(page)
        page.get_by_role("button", name="Delete").first.click()
        page.get_by_label("to confirm").fill("readers")
        page.expected_errors.append("400")  # type: ignore[attr-defined]
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("dialog")).to_contain_text("stop its consumers first")
    found = console.json("/groups/readers")
    assert found["lag"] == 5
    assert found["partitions"]["rows"][0]["committed"] == 3


def test_reset_shows_a_preview_and_applies_it(console: Console, page: Page) -> None:
    make_topic(console, "again", 10)
    make_group(console, "resetting", "again", 7)
    page.goto(console.url + "/groups/resetting")
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("Go to").select_option("shift")
    page.get_by_label("Value").fill("-4")
    page.get_by_role("button", name="Preview").click()
    preview = page.get_by_role("table", name="New offsets")
    expect(preview.get_by_role("row", name="again[0]")).to_contain_text("-4 again")
    expect(page.get_by_text("--all-topics --shift-by -4 --execute")).to_be_visible()
    check_accessible(page)
    with console.cluster() as cluster:
        assert committed_offsets(cluster, "resetting") == {("again", 0): 7}
        page.get_by_role("button", name="Reset offsets").click()
        expect(page.get_by_text("1 offsets are reset")).to_be_visible()
        assert committed_offsets(cluster, "resetting") == {("again", 0): 3}


def test_bad_target_says_what_is_wrong(console: Console, page: Page) -> None:
    make_topic(console, "targets", 2)
    make_group(console, "aiming", "targets", 1)
    for target, value, problem in (
        ("datetime", "tomorrow-ish", "is not a moment"),
        ("offset", "x", "is not a whole number"),
        ("offset", "", "the value is missing"),
        ("nowhere", "1", "unknown target"),
    ):
        found = console.json(f"/groups/aiming/reset?target={target}&value={value}")
        assert problem in found["problem"]
        assert not found["moves"]
    page.goto(console.url + "/groups/aiming/reset?target=duration&value=soon")
    expect(page.get_by_role("alert")).to_contain_text("is not a span of time")
    path = "/groups/aiming/reset?target=datetime&zone=120&value=2026-11-14T08:30"
    in_full = "2026-11-14T08:30:00.000+02:00"  # as the browser's user means it
    found = console.json(path)
    assert found["value"] == in_full
    assert in_full in found["command"]
    status, answer = console.post("/groups/aiming/reset", {"target": "offset", "value": "-5"})
    assert (status, answer["message"]) == (400, "an offset is not negative")


def test_group_is_deleted_after_its_name_was_typed(console: Console, page: Page) -> None:
    make_topic(console, "gone", 2)
    name = "team/billing .. é"
    make_group(console, name, "gone", 1)
    path = "/groups/" + quote(name, safe="")
    status, answer = console.post(path + "/delete", {"confirmation": "billing"})
    assert status == 400
    assert "to confirm" in answer["message"]
    page.goto(console.url + path)
    page.get_by_role("button", name="Delete").first.click()
    page.get_by_label("to confirm").fill(name)
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("is deleted, with its offsets")).to_be_visible()
    expect(page.get_by_text("millstream group delete 'team/billing .. é'")).to_be_visible()
    assert console.get(path)[0] == 404


def test_group_that_is_deleted_while_it_is_shown_is_said_to_be_gone(
    console: Console, page: Page
) -> None:
    make_topic(console, "shown", 2)
    make_group(console, "vanishing", "shown", 1)
    page.goto(console.url + "/groups/vanishing")
    expect(page.get_by_role("table", name="Offsets")).to_be_visible()
    with console.cluster() as cluster:
        delete_group(cluster, "vanishing")
    expect(page.get_by_text("there is no group 'vanishing'")).to_be_visible()


def test_unknown_group_has_a_page_that_says_so(console: Console, page: Page) -> None:
    page.expected_errors.append("404")  # type: ignore[attr-defined]
    page.goto(console.url + "/groups/nobody")
    expect(page.get_by_role("main")).to_contain_text("there is no group 'nobody'")
    check_accessible(page)


def test_consumer_protocol_is_shown_too(console: Console) -> None:
    make_topic(console, "new-protocol", 3)
    with reader(console, "modern", "new-protocol", protocol="consumer"):
        wait_until(lambda: console.json("/groups/modern")["description"]["state"] == "stable")
        found = console.json("/groups/modern")["description"]
    assert found["type"] == "consumer"
    assert found["members"][0]["partitions"] == [["new-protocol", 0]]
