"""Jobs and receipts: read as they are written, free of what was removed, and chained."""

from __future__ import annotations

import dataclasses

import pytest

from millstream.excision.documents import (
    KEY,
    WHERE,
    BadDocument,
    Job,
    PlacePlan,
    Receipt,
    Selector,
    TopicPlan,
    check_chain,
)

PLAN = TopicPlan(
    "orders", "id", "topic", (PlacePlan(0, "5+17-19", 4, 0, 30, 7), PlacePlan(1, "", 0, 0, 30, 7))
)


SELECTOR = Selector(KEY, b"alice")


def job(selector: Selector = SELECTOR) -> Job:
    return Job("j", 1, "bob", "ticket", selector.kind, selector.digest("salt"), "salt", (PLAN,))


def chain(count: int) -> list[Receipt]:
    receipts: list[Receipt] = []
    for number in range(1, count + 1):
        previous = receipts[-1].digest if receipts else ""
        report = {"kind": "replica", "partition": 0}
        receipts.append(Receipt(number, previous, job(), 2, (report,), (), 30).sealed())
    return receipts


def test_documents_are_read_as_they_are_written() -> None:
    assert Job.from_json(job().to_json()) == job()
    (receipt,) = chain(1)
    read = Receipt.from_json(receipt.to_json())
    assert read == receipt
    assert read.digest == receipt.digest == read.expected_digest()


def test_plan_counts_records_and_the_partitions_that_have_some() -> None:
    assert PLAN.records == 4
    assert [it.partition for it in PLAN.places] == [0]
    assert list(PLAN.places[0].ranges) == [5, 17, 18, 19]
    assert PLAN.places[0].excised.items(0) == ("0:5+17-19@7",)


def test_selector_is_kept_as_a_hash_that_depends_on_the_salt() -> None:
    selector = Selector(KEY, b"alice")
    assert b"alice" not in job(selector).to_json()
    assert selector.digest("a") != selector.digest("b")
    assert selector.digest("a") != Selector(WHERE, b"alice").digest("a")


def test_chain_of_receipts_is_intact() -> None:
    assert check_chain(chain(3)) == []


def test_changed_receipt_is_noticed() -> None:
    receipts = chain(3)
    receipts[1] = dataclasses.replace(receipts[1], verified_records=99)
    assert check_chain(receipts) == ["receipt 2 was changed: its hash does not match"]


def test_receipt_that_was_changed_with_its_hash_is_noticed() -> None:
    receipts = chain(3)
    receipts[1] = dataclasses.replace(receipts[1], verified_records=99).sealed()
    assert check_chain(receipts) == ["a receipt before receipt 3 is missing or was changed"]


def test_missing_receipt_is_noticed() -> None:
    receipts = chain(3)
    del receipts[0]
    assert "a receipt before receipt 2 is missing or was changed" in check_chain(receipts)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"job": 5}', b"\xff"])
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(BadDocument, match="not a receipt"):
        Receipt.from_json(content)
    with pytest.raises(BadDocument, match="not a job"):
        Job.from_json(content)


def test_job_with_fewer_offsets_than_records_is_refused() -> None:
    content = job().to_json().replace(b'"5+17-19"', b'"5"')
    with pytest.raises(BadDocument, match="orders-0 has too few offsets"):
        Job.from_json(content)
