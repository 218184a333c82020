"""The workload on a real broker: everybody does something, and all of it is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from millstream.testing.histories import History, Kind, Outcome, check
from millstream.testing.histories.faults import BrokerProcess
from millstream.testing.histories.workload import Plan, Progress, remove_traces, run_workload
from tests.peers.patience import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess.millstream(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.address


EVERYBODY = {
    *("writer-0", "writer-1", "transactor-0", "transactor-1", "browser-0", "final"),
    *("recreator-0", "claimant-0", "claimant-1", "claimant-2", "transactional-claimant-0"),
    *(
        f"{protocol}-{role}-{number}"
        for protocol in ("classic", "consumer")
        for role in ("worker", "follower")
        for number in range(2)
    ),
}


def names_in(history: History) -> set[str]:
    return {operation.process.partition(".")[0] for operation in history}


def outcomes_in(history: History, kind: Kind) -> set[Outcome]:
    return {operation.outcome for operation in history if operation.kind is kind}


def has_everything(history: History) -> bool:
    transactions = [operation for operation in history if operation.kind is Kind.TXN]
    return (
        names_in(history) == EVERYBODY
        and outcomes_in(history, Kind.TXN) >= {Outcome.OK, Outcome.FAIL}
        and any(operation.reads and operation.sends for operation in transactions)
        and any(operation.moved for operation in history if operation.group)
    )


@pytest.mark.timeout(600)
def test_everybody_takes_part(address: str) -> None:
    for seconds in (7, 30, 120):  # on a busy machine, it takes them longer
        seen: list[Progress] = []
        history = run_workload(address, Plan(seconds=seconds, seed=5), on_progress=seen.append)
        check(history).raise_if_bad()
        assert seen[0].phase == "running"
        assert seen[-1].phase == "reading everything"
        if has_everything(history):
            break
    assert names_in(history) == EVERYBODY
    assert has_everything(history)


def test_final_reader_reads_all_that_was_acknowledged(address: str) -> None:
    plan = Plan(seconds=1, transactors=0, workers=0, followers=0, browsers=0, recreators=0)
    for seconds in (1, 10, 60):  # on a busy machine, the claims take longer
        history = run_workload(address, replace(plan, seconds=seconds))
        if outcomes_in(history, Kind.CLAIM) >= {Outcome.OK, Outcome.FAIL}:
            break
    sent = {
        send.value
        for operation in history
        for send in operation.sends
        if operation.outcome is not Outcome.FAIL  # a refused claim
    }
    read = {read.value for operation in history if operation.final for read in operation.reads}
    assert sent
    assert read == sent
    assert outcomes_in(history, Kind.CLAIM) >= {Outcome.OK, Outcome.FAIL}


@pytest.mark.slow
def test_traces_are_removed(address: str) -> None:
    plan = Plan(seconds=1, prefix="traces", protocols=("classic",))
    run_workload(address, plan)
    admin = AdminClient({"bootstrap.servers": address})
    assert {"traces-in", "traces-out"} <= admin.list_topics(timeout=PATIENCE_SECONDS).topics.keys()
    remove_traces(address, plan)
    assert (
        not {"traces-in", "traces-out"} & admin.list_topics(timeout=PATIENCE_SECONDS).topics.keys()
    )
