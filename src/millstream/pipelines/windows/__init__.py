"""Windows over streams and batches.

    from millstream.pipelines import windows

    definition.py     tumbling, hopping, session and calendar windows
    per_event.py      sliding windows: for each event, the interval before it

    aggregates.py     what to compute, as text or Columns
    emission.py       when results are emitted
    kinds.py          which windows a time belongs to
    spec.py           the settings of a window, checked
    kept.py           windows in bucketed state, on Spark: revisions.py, sessions.py
    sliding.py        the operator of sliding windows
    parts.py          aggregates that can be added up
    measures.py       aggregates of columns, as plain data
    ranges.py         aggregates of many ranges of one column
    decimal_sums.py   sums and averages of decimals
    moments.py        standard deviations out of sums

Use what this package exports; its modules are private.
"""

from millstream.pipelines.windows.definition import Window, calendar, hopping, session, tumbling
from millstream.pipelines.windows.per_event import Sliding, sliding

__all__ = [
    "Sliding",
    "Window",
    "calendar",
    "hopping",
    "session",
    "sliding",
    "tumbling",
]
