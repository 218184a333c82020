"""Spark's Python workers, which serve one task after another, and how to make them quick at it.

After every task Spark's worker runs `gc.collect()`, which looks at every object of all imported
modules: 50 ms of a core, ten times what a small task takes. `settle` puts those objects out of the
collector's sight, once they are all there.
"""

from __future__ import annotations

import gc

_settled: set[str] = set()


def settle(work: str) -> None:
    """Call it at the end of a task; the first of each kind of `work` imports what all need."""
    if work in _settled:
        return
    _settled.add(work)
    gc.collect()
    gc.freeze()
