"""`millstream check`: a real cluster with real clients, and histories that were kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from millstream.testing.histories import History, Kind, Operation, Read, Send
from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port


def test_check_finds_no_anomalies_and_leaves_no_topics(
    cli: Run, bootstrap_servers: str, tmp_path: Path
) -> None:
    kept = tmp_path / "run.jsonl"
    outcome = cli("check", "--seconds", "2", "--seed", "3", "--save", str(kept))
    assert outcome.exit_code == 0, outcome.out + outcome.err
    assert "no anomalies" in outcome.out
    assert "running" in outcome.err
    committed = re.search(r"transactions: ([\d,]+) committed", outcome.out)
    assert committed is not None
    assert committed[1] != "0"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    prefix = "millstream-check-3-"
    assert not [
        name
        for name in admin.list_topics(timeout=PATIENCE_SECONDS).topics
        if name.startswith(prefix)
    ]
    again = cli("check", "--history", str(kept))
    assert again.out == outcome.out


@pytest.mark.slow
def test_check_without_transactions_has_none(cli: Run) -> None:
    outcome = cli("check", "--seconds", "1", "--no-transactions", "--classic-only")
    assert outcome.exit_code == 0, outcome.out + outcome.err
    assert "\n0 transactions" in outcome.out
    assert "by 1 groups" in outcome.out


@pytest.mark.slow
def test_check_with_faults_breaks_a_broker_of_its_own(run: Run) -> None:
    outcome = run("check", "--faults", "--no-share-groups", "--seconds", "6", "--seed", "1")
    assert outcome.exit_code == 0, outcome.out + outcome.err
    assert "no anomalies" in outcome.out
    assert re.search(r"(kill|pause|restart) for|healthy again", outcome.err)


def test_bad_history_fails_with_the_report(run: Run, tmp_path: Path) -> None:
    history = History(
        [
            Operation(process="p", kind=Kind.SEND, sends=[Send("a-0", 1, 0), Send("a-0", 2, 1)]),
            Operation(process="c", kind=Kind.POLL, reads=[Read("a-0", 1, 2)]),
        ]
    )
    history.save(tmp_path / "run.jsonl")
    outcome = run("check", "--history", str(tmp_path / "run.jsonl"))
    assert outcome.exit_code == 1
    assert re.search(r"^lost record +1$", outcome.out, re.MULTILINE)
    assert "violated its guarantees" in outcome.err


def test_file_that_is_no_history_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("{}\n")
    outcome = run("check", "--history", str(tmp_path / "run.jsonl"))
    assert outcome.exit_code == 1
    assert outcome.err.count("\n") == 1
    assert "not a history" in outcome.err


def test_unreachable_cluster_is_said_at_once(run: Run) -> None:
    outcome = run("check", "-b", f"127.0.0.1:{free_port()}")
    assert outcome.exit_code == 3
