"""Windows over streams and batches.

    from millstream.pipelines import windows

    definition.py   tumbling, hopping, session and calendar windows
    sliding.py      for each event, what happened in the interval before it

    aggregates.py   what to compute, as text
    kinds.py        which windows a time belongs to
    spec.py         the settings of a window, checked
    kept.py         windows in bucketed state, on Spark: revisions.py, sessions.py
    parts.py        aggregates that can be added up
    measures.py     aggregates of columns, as plain data
    ranges.py       aggregates of many ranges of one column
    moments.py      standard deviations out of sums

Use what this package exports; its modules are private.
"""

from millstream.pipelines.windows.aggregates import Aggregate
from millstream.pipelines.windows.definition import Window, calendar, hopping, session, tumbling
from millstream.pipelines.windows.sliding import sliding_window

__all__ = [
    "Aggregate",
    "Window",
    "calendar",
    "hopping",
    "session",
    "sliding_window",
    "tumbling",
]
