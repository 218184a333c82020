"""Checks that a pipeline gives the same result as a stream and as a batch.

    check_stream(revenue, {"orders": orders()}, spark=spark)     by chance, many times
    trial = StreamTrial(revenue, spark=spark)                    one story, told by hand

    case.py        a story of a stream, as data        inputs.py     rows, columns, times
    disorder.py    stories by chance, from rows        drawing.py    rows from Hypothesis
    running.py     a story on Spark                    sink.py       where results go, and crashes
    checkpoint.py  what Spark wrote down               comparing.py  are two results the same?
    shrinking.py   smaller stories that still fail     report.py     what a failure says
    check.py       `check_stream`                      trial.py      `StreamTrial`
    operators.py   `check_operator`: the same without Spark, for operators of bucketed state

Guide: docs/guides/testing-streams.md.
"""

from __future__ import annotations

from millstream.testing.streams.case import ALL_FAULTS, Fault, again, late
from millstream.testing.streams.check import check_stream
from millstream.testing.streams.disorder import Disorder
from millstream.testing.streams.inputs import Source, moments
from millstream.testing.streams.operators import check_operator
from millstream.testing.streams.report import StreamDiffers
from millstream.testing.streams.running import Outcome
from millstream.testing.streams.trial import StreamTrial

__all__ = [
    "ALL_FAULTS",
    "Disorder",
    "Fault",
    "Outcome",
    "Source",
    "StreamDiffers",
    "StreamTrial",
    "again",
    "check_operator",
    "check_stream",
    "late",
    "moments",
]
