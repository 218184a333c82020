"""The backlog of a slow group over time, under each of the four policies.

The policies are the broker's own; the producer, which wants to write three records for each one
that the consumer reads, is as simple as can be.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.pictures.layout import heading
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

from millstream.broker.backlog.state import Backlog, PartitionState
from millstream.config.backlog import BacklogPolicy

BOUND = 60
PRODUCED, CONSUMED = 3, 1  # records of one step
STEPS = 70
PRODUCER_STOPS = 45  # the step in which it has nothing more to write
WIDTH, PANEL, TOP, BOTTOM = 912, 228, 64, 196
NOTES = {
    "retain": "all is kept, as in Kafka",
    "drop": "the oldest records are deleted",
    "hold": "the producer waits",
    "reject": "the producer gets an error",
}


class Outcome(NamedTuple):
    unread: list[int]  # after each step
    written: int
    refused: int
    lost: int


def simulate(policy: str) -> Outcome:
    state = PartitionState(BacklogPolicy(policy, BOUND, -1, ("g",), 0))
    unread = written = refused = lost = 0
    waiting = 0  # records that the producer could not write yet
    levels = []
    for step in range(STEPS):
        wanted = waiting + (PRODUCED if step < PRODUCER_STOPS else 0)
        waiting = 0
        for _ in range(wanted):
            state.update(Backlog("g", 0, unread, 0))
            if policy == "hold" and state.is_over:
                waiting += 1
            elif policy == "reject" and state.is_over:
                refused += 1
            else:
                unread, written = unread + 1, written + 1
        if policy == "drop" and unread > BOUND:
            lost, unread = lost + unread - BOUND, BOUND
        unread = max(unread - CONSUMED, 0)
        levels.append(unread)
    return Outcome(levels, written + waiting, refused, lost)


def draw(results: dict[str, Rows], theme: Theme) -> str:
    canvas = Canvas(WIDTH, 250, theme, "The backlog of a slow consumer under four policies")
    for number, policy in enumerate(NOTES):
        _panel(canvas, number * PANEL, policy, simulate(policy))
    canvas.text(
        16,
        240,
        "unread records over time; the producer is three times as fast as the consumer, and stops "
        "after a while",
        color=theme.faint,
        size=11.5,
    )
    return canvas.render()


def _panel(canvas: Canvas, left: float, policy: str, outcome: Outcome) -> None:
    theme = canvas.theme
    heading(canvas, left + 16, 24, policy)
    canvas.text(left + 16, 42, NOTES[policy], color=theme.faint, size=11.5)
    start, end = left + 16, left + PANEL - 22
    canvas.line(start, BOTTOM, end, BOTTOM)
    canvas.line(start, TOP, start, BOTTOM)
    highest = PRODUCED * PRODUCER_STOPS - CONSUMED * PRODUCER_STOPS
    scale = (BOTTOM - TOP) / highest

    def place(step: int, unread: int) -> tuple[float, float]:
        return start + (end - start) * (step + 1) / STEPS, BOTTOM - unread * scale

    if policy != "retain":
        bound = BOTTOM - BOUND * scale
        canvas.line(start, bound, end, bound, color=theme.late, dashed=True)
        canvas.text(end, bound - 6, "bound", color=theme.late, size=11, anchor="end")
    points = [(start, float(BOTTOM))]
    points += [place(step, unread) for step, unread in enumerate(outcome.unread)]
    canvas.polyline(points, color=theme.ann)
    loss = {"drop": f"{outcome.lost} lost", "reject": f"{outcome.refused} refused"}
    told = loss.get(policy, "nothing lost or refused")
    color = theme.late if policy in loss else theme.good
    canvas.text(left + 16, 216, f"{outcome.written} written, {told}", color=color, size=11.5)
