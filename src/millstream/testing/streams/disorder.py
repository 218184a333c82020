"""How rows come: in disorder, late, twice, cut into micro-batches, while things go wrong.

From rows and a seed a case is made. Rows are sent in the order of their times, and each is under
way for less than `within`: so it comes less than that behind the newest row before it. Inputs
without times keep their order.

A row that is to be late is held back until the watermark of the batch before its own is `late_by`
past its time, so that it is late by any rule; if that never happens, the watermark is moved on
after all other rows. `is_sound` says whether a case keeps that promise, also when it has been made
smaller.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from millstream.errors import ConfigError
from millstream.pipelines.durations import Duration, duration_us
from millstream.testing.streams.case import ALL_FAULTS, Arrival, Batch, Case, Fault, Row
from millstream.testing.streams.inputs import Input, moment_of_us, moment_us

BATCHES_MAX = 6
FAULT_SHARE = 0.5  # of batches
UNDER_WAY_SHARE = 0.5  # of rows; the others come in order


@dataclass(frozen=True)
class Disorder:
    """`within`: how far behind the newest row a row may come and still count; the delay of the
    watermark if it is not given, and more where stragglers correct results. `late`: the share of
    rows that come too late to count, `late_by` behind the watermark or more. `duplicates`: the
    share of rows that come once more, and must not count twice."""

    within: Duration | None = None
    late: float = 0.0
    late_by: Duration | None = None
    duplicates: float = 0.0

    def __post_init__(self) -> None:
        for name in ("late", "duplicates"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a share of the rows, between 0 and 1")
        if self.within is not None:
            duration_us(self.within, "within", zero_allowed=True)
        if self.late_by is not None:
            duration_us(self.late_by, "late_by", zero_allowed=True)

    def within_us(self, inputs: Mapping[str, Input]) -> int:
        """By how much rows may be out of order, in microseconds."""
        if self.within is not None:
            return duration_us(self.within, "within", zero_allowed=True)
        return min((it.delay_us for it in inputs.values() if it.delay_us is not None), default=0)

    @property
    def late_by_us(self) -> int | None:
        return None if self.late_by is None else duration_us(self.late_by, zero_allowed=True)


def make_case(
    rows: Mapping[str, Sequence[Row]],
    inputs: Mapping[str, Input],
    disorder: Disorder,
    rng: random.Random,
    *,
    faults: Sequence[Fault] = ALL_FAULTS,
    batches_max: int = BATCHES_MAX,
) -> Case:
    """The rows as a stream, by chance."""
    sent = list(_send(rows, inputs, disorder, rng))
    repeated = {id(it.row) for it in sent if it.is_repeat}
    parts = _cut(sent, rng.randint(min(3, batches_max), batches_max), rng)
    held = []
    batches: list[list[Arrival]] = [[] for _ in parts]
    for place, part in enumerate(parts):
        for arrival in part:
            if id(arrival.row) not in repeated and _is_held(arrival, inputs, disorder, rng):
                held.append((place, arrival))
            else:
                batches[place].append(arrival)
    if disorder.late_by_us is None:
        # Into any later batch: whether it is late is found out in the end.
        for place, arrival in held:
            batches[rng.randrange(place, len(batches))].append(arrival)
        held = []
    case = Case(tuple(Batch(tuple(it)) for it in batches))
    late = [replace(it, is_late=True) for _, it in held]
    case = _add_late(case, late, inputs, disorder.late_by_us or 0, rng)
    return Case(tuple(replace(it, fault=_draw_fault(faults, rng)) for it in case.batches))


def _send(
    rows: Mapping[str, Sequence[Row]],
    inputs: Mapping[str, Input],
    disorder: Disorder,
    rng: random.Random,
) -> Iterator[Arrival]:
    """All rows in the order in which they come, with those that come again."""
    within_us = disorder.within_us(inputs)
    sent: list[tuple[float, Arrival]] = []  # with when it comes, on a clock that only orders them
    found = [inputs[name].time_us(row) for name, them in rows.items() for row in them]
    times = [it for it in found if it is not None]
    first_us, last_us = min(times, default=0), max(times, default=1)
    for name, them in rows.items():
        places = sorted(rng.uniform(first_us, last_us) for _ in them)  # for those without a time
        for row, place_us in zip(them, places, strict=True):
            time_us = inputs[name].time_us(row)
            if inputs[name].time is None:
                due_us = place_us
            else:
                is_under_way = rng.random() < UNDER_WAY_SHARE
                lag_us = within_us * rng.random() if is_under_way else 0.0
                due_us = (first_us if time_us is None else time_us) + lag_us
            arrival = Arrival(name, row)
            sent.append((due_us, arrival))
            if rng.random() < disorder.duplicates:
                end_us = due_us if time_us is None else time_us + within_us
                repeat_us = rng.uniform(due_us, max(due_us, end_us - 1))
                sent.append((repeat_us, replace(arrival, is_repeat=True)))
    yield from (arrival for _, arrival in sorted(sent, key=lambda it: it[0]))


def _is_held(
    arrival: Arrival, inputs: Mapping[str, Input], disorder: Disorder, rng: random.Random
) -> bool:
    it = inputs[arrival.input]
    can_be_late = it.delay_us is not None and it.time_us(arrival.row) is not None
    return can_be_late and arrival.counts and rng.random() < disorder.late


def _cut(arrivals: Sequence[Arrival], count: int, rng: random.Random) -> list[Sequence[Arrival]]:
    """Into so many batches, of which some may be empty."""
    places = sorted(rng.randint(0, len(arrivals)) for _ in range(count - 1))
    bounds = [0, *places, len(arrivals)]
    return [arrivals[begin:end] for begin, end in pairwise(bounds)]


def _add_late(
    case: Case,
    held: Sequence[Arrival],
    inputs: Mapping[str, Input],
    late_by_us: int,
    rng: random.Random,
) -> Case:
    if not held:
        return case
    marks = watermarks_us(case, inputs)
    batches = list(case.batches)
    tail = []
    for arrival in held:
        wanted_us = _time_us(arrival, inputs) + late_by_us
        places = [
            place
            for place in range(1, len(batches))
            if (mark := marks[place - 1]) is not None and mark >= wanted_us
        ]
        if not places:
            tail.append(arrival)
            continue
        place = rng.choice(places)
        batches[place] = replace(batches[place], arrivals=(*batches[place].arrivals, arrival))
    if tail:
        # By Spark's own rule rows are late by the watermark of the batch before: two steps.
        end_us = max(_time_us(it, inputs) for it in tail) + late_by_us
        batches += [Batch(watermark=moment_of_us(-(-end_us // 1000) * 1000)), Batch()]
        batches.append(Batch(tuple(tail)))
    return Case(tuple(batches))


def _time_us(arrival: Arrival, inputs: Mapping[str, Input]) -> int:
    time_us = inputs[arrival.input].time_us(arrival.row)
    assert time_us is not None
    return time_us


def watermarks_us(case: Case, inputs: Mapping[str, Input]) -> list[int | None]:
    """The watermark that each batch has, by Spark's rule; None before there is one.

    Each input's is its newest time less the delay; the slowest input counts; it never goes back.
    """
    newest_us: dict[str, int] = {}
    delays_us = {name: it.delay_us for name, it in inputs.items() if it.delay_us is not None}
    marks: list[int | None] = []
    current_us: int | None = None
    for batch in case.batches:
        marks.append(current_us)
        for arrival in batch.arrivals:
            time_us = inputs[arrival.input].time_us(arrival.row)
            if time_us is not None and arrival.input in delays_us:
                newest_us[arrival.input] = max(time_us, newest_us.get(arrival.input, time_us))
        if batch.watermark is not None:
            moved_us = moment_us(batch.watermark)
            for name, delay_us in delays_us.items():
                known_us = newest_us.get(name, moved_us + delay_us)
                newest_us[name] = max(moved_us + delay_us, known_us)
        if delays_us and newest_us.keys() == delays_us.keys():
            found_us = min(newest_us[name] - delay_us for name, delay_us in delays_us.items())
            found_us = found_us // 1000 * 1000
            current_us = found_us if current_us is None else max(current_us, found_us)
    return marks


def is_sound(case: Case, inputs: Mapping[str, Input], disorder: Disorder) -> bool:
    """Whether rows that must not count have their reason: late by any rule, or sent before."""
    marks = watermarks_us(case, inputs)
    late_by_us = disorder.late_by_us or 0
    before_us: int | None = None
    seen: set[tuple[str, int]] = set()
    for mark, batch in zip(marks, case.batches, strict=True):
        for arrival in batch.arrivals:
            if arrival.is_repeat and (arrival.input, id(arrival.row)) not in seen:
                return False
            if arrival.is_late and (
                before_us is None or _time_us(arrival, inputs) + late_by_us > before_us
            ):
                return False
            if arrival.counts:
                seen.add((arrival.input, id(arrival.row)))
        before_us = mark
    return True


def _draw_fault(faults: Sequence[Fault], rng: random.Random) -> Fault | None:
    return rng.choice(faults) if faults and rng.random() < FAULT_SHARE else None
