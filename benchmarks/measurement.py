"""What a benchmark yields: samples per target, a goal, and the ratio that is compared with it.

Machines are noisy, two identical brokers differ by 15 % and more. So every figure is taken several
times with the targets interleaved, the best sample of each counts, and only ratios are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
        """The subject's best by the peer's best."""
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
    for number in range(warm_up + rounds):
        for target in targets:
            value = sample(target)
            if number >= warm_up:
                measurement.add(target.name, value)
    return measurement


def percentile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]
