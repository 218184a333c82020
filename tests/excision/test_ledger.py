"""The ledger of excisions: running ones, receipts, a chain that was broken, records that nobody
should have written."""

from __future__ import annotations

import json

from millstream.admin.following import write_records
from millstream.client.cluster import Cluster
from millstream.excision.history import EXCISIONS, RECEIPTS
from millstream.excision.jobs import begin, finish
from millstream.excision.ledger import Excision, Ledger
from millstream.excision.selection import Access
from tests.excision.conftest import ALICE, plan_for
from tests.peers.patience import PATIENCE_SECONDS


def test_ledger_follows_a_job_to_its_receipt(cluster: Cluster, topic: str, access: Access) -> None:
    ledger = Ledger()
    plans = [plan_for(cluster, topic, access)]
    job = begin(cluster, plans, ALICE, requested_by="test", reason="ticket")

    def found() -> Excision:
        (it,) = [it for it in ledger.read(cluster).excisions if it.job.id == job.id]
        return it

    assert (found().is_complete, len(found().replicas)) == (False, 2)
    receipt = finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)
    assert (found().is_complete, found().state) == (True, "complete")
    read = ledger.read(cluster)
    assert receipt in read.receipts
    assert read.problems == []
    # What was read is kept: nothing of it is read again.
    assert ledger.read(cluster, seconds_old_max=3600).receipts == read.receipts
    bad = [
        ("job/x", b"{"),
        ("job/y", json.dumps({**json.loads(job.to_json()), "topics": []}).encode()),
        ("job/z", json.dumps({**json.loads(job.to_json()), "requested_ms": "x"}).encode()),
        ("replica/x/0/0", b"[]"),
        ("replica/y/0/0", b'{"offsets": "9-1"}'),
    ]
    write_records(cluster, EXCISIONS, [*bad])
    problems = ledger.read(cluster).problems
    assert len(problems) == len(bad)
    assert problems[0].startswith(f"the record job/x of {EXCISIONS} cannot be read")
    assert len(ledger.read(cluster).excisions) == len(read.excisions)
    write_records(cluster, EXCISIONS, [(key, None) for key, _ in bad])
    assert ledger.read(cluster).problems == []


def test_receipt_that_was_changed_breaks_the_chain(
    cluster: Cluster, topic: str, access: Access
) -> None:
    """On the board of one reader only: the broker takes no receipt at a place that is taken."""
    job = begin(cluster, [plan_for(cluster, topic, access)], ALICE, requested_by="test")
    receipt = finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)
    ledger = Ledger()
    assert ledger.read(cluster).problems == []
    fields = json.loads(receipt.to_json())
    ledger._take_receipt(json.dumps({**fields, "completed_ms": 1}).encode())
    ledger._take_receipt(json.dumps({**fields, "completed_ms": "x"}).encode())
    problems = ledger.read(cluster, seconds_old_max=3600).problems
    assert any("was changed: its hash does not match" in it for it in problems)
    assert any(f"a record of {RECEIPTS} after receipt" in it for it in problems)
