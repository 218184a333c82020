"""Log lines as JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from millstream.json_logs import JsonFormatter


def record(message: str, *arguments: object, error: BaseException | None = None) -> str:
    info = None if error is None else (type(error), error, None)
    made = logging.LogRecord("millstream.x", logging.INFO, "", 1, message, arguments, info)
    made.created = 1_700_000_000.25
    return JsonFormatter(worker=2).format(made)


def test_a_line_is_one_object_with_the_time_in_utc() -> None:
    line = record('a "quoted"\nline of %s', "värde")
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "millstream.x",
        "message": 'a "quoted"\nline of värde',
        "worker": 2,
    }


def test_an_exception_is_a_field() -> None:
    assert json.loads(record("failed", error=ValueError("x")))["error"].endswith("ValueError: x")


def test_text_remains_the_default() -> None:
    program = (
        "import logging; from millstream import json_logs; json_logs.configure(worker=3); "
        "logging.getLogger('a').info('b')"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert run.stderr.endswith(" INFO worker 3 a b\n")
