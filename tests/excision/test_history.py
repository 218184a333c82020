"""The topics of jobs, reports and receipts."""

from __future__ import annotations

import pytest

from millstream.client.cluster import Cluster
from millstream.excision import history
from millstream.excision.documents import Job, Receipt
from millstream.excision.history import History, NotSupported
from tests.excision.test_documents import job


def next_receipt(kept: History, of: Job) -> Receipt:
    receipts = kept.receipts()
    previous = receipts[-1].digest if receipts else ""
    return Receipt(len(receipts) + 1, previous, of, 2, (), (), 30).sealed()


def test_jobs_and_receipts_are_found_again(cluster: Cluster) -> None:
    history.create(cluster)
    history.create(cluster)  # a second time changes nothing
    kept = History(cluster)
    kept.put_job(job())
    assert kept.jobs()["j"] == job()
    receipt = next_receipt(kept, job())
    assert kept.append_receipt(receipt)
    assert kept.receipts()[-1] == receipt


def test_of_two_receipts_with_one_number_one_is_refused(cluster: Cluster) -> None:
    history.create(cluster)
    kept = History(cluster)
    receipt = next_receipt(kept, job())
    assert kept.append_receipt(receipt)
    assert not kept.append_receipt(receipt)
    assert kept.receipts().count(receipt) == 1


@pytest.mark.slow
@pytest.mark.java
def test_apache_kafka_is_refused_with_advice(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.peers.kafka import start_kafka

    server = start_kafka(tmp_path_factory.mktemp("kafka"), {})
    try:
        with Cluster(server.bootstrap) as other, pytest.raises(NotSupported, match="shredding"):
            history.create(other)
    finally:
        server.stop()
