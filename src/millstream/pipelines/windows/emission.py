"""When results of windows are emitted, as users write it."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_us

NOW = "_now"  # when the batch began that a row came with
NEVER = -(2**62)  # before all times, in microseconds
EVERY = "every "

Emission = Literal["arrival", "final", "change", "every"]


class Emit(NamedTuple):
    """When results are emitted; `every_us` is the pause between preliminary ones."""

    emission: Emission
    every_us: int = 0


def parse_emit(emit: object, allowed: tuple[Emission, ...] = get_args(Emission)) -> Emit:
    """Raises `ConfigError`."""
    if isinstance(emit, str) and emit.startswith(EVERY) and "every" in allowed:
        return Emit("every", duration_us(emit.removeprefix(EVERY), "emit"))
    for it in allowed:
        if emit == it != "every":
            return Emit(it)
    shown = [f'"{EVERY}10 seconds"' if it == "every" else f'"{it}"' for it in allowed]
    raise ConfigError(f"emit={emit!r}: choose {', '.join(shown[:-1])} or {shown[-1]}")
