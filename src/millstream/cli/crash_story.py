"""Output of `millstream demo crash`: a broker is killed in mid-stream and loses nothing.

The run itself is in `crash_run`; this is the story: what happens when, and how it looks, as a live
screen in a terminal or as plain lines elsewhere.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from millstream.cli.crash_run import PARTITIONS, CrashRun, Verdict
from millstream.cli.output import console

TICK_S = 0.1
LINE_EVERY_S = 1.0
DEAD_FOR_S = 1.0  # how long the server stays dead, so that a person sees it
DRAIN_TIMEOUT_S = 30.0
SPARKS = " ▁▂▃▄▅▆▇█"


@dataclass
class Story:
    """The run's acts in order; advance it by iterating, look at it in between."""

    run: CrashRun
    seconds: float
    kills: int
    began: float = field(default_factory=time.monotonic)
    state: Text = field(default_factory=lambda: Text("starting", style="yellow"))
    events: list[Text] = field(default_factory=list)
    rates: deque[int] = field(default_factory=lambda: deque([0] * 48, maxlen=48))
    verdict: Verdict | None = None
    counted: int = 0

    def tell(self, text: str, style: str = "") -> None:
        stamp = f"{time.monotonic() - self.began:5.1f} s  "
        self.events.append(Text.assemble((stamp, "dim"), (text, style)))

    def ticks(self, duration_s: float) -> Iterator[None]:
        """Pass the time, one tick after the other, keeping the rates."""
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            time.sleep(TICK_S)
            acknowledged = self.run.ledger.acknowledged
            self.rates.append(round((acknowledged - self.counted) / TICK_S))
            self.counted = acknowledged
            yield

    def acts(self) -> Iterator[None]:
        """Everything that happens, in order; yields whenever there is something new to see."""
        took = self.run.server.start()
        self.run.create_topic()
        self.tell(f"server ready at {self.run.server.address} after {took * 1000:.0f} ms")
        self.tell(
            "topic payments: 4 partitions; producer: acks=all, idempotent; one consumer group"
        )
        self.run.start_clients()
        self.state = Text("running", style="bold green")
        for _ in range(self.kills):
            yield from self.ticks(self.seconds / (self.kills + 1))
            yield from self.crash()
        yield from self.ticks(self.seconds / (self.kills + 1))
        yield from self.drain()
        self.tell("reading everything from the beginning and comparing", "bold")
        yield
        self.verdict = self.run.audit()

    def crash(self) -> Iterator[None]:
        before = self.run.ledger.acknowledged
        self.run.server.kill()
        self.state = Text(" KILLED ", style="bold white on red")
        self.tell(
            f"kill -9 {self.run.server.pid}, with {before:,} records acknowledged", "bold red"
        )
        yield from self.ticks(DEAD_FOR_S)
        self.state = Text("recovering", style="bold yellow")
        yield
        took = self.run.server.start()
        self.tell(
            f"server back after {took * 1000:.0f} ms; the clients go on by themselves", "green"
        )
        self.state = Text("running", style="bold green")

    def drain(self) -> Iterator[None]:
        self.run.stop_writing()
        self.state = Text("draining", style="bold cyan")
        self.tell("producer stops; waiting for the last answers and the consumer")
        for _ in self.ticks(DRAIN_TIMEOUT_S):
            yield
            if self.run.drained:
                return

    @property
    def rate(self) -> int:
        """Acknowledged records a second, over the last second."""
        recent = list(self.rates)[-round(1 / TICK_S) :]
        return round(sum(recent) / len(recent))


def show(story: Story) -> None:
    """Let it happen, and show it."""
    if console().is_terminal:
        show_live(story)
    else:
        show_lines(story)


def show_live(story: Story) -> None:
    with Live(screen_of(story), console=console(), refresh_per_second=12) as live:
        for _ in story.acts():
            live.update(screen_of(story))
        live.update(screen_of(story))


def show_lines(story: Story) -> None:
    """One line a second and every event, for pipes and build logs."""
    told = 0
    next_line = 0.0
    for _ in story.acts():
        for event in story.events[told:]:
            console().print(event)
        told = len(story.events)
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_EVERY_S
            ledger = story.run.ledger
            console().print(
                f"         {story.state.plain.strip():10}  {ledger.acknowledged:>9,} acknowledged"
                f"  {story.rate:>7,}/s  consumed {sum(story.run.positions.values()):>9,}"
            )


def screen_of(story: Story) -> RenderableType:
    ledger = story.run.ledger
    headline = Text.assemble(
        story.state, f"   {ledger.acknowledged:,} acknowledged   {story.rate:,}/s   "
    )
    headline.append(sparkline(story.rates), style="cyan")
    border = "red" if "KILLED" in story.state.plain else "blue"
    return Panel(
        Group(headline, "", partition_table(story), "", *story.events),
        title="[bold]millstream demo crash[/bold]: acknowledged means kept",
        border_style=border,
        padding=(1, 2),
    )


def partition_table(story: Story) -> Table:
    """Each partition's acknowledged end as a bar, with the group's position and lag."""
    ends, positions = story.run.ledger.ends, story.run.positions
    longest = max(*ends.values(), 1)
    table = Table.grid(padding=(0, 2))
    for index in range(PARTITIONS):
        lag = max(0, ends[index] - positions[index])
        table.add_row(
            f"payments[{index}]",
            ProgressBar(total=longest, completed=min(positions[index], ends[index]), width=36),
            Text(f"offset {ends[index]:>7,}"),
            Text(f"lag {lag:>6,}", style="yellow" if lag else "dim"),
        )
    return table


def sparkline(values: deque[int]) -> str:
    top = max(*values, 1)
    return "".join(SPARKS[round(value / top * (len(SPARKS) - 1))] for value in values)


def verdict_table(verdict: Verdict) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("acknowledged", f"{verdict.acknowledged:,}")
    table.add_row("found", f"{verdict.found:,}")
    for name in ("lost", "doubled", "misplaced", "disordered"):
        count = getattr(verdict, name)
        table.add_row(name, Text(f"{count:,}", style="bold red" if count else "bold green"))
    if verdict.holds:
        title, border = "nothing lost, nothing doubled, order kept", "green"
    else:
        title, border = "the results differ", "red"
    return Panel.fit(table, title=title, border_style=border, padding=(1, 4))
