"""A case that fails, made smaller while it fails: pure, and thrifty, since every try takes seconds.

What is tried, in this order, and again while anything helped:

    no faults at all, then half of them, then one after another
    rows: half of them, a quarter, ..., one after another (as in delta debugging)
    all batches as one, then two neighbours as one

Tries are handed out in groups, which the caller may run side by side; the first that still fails is
taken. A case that breaks the rules it was made by (`is_sound`) is not tried. One that raises, or
does not end, fails in another way than the one that was found, and is not taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.testing.streams.case import Case
from millstream.testing.streams.report import Failure, Shrunk

TRIES_MAX = 60
SHRINK_SECONDS = 45.0
Judging: TypeAlias = Callable[[Case], Failure | None]


def shrink_failure(
    failure: Failure,
    judge: Judging,
    is_sound: Callable[[Case], bool],
    *,
    seconds: float = SHRINK_SECONDS,
    tries_max: int = TRIES_MAX,
    group_size: int = 1,
    run_all: Callable[[Judging, Sequence[Case]], Iterable[Failure | None]] = map,
) -> Shrunk:
    """The smallest failure that was found in the time there is. `run_all` judges some cases, side
    by side perhaps."""
    failures = {str(failure.case): failure}
    deadline = time.monotonic() + seconds

    def attempt(case: Case) -> Failure | None:
        try:
            return judge(case)
        except Exception:  # noqa: BLE001 - whatever it is, it is not this failure
            return None

    def fails(group: Sequence[Case]) -> list[bool]:
        found = list(run_all(attempt, group))
        failures.update({str(it.case): it for it in found if it is not None})
        return [it is not None for it in found]

    shrinking = Shrinking(
        fails,
        is_sound=is_sound,
        is_over=lambda: time.monotonic() > deadline,
        group_size=group_size,
        tries_max=tries_max,
    )
    smallest = shrinking.shrink(failure.case)
    return Shrunk(failures[str(smallest)], shrinking.tries)


@dataclass
class Shrinking:
    """`fails` tells of each of some cases whether it fails; `is_over` when to stop."""

    fails: Callable[[Sequence[Case]], Sequence[bool]]
    is_sound: Callable[[Case], bool] = lambda case: True
    is_over: Callable[[], bool] = lambda: False
    group_size: int = 2
    tries_max: int = TRIES_MAX
    tries: int = 0
    _known: set[str] = field(default_factory=set)

    def shrink(self, case: Case) -> Case:
        """The smallest that was found; it fails."""
        while True:
            smaller = case
            for candidates in (_fewer_faults, self._fewer_rows, _fewer_batches):
                smaller = self._while_it_helps(smaller, candidates)
            if smaller is case or self._is_over:
                return smaller
            case = smaller

    @property
    def _is_over(self) -> bool:
        return self.tries >= self.tries_max or self.is_over()

    def _while_it_helps(self, case: Case, candidates: Callable[[Case], Iterator[Case]]) -> Case:
        while (smaller := self._first_failing(case, candidates(case))) is not None:
            case = smaller
        return case

    def _first_failing(self, case: Case, candidates: Iterator[Case]) -> Case | None:
        group: list[Case] = []
        for candidate in candidates:
            if self._is_over:
                return None
            if candidate.size < case.size and self._is_new(candidate):
                group.append(candidate)
            if len(group) == self.group_size:
                if (found := self._try(group)) is not None:
                    return found
                group = []
        return self._try(group) if group else None

    def _is_new(self, case: Case) -> bool:
        """Whether it is worth a try; remembers it."""
        text = str(case)
        if text in self._known or not self.is_sound(case):
            return False
        self._known.add(text)
        return True

    def _try(self, group: Sequence[Case]) -> Case | None:
        self.tries += len(group)
        verdicts = self.fails(group)
        return next((it for it, fails in zip(group, verdicts, strict=True) if fails), None)

    def _fewer_rows(self, case: Case) -> Iterator[Case]:
        yield _without_idle(case)
        for chunk in _chunks(range(len(case.arrivals))):
            fewer = case.without_arrivals(set(chunk))
            tidy = _without_idle(fewer)
            yield tidy if self.is_sound(tidy) else fewer


def _fewer_faults(case: Case) -> Iterator[Case]:
    places = [number for number, it in enumerate(case.batches) if it.fault is not None]
    for chunk in _chunks(places):
        yield case.without_faults(chunk)


def _fewer_batches(case: Case) -> Iterator[Case]:
    merged = case
    while len(merged.batches) > 1:
        merged = merged.with_merged(0)
    neighbours = (case.with_merged(place) for place in range(len(case.batches) - 1))
    yield from (it for it in (merged, *neighbours) if _is_tellable(it))


def _is_tellable(case: Case) -> bool:
    """Whether a `StreamTrial` can tell it: there, rows and a moved watermark are two batches."""
    return not any(it.arrivals and it.watermark is not None for it in case.batches)


def _without_idle(case: Case) -> Case:
    """Without batches in which nothing happens."""
    return Case(
        tuple(it for it in case.batches if it.arrivals or it.fault or it.watermark is not None)
    )


def _chunks(places: Sequence[int]) -> Iterator[Sequence[int]]:
    """All of them, each half, each quarter, ..., each one."""
    size = len(places)
    while size:
        yield from (places[begin : begin + size] for begin in range(0, len(places), size))
        size = size // 2
