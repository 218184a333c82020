"""Output of commands: tables for people, JSON for programs, never both.

Results go to stdout, everything else (progress, warnings, summaries of a stream) to stderr, so that
a pipe carries only data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 100_000  # a pipe has no edge: nothing is wrapped or cut


@cache
def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


@cache
def error_console() -> Console:
    return Console(stderr=True, width=None if sys.stderr.isatty() else PIPE_WIDTH, highlight=False)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, empty: str, title: str = ""
) -> None:
    """A table of `rows`; `columns` maps keys to headings, `empty` is the text for no rows."""
    if not rows:
        console().print(empty, style="dim")
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        title=title or None,
        title_justify="left",
        title_style="bold",
    )
    for key, heading in columns.items():
        numeric = all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(key)) for key in columns))
    console().print(table)


def cell(value: Any) -> Text:
    """A value as a table shows it: no markup is interpreted, nothing is a dash."""
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, list | tuple):
        return Text(", ".join(map(str, value)))
    return Text(str(value))


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Facts about one thing, one per line, values aligned."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, cell(value))
    console().print(table)


def warn(message: str) -> None:
    error_console().print(Text(f"warning: {message}", style="yellow"))


def note(message: str) -> None:
    """A note for the user, on stderr."""
    error_console().print(Text(message, style="dim"))
