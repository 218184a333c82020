"""Log lines as JSON, one object per line, for log collectors.

    {"time": "2026-11-17T18:30:00.123Z", "level": "INFO", "logger": "millstream.server",
     "message": "...", "worker": 2, "error": "Traceback ..."}

`worker` and `error` are there only if they apply.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)


class JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._worker is not None:
            fields["worker"] = self._worker
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def configure(log_format: str = TEXT, *, worker: int | None = None) -> None:
    """Log to standard error, from INFO on."""
    if log_format == JSON:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter(worker))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        return
    name = "" if worker is None else f"worker {worker} "
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s %(levelname)s {name}%(name)s %(message)s"
    )
