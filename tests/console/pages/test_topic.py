"""One topic in a browser: partitions, readers, settings, and every action."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.reassignments import Elected
from millstream.admin.settings import Setting
from millstream.admin.topics import create_topic
from millstream.console.actions import Refused
from millstream.console.pages.topic import choices_of, say_elected
from tests.console.conftest import Console, check_accessible
from tests.console.records import commit, produce


def make(console: Console, name: str, partitions: int = 2, **settings: str) -> str:
    with console.cluster() as cluster:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        create_topic(cluster, name, partitions=partitions, settings=named)
    return f"{console.url}/topics/{name}"


def test_topic_shows_partitions_readers_and_its_own_settings(console: Console, page: Page) -> None:
    url = make(console, "one", retention_ms="86400000")
    produce(console.bootstrap_servers, "one", 9)
    commit(console.bootstrap_servers, "one-reader", "one", 2)
    page.goto(url)
    partitions = page.get_by_role("table", name="Partitions")
    first = partitions.get_by_role("row").nth(1)
    expect(first.get_by_role("cell").nth(4)).to_have_text("9")
    expect(first).to_contain_text("healthy")
    expect(page.get_by_role("table", name="Groups that read it")).to_contain_text("one-reader")
    expect(page.locator("main")).to_contain_text("retention.ms")
    expect(page.locator("main")).to_contain_text("1 d")
    expect(page.locator("#chart-records canvas")).to_be_visible()
    check_accessible(page)
    produce(console.bootstrap_servers, "one", 3)
    expect(first.get_by_role("cell").nth(4)).to_have_text("12")  # by itself
    found = console.json("/topics/one")
    assert (found["records"], found["readers"][0]["lag"]) == (12, 10)
    assert found["own_settings"][0]["name"] == "retention.ms"


def test_partitions_are_paged_and_sorted(console: Console, page: Page) -> None:
    url = make(console, "wide", partitions=60)
    page.goto(f"{url}?size=50&sort=-partition")
    table = page.get_by_role("table", name="Partitions")
    expect(table.get_by_role("row")).to_have_count(51)
    expect(table.get_by_role("row").nth(1)).to_contain_text("59")
    page.get_by_role("link", name="Next").click()
    expect(table.get_by_role("row").nth(1)).to_contain_text("9")


def test_partitions_are_added(console: Console, page: Page) -> None:
    page.goto(make(console, "growing"))
    page.get_by_role("button", name="Add partitions").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Partitions in all").fill("5")
    dialog.get_by_role("button", name="Add partitions").click()
    expect(page.get_by_role("status")).to_contain_text("Topic growing has 5 partitions.")
    expect(page.get_by_role("status").locator("code")).to_contain_text(
        "millstream topic alter growing --partitions 5"
    )
    rows = page.get_by_role("table", name="Partitions").get_by_role("row")
    expect(rows).to_have_count(6)
    status, answer = console.post("/topics/growing/partitions", {"count": 3})
    assert (status, "would not be an increase" in answer["message"]) == (400, True)


def test_topic_is_deleted_after_its_name_was_typed(console: Console, page: Page) -> None:
    page.goto(make(console, "unwanted"))
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code").last).to_contain_text("millstream topic delete unwanted --yes")
    check_accessible(page)
    dialog.get_by_role("textbox").fill("unwante")
    dialog.get_by_role("button", name="Delete topic").click()
    expect(dialog).to_be_visible()
    assert console.json("/topics/unwanted")["name"] == "unwanted"
    dialog.get_by_role("textbox").fill("unwanted")
    dialog.get_by_role("button", name="Delete topic").click()
    expect(page.get_by_role("status")).to_contain_text("Topic unwanted is deleted.")
    page.expected_errors.append("404")  # type: ignore[attr-defined]
    page.goto(f"{console.url}/topics/unwanted")
    expect(page.locator("main")).to_contain_text("there is no topic unwanted")
    page.goto(make(console, "unwanted", partitions=1))
    expect(page.get_by_role("table", name="Partitions").get_by_role("row")).to_have_count(2)


def test_server_checks_the_typed_name_again(console: Console) -> None:
    make(console, "guarded")
    status, answer = console.post("/topics/guarded/delete", {"confirmation": "other"})
    assert (status, "type 'guarded' to confirm" in answer["message"]) == (400, True)
    assert console.json("/topics/guarded")["name"] == "guarded"
    other = {"confirmation": "guarded", "id": "5d4c1c1e-5d0c-4a53-9f4c-1c8d1f6f2a10"}
    status, answer = console.post("/topics/guarded/delete", other)
    assert (status, "was deleted meanwhile" in answer["message"]) == (400, True)
    status, answer = console.post("/topics/guarded/delete", {**other, "id": "x"})
    assert (status, "not the id of a topic" in answer["message"]) == (400, True)
    assert console.json("/topics/guarded")["name"] == "guarded"


def test_setting_is_changed_and_reset(console: Console, page: Page) -> None:
    page.goto(f"{make(console, 'tuned')}/settings")
    expect(page.get_by_role("table", name="Settings")).to_contain_text("segment.bytes")
    page.get_by_role("link", name="Change retention.ms", exact=True).click()
    page.get_by_label("New value of retention.ms").fill("60000")
    check_accessible(page)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("retention.ms of tuned is now '60000'.")
    expect(page.get_by_role("status").locator("code")).to_contain_text(
        "millstream topic alter tuned --config retention.ms=60000"
    )
    row = page.get_by_role("row").filter(has=page.get_by_text("retention.ms", exact=True))
    expect(row).to_contain_text("1 min")
    expect(row).to_contain_text("topic")
    expect(row).to_contain_text("otherwise")
    page.get_by_role("link", name="Set for this topic").click()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("link", name="Change retention.ms").click()
    page.get_by_role("button", name="Reset to the default").click()
    expect(page.get_by_role("status").locator("code")).to_contain_text(
        "--delete-config retention.ms"
    )
    assert console.json("/topics/tuned")["own_settings"] == []


def test_words_are_chosen_and_bad_values_are_refused(console: Console, page: Page) -> None:
    url = make(console, "chosen")
    page.goto(f"{url}/settings?edit=cleanup.policy")
    page.get_by_label("New value of cleanup.policy").select_option("compact")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("is now 'compact'")
    page.expected_errors.append("400")  # type: ignore[attr-defined]
    page.goto(f"{url}/settings?edit=retention.ms")
    page.get_by_label("New value of retention.ms").fill("<b>soon</b>")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid value <b>soon</b>")
    expect(page.get_by_label("New value of retention.ms")).to_have_value("<b>soon</b>")


def test_values_of_settings_are_text(console: Console, page: Page) -> None:
    value = "1:1<script>alert(1)</script>"
    status, _ = console.post("/topics", {"name": "quoted", "partitions": "1"})
    assert status == 200
    status, answer = console.post(
        "/topics/quoted/settings", {"setting": "'><script>alert(1)</script>", "value": value}
    )
    assert status == 400
    assert "<script>" in answer["message"]
    page.goto(f"{console.url}/topics/quoted/settings?q=%3Cscript%3Ealert(1)%3C/script%3E")
    expect(page.get_by_text("No setting matches")).to_contain_text("<script>")


@pytest.mark.parametrize("name", ["%3Cscript%3Ealert(1)%3C%2Fscript%3E", "a%2Fb", "~..", "%00"])
def test_names_that_no_topic_has_are_not_found(console: Console, page: Page, name: str) -> None:
    page.expected_errors.extend(["404", "400"])  # type: ignore[attr-defined]
    answer = page.goto(f"{console.url}/topics/{name}")
    assert answer is not None
    assert answer.status in (400, 404)
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_election_is_told() -> None:
    assert "already has" in say_elected(Elected([], {}))
    assert "leads 2 more" in say_elected(Elected([("t", 0), ("t", 1)], {}))
    with pytest.raises(Refused, match="t-3: no broker"):
        say_elected(Elected([("t", 0)], {("t", 3): "no broker"}))


def test_leaders_are_elected(console: Console) -> None:
    make(console, "led")
    status, answer = console.post("/topics/led/elect", {})
    assert (status, answer["message"]) == (
        200,
        "Every partition already has the leader it should have.",
    )
    assert "millstream topic elect led" in answer["command"]


def test_choices_are_offered_where_they_contain_the_value() -> None:
    boolean = Setting("preallocate", "true", "default", is_own=False, type="boolean")
    assert choices_of(boolean) == ("true", "false")
    other = Setting("cleanup.policy", "delete,compact", "topic", is_own=True, type="list")
    assert choices_of(other) == ()


@pytest.mark.slow
def test_backlog_policy_shows_what_it_does_and_who_causes_it(console: Console, page: Page) -> None:
    settings = {"policy": "reject", "bytes": "2000", "groups": "slow-*"}
    with console.cluster() as cluster:
        create_topic(
            cluster,
            "bounded",
            settings={f"millstream.backlog.{name}": value for name, value in settings.items()},
        )
    page.goto(f"{console.url}/topics/bounded")
    expect(page.get_by_text("No group that counts has read this topic")).to_be_visible()
    produce(console.bootstrap_servers, "bounded", 8)
    commit(console.bootstrap_servers, "slow-readers", "bounded", 8)
    commit(console.bootstrap_servers, "others", "bounded", 0)
    table = page.get_by_role("table", name="Backlog of each partition")
    expect(table.get_by_role("row").nth(1)).to_contain_text("within")
    check_accessible(page)
    commit(console.bootstrap_servers, "slow-readers", "bounded", 1)
    page.goto(f"{console.url}/topics/bounded/settings?edit=millstream.backlog.bytes")
    page.get_by_label("New value of millstream.backlog.bytes").fill("10")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("is now '10'")
    page.goto(f"{console.url}/topics/bounded")
    expect(table).to_contain_text("rejects producers unless idle")
    expect(page.get_by_text("Producers are refused in 1 partition")).to_contain_text("slow-readers")
    expect(page.get_by_text("millstream topic describe bounded")).to_be_visible()
    check_accessible(page)
    found = console.json("/topics/bounded")["backlog"]
    assert (found["applied"], found["causes"]) == (1, ["slow-readers"])
    assert console.json("/topics/bounded")["policy"] == "reject"
