"""Rows out of Hypothesis strategies, many at once and by a seed: running them is for others.

Hypothesis finds rows; it does not run the pipeline, since it would do so hundreds of times, and a
stream takes seconds. Cases are made smaller by shrinking.py, which knows what a run costs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millstream.errors import ConfigError
from millstream.testing.streams.case import Row
from millstream.testing.streams.inputs import Source


def draw_rows(
    sources: Mapping[str, Source], *, count: int, rows_max: int, seed: int
) -> list[dict[str, list[Row]]]:
    """So many times rows of every input. Rows that were given are the same each time."""
    given = {name: list(it.rows) for name, it in sources.items() if isinstance(it.rows, Sequence)}
    strategies = {name: it.rows for name, it in sources.items() if name not in given}
    if not strategies:
        return [dict(given) for _ in range(count)]
    return [{**given, **drawn} for drawn in _draw(strategies, count, rows_max, seed)]


def _draw(
    strategies: Mapping[str, Any], count: int, rows_max: int, seed: int
) -> Sequence[dict[str, list[Row]]]:
    import hypothesis
    from hypothesis import strategies as st

    for name, strategy in strategies.items():
        if not isinstance(strategy, st.SearchStrategy):
            raise ConfigError(
                f"{name}: {type(strategy).__name__} are no rows: give a list of dicts, or a "
                "Hypothesis strategy for one row, like st.fixed_dictionaries({...})"
            )
    # A run costs the same with a few rows as with many, so there are many.
    lists = {
        name: st.lists(it, min_size=min(rows_max, 1 + rows_max // 2), max_size=rows_max)
        for name, it in strategies.items()
    }
    drawn: list[dict[str, list[Row]]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=2 * count + 1,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.fixed_dictionaries(lists))
    def keep(rows: dict[str, list[Row]]) -> None:
        drawn.append(rows)

    with _by_the_seed_alone():
        keep()
    # Hypothesis begins with the simplest rows, which are all the same.
    return drawn[-count:] if len(drawn) >= count else (drawn * count)[:count]


@contextlib.contextmanager
def _by_the_seed_alone() -> Iterator[None]:
    """Hypothesis mixes in constants of all modules of the user's that happen to be loaded: with the
    same seed a test by itself would have other rows than among all the others. There is no setting
    for it; a Hypothesis that does it in another way is left as it is."""
    from hypothesis.internal.conjecture import providers

    theirs = getattr(providers, "_get_local_constants", None)
    cache = getattr(getattr(providers, "CONSTANTS_CACHE", None), "cache", None)
    if theirs is None or cache is None:
        yield
        return
    none = type(theirs())()
    providers._get_local_constants = lambda: none
    cache.clear()  # it has theirs in it
    try:
        yield
    finally:
        providers._get_local_constants = theirs
        cache.clear()
