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
    assert index.query("SELECT count(*) FROM items_keys") == [(2,)]


def test_index_with_other_fields_is_refused(tmp_path: Path, log: Log) -> None:
    index = SearchIndex(tmp_path)
    run_once(index.config(log))
    complaint = r"has the columns \['key', 'name', 'id'\]"
    sink = open_sink(index.config(log, topic={"fields": ["other"]}))
    with sink, pytest.raises(SchemaMismatch, match=complaint):
        sink.open()
