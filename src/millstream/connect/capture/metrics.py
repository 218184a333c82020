"""The metrics of a running capture, in the text format of Prometheus, over HTTP.

`metrics = "127.0.0.1:9404"` in the settings serves them at `/metrics` as long as the capture runs,
also while it retries. The lag in bytes is measured with each heartbeat (`heartbeat_seconds`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from millstream.connect.capture.progress import Progress
from millstream.connect.capture.settings import CaptureSettings

PHASES = ("connecting", "copying", "streaming", "retrying")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(settings: CaptureSettings, progress: Progress, now: float) -> str:
    """All metrics as text; `now` in seconds since 1970."""
    lines: list[str] = []
    for name, kind, text, samples in _metrics(settings, progress, now):
        full = f"millstream_capture_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        for labels, value in samples.items():
            lines.append(f'{full}{{capture="{settings.name}"{labels}}} {value}')
    return "\n".join(lines) + "\n"


def _metrics(
    settings: CaptureSettings, progress: Progress, now: float
) -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """Name, type, description, and values by labels."""
    phases = {f',phase="{it}"': int(progress.phase == it) for it in PHASES}
    yield "phase", "gauge", "1 for the current phase.", dict(phases)
    counters = {
        "rows_copied_total": ("Rows written from snapshots.", progress.rows_copied),
        "records_total": ("Records written from the stream.", progress.records),
        "transactions_total": ("Database transactions written.", progress.transactions),
        "commits_total": ("Kafka transactions committed.", progress.commits),
        "retries_total": ("Sessions that ended with an error.", progress.retries),
    }
    for name, (text, count) in counters.items():
        yield name, "counter", text, {"": count}
    if progress.written_at:
        text = "Seconds since the stored position was last written."
        yield "position_age_seconds", "gauge", text, {"": round(now - progress.written_at, 3)}
    if progress.committed_at_us:
        text = "Commit time of the last transaction that is written, in seconds since 1970."
        time_seconds = progress.committed_at_us / 1e6
        yield "last_commit_timestamp_seconds", "gauge", text, {"": time_seconds}
    slot = progress.slot
    if slot is not None:
        sizes = {
            "lag_bytes": ("Log of the database that is not confirmed.", slot.lag_bytes),
            "retained_bytes": ("Log that the slot keeps on disk.", slot.retained_bytes),
            "safe_bytes": ("Log until the slot is invalidated.", slot.safe_bytes),
        }
        for name, (text, size) in sizes.items():
            if size is not None:
                yield name, "gauge", text, {"": size}
        is_alarm = slot.keeps_more_than(settings.lag_alarm_bytes)
        text = "1 if the slot keeps more than lag_alarm_bytes."
        yield "lag_alarm", "gauge", text, {"": int(is_alarm)}
    if progress.state is not None:
        tables = progress.state.tables
        done = {f',table="{_escape(name)}"': int(it.is_done) for name, it in tables.items()}
        yield "table_copied", "gauge", "1 if the snapshot of the table is complete.", dict(done)


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """Serves the metrics of a capture in a thread, between `with` and its end."""

    def __init__(self, settings: CaptureSettings, progress: Progress) -> None:
        host, _, port = settings.metrics.rpartition(":")

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] == "/metrics"
                body = render(settings, progress, time.time()).encode() if is_known else b""
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Requests are not logged."""

        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
        except OSError as error:
            raise OSError(f"metrics cannot be served at {settings.metrics}: {error}") from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(
            target=self._server.serve_forever, name="capture metrics", daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
