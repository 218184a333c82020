"""Changes as events: each once, in order, also for clients that connect again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.errors import ViewError
from millstream.views import Views, events
from millstream.views.events import Follower
from tests.views.conftest import Shop


def follow(views: Views, follower: Follower) -> list[dict[str, Any]]:
    with views.read() as v:
        texts = follower.next_events(v)
    found = []
    for text in texts:
        lines = dict(line.split(": ", 1) for line in text.strip().split("\n"))
        found.append({**json.loads(lines["data"]), "id": lines["id"], "event": lines["event"]})
    return found


def after_rows(event: dict[str, Any]) -> list[Any]:
    return [it["after"] and it["after"]["spent"] for it in event["changes"]]


def test_follower_gets_the_changes_of_each_batch(shop: Shop, views: Views) -> None:
    shop.spend(ada=5)
    follower = Follower("by_user")
    (begin,) = follow(views, follower)
    assert begin["event"] == "begin"
    assert begin["stamp"]["offsets"] == {"orders": {"0": 1}}
    assert follow(views, follower) == []
    shop.spend(bob=1)
    shop.spend()  # changes nothing
    shop.spend(ada=None, bob=2)
    first, second = follow(views, follower)
    assert first["changes"] == [{"before": None, "after": {"user": "bob", "spent": 1}}]
    assert second["changes"] == [
        {"before": {"user": "ada", "spent": 5}, "after": None},
        {"before": {"user": "bob", "spent": 1}, "after": {"user": "bob", "spent": 3}},
    ]
    assert second["stamp"]["offsets"] == {"orders": {"0": 4}}


def test_client_goes_on_behind_the_last_event(shop: Shop, views: Views) -> None:
    shop.spend(ada=1)
    (begin,) = follow(views, Follower("by_user"))
    shop.spend(ada=1)
    shop.spend(ada=1)
    first, second = follow(views, Follower("by_user", begin["id"]))
    assert follow(views, Follower("by_user", first["id"])) == [second]
    assert follow(views, Follower("by_user", second["id"])) == []


def test_client_that_was_away_too_long_is_reset(shop: Shop, views: Views) -> None:
    shop.spend(ada=1)
    (begin,) = follow(views, Follower("by_user"))
    for _ in range(shop.keeps + 2):
        shop.spend(ada=1)
    (event,) = follow(views, Follower("by_user", begin["id"]))
    assert event["event"] == "reset"
    assert event["stamp"]["numbers"] == {"shop": shop.keeps + 3}


def test_client_of_a_pipeline_that_started_over_is_reset(shop: Shop, views: Views) -> None:
    """The new stamps have the numbers of the old ones, and other offsets."""
    shop.spend(ada=1)
    (begin,) = follow(views, Follower("by_user"))
    shop.store.forget("shop")
    shop.batch_id, shop.offset = -1, 0
    shop.spend(2, ada=1)
    shop.spend(ada=1)
    (event,) = follow(views, Follower("by_user", begin["id"]))
    assert event["event"] == "reset"


def test_much_comes_in_parts(shop: Shop, views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_CHANGES_MAX", 3)
    shop.spend(ada=1)
    follower = Follower("by_user")
    follow(views, follower)
    shop.spend(ada=1, bob=1)
    shop.spend(ada=1, bob=1)
    assert [after_rows(it) for it in follow(views, follower)] == [[2, 1]]
    assert [after_rows(it) for it in follow(views, follower)] == [[3, 2]]
    shop.spend(ada=1, bob=1, carl=1, dora=1)  # too many for one event
    assert [it["event"] for it in follow(views, follower)] == ["reset"]
    assert follow(views, follower) == []


def test_ids_of_other_servers_are_refused() -> None:
    with pytest.raises(ViewError, match="no id of an event"):
        Follower("by_user", "7")
