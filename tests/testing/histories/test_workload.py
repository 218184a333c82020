"""The workload on a real broker: everybody does something, and all of it is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from millstream.testing.histories import Kind, Outcome, check
from millstream.testing.histories.faults import BrokerProcess
from millstream.testing.histories.workload import Plan, Progress, remove_traces, run_workload
from tests.peers.patience import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess.millstream(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.address


def test_everybody_takes_part(address: str) -> None:
    seen: list[Progress] = []
    history = run_workload(address, Plan(seconds=10, seed=5), on_progress=seen.append)
    check(history).raise_if_bad()
    names = {operation.process.partition(".")[0] for operation in history}
    assert names == {
        *("writer-0", "writer-1", "transactor-0", "transactor-1", "browser-0", "final"),
        *("recreator-0", "claimant-0", "claimant-1", "claimant-2", "transactional-claimant-0"),
        *(
            f"{protocol}-{role}-{number}"
            for protocol in ("classic", "consumer")
            for role in ("worker", "follower")
            for number in range(2)
        ),
    }
    transactions = [operation for operation in history if operation.kind is Kind.TXN]
    assert {operation.outcome for operation in transactions} >= {Outcome.OK, Outcome.FAIL}
    assert any(operation.reads and operation.sends for operation in transactions)
    assert any(operation.moved for operation in history if operation.group)
    assert seen[0].phase == "running"
    assert seen[-1].phase == "reading everything"


def test_final_reader_reads_all_that_was_acknowledged(address: str) -> None:
    plan = Plan(seconds=1, transactors=0, workers=0, followers=0, browsers=0, recreators=0)
    history = run_workload(address, plan)
    sent = {
        send.value
        for operation in history
        for send in operation.sends
        if operation.outcome is not Outcome.FAIL  # a refused claim
    }
    read = {read.value for operation in history if operation.final for read in operation.reads}
    assert sent
    assert read == sent
    claims = [operation.outcome for operation in history if operation.kind is Kind.CLAIM]
    assert {Outcome.OK, Outcome.FAIL} <= set(claims)


def test_traces_are_removed(address: str) -> None:
    plan = Plan(seconds=1, prefix="traces", protocols=("classic",))
    run_workload(address, plan)
    admin = AdminClient({"bootstrap.servers": address})
    assert {"traces-in", "traces-out"} <= admin.list_topics(timeout=PATIENCE_SECONDS).topics.keys()
    remove_traces(address, plan)
    assert (
        not {"traces-in", "traces-out"} & admin.list_topics(timeout=PATIENCE_SECONDS).topics.keys()
    )
