"""Claimants: what they record is what the broker has done."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.testing.histories import Kind, Operation, Outcome, check
from millstream.testing.histories.claiming import (
    Claimant,
    TransactionalClaimant,
    claimed_topic,
    create_claimed_topic,
)
from millstream.testing.histories.clients import Scene, as_place, read_to_end
from millstream.testing.histories.faults import BrokerProcess


def test_claims_of_two_claimants_are_appended_or_refused(tmp_path: Path) -> None:
    with BrokerProcess.millstream(tmp_path) as broker:
        scene = Scene({"bootstrap.servers": broker.address}, "t", partitions=2, seed=1, rate=1000)
        assert create_claimed_topic(scene)
        # Each has its own knowledge, so that they are often late.
        claimants = [Claimant(scene, number, {}) for number in range(2)]
        producer = scene.producer(enable_idempotence=False)
        outcomes = [claimant.claim(producer) for _ in range(30) for claimant in claimants]
        assert set(outcomes) == {Outcome.OK, Outcome.FAIL}
        places = [as_place(f"{claimed_topic('t')}-{index}", 0) for index in range(2)]
        reads = [read for found in read_to_end(scene, "final", places) for read in found]
    claims = [it for it in scene.history if it.kind is Kind.CLAIM]
    assert len(claims) == 60
    assert len(reads) == outcomes.count(Outcome.OK)
    final = Operation(process="final", kind=Kind.POLL, reads=reads, final=True)
    report = check([*claims, final])
    assert report.is_good, str(report)


@pytest.mark.slow
def test_claims_in_transactions_are_recorded_with_their_end(tmp_path: Path) -> None:
    with BrokerProcess.millstream(tmp_path) as broker:
        scene = Scene({"bootstrap.servers": broker.address}, "t", partitions=1, seed=3, rate=1000)
        assert create_claimed_topic(scene)
        known: dict[str, int] = {}
        claimant = TransactionalClaimant(scene, 0, known)
        claimant.init_transactions()
        while claimant.claim() is Outcome.OK:
            pass
        claimant.init_transactions()  # aborts what may be open
        places = [as_place(f"{claimed_topic('t')}-0", 0)]
        reads = [read for found in read_to_end(scene, "final", places) for read in found]
    claims = [it for it in scene.history if it.kind is Kind.TXN]
    assert all(it.key is not None and it.version > 0 for it in claims)
    assert [it.outcome for it in claims].count(Outcome.OK) == len(reads)
    final = Operation(process="final", kind=Kind.POLL, reads=reads, final=True)
    report = check([*claims, final])
    assert report.is_good, str(report)
