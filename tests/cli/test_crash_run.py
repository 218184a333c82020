"""The bookkeeping behind the demo: it would notice every way of breaking the promise."""

from __future__ import annotations

from millstream.cli.crash_run import Ledger, judge

Found = dict[int, list[tuple[int, int]]]


def ledger(*places: tuple[int, int]) -> Ledger:
    """Record n was acknowledged at places[n]."""
    return Ledger(sent=len(places), places=dict(enumerate(places)))


ACKNOWLEDGED = ledger((0, 0), (1, 0), (0, 1))
SOUND: Found = {0: [(0, 0), (1, 2)], 1: [(0, 1)]}


def test_judge_is_content_with_what_was_promised() -> None:
    verdict = judge(ACKNOWLEDGED, SOUND)
    assert verdict.holds
    assert (verdict.acknowledged, verdict.found) == (3, 3)


def test_judge_accepts_records_that_were_written_but_never_acknowledged() -> None:
    verdict = judge(ACKNOWLEDGED, {**SOUND, 1: [(0, 1), (1, 3)]})
    assert verdict.holds
    assert verdict.found == 4


def test_judge_notices_a_lost_record() -> None:
    verdict = judge(ACKNOWLEDGED, {0: [(0, 0), (1, 2)]})
    assert (verdict.lost, verdict.holds) == (1, False)


def test_judge_notices_a_doubled_record() -> None:
    verdict = judge(ACKNOWLEDGED, {**SOUND, 1: [(0, 1), (1, 1)]})
    assert (verdict.doubled, verdict.holds) == (1, False)


def test_judge_notices_a_record_in_another_place() -> None:
    verdict = judge(ACKNOWLEDGED, {0: [(0, 0), (2, 2)], 1: [(0, 1)]})
    assert (verdict.misplaced, verdict.holds) == (1, False)


def test_judge_notices_a_changed_order() -> None:
    verdict = judge(ledger((0, 1), (0, 0)), {0: [(0, 1), (1, 0)]})
    assert (verdict.disordered, verdict.holds) == (1, False)
