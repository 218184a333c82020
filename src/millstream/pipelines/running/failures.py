"""Why a query failed, in one line with the cause and what to do.

Spark's error contains long stack traces. The cause is the last line of the innermost Python
traceback, if there is one, or otherwise Spark's own condition. For some causes, `CURES` has advice.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.errors import MillstreamError


class PipelineFailed(MillstreamError):
    """A pipeline ended with an error."""


class Cure(NamedTuple):
    pattern: str
    message: str


# Spark allows a Python process 10 seconds to start. Nothing of the query has run at that point.
TOO_BUSY = r"Python worker failed to connect back"
# Queries of one session share collections in the JVM, and Spark fails to serialize a task if one of
# them grows at that moment ("Illegal size 5 of collection, expected 6"). Our tasks contain nothing
# else that Java serializes, so there is no other cause.
UNLUCKY = r"Task not serializable|Task serialization failed"

CURES = (
    Cure(
        r"STATE_STORE_\w*SCHEMA_NOT_COMPATIBLE|STATE_STORE_\w*INVALID_\w*SCHEMA|"
        r"Provided schema doesn't match to the schema for existing state",
        "its state has another schema than its checkpoint. Give the pipeline another name or "
        "checkpoint, which recomputes the state, or restore the columns",
    ),
    Cure(
        r"There are \[\d+\] sources in the checkpoint|STREAMING_SOURCE",
        "it reads another number of topics than its checkpoint has. Give the pipeline another name "
        "or checkpoint, which starts from the beginning",
    ),
    Cure(
        r"STREAMING_STATEFUL_OPERATOR_NOT_MATCH",
        "its aggregates or joins are not those of its checkpoint. Give the pipeline another name "
        "or checkpoint, which recomputes the state",
    ),
    Cure(
        r"Multiple streaming queries are concurrently using|CONCURRENT_STREAM_LOG_UPDATE|"
        r"CONCURRENT_QUERY",
        "another process runs it with the same checkpoint. Stop one of the two",
    ),
    Cure(
        TOO_BUSY,
        "the machine is too busy to start a Python worker within Spark's 10 seconds. Start it "
        "again: it continues from its checkpoint",
    ),
    Cure(
        r"No space left on device|ENOSPC",
        "the disk is full. Free some space and start it again: it continues from its checkpoint",
    ),
)
# What Spark, Python and databases put around values: quotes (an apostrophe inside a word is none),
# a column and parentheses, braces. What is cut off has no end, and values may have parentheses.
_QUOTED = re.compile(r"""(?<!\w)(['"])(.*?)(?:\1(?!\w)|$)""", re.DOTALL)
_BARE = re.compile(
    r"(?:=|\bFailing row contains )\((?:.*\)|.*)|\bRow\(.*\)|\{.*\}|\S+@\S+|\w*\d{6,}\w*",
    re.DOTALL,
)
_HIDDEN = "…"
_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*): (.*)$", re.MULTILINE)
_OURS = re.compile(r"\bmillstream\.[\w.]+\.(\w+): (.*)")


def passes(error: BaseException) -> bool:
    """Whether the query may succeed if it is started again unchanged."""
    return re.search(f"{TOO_BUSY}|{UNLUCKY}", str(error)) is not None


def explain_failure(name: str, error: BaseException) -> PipelineFailed:
    """The error of a pipeline in one line."""
    text = str(error)
    for cure in CURES:
        if re.search(cure.pattern, text):
            return PipelineFailed(f"pipeline {name} failed: {cure.message} ({first_line(text)})")
    return PipelineFailed(f"pipeline {name} failed: {cause_of(text)}")


def cause_of(text: str) -> str:
    """The innermost Python error, without our own class names; or Spark's first line."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()
    _, found, innermost = text.rpartition(_TRACEBACK)
    error = _PYTHON_ERROR.search(innermost) if found else None
    return f"{error[1]}: {error[2].strip()}" if error else first_line(text)


def first_line(text: str) -> str:
    """Spark's own summary, without the query's ids."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    line = re.sub(r"^\[STREAM_FAILED\] Query \[id = [^\]]*\] terminated with exception: ", "", line)
    return re.sub(r" SQLSTATE: \w+;?$", "", line)


def without_values(text: str, known: str = "") -> str:
    """An error for those who may see that a pipeline failed, and not the records that it reads:
    without quoted text that is not in `known`, objects and long numbers."""

    def shown(value: str) -> str:
        is_known = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", known) is not None
        return value if is_known else _HIDDEN

    unquoted = _QUOTED.sub(lambda it: f"{it[1]}{shown(it[2])}{it[1]}", text)
    return _BARE.sub(lambda it: shown(it[0]), unquoted)
