"""Receipts have hashes of what sinks have, and a second look compares them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from millstream.client.cluster import Cluster
from millstream.connect.sinks.columns import parse_columns
from millstream.connect.sinks.config import TopicConfig
from millstream.connect.sinks.sink import Target
from millstream.excision.digests import RowsDigest
from millstream.excision.documents import WHERE, Receipt, Selector
from millstream.excision.jobs import begin, finish
from millstream.excision.looking import BY_KEY, BY_PREDICATE, PAGE_ROWS, look, without_later
from millstream.excision.selection import Access, find_topic
from millstream.excision.verification import verify_receipt
from tests.excision.conftest import ALICE
from tests.excision.test_sinks import Scene, scene
from tests.peers.patience import PATIENCE_SECONDS

__all__ = ["scene"]  # a fixture

PREDICATE = Selector(WHERE, b"email = 'alice@example.org'")
ROW_OF_ALICE = "INSERT INTO customers VALUES ('alice', 'Bath', 'alice@example.org')"
NOTHING = RowsDigest("").result()


def excised(scene: Scene, selector: Selector) -> Receipt:
    plan = find_topic(scene.cluster, scene.topic, selector, access=scene.access)
    derived = [scene.plan(selector)]
    job = begin(scene.cluster, [plan], selector, requested_by="test", derived=derived)
    return finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS, selector=selector)


def change(scene: Scene, *statements: str) -> None:
    with closing(sqlite3.connect(scene.path)) as connection:
        for it in statements:
            connection.execute(it)
        connection.commit()


def problems(scene: Scene, receipt: Receipt, selector: Selector | None = None) -> Sequence[str]:
    found = verify_receipt(scene.cluster, receipt, selector=selector, access=scene.access)
    return found.problems


def test_receipt_has_the_hashes_before_and_after(scene: Scene) -> None:
    scene.declare()
    scene.put("alice", "bob")
    scene.follow()
    receipt = excised(scene, ALICE)
    salt = receipt.job.salt
    rows = {
        it: (it, {"name": it, "city": "Bath", "email": f"{it}@example.org"})
        for it in ("alice", "bob")
    }
    both, one, other = RowsDigest(salt), RowsDigest(salt), RowsDigest(salt)
    both.add(rows.values())
    one.add([rows["alice"]])
    other.add([rows["bob"]])
    (report,) = receipt.derived
    assert report["hashes_before"] == {"customers": both.result()["sha256"]}
    assert report["hashes_after"] == {"customers": other.result()["sha256"]}
    assert report["selected_before"] == {"customers": one.result()}
    assert report["selected_after"] == {"customers": NOTHING}
    assert report["selected_by"] == {"customers": BY_KEY}
    tampered = {**report, "hashes_before": {"customers": "0" * 64}}
    assert Receipt(**{**receipt.__dict__, "derived": (tampered,)}).expected_digest() != (
        receipt.digest
    )


def test_rows_that_something_else_wrote_are_found_by_their_hash(scene: Scene) -> None:
    """Without the key: who verifies need not know it."""
    scene.declare()
    scene.put("alice", "bob")
    scene.follow()
    receipt = excised(scene, ALICE)
    assert problems(scene, receipt) == []
    change(scene, "INSERT INTO customers VALUES ('a.', 'Bath', 'alice@example.org')")
    assert ["something else wrote to it" in it for it in problems(scene, receipt)] == [True]
    change(scene, "DELETE FROM customers WHERE name = 'a.'", ROW_OF_ALICE)
    assert ["the rows from before" in it for it in problems(scene, receipt)] == [True]
    change(scene, "DELETE FROM customers WHERE name = 'alice'")
    assert problems(scene, receipt) == []
    scene.put("carol")
    scene.follow()  # rows that the sink itself wrote are none of the receipt's business
    assert problems(scene, receipt) == []
    change(scene, "DELETE FROM customers WHERE name = 'carol'")
    scene.put("alice")
    scene.follow()  # the very rows from before, and yet not restored
    assert problems(scene, receipt) == problems(scene, receipt, ALICE) == []
    excised(scene, Selector(ALICE.kind, b"bob"))  # nor is what a later excision removed
    assert problems(scene, receipt) == []


def test_rows_of_later_records_are_known_whatever_form_their_keys_have() -> None:
    columns = parse_columns("device string, at timestamp, n decimal(9,2)", "test")
    target = Target("t", "t", ("device", "at", "n"), columns)
    topic = TopicConfig("t", target.key, "t", format="json")
    ids = {f'["{it}","2026-01-01T10:00:00+00:00","1.50"]' for it in "abc"}

    def records() -> Iterator[tuple[bytes | None, bytes | None]]:
        yield b'{"device": "b", "at": "2026-01-01T10:00:00Z", "n": 1.5}', None
        for _ in range(PAGE_ROWS):
            yield None, b'{"device": "a", "at": "2026-01-01T11:00:00+01:00", "n": "1.5"}'

    assert without_later(ids, topic, target, records()) == {
        '["c","2026-01-01T10:00:00+00:00","1.50"]'
    }
    left, more = sorted(ids)[0], records()
    assert without_later([left], topic, target, more) == set()
    assert next(more, None) is not None  # what is known is not read any further


@pytest.mark.slow  # several searches in child processes
def test_rows_are_found_by_the_predicate_itself(scene: Scene) -> None:
    scene.declare()
    scene.put("alice", "bob")
    scene.follow()
    receipt = excised(scene, PREDICATE)
    (report,) = receipt.derived
    assert report["selected_by"] == {"customers": BY_PREDICATE}
    assert report["selected_before"]["customers"]["rows"] == 1
    assert report["selected_after"] == {"customers": NOTHING}
    scene.put("carol")
    scene.follow()
    change(scene, ROW_OF_ALICE)
    (found,) = problems(scene, receipt, PREDICATE)
    assert "customers of sink copy has 1 row that the predicate selects" in found
    change(scene, "DELETE FROM customers WHERE name = 'alice'")
    scene.put("alice")  # she is a customer again
    scene.follow()
    assert problems(scene, receipt, PREDICATE) == []


@pytest.mark.slow  # several searches in child processes
def test_receipt_tells_that_rows_could_not_be_searched(scene: Scene) -> None:
    scene.declare()
    scene.put("alice", "bob")
    scene.follow()
    selector = Selector(WHERE, b"_key = 'alice'")
    receipt = excised(scene, selector)
    (report,) = receipt.derived
    reason = "the predicate is about _key, and rows do not have it"
    assert report["selected_by"] == {"customers": f"not searched: {reason}"}
    assert (report["selected_before"], report["selected_after"]) == ({}, {})
    found = verify_receipt(scene.cluster, receipt, selector=selector, access=scene.access)
    assert found.problems == []
    assert found.unseen == [f"customers of sink copy was not searched: {reason}"]


def test_changes_of_the_records_are_found_in_a_sink_that_keeps_changes(scene: Scene) -> None:
    scene.declare("parquet")
    scene.put("alice", "bob")
    scene.follow()
    copy = scene.directory / "copy"
    shutil.copytree(scene.path, copy, symlinks=True)
    receipt = excised(scene, ALICE)
    (report,) = receipt.derived
    assert (report["rows_before"], report["rows_after"]) == ({"customers": 2}, {"customers": 1})
    assert report["selected_before"]["customers"]["rows"] == 1
    assert problems(scene, receipt, ALICE) == []
    shutil.rmtree(scene.path)
    copy.rename(scene.path)
    found = problems(scene, receipt)
    assert any("customers of sink copy has 1 change of the records" in it for it in found)
    assert any("has exactly the rows from before the excision" in it for it in found)


def test_sink_that_goes_on_is_looked_at_until_it_stays(
    scene: Scene, cluster: Cluster, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.connect.sinks.sqlite import SqliteSink

    scene.declare()
    scene.put("alice", "bob")
    scene.follow()
    job = scene.begin([scene.plan()])
    by_predicate = look(job.derived[0], job, PREDICATE).tables["customers"]
    assert (by_predicate.how, by_predicate.ids) == (BY_PREDICATE, {"alice"})
    real, waiting = SqliteSink.positions, iter(["carol"])

    def moving(sink: SqliteSink) -> object:
        found = real(sink)
        for name in waiting:  # between the first position and the rows
            scene.put(name)
            scene.follow()
        return found

    monkeypatch.setattr(SqliteSink, "positions", moving)
    found = look(job.derived[0], job, ALICE)
    assert (found.is_still, found.tables["customers"].rows["rows"]) == (True, 3)
    assert sum(it.offset for it in found.positions.values()) == 3
