"""A second look finds what is still there, and what was tampered with."""

from __future__ import annotations

import dataclasses

from millstream.client.cluster import Cluster
from millstream.excision.documents import KEY, Selector
from millstream.excision.selection import Access
from millstream.excision.verification import verify_job, verify_receipt
from tests.excision.conftest import ALICE, fill, plan_for
from tests.excision.test_jobs import run


def test_receipt_is_verified_with_and_without_the_key(
    cluster: Cluster, topic: str, access: Access
) -> None:
    receipt = run(cluster, topic, access)
    assert verify_receipt(cluster, receipt).problems == []
    again = verify_receipt(cluster, receipt, selector=ALICE, access=access)
    assert again.problems == []
    assert again.records_read > 0


def test_later_records_of_the_key_are_no_problem(
    cluster: Cluster, topic: str, access: Access
) -> None:
    receipt = run(cluster, topic, access)
    fill(access.bootstrap_servers, topic)
    assert verify_receipt(cluster, receipt, selector=ALICE, access=access).problems == []


def test_another_key_is_not_the_one_of_the_receipt(
    cluster: Cluster, topic: str, access: Access
) -> None:
    receipt = run(cluster, topic, access)
    other = Selector(KEY, b"bob")
    (problem,) = verify_receipt(cluster, receipt, selector=other, access=access).problems
    assert "not of this selector" in problem


def test_records_that_are_there_are_named(cluster: Cluster, topic: str, access: Access) -> None:
    plan = plan_for(cluster, topic, access)
    job = run(cluster, topic, access).job
    places = tuple(dataclasses.replace(it, offsets="2+5", records=2) for it in plan.places)
    changed = dataclasses.replace(job, topics=(dataclasses.replace(plan, partitions=places),))
    assert verify_job(cluster, changed).problems == [
        f"{topic}-0 still has 2 of 2 records, at 2, 5",
        f"{topic}-1 still has 2 of 2 records, at 2, 5",
    ]


def test_changed_receipt_is_refused(cluster: Cluster, topic: str, access: Access) -> None:
    receipt = run(cluster, topic, access)
    changed = dataclasses.replace(receipt, completed_ms=5)
    problems = verify_receipt(cluster, changed).problems
    assert "the receipt was changed: its hash does not match" in problems
    assert f"receipt {receipt.number} is not among those of the cluster" in problems
