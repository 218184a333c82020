"""The board: what is shown of pipelines that run, were killed, came again, run twice."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

from millstream.admin.pipeline_board import LOST_AFTER_MS_MIN, PIPELINES_MAX, SAMPLES_MAX, Board
from millstream.admin.pipeline_records import (
    About,
    DiffShown,
    Published,
    VersionsShown,
    encode,
)

NOW = 1_700_000_000_000


def about(run: str = "r1", *, query: str = "q1", started: int = NOW) -> About:
    return About("sales", "1", "sales", run, query, started_ms=started, does=("stop", "restart"))


def status(run: str = "r1", state: str = "working", **changes: object) -> Published:
    return replace(Published("sales", run, state, 4_000), **changes)  # type: ignore[arg-type]


def put(board: Board, record: About | Published, at: int) -> None:
    prefix = "about" if isinstance(record, About) else "status"
    board.take(f"{prefix}:{record.identity}".encode(), encode(record), at)


def only(board: Board, now: int):  # type: ignore[no-untyped-def]
    (shown,) = board.pipelines(now)
    return shown


def test_pipeline_that_says_nothing_is_lost_after_a_while_and_found_again() -> None:
    board = Board()
    put(board, about(), NOW)
    put(board, status(), NOW)
    assert only(board, NOW + 12_000).state == "working"
    lost = only(board, NOW + 12_001)
    assert (lost.state, lost.is_running, lost.age_ms) == ("lost", False, 12_001)
    assert not lost.does("stop")
    put(board, about("r2", started=NOW + 60_000), NOW + 60_000)
    put(board, status("r2"), NOW + 60_000)
    found = only(board, NOW + 60_001)
    assert (found.state, found.status.run, found.twins) == ("working", "r2", ())
    assert found.does("stop")
    assert [it.at_ms for it in found.history] == [NOW, NOW + 60_000]


def test_interval_decides_when_it_is_lost_but_not_without_bounds() -> None:
    board = Board()
    put(board, status(every_ms=0), NOW)
    assert not only(board, NOW + LOST_AFTER_MS_MIN).is_lost
    assert only(board, NOW + LOST_AFTER_MS_MIN + 1).is_lost
    put(board, status(every_ms=10**12), NOW)
    assert only(board, NOW + 181_000).is_lost


def test_pipeline_that_has_ended_is_not_lost() -> None:
    for state in ("done", "failed", "stopped"):
        board = Board()
        put(board, about(), NOW)
        put(board, status(state=state, every_ms=0), NOW)
        assert only(board, NOW + 10**9).state == state


def test_stopped_pipeline_whose_process_waits_is_lost_with_its_process() -> None:
    board = Board()
    put(board, about(), NOW)
    put(board, status(state="stopped"), NOW)
    assert only(board, NOW).state == "stopped"
    assert only(board, NOW).does("restart")
    assert not only(board, NOW).does("stop")
    assert only(board, NOW + 20_000).is_lost


def test_two_at_once_are_told_apart_from_a_restart() -> None:
    board = Board()
    put(board, about(), NOW)
    put(board, status("r1"), NOW)
    put(board, about("r2", started=NOW + 1000), NOW + 1000)
    put(board, status("r2"), NOW + 1000)
    assert only(board, NOW + 1000).twins == ()  # restarted a moment ago
    for at in range(NOW + 2000, NOW + 16_000, 2000):
        put(board, status("r1"), at)
        put(board, status("r2"), at + 500)
    assert only(board, NOW + 16_000).twins == ("r1",)
    assert only(board, NOW + 16_000).status.run == "r2"
    put(board, status("r1", "stopped"), NOW + 17_000)
    put(board, status("r2"), NOW + 17_500)
    assert only(board, NOW + 17_500).twins == ()


def test_history_begins_again_with_another_checkpoint() -> None:
    board = Board()
    put(board, about(query="q1"), NOW)
    put(board, status(rows_per_second=5.0), NOW)
    put(board, about("r2", query="q2"), NOW + 1)
    put(board, status("r2", rows_per_second=7.0), NOW + 1)
    assert [it.rows_per_second for it in only(board, NOW + 1).history] == [7.0]


def test_sample_has_the_delay_of_the_watermark_and_no_rate_of_what_is_stopped() -> None:
    board = Board()
    put(board, status(watermark_ms=NOW - 3000, lag=4, batch_ms=9, state_bytes=6), NOW)
    put(board, status(state="stopped", rows_per_second=8.0, watermark_ms=NOW + 10_000), NOW + 1)
    first, second = only(board, NOW + 1).history
    assert first == (NOW, 0.0, 4, 9, 3000, 6)
    assert (second.rows_per_second, second.watermark_delay_ms) == (0.0, 0)


def test_what_others_write_is_counted_and_ignored() -> None:
    board = Board()
    put(board, status(), NOW)
    board.take(None, b"x", NOW)
    board.take(b"status:sales", b"no JSON", NOW)
    board.take(b"status:other", encode(status()), NOW)  # the key is of another
    board.take(b"about:other", encode(about()), NOW)
    board.take(b"mood:sales", b"{}", NOW)
    assert board.ignored == 5
    assert [it.identity for it in board.pipelines(NOW)] == ["sales"]


def test_removed_pipeline_is_not_shown() -> None:
    board = Board()
    put(board, about(), NOW)
    put(board, status(), NOW)
    board.take(b"about:sales", None, NOW)
    board.take(b"status:sales", None, NOW)
    board.take(b"versions:sales", None, NOW)
    board.take(b"diff:sales", None, NOW)
    assert board.pipelines(NOW) == []


def test_status_without_its_description_is_shown_by_its_name() -> None:
    board = Board()
    board.take(b"status:sales@2", encode(replace(status(), identity="sales@2")), NOW)
    shown = only(board, NOW)
    assert (shown.about.pipeline, shown.about.version, shown.about.nodes) == ("sales", "2", ())
    assert not shown.does("stop")


def test_versions_and_diffs_are_by_pipeline() -> None:
    board = Board()
    board.take(b"versions:sales", encode(VersionsShown("sales", "2", "1", 1)), NOW)
    board.take(b"diff:sales", encode(DiffShown("sales", ("1", "2"))), NOW)
    versions, diff = board.versions("sales"), board.diff("sales")
    assert versions is not None
    assert versions.in_force == "2"
    assert diff is not None
    assert diff.versions == ("1", "2")
    assert board.versions("other") is None


def test_board_is_bounded() -> None:
    board = Board()
    for number in range(PIPELINES_MAX + 5):
        it = replace(status(), identity=f"p{number}")
        board.take(f"status:p{number}".encode(), encode(it), NOW)
        board.take(f"diff:p{number}".encode(), encode(DiffShown("p", ("1", "2"))), NOW)
    assert len(board.pipelines(NOW)) == PIPELINES_MAX
    for number in range(SAMPLES_MAX + 5):
        put(board, status(f"r{number}"), NOW + number)
    shown = next(it for it in board.pipelines(NOW) if it.identity == "sales")
    assert len(shown.history) == SAMPLES_MAX


def test_board_is_read_while_it_changes() -> None:
    board = Board()
    values = [
        (f"status:p{n}".encode(), encode(Published(f"p{n}", "r", "working"))) for n in range(50)
    ]
    is_done = threading.Event()

    def write() -> None:
        while not is_done.is_set():
            for key, value in values:
                board.take(key, value, 0)

    writer = threading.Thread(target=write)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    writer.start()
    try:
        for _ in range(300):
            board.pipelines(0)
    finally:
        is_done.set()
        writer.join()
        sys.setswitchinterval(switch)
    assert len(board.pipelines(0)) == 50
