"""The pages of dead letters: reasons and origins, the record beside its error, replay, purge."""

from __future__ import annotations

from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.letters import letter_counts
from millstream.admin.reading import Reader
from millstream.console.pages import dead_letters
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


@pytest.mark.slow
def test_all_letters_are_replayed_once_and_what_comes_back_is_marked(
    console: Console, page: Page
) -> None:
    make_topic(console, "tasks", 3)
    make_topic(console, "dlq.tasks")
    make_letters(console, "dlq.tasks", "tasks", 3)
    page.goto(console.url + "/dead-letters/dlq.tasks")
    page.get_by_role("link", name="Replay all").click()
    page.get_by_label("to confirm").fill("dlq.tasks")
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
    page.goto(console.url + "/dead-letters/dlq.moved/replay?group=billing")
    page.expected_errors.append("404")  # type: ignore[attr-defined]
    page.get_by_role("button", name="Replay 2").click()
    expect(page.get_by_role("alert")).to_contain_text("there is no topic 'no-such-topic'")
    page.get_by_label("To another topic").fill("elsewhere")
    page.get_by_role("button", name="Dry run again").click()
    expect(page.get_by_text("--to elsewhere --execute")).to_be_visible()
    page.get_by_role("button", name="Replay 2").click()
    expect(page.get_by_text("2 letters are replayed.")).to_be_visible()
    assert len(values(console, "elsewhere")) == 2


def test_nothing_selected_is_not_everything(console: Console) -> None:
    make_topic(console, "kept", 2)
    make_topic(console, "dlq.kept")
    make_letters(console, "dlq.kept", "kept", 2)
    path = "/dead-letters/dlq.kept/replay"
    for fields, message in (
        ({}, "say which letters"),
        ({"letter": ""}, "say which letters"),
        ({"letters": ["0:1"]}, "say which letters"),
        ({"which": "selected"}, "no letter is selected"),
        ({"which": "matching"}, "matching letters: give one of"),
        ({"which": "all", "letter": ["0:1"]}, "give neither"),
        ({"which": "all"}, "type 'dlq.kept' to confirm"),
    ):
        status, answer = console.post(path, fields)
        assert (status, message in answer["message"]) == (400, True), (fields, answer)
    assert console.get(path + "?which=selected")[0] == 400
    assert len(values(console, "kept")) == 2


def test_only_dead_letters_are_replayed(console: Console) -> None:
    make_topic(console, "plain", 2)
    status, _, body = console.get("/dead-letters/plain/replay", Accept="application/json")
    assert (status, "not a topic of dead letters" in body) == (400, True)
    status, answer = console.post("/dead-letters/plain/replay", {"letter": ["0:1"]})
    assert (status, answer["message"]) == (400, "plain is not a topic of dead letters")


def test_dry_run_of_many_letters_is_limited(
    console: Console, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(console, "dlq.many")
    make_letters(console, "dlq.many", "orders", 3)
    monkeypatch.setattr(dead_letters, "DRY_RUN_BYTES_MAX", 1)
    found = console.json("/dead-letters/dlq.many/replay")
    assert (found["is_partial"], 1 <= found["tally"]["sent"] <= 3) == (True, True)
    page.goto(console.url + "/dead-letters/dlq.many/replay")
    expect(page.get_by_role("button", name="Replay at least")).to_be_visible()


def test_headers_that_are_no_numbers_stop_neither_pages_nor_replays(console: Console) -> None:
    make_topic(console, "poisoned", 1)
    make_topic(console, "dlq.poisoned")
    for count in ("²".encode(), b"9" * 5_000):
        headers = [*letter_headers("poisoned", 0), ("__dlq.replay.count", count)]
        write(console, "dlq.poisoned", [("k", "v")], headers)
    assert console.json("/dead-letters/dlq.poisoned")["read"] == 2
    fields = {"letter": ["0:0", "0:1"]}
    status, answer = console.post("/dead-letters/dlq.poisoned/replay", fields)
    assert (status, answer["message"]) == (200, "2 letters are replayed.")


def test_purge_of_a_topic_that_was_created_again_is_refused(console: Console) -> None:
    make_topic(console, "dlq.again")
    make_letters(console, "dlq.again", "orders", 1)
    fields = {"confirmation": "dlq.again", "id": str(uuid4())}
    status, answer = console.post("/dead-letters/dlq.again/purge", fields)
    assert (status, "was deleted meanwhile" in answer["message"]) == (400, True)
    assert console.json("/dead-letters/dlq.again")["total"] == 1


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
