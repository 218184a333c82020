"""The pages of dead letters: reasons and origins, the record beside its error, replay, purge."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from millstream.admin.letters import letter_counts
from millstream.admin.reading import Reader
from tests.console.conftest import Console, check_accessible
from tests.console.pages.groups_scene import (
    HOSTILE,
    letter_headers,
    make_letters,
    make_topic,
    write,
)


def values(console: Console, topic: str) -> list[bytes | None]:
    with console.cluster() as cluster:
        count = letter_counts(cluster, [topic])[topic]
        return [it.value for it in Reader(cluster, topic).forward(0, 0, count)]


def test_topics_are_listed_with_their_reasons(console: Console, page: Page) -> None:
    make_topic(console, "dlq.first")
    make_topic(console, "dlq.empty")
    make_letters(console, "dlq.first", "orders", 3, reason="rejected")
    make_letters(console, "dlq.first", "orders", 1, reason="limit")
    page.goto(console.url + "/dead-letters?q=dlq.")
    row = page.get_by_role("row", name="dlq.first")
    expect(row).to_contain_text("rejected 3")
    expect(row).to_contain_text("limit 1")
    expect(page.get_by_role("row", name="dlq.empty")).to_contain_text("0")
    check_accessible(page)


def test_letters_are_grouped_and_filtered(console: Console, page: Page) -> None:
    make_topic(console, "dlq.parts")
    make_letters(console, "dlq.parts", "orders", 2, group="billing", reason="limit")
    make_letters(console, "dlq.parts", "payments", 3, group=HOSTILE, reason="rejected")
    page.goto(console.url + "/dead-letters/dlq.parts")
    slices = page.get_by_role("table", name="Letters by group, origin and reason")
    expect(slices.get_by_role("row")).to_have_count(3)
    check_accessible(page)
    slices.get_by_role("row", name=HOSTILE).get_by_role("link", name="Only these").click()
    letters = page.get_by_role("table", name="Letters", exact=True)
    expect(letters.get_by_role("row")).to_have_count(4)
    expect(page.get_by_text("reason: rejected")).to_be_visible()
    found = console.json("/dead-letters/dlq.parts?reason=limit")
    assert [it["reason"] for it in found["letters"]["rows"]] == ["limit", "limit"]
    assert (found["total"], found["read"], found["is_partial"]) == (5, 5, False)


def test_letter_shows_the_record_beside_its_error(console: Console, page: Page) -> None:
    make_topic(console, "dlq.one")
    headers = [
        *letter_headers("orders", 7, message=f"no such product {HOSTILE}"),
        ("trace", HOSTILE.encode()),
    ]
    write(console, "dlq.one", [("k7", '{"product": "<script>alert(1)</script>"}')], headers)
    page.goto(console.url + "/dead-letters/dlq.one")
    letters = page.get_by_role("table", name="Letters", exact=True)
    letters.get_by_role("row").nth(1).get_by_role("link").first.click()
    expect(page.get_by_role("region", name="Why it failed")).to_contain_text(HOSTILE)
    record = page.get_by_role("region", name="The record")
    expect(record).to_contain_text("<script>alert(1)</script>")
    expect(record).to_contain_text(HOSTILE)
    expect(page.get_by_role("link", name="orders[0]@7")).to_be_visible()
    check_accessible(page)
    assert console.get("/dead-letters/dlq.one/0/99")[0] == 404
    assert console.get("/dead-letters/dlq.one/5/0")[0] == 404


def test_selected_letters_are_replayed_after_a_dry_run(console: Console, page: Page) -> None:
    make_topic(console, "work", 4)
    make_topic(console, "dlq.work")
    make_letters(console, "dlq.work", "work", 4)
    page.goto(console.url + "/dead-letters/dlq.work")
    page.get_by_label("Select letter 0:1").check()
    page.get_by_label("Select letter 0:3").check()
    page.get_by_role("button", name="Replay selected").click()
    expect(page.get_by_text("2 selected letters")).to_be_visible()
    expect(page.get_by_text("--letter 0:3 --letter 0:1 --execute")).to_be_visible()
    check_accessible(page)
    assert len(values(console, "work")) == 4  # nothing was sent by the dry run
    page.get_by_role("button", name="Replay 2").click()
    expect(page.get_by_text("2 letters are replayed.")).to_be_visible()
    assert values(console, "work")[4:] == [b'{"number": 3}', b'{"number": 1}']
    states = console.json("/dead-letters/dlq.work")["states"]
    assert states == {"open": 2, "replayed": 2}
    status, answer = console.post("/dead-letters/dlq.work/replay", {"letter": ["0:1", "0:0"]})
    expected = "1 letter is replayed. 1 had been replayed before."
    assert (status, answer["message"]) == (200, expected)


def test_all_letters_are_replayed_once_and_what_comes_back_is_marked(
    console: Console, page: Page
) -> None:
    make_topic(console, "tasks", 3)
    make_topic(console, "dlq.tasks")
    make_letters(console, "dlq.tasks", "tasks", 3)
    page.goto(console.url + "/dead-letters/dlq.tasks")
    page.get_by_role("link", name="Replay all").click()
    page.get_by_role("button", name="Replay 3").click()
    expect(page.get_by_text("3 letters are replayed.")).to_be_visible()
    # The first one fails again, as a share group would write it.
    with console.cluster() as cluster:
        first = next(iter(Reader(cluster, "tasks").forward(0, 3, 4)))
    again = [(it.name, it.value or b"") for it in first.headers]
    write(console, "dlq.tasks", [("k0", "again")], [*again, *letter_headers("tasks", 3)])
    found = console.json("/dead-letters/dlq.tasks")
    assert found["states"] == {"open": 1, "replayed": 2, "came back": 1}
    page.goto(console.url + "/dead-letters/dlq.tasks?state=came%20back")
    page.get_by_role("link", name="came back").last.click()
    expect(page.get_by_role("link", name="letter 0:0")).to_be_visible()
    replay = console.json("/dead-letters/dlq.tasks/replay")["tally"]
    assert (replay["sent"], replay["replayed_before"]) == (1, 3)


def test_replay_to_another_topic_and_to_one_that_is_not_there(console: Console, page: Page) -> None:
    make_topic(console, "elsewhere")
    make_topic(console, "dlq.moved")
    make_letters(console, "dlq.moved", "no-such-topic", 2)
    page.goto(console.url + "/dead-letters/dlq.moved/replay")
    page.expected_errors.append("404")  # type: ignore[attr-defined]
    page.get_by_role("button", name="Replay 2").click()
    expect(page.get_by_role("alert")).to_contain_text("there is no topic 'no-such-topic'")
    page.get_by_label("To another topic").fill("elsewhere")
    page.get_by_role("button", name="Dry run again").click()
    expect(page.get_by_text("--to elsewhere --execute")).to_be_visible()
    page.get_by_role("button", name="Replay 2").click()
    expect(page.get_by_text("2 letters are replayed.")).to_be_visible()
    assert len(values(console, "elsewhere")) == 2


def test_purge_deletes_letters_after_the_name_was_typed(console: Console, page: Page) -> None:
    make_topic(console, "dlq.old")
    make_letters(console, "dlq.old", "orders", 3)
    page.goto(console.url + "/dead-letters/dlq.old")
    page.get_by_role("button", name="Purge").first.click()
    page.get_by_label("to confirm").fill("dlq.old")
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect(page.get_by_text("3 dead letters of dlq.old are deleted.")).to_be_visible()
    expect(page.get_by_text("No letters")).to_be_visible()
    check_accessible(page)
    make_topic(console, "precious", 3)
    status, answer = console.post("/dead-letters/precious/purge", {"confirmation": "precious"})
    assert (status, answer["message"]) == (400, "precious is not a topic of dead letters")
    assert len(values(console, "precious")) == 3


def test_topic_without_letters_and_topic_that_is_not_there(console: Console) -> None:
    make_topic(console, "dlq.none")
    assert console.json("/dead-letters/dlq.none")["letters"]["rows"] == []
    status, _, body = console.get("/dead-letters/nowhere", Accept="application/json")
    assert (status, "there is no topic 'nowhere'" in body) == (404, True)
