"""What a benchmark yields: samples per target, a goal, and the ratio that is compared with it.

Machines are noisy, two identical brokers differ by 15 % and more. So every figure is taken several
times with the targets interleaved, the best sample of each counts, and only ratios are judged.

Differences of a few percent within one process need more: there, samples of one round are taken
together (`is_paired`), and the median of the rounds' ratios counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Literal

from benchmarks.targets import Target

Direction = Literal["higher is better", "lower is better"]


@dataclass
class Measurement:
    """One figure of every target."""

    name: str
    unit: str
    direction: Direction = "higher is better"
    bar: float | None = None  # the ratio to the peer that must be reached
    aim: float | None = None  # the ratio we would like
    peer: str = "kafka"
    subject: str = "millstream"
    is_paired: bool = False  # the n-th samples of subject and peer belong together
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # settings, flush counts: per target

    def add(self, target: str, value: float) -> None:
        self.samples.setdefault(target, []).append(value)

    def best(self, target: str) -> float | None:
        values = self.samples.get(target)
        if not values:
            return None
        return max(values) if self.direction == "higher is better" else min(values)

    @property
    def ratio(self) -> float | None:
        """The subject's best by the peer's best; of pairs, the median of their ratios."""
        if self.is_paired:
            pairs = zip(
                self.samples.get(self.subject, ()), self.samples.get(self.peer, ()), strict=True
            )
            ratios = [subject / peer for subject, peer in pairs]
            return median(ratios) if ratios else None
        subject, peer = self.best(self.subject), self.best(self.peer)
        if subject is None or not peer:
            return None
        return subject / peer

    @property
    def verdict(self) -> str:
        ratio = self.ratio
        if ratio is None or self.bar is None:
            return ""
        if self.direction == "higher is better":
            met = [goal is not None and ratio >= goal for goal in (self.bar, self.aim)]
        else:
            met = [goal is not None and ratio <= goal for goal in (self.bar, self.aim)]
        return "aim reached" if met[1] else "bar reached" if met[0] else "bar missed"


def interleave(
    measurement: Measurement,
    targets: Sequence[Target],
    rounds: int,
    sample: Callable[[Target], float],
    *,
    warm_up: int = 1,
) -> Measurement:
    """Take `rounds` samples of every target, in turn, after `warm_up` discarded ones."""
    contenders = {target.name: partial(sample, target) for target in targets}
    return compare(measurement, contenders, rounds, warm_up=warm_up)


def compare(
    measurement: Measurement,
    contenders: Mapping[str, Callable[[], float]],
    rounds: int,
    *,
    warm_up: int,
    shown: bool = False,
) -> Measurement:
    """The same with anything that has a name; `shown`: one can watch, for those that take long."""
    for number in range(warm_up + rounds):
        for name, sample in contenders.items():
            value = sample()
            if number >= warm_up:
                measurement.add(name, value)
            if shown:
                kind = "warm-up" if number < warm_up else f"round {number - warm_up + 1}"
                text = f"{measurement.name}, {kind}: {name} {value:,.4g} {measurement.unit}"
                print(text, file=sys.stderr, flush=True)
    return measurement


def percentile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]
