"""Searching what was indexed; that the index follows its topic is tested with the runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.connect.sinks.opening import open_sink
from millstream.errors import SchemaMismatch
from tests.connect.sinks.conftest import Log, SearchIndex
from tests.connect.sinks.test_runner import run_once


def test_documents_are_found_by_their_words(tmp_path: Path, log: Log) -> None:
    index = SearchIndex(tmp_path)
    topic = {"fields": ["title", "tags"], "stored": ["price"]}
    log.send(
        (b"1", {"id": 1, "title": "Red shoes", "tags": ["sale", "new"], "price": 9.5}),
        (b"2", {"id": 2, "title": "Blue shoes", "price": 5}),
    )
    run_once(index.config(log, format="json", topic=topic))
    assert index.query("SELECT key, price FROM items WHERE items MATCH 'red'") == [("1", 9.5)]
    assert index.query("SELECT key FROM items WHERE items MATCH 'tags: sale'") == [("1",)]
    assert index.query("SELECT key FROM items WHERE items MATCH 'shoes' ORDER BY key") == [
        ("1",),
        ("2",),
    ]
    log.send((b"1", {"id": 1, "title": "Green shoes", "price": 9.5}))
    run_once(index.config(log, format="json", topic=topic))
    assert index.query("SELECT key FROM items WHERE items MATCH 'red'") == []
    assert index.query("SELECT rowid FROM items ORDER BY rowid") == [(1,), (2,)]
    assert index.query("SELECT count(*) FROM items_keys") == [(0,)]


def test_documents_are_read_back_with_their_key(tmp_path: Path, log: Log) -> None:
    """And booleans as JSON has them."""
    topic = {"key": ["shop", "id"], "fields": ["title"], "stored": ["is_sold", "tags"]}
    config = SearchIndex(tmp_path).config(log, format="json", topic=topic)
    log.send(
        (b"1", {"shop": "a", "id": 1, "title": "Shoes", "is_sold": True, "tags": ["sale"]}),
        (b"2", {"shop": "a", "id": 2, "title": "Boots", "is_sold": False}),
    )
    run_once(config)
    with open_sink(config) as sink:
        sink.open()
        rows = dict(sink.rows(sink.targets[0]))
    assert rows == {
        '["a",1]': {"shop": "a", "id": 1, "title": "Shoes", "is_sold": "true", "tags": '["sale"]'},
        '["a",2]': {"shop": "a", "id": 2, "title": "Boots", "is_sold": "false", "tags": None},
    }


def test_keys_of_any_form_are_kept_apart(tmp_path: Path, log: Log) -> None:
    """Whole numbers are rowids; others have one of their own."""
    index = SearchIndex(tmp_path)
    keys = ["7", "07", "-7", "7.5", "seven", "٧", "9" * 30, ""]
    config = index.config(log, format="json", topic={"fields": ["name"], "stored": []})
    log.send(*((key.encode(), {"id": key, "name": f"name of {key}"}) for key in keys))
    run_once(config)
    found = dict(index.query("SELECT key, name FROM items"))
    assert found == {key: f"name of {key}" for key in keys}
    log.send((b"1", {"id": 7, "name": "the number"}), (b"1", {"id": "seven", "name": "again"}))
    log.send(
        (b"1", {"id": "07", "__deleted": "true"}), (b"1", {"id": "unknown", "__deleted": True})
    )
    run_once(config)
    found = dict(index.query("SELECT key, name FROM items"))
    assert (found.pop("7"), found.pop("seven")) == ("the number", "again")
    assert sorted(found) == sorted(set(keys) - {"7", "07", "seven"})


def test_index_of_an_older_version_is_refused(tmp_path: Path, log: Log) -> None:
    index = SearchIndex(tmp_path)
    run_once(index.config(log))
    index.query("INSERT INTO items_keys VALUES (1, 'a')")
    with open_sink(index.config(log)) as sink, pytest.raises(SchemaMismatch, match="drop it"):
        sink.open()


def test_index_with_other_fields_is_refused(tmp_path: Path, log: Log) -> None:
    index = SearchIndex(tmp_path)
    run_once(index.config(log))
    complaint = r"has the columns \['key', 'name', 'id'\]"
    sink = open_sink(index.config(log, topic={"fields": ["other"]}))
    with sink, pytest.raises(SchemaMismatch, match=complaint):
        sink.open()
