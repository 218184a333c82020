"""When results of windows are emitted, as users write it."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_us
from millstream.pipelines.state.keys import Numbers
from millstream.pipelines.state.tables import times_of
from millstream.pipelines.windows.ranges import Mask

NOW = "_now"  # the time of the batch in which a row arrived
NEVER = -(2**62)  # before all times, in microseconds
EVERY = "every "

Emission = Literal["arrival", "final", "change", "every"]


class Emit(NamedTuple):
    """When results are emitted; `every_us` is the pause between preliminary ones."""

    emission: Emission
    every_us: int = 0

    @property
    def is_once(self) -> bool:
        """Whether each event has one result, when it arrives."""
        return self.emission == "arrival"


def parse_emit(emit: object, allowed: tuple[Emission, ...] = get_args(Emission)) -> Emit:
    """Raises `ConfigError`."""
    if isinstance(emit, str) and emit.startswith(EVERY) and "every" in allowed:
        return Emit("every", duration_us(emit.removeprefix(EVERY), "emit"))
    for it in allowed:
        if emit == it != "every":
            return Emit(it)
    shown = [f'"{EVERY}10 seconds"' if it == "every" else f'"{it}"' for it in allowed]
    raise ConfigError(f"emit={emit!r}: choose {', '.join(shown[:-1])} or {shown[-1]}")


def due_now(may_come: Mask, shown: Numbers, new: pa.RecordBatch, every_us: int | None) -> Mask:
    """Which windows have a preliminary result now, at most every `every_us` (None: never); `shown`
    is when they had the last one, and is updated."""
    if every_us is None:
        return np.zeros(len(may_come), np.bool_)
    now_us = int(times_of(new, NOW).max())
    due: Mask = may_come & (now_us - shown >= every_us)
    shown[due] = now_us
    return due
