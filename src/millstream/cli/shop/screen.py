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
from millstream.cli.shop.catalogue import SEARCHED
from millstream.cli.shop.story import ORDERS, VIEWS, Story
from millstream.cli.shop.watching import Position

REFRESH_PER_SECOND = 8
LINE_EVERY_S = 4.0
WIDTH_MAX = 100
SPARKS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 10
PRODUCTS_WIDTH = 52


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
        f"{story.rates.of(ORDERS):>6,.0f}/s  lag: {lags}  "
        f"fraud {story.run.desk.frauds:,}  dead letters {story.run.desk.letters:,}"
        + (f"  products: {catalogue_counts(story)}" if story.catalogue.products else "")
    )


# The live screen


def screen_of(story: Story) -> RenderableType:
    is_dead = "KILLED" in story.state.plain
    below = Table.grid(expand=True, padding=(0, 3))
    below.add_column(min_width=PRODUCTS_WIDTH)
    tables = Group(products_table(story), "", leaders_table(story))
    below.add_row(tables, desk_notes(story))
    return Panel(
        Group(headline(story), "", flow_table(story), "", below, "", *story.events),
        title="[bold]millstream demo[/bold]: every order counts, once",
        border_style="red" if is_dead else "blue",
        padding=(1, 2),
        width=min(console().width, WIDTH_MAX),
    )


def headline(story: Story) -> Table:
    ledger = story.run.customers.ledger
    faults = f"{ledger.late:,} late, {ledger.again:,} sent twice, {len(ledger.poison):,} broken"
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right", style="dim")
    line.add_row(story.state, f"{faults}   {story.elapsed_s:3.0f} s")
    return line


def flow_table(story: Story) -> Table:
    """What customers send and pipelines read, one below the other."""
    table = plain_table("CUSTOMERS SEND", "THE LAST HALF MINUTE", "A SECOND", "SO FAR", "LAG")
    ledger = story.run.customers.ledger
    for name, count in ((ORDERS, len(ledger.orders)), (VIEWS, ledger.views)):
        table.add_row(name, *rate_cells(story, name), f"{count:,}", "")
    table.add_section()
    table.add_row(Text("PIPELINES READ", style="bold"), "", "", "", "")
    positions = {it.pipeline: it for it in story.look.positions}
    for pipeline in story.run.watcher.watched:
        name = pipeline.identity
        position = positions.get(name, Position(name, 0, 0))
        lag = Text(f"{position.lag:,}", style="yellow" if position.lag else "green")
        table.add_row(name, *rate_cells(story, name), f"{position.done:,}", lag)
    return table


def products_table(story: Story) -> Table:
    table = plain_table("TOP PRODUCTS", "", "REVENUE", "ORDERS", "VIEWS")
    best = max((it.revenue for it in story.look.products), default=1)
    for product in story.look.products:
        bar = "━" * max(1, round(BAR_WIDTH * product.revenue / best))
        figures = (f"{figure:,}" for figure in (product.revenue, product.orders, product.views))
        table.add_row(product.name, Text(bar, style="magenta"), *figures)
    return table


def leaders_table(story: Story) -> RenderableType:
    if not story.look.leaders:
        return ""
    table = plain_table("TOP CUSTOMERS", "", "SPENT", "ORDERS")
    best = max((it.spent for it in story.look.leaders), default=1)
    for leader in story.look.leaders:
        bar = "━" * max(1, round(BAR_WIDTH * leader.spent / best))
        figures = (f"{figure:,}" for figure in (leader.spent, leader.orders))
        table.add_row(leader.customer, Text(bar, style="magenta"), *figures)
    return table


def desk_notes(story: Story) -> Group:
    """What somebody in the shop should look at."""
    desk = story.run.desk
    return Group(
        Text(f"ALERTS  {desk.alerts:,}", style="bold"),
        *(Text(it, style="dim", no_wrap=True, overflow="ellipsis") for it in desk.last_alerts),
        "",
        Text(f"FRAUD  {desk.frauds:,}", style="bold"),
        *(Text(it, style="dim", no_wrap=True, overflow="ellipsis") for it in desk.last_frauds),
        "",
        Text(f"DEAD LETTERS  {desk.letters:,}", style="bold"),
        *(Text(f"{count:,} {it}", style="dim") for it, count in sorted(desk.reasons.items())),
        *catalogue_notes(story),
    )


def catalogue_notes(story: Story) -> list[RenderableType]:
    """How the search index and the table follow the database; nothing if there is none."""
    if not story.catalogue.products:
        return []
    found = f'search "{SEARCHED}": {", ".join(story.catalogue.found) or "nothing yet"}'
    return [
        "",
        Text(f"CATALOGUE  {story.catalogue.changes:,} changes in PostgreSQL", style="bold"),
        Text(f"{catalogue_counts(story)} products", style="dim"),
        Text(found, style="dim", no_wrap=True, overflow="ellipsis"),
    ]


def catalogue_counts(story: Story) -> str:
    products = story.catalogue.products or {}
    return ", ".join(f"{name} {count:,}" for name, count in products.items())


def plain_table(*headings: str) -> Table:
    """A name, something drawn, and numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right", no_wrap=True)
    return table


def rate_cells(story: Story, name: str) -> tuple[Text, str]:
    return spark_line(story.rates.history[name]), f"{story.rates.of(name):,.0f}"


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
    for finding in verdict.findings:
        table.add_row(
            finding.what,
            f"{finding.expected:,}",
            f"{finding.found:,}",
            mark(finding.lost),
            mark(finding.doubled),
        )
    summary = Text.assemble(
        f"sent {verdict.sent:,}   counted {verdict.counted:,}   lost ",
        mark(verdict.lost),
        "   doubled ",
        mark(verdict.doubled),
    )
    title = "every order counted, once" if verdict.holds else "the results differ"
    border = "green" if verdict.holds else "red"
    content = Group(table, "", summary)
    return Panel.fit(content, title=title, border_style=border, padding=(1, 3))


def mark(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "bold green")
