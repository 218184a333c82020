"""Output of `millstream demo cluster`: brokers are killed and frozen, and nothing is lost.

The run itself is in `cluster_run`; this is the story, shown as the one of `demo crash` is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from millstream.cli.cluster_run import ClusterRun, ClusterVerdict
from millstream.cli.crash_story import DRAIN_TIMEOUT_S, LINE_EVERY_S, TICK_S, sparkline
from millstream.cli.output import console
from millstream.testing.cluster import BROKER_COUNT, SESSION_MS

NODES = range(1, BROKER_COUNT + 1)
CATCH_UP_SECONDS_MAX = 60.0
FIRST_RECORD_SECONDS_MAX = 60.0  # until the share group's internal topics exist


@dataclass
class ClusterStory:
    """The run's acts in order; advance it by iterating, look at it in between."""

    run: ClusterRun
    seconds: float
    began: float = field(default_factory=time.monotonic)
    states: dict[int, Text] = field(
        default_factory=lambda: dict.fromkeys(NODES, Text("starting", style="yellow"))
    )
    events: list[Text] = field(default_factory=list)
    rates: deque[int] = field(default_factory=lambda: deque([0] * 48, maxlen=48))
    verdict: ClusterVerdict | None = None
    counted: int = 0

    def tell(self, text: str, style: str = "") -> None:
        stamp = f"{time.monotonic() - self.began:5.1f} s  "
        self.events.append(Text.assemble((stamp, "dim"), (text, style)))

    def ticks(self, duration_s: float) -> Iterator[None]:
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            time.sleep(TICK_S)
            acknowledged = self.run.ledger.acknowledged
            self.rates.append(round((acknowledged - self.counted) / TICK_S))
            self.counted = acknowledged
            yield

    def acts(self) -> Iterator[None]:
        """Everything that happens, in order; yields whenever there is something new to see."""
        yield
        self.run.cluster.start()
        self.run.create_topic()
        for node in self.states:
            self.states[node] = Text("running", style="green")
        self.tell("three brokers and a ZooKeeper are ready; payments has 3 replicas, 2 in sync")
        self.run.start_clients()
        self.tell("producer: acks=all, idempotent; a share group works on the records")
        for _ in self.ticks(FIRST_RECORD_SECONDS_MAX):
            yield
            if self.run.packed:
                break
        act = self.seconds / 4
        yield from self.ticks(act)
        yield from self.kill(self.run.leader(), "which leads payments[0]")
        yield from self.ticks(act)
        yield from self.kill(self.run.controller(), "the controller")
        yield from self.ticks(act)
        yield from self.freeze(self.run.leader())
        yield from self.ticks(act)
        yield from self.drain()
        self.tell("reading everything from the beginning and comparing", "bold")
        yield
        self.verdict = self.run.audit()

    def kill(self, node: int, which: str) -> Iterator[None]:
        broker = self.run.cluster.brokers[node]
        acknowledged = self.run.ledger.acknowledged
        broker.kill()
        self.states[node] = Text(" KILLED ", style="bold white on red")
        self.tell(f"kill -9 broker {node}, {which}: {acknowledged:,} acknowledged", "bold red")
        yield from self.ticks(2 * SESSION_MS / 1000)
        took = broker.start()
        self.states[node] = Text("catching up", style="yellow")
        self.tell(f"broker {node} is back after {took:.1f} s")
        yield from self.catch_up(node)

    def freeze(self, node: int) -> Iterator[None]:
        """It believes that it leads, and nobody reaches it; its session ends meanwhile."""
        self.run.cluster.brokers[node].pause()
        self.states[node] = Text(" FROZEN ", style="bold white on blue")
        self.tell(f"broker {node} is frozen for longer than its session", "bold blue")
        yield from self.ticks(2 * SESSION_MS / 1000)
        self.run.cluster.brokers[node].resume()
        self.states[node] = Text("catching up", style="yellow")
        self.tell(f"broker {node} goes on, and finds that others lead")
        yield from self.catch_up(node)

    def catch_up(self, node: int) -> Iterator[None]:
        began = time.monotonic()
        for _ in self.ticks(CATCH_UP_SECONDS_MAX):
            yield
            if self._all_in_sync():
                break
        self.states[node] = Text("running", style="green")
        took = time.monotonic() - began
        self.tell(f"broker {node} is in sync again after {took:.1f} s", "green")

    def _all_in_sync(self) -> bool:
        try:
            return set(self.run.in_sync().values()) == {BROKER_COUNT}
        except KafkaException:
            return False

    def drain(self) -> Iterator[None]:
        self.run.stop_writing()
        self.tell("producer stops; waiting for the last answers and the share group")
        for _ in self.ticks(DRAIN_TIMEOUT_S):
            yield
            if self.run.drained:
                return

    @property
    def rate(self) -> int:
        """Acknowledged records a second, over the last second."""
        recent = list(self.rates)[-round(1 / TICK_S) :]
        return round(sum(recent) / len(recent))


def show(story: ClusterStory) -> None:
    """Let it happen, and show it: a live screen in a terminal, plain lines elsewhere."""
    if console().is_terminal:
        with Live(screen_of(story), console=console(), refresh_per_second=12) as live:
            for _ in story.acts():
                live.update(screen_of(story))
            live.update(screen_of(story))
    else:
        show_lines(story)


def show_lines(story: ClusterStory) -> None:
    told = 0
    next_line = 0.0
    for _ in story.acts():
        for event in story.events[told:]:
            console().print(event)
        told = len(story.events)
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_EVERY_S
            console().print(f"         {summary(story)}")


def summary(story: ClusterStory) -> str:
    ledger = story.run.ledger
    return (
        f"{ledger.acknowledged:>9,} acknowledged  {story.rate:>7,}/s  packed {story.run.packed:>9,}"
    )


def screen_of(story: ClusterStory) -> RenderableType:
    brokers = Table.grid(padding=(0, 2))
    for node, state in story.states.items():
        brokers.add_row(f"broker {node}", state)
    headline = Text(summary(story).strip() + "   ")
    headline.append(sparkline(story.rates), style="cyan")
    return Panel(
        Group(headline, "", brokers, "", *story.events),
        title="[bold]millstream demo cluster[/bold]: any broker may die",
        border_style="blue",
        padding=(1, 2),
    )


def verdict_table(verdict: ClusterVerdict) -> RenderableType:
    records = verdict.records
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("acknowledged", f"{records.acknowledged:,}")
    table.add_row("found", f"{records.found:,}")
    counts = {name: getattr(records, name) for name in ("lost", "doubled", "misplaced")}
    counts |= {"disordered": records.disordered, "not packed": verdict.unpacked}
    for name, count in counts.items():
        table.add_row(name, Text(f"{count:,}", style="bold red" if count else "bold green"))
    table.add_row("packed again", f"{verdict.packed_again:,}")
    table.add_row("longest time without a leader", f"{verdict.longest_gap_s:.1f} s")
    title, border = "the results differ", "red"
    if verdict.holds:
        title, border = "nothing lost, nothing doubled, order kept", "green"
    return Panel.fit(table, title=title, border_style=border, padding=(1, 4))
