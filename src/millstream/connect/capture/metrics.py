"""The metrics of a running capture, in the text format of Prometheus, over HTTP.

`metrics = "127.0.0.1:9404"` in the settings serves them at `/metrics` as long as the capture runs,
also while it retries, with the probes `/health` and `/ready`. The lag in bytes is measured with
each heartbeat (`heartbeat_seconds`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.connect.capture.progress import Progress
from millstream.connect.capture.settings import CaptureSettings
from millstream.metrics.exposition import Family, label_text

if TYPE_CHECKING:
    from millstream.metrics.threaded import MetricsThread

PHASES = ("connecting", "copying", "streaming", "retrying")


def families(settings: CaptureSettings, progress: Progress, now: float) -> Iterator[Family]:
    """`now` in seconds since 1970."""
    for name, kind, text, samples in _metrics(settings, progress, now):
        yield Family(
            f"millstream_capture_{name}",
            kind,
            text,
            [(label_text({"capture": settings.name, **more}), value) for more, value in samples],
        )


def _metrics(
    settings: CaptureSettings, progress: Progress, now: float
) -> Iterator[tuple[str, str, str, list[tuple[dict[str, str], float]]]]:
    """Name, type, description, and values by labels."""
    phases = [({"phase": it}, float(progress.phase == it)) for it in PHASES]
    yield "phase", "gauge", "1 for the current phase.", phases
    counters = {
        "rows_copied_total": ("Rows written from snapshots.", progress.rows_copied),
        "records_total": ("Records written from the stream.", progress.records),
        "transactions_total": ("Database transactions written.", progress.transactions),
        "commits_total": ("Kafka transactions committed.", progress.commits),
        "retries_total": ("Sessions that ended with an error.", progress.retries),
    }
    for name, (text, count) in counters.items():
        yield name, "counter", text, [({}, count)]
    if progress.written_at:
        text = "Seconds since the stored position was last written."
        yield "position_age_seconds", "gauge", text, [({}, round(now - progress.written_at, 3))]
    if progress.committed_at_us:
        text = "Commit time of the last transaction that is written, in seconds since 1970."
        time_seconds = progress.committed_at_us / 1e6
        yield "last_commit_timestamp_seconds", "gauge", text, [({}, time_seconds)]
    slot = progress.slot
    if slot is not None:
        sizes = {
            "lag_bytes": ("Log of the database that is not confirmed.", slot.lag_bytes),
            "retained_bytes": ("Log that the slot keeps on disk.", slot.retained_bytes),
            "safe_bytes": ("Log until the slot is invalidated.", slot.safe_bytes),
        }
        for name, (text, size) in sizes.items():
            if size is not None:
                yield name, "gauge", text, [({}, size)]
        is_alarm = slot.keeps_more_than(settings.lag_alarm_bytes)
        text = "1 if the slot keeps more than lag_alarm_bytes."
        yield "lag_alarm", "gauge", text, [({}, int(is_alarm))]
    if progress.state is not None:
        tables = {name: it for name, it in progress.state.tables.items() if not it.is_left}
        done = [({"table": name}, float(it.is_done)) for name, it in tables.items()]
        yield "table_copied", "gauge", "1 if the snapshot of the table is complete.", done
    found = [({"table": name}, 1.0) for name in progress.table_problems]
    text = "1 if the table is left out, cannot be updated, or does not exist."
    yield "table_problem", "gauge", text, found


def problems(progress: Progress) -> list[str]:
    """What keeps the capture from being ready."""
    is_ready = progress.phase not in ("connecting", "retrying")
    return [] if is_ready else [f"the capture is {progress.phase}"]


def serve(settings: CaptureSettings, progress: Progress) -> MetricsThread:
    """Serve the metrics until it is stopped. Raises `MillstreamError` if the address cannot be
    used."""
    from millstream.metrics.threaded import MetricsThread  # only if metrics are served

    return MetricsThread(
        settings.metrics,
        lambda: families(settings, progress, time.time()),
        lambda: problems(progress),
    )
