"""How the demo's shop looks: live in a terminal, plain lines elsewhere, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from millstream.cli.output import console
from millstream.cli.shop.audit import Verdict
from millstream.cli.shop.story import ORDERS, VIEWS, Story
from millstream.cli.shop.watching import ALL

REFRESH_PER_SECOND = 8
LINE_EVERY_S = 4.0
WIDTH_MAX = 110
SPARKS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 12


def show(story: Story) -> None:
    """Let it happen, and show it."""
    if console().is_terminal:
        show_live(story)
    else:
        show_lines(story)


def show_live(story: Story) -> None:
    with Live(screen_of(story), console=console(), refresh_per_second=REFRESH_PER_SECOND) as live:
        for _ in story.acts():
            live.update(screen_of(story))
        live.update(screen_of(story))


def show_lines(story: Story) -> None:
    """Every event, and a line every few seconds: for pipes and build logs."""
    told, next_line = 0, 0.0
    for _ in story.acts():
        for event in story.events[told:]:
            console().print(event)
        told = len(story.events)
        if time.monotonic() >= next_line and story.look.positions:
            next_line = time.monotonic() + LINE_EVERY_S
            console().print(f"         {line_of(story)}")
    for event in story.events[told:]:
        console().print(event)


def line_of(story: Story) -> str:
    ledger = story.run.customers.ledger
    lags = ", ".join(f"{it.pipeline} {it.lag:,}" for it in story.look.positions)
    return (
        f"{story.state.plain.strip():14}  {len(ledger.orders):>7,} orders  "
        f"{story.rates.of(ORDERS):>6,.0f}/s  lag: {lags}  dead letters {story.run.desk.letters:,}"
    )


# The live screen


def screen_of(story: Story) -> RenderableType:
    is_dead = "KILLED" in story.state.plain
    columns = Table.grid(expand=True, padding=(0, 4))
    columns.add_row(pipelines_table(story), products_table(story))
    return Panel(
        Group(
            headline(story),
            "",
            customers_table(story),
            "",
            columns,
            "",
            *desk_lines(story),
            "",
            *story.events,
        ),
        title="[bold]millstream demo[/bold]: every order counts, once",
        border_style="red" if is_dead else "blue",
        padding=(1, 2),
        width=min(console().width, WIDTH_MAX),
    )


def headline(story: Story) -> Table:
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right", style="dim")
    line.add_row(story.state, f"{story.elapsed_s:.0f} s")
    return line


def customers_table(story: Story) -> Table:
    ledger = story.run.customers.ledger
    faults = f"{ledger.late:,} late, {ledger.again:,} twice, {len(ledger.poison):,} broken"
    table = plain_table("CUSTOMERS SEND", "", "A SECOND", "SO FAR", "OF WHICH")
    for name, count, remark in (
        (ORDERS, len(ledger.orders), faults),
        (VIEWS, ledger.views, ""),
    ):
        table.add_row(
            name, spark_line(story.rates.history[name]), rate(story, name), f"{count:,}", remark
        )
    return table


def pipelines_table(story: Story) -> Table:
    table = plain_table("PIPELINES READ", "", "A SECOND", "LAG")
    lags = {it.pipeline: it.lag for it in story.look.positions}
    for it in ALL:
        lag = lags.get(it.name, 0)
        table.add_row(
            it.name,
            spark_line(list(story.rates.history[it.name])[-BAR_WIDTH:]),
            rate(story, it.name),
            Text(f"{lag:,}", style="yellow" if lag else "green"),
        )
    return table


def products_table(story: Story) -> Table:
    table = plain_table("TOP PRODUCTS", "REVENUE", "", "ORDERS", "VIEWS")
    best = max((it.revenue for it in story.look.products), default=1)
    for it in story.look.products:
        table.add_row(
            it.name,
            f"{it.revenue:,}",
            Text("━" * max(1, round(BAR_WIDTH * it.revenue / best)), style="magenta"),
            f"{it.orders:,}",
            f"{it.views:,}",
        )
    return table


def desk_lines(story: Story) -> Iterable[Text]:
    desk = story.run.desk
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(desk.reasons.items()))
    yield Text.assemble(
        ("ALERTS        ", "bold"), f"{desk.alerts:,}   ", ("; ".join(desk.last_alerts), "dim")
    )
    yield Text.assemble(("DEAD LETTERS  ", "bold"), f"{desk.letters:,}   ", (reasons, "dim"))


def plain_table(*headings: str) -> Table:
    """The first column is a name, those with a heading after it are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        is_number = number > 0 and heading not in ("", "OF WHICH")
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    return table


def rate(story: Story, name: str) -> str:
    return f"{story.rates.of(name):,.0f}"


def spark_line(values: Iterable[float]) -> Text:
    shown = list(values)
    highest = max(shown, default=0.0) or 1.0
    levels = (round(it / highest * (len(SPARKS) - 1)) for it in shown)
    return Text("".join(SPARKS[it] for it in levels), style="cyan")


# In the end


def verdict_panel(verdict: Verdict) -> RenderableType:
    table = Table("COMPARED", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("EXPECTED", "FOUND", "LOST", "DOUBLED"):
        table.add_column(heading, justify="right")
    for it in verdict.findings:
        table.add_row(it.what, f"{it.expected:,}", f"{it.found:,}", mark(it.lost), mark(it.doubled))
    summary = Text.assemble(
        f"sent {verdict.sent:,}   counted {verdict.counted:,}   lost ",
        mark(verdict.lost),
        "   doubled ",
        mark(verdict.doubled),
    )
    title = "every order counted, once" if verdict.holds else "the promise was broken"
    border = "green" if verdict.holds else "red"
    content = Group(table, "", summary)
    return Panel.fit(content, title=title, border_style=border, padding=(1, 3))


def mark(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "bold green")
