"""Concurrent clients on a broker that is killed, paused and restarted; the checker has the word.

And the other way round: brokers with a deliberate flaw, which it has to find.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from millstream.testing.histories import Anomaly, Report, check
from millstream.testing.histories.faults import BrokerProcess, Fault, Nemesis
from millstream.testing.histories.workload import Plan, run_workload
from tests.faults.broken_broker import ForgetfulBroker, broken_broker

PREFIX = "check"
RUNS_MAX = 5


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [
        (1, 10),
        pytest.param(2, 300, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_broker_keeps_its_word_under_faults(tmp_path: Path, seed: int, seconds: int) -> None:
    broker = BrokerProcess.millstream(tmp_path)
    nemesis = Nemesis([broker], seed)
    with broker:
        history = run_workload(broker.address, Plan(seed=seed, seconds=seconds), nemesis=nemesis)
    history.save(tmp_path / "history.jsonl")
    report = check(history)
    assert report.is_good, f"seed {seed}, history in {tmp_path}, {nemesis.events}\n{report}"
    assert report.summary.committed > seconds
    assert report.summary.groups == 4
    assert len(nemesis.events) > seconds / 5


@pytest.mark.parametrize(
    ("flaw", "anomaly"),
    [
        ("abort-as-commit", Anomaly.ABORTED_READ),
        ("batch-doubled", Anomaly.DUPLICATED),
        pytest.param("offsets-forgotten", Anomaly.PROCESSED_TWICE, marks=pytest.mark.slow),
        pytest.param("versions-ignored", Anomaly.VERSION_TWICE, marks=pytest.mark.slow),
        pytest.param("commit-as-abort", Anomaly.TORN_TRANSACTION, marks=pytest.mark.slow),
        pytest.param("marker-dropped", Anomaly.UNSEEN, marks=pytest.mark.slow),
        pytest.param("uncommitted-served", Anomaly.PRECOMMITTED_READ, marks=pytest.mark.slow),
        pytest.param("deleted-logs-kept", Anomaly.DELETED_TOPIC, marks=pytest.mark.slow),
        pytest.param(
            "versions-ignored-in-transactions", Anomaly.VERSION_TWICE, marks=pytest.mark.slow
        ),
    ],
)
def test_flaw_of_the_broker_is_found(tmp_path: Path, flaw: str, anomaly: Anomaly) -> None:
    def run(directory: Path) -> Report:
        with broken_broker(directory, flaw) as broker:
            return run_briefly(broker)

    check_is_found({anomaly}, tmp_path, run)


@pytest.mark.slow
def test_forgotten_versions_are_found(tmp_path: Path) -> None:
    """A broker that knows no versions after a kill refuses the next ones."""

    def run(directory: Path) -> Report:
        with broken_broker(directory, "versions-forgotten") as broker:
            nemesis = Nemesis([broker], 1, [Fault.KILL], healthy_s=(1.0, 1.5), broken_s=(0.1, 0.2))
            # Transactions that wait for the broker may hold the keys: a reason for every refusal.
            return run_briefly(broker, nemesis, transactional_claimants=0)

    check_is_found({Anomaly.UNFOUNDED_REFUSAL}, tmp_path, run)


@pytest.mark.slow
def test_lost_flush_is_found(tmp_path: Path) -> None:
    """What was not acknowledged before the kill may be lost."""

    def run(directory: Path) -> Report:
        honest = BrokerProcess.millstream(directory)
        with ForgetfulBroker(honest.command, honest.address, honest.log) as broker:
            nemesis = Nemesis([broker], 1, [Fault.KILL], healthy_s=(1.5, 2.0))
            return run_briefly(broker, nemesis)

    lost = {Anomaly.LOST, Anomaly.UNSEEN, Anomaly.INCONSISTENT_OFFSET}
    check_is_found(lost, tmp_path, run)


def check_is_found(
    anomalies: AbstractSet[Anomaly], tmp_path: Path, run: Callable[[Path], Report]
) -> None:
    """In one of a few short runs: a flaw shows only when some client comes across it."""
    reports: list[Report] = []
    for number in range(RUNS_MAX):
        directory = tmp_path / str(number)
        directory.mkdir()
        reports.append(run(directory))
        if anomalies & reports[-1].counts.keys():
            return
    pytest.fail("\n\n".join(map(str, reports)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flaw", "anomaly"),
    [
        ("acceptances-forgotten", Anomaly.ACKNOWLEDGED_TWICE),
        ("retried-at-once", Anomaly.EARLY_RETRY),
    ],
)
def test_flaw_of_share_groups_is_found(tmp_path: Path, flaw: str, anomaly: Anomaly) -> None:
    with broken_broker(tmp_path, flaw) as broker:
        report = run_briefly(broker, sharers=2)
    assert report.counts.keys() == {anomaly}, str(report)


def run_briefly(
    broker: BrokerProcess,
    nemesis: Nemesis | None = None,
    transactional_claimants: int = 1,
    sharers: int = 0,
) -> Report:
    plan = Plan(
        seconds=3,
        seed=1,
        prefix=PREFIX,
        partitions=2,
        protocols=("classic",),
        transactional_claimants=transactional_claimants,
        sharers=sharers,
    )
    return check(run_workload(broker.address, plan, nemesis=nemesis))
