"""Histories: what is kept is read again, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.testing.histories import (
    Ack,
    Acknowledgement,
    History,
    HistoryError,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
)
from tests.testing.histories.simulation import simulate


def test_saved_history_is_loaded_as_it_was(tmp_path: Path) -> None:
    history = simulate(seed=3, length=200)
    history.record(Operation(process="p", kind=Kind.SEND, sends=(Send("a-0", "text", 4),)))
    acks = (Ack("a-0", 4, 2, Acknowledgement.RELEASE),)
    history.record(Operation(process="s", kind=Kind.SHARE, acks=acks, group="g", delay_ms=5))
    history.save(tmp_path / "history.jsonl")
    assert History.load(tmp_path / "history.jsonl").operations == history.operations


def test_saved_history_leaves_defaults_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History([Operation(process="c", kind=Kind.POLL, reads=[Read("a-0", 1, 7)])]).save(path)
    assert path.read_text().splitlines() == [
        '{"format": "millstream-history", "version": 1}',
        '{"process":"c","kind":"poll","reads":[["a-0",1,7]]}',
    ]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no JSON\n",
        '{"format": "millstream-history", "version": 2}\n',
        '{"format": "millstream-history", "version": 1}\n{"process": "p", "kind": "dance"}\n',
        '{"format": "millstream-history", "version": 1}\n{"kind": "poll"}\n',
        '{"format": "millstream-history", "version": 1}\n[]\n',
    ],
)
def test_file_that_is_no_history_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(content)
    with pytest.raises(HistoryError, match="not a history"):
        History.load(path)


@pytest.mark.parametrize(
    ("kind", "offset", "outcome"),
    [
        (Kind.SEND, 3, Outcome.OK),  # acknowledged by itself, whatever became of the others
        (Kind.SEND, None, Outcome.INFO),
        (Kind.TXN, 3, Outcome.INFO),
    ],
)
def test_record_of_an_operation_without_answer_has_its_outcome(
    kind: Kind, offset: int | None, outcome: Outcome
) -> None:
    send = Send("a-0", 1, offset)
    operation = Operation(process="p", kind=kind, outcome=Outcome.INFO, sends=[send])
    assert operation.outcome_of(send) is outcome
