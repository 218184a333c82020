"""What a capture reports about itself."""

from __future__ import annotations

from millstream.connect.capture.progress import Progress
from tests.connect.capture.harness import TABLE, Setup, wait_until


def test_progress_follows_the_capture(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders SELECT g, 0 FROM generate_series(1, 25) g")
    with setup.running(chunk_rows=10) as capture:
        setup.caught_up(capture)
        setup.execute("INSERT INTO orders VALUES (26, 0)")
        setup.caught_up(capture)
        progress = capture.progress
        assert progress.phase == "streaming"
        assert progress.rows_copied == 25
        assert progress.records >= 1
        assert progress.committed_at_us > 0
        assert progress.state is not None
        assert progress.state.tables["public.orders"].rows == 25


def test_idle_capture_has_the_position_that_it_continues_from(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with setup.running(heartbeat_seconds=60) as capture:
        wait_until(lambda: capture.progress.phase == "streaming", capture=capture)
        state = capture.progress.state
        assert state is not None
        assert capture.progress.lsn == state.start_lsn > 0


def test_retries_are_reported() -> None:
    progress = Progress()
    progress.retrying(OSError("gone"))
    assert (progress.phase, progress.error) == ("retrying", "gone")
