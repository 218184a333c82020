"""`millstream capture`: changes of a PostgreSQL database to topics, exactly once."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars

from millstream.cli.failures import CommandFailed
from millstream.cli.options import AsJson, ClientConfig
from millstream.cli.output import console, error_console, note, print_json, print_pairs, print_rows

if TYPE_CHECKING:
    from millstream.connect.capture.capture import Capture
    from millstream.connect.capture.progress import Progress
    from millstream.connect.capture.settings import CaptureSettings

LINE_EVERY_SECONDS = 5.0
REFRESH_SECONDS = 0.25

Answer = TypeVar("Answer")

app = typer.Typer(
    help="Capture the changes of a PostgreSQL database into topics, exactly once.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

File = Annotated[
    Path, typer.Argument(metavar="CAPTURE.TOML", exists=True, dir_okay=False, help="The settings.")
]


@app.command()
def run(file: File, client_config: ClientConfig = None) -> None:
    """Capture until Ctrl-C or SIGTERM: first the rows that are there, then every change.

    Start it again after any crash: it continues where the last committed transaction ends.

    [bold]Examples[/bold]

    \b
      millstream capture run shop.toml
      PGPASSWORD=secret millstream capture run shop.toml
    """
    settings = load(file, client_config)
    from millstream.connect.capture.capture import Capture

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    capture = Capture.of(settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: capture.stop())
    run_shown(capture)


@app.command()
def status(file: File, as_json: AsJson = False, client_config: ClientConfig = None) -> None:
    """Show the position, the lag in bytes and the tables of a capture; exit with 1 on a problem.

    [bold]Examples[/bold]

    \b
      millstream capture status shop.toml
      millstream capture status shop.toml --json | jq .lag_bytes
    """
    settings = load(file, client_config)
    from millstream.connect.capture.control import read_status

    found = guarded(lambda: read_status(settings))
    if as_json:
        print_json(found.to_json())
    else:
        pairs = {
            "phase": found.phase,
            "running": "yes" if found.is_running else "no",
            "position": found.position or "-",
            "slot": f"{found.slot} ({found.wal_status or 'does not exist'})",
            "lag": size(found.lag_bytes),
            "kept on the database's disk": size(found.retained_bytes),
            "until the slot is lost": size(found.safe_bytes) if found.safe_bytes else "no limit",
        }
        print_pairs(pairs.items())
        rows = [
            {"table": name, "snapshot": it.snapshot, "rows": it.rows, "expected": it.rows_expected}
            for name, it in found.tables.items()
        ]
        columns = {"table": "TABLE", "snapshot": "SNAPSHOT", "rows": "ROWS", "expected": "EXPECTED"}
        print_rows(rows, columns, empty="no tables yet; start it with `millstream capture run`")
    problems = [f"{name}: {it}" for name, it in found.table_problems.items()]
    if found.problem is not None:
        problems.insert(0, found.problem)
    if problems:
        raise CommandFailed("\n".join(problems))


@app.command()
def resnapshot(
    file: File,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="SCHEMA.TABLE", help="Default: all tables.")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Begin with a truncate (op t): rows that are gone disappear."
        ),
    ] = False,
    new_slot: Annotated[
        bool,
        typer.Option(
            "--new-slot",
            help="Start over: drop the slot, copy all tables in the next run. For lost slots.",
        ),
    ] = False,
    client_config: ClientConfig = None,
) -> None:
    """Copy tables again, beside the stream: the running capture does it, or the next run.

    [bold]Examples[/bold]

    \b
      millstream capture resnapshot shop.toml public.orders
      millstream capture resnapshot shop.toml --replace
      millstream capture resnapshot shop.toml --new-slot
    """
    settings = load(file, client_config)
    from millstream.connect.capture.control import request_snapshot, start_over

    if new_slot:
        if tables:
            raise CommandFailed("--new-slot copies all tables; give none")
        guarded(lambda: start_over(settings))
        console().print("the next `millstream capture run` starts over", markup=False)
        return
    chosen = guarded(lambda: request_snapshot(settings, tables or [], replaces=replace))
    console().print(f"requested: {', '.join(chosen)}", markup=False)


@app.command()
def remove(
    file: File,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    client_config: ClientConfig = None,
) -> None:
    """Drop the slot and the managed publication, so that the database keeps no more log. Asks first
    when it runs in a terminal.

    The topics stay. A running capture ends; a later run copies all tables again.

    [bold]Examples[/bold]

    \b
      millstream capture remove shop.toml
      millstream capture remove shop.toml --yes
    """
    settings = load(file, client_config)
    from millstream.connect.capture.control import remove as remove_capture

    if not yes and sys.stdin.isatty():
        typer.confirm(f"remove capture {settings.name} with slot {settings.slot}?", abort=True)
    removed = guarded(lambda: remove_capture(settings))
    for it in removed.dropped:
        console().print(f"dropped {it}", markup=False)
    topics = f"{' '.join(removed.topics)} --bootstrap-server {settings.broker}"
    note(f"topics are kept; `millstream topic delete --if-exists {topics}` deletes them")


def load(file: Path, client_config: Path | None = None) -> CaptureSettings:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise CommandFailed("capture needs psycopg: pip install 'millstream[postgres]'") from None
    from millstream.connect.capture.settings import load_settings

    return load_settings(file, client_config)


def guarded(action: Callable[[], Answer]) -> Answer:
    """The database's errors as one line."""
    import psycopg

    try:
        return action()
    except psycopg.Error as error:
        raise CommandFailed(f"database: {str(error).strip()}") from error


def run_shown(capture: Capture) -> None:
    """Run in a thread, and show the progress: bars in a terminal, else lines."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            capture.run()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    thread = threading.Thread(target=work, name="capture")
    thread.start()
    if error_console().is_terminal:
        show_bars(capture, thread)
    else:
        show_lines(capture, thread)
    thread.join()
    if failures:
        failure = failures[0]

        def fail() -> None:
            raise failure

        guarded(fail)
    note(f"{capture.settings.name}: {describe(capture.progress)}")


def show_lines(capture: Capture, thread: threading.Thread) -> None:
    due, last = time.monotonic(), ""
    while thread.is_alive():
        thread.join(REFRESH_SECONDS)
        text = describe(capture.progress)
        if text != last and time.monotonic() >= due:
            note(f"{capture.settings.name}: {text}")
            last, due = text, time.monotonic() + LINE_EVERY_SECONDS


def show_bars(capture: Capture, thread: threading.Thread) -> None:
    """A bar for each table that is being copied, then a line about the stream."""
    bars = Bars(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TaskProgressColumn(),
        console=error_console(),
    )  # fmt: skip
    known: dict[str, object] = {}
    with Live(bars, console=error_console(), refresh_per_second=4, transient=True) as live:
        while thread.is_alive():
            thread.join(REFRESH_SECONDS)
            update_bars(bars, known, capture.progress)
            busy = [task for task in bars.tasks if not task.finished]
            live.update(bars if busy else describe(capture.progress))


def update_bars(bars: Bars, known: dict[str, object], progress: Progress) -> None:
    for name, table in (progress.state.tables if progress.state else {}).items():
        if name not in known and table.is_unfinished:
            known[name] = bars.add_task(name)
        if name in known:
            expected = max(table.rows_expected, table.rows + 1)
            total = expected if table.is_unfinished else table.rows
            bars.update(known[name], completed=table.rows, total=total)  # type: ignore[arg-type]


def describe(progress: Progress) -> str:
    if progress.phase == "retrying":
        return f"retrying: {progress.error}"
    if progress.phase == "connecting":
        return f"waiting {progress.waiting}" if progress.waiting else "connecting"
    parts = [f"{progress.rows_copied:,} rows copied", f"{progress.records:,} changes"]
    if progress.table_problems:
        parts.append(f"problems with {', '.join(progress.table_problems)}")
    if progress.slot is not None:
        parts.append(f"lag {size(progress.slot.lag_bytes)}")
    return ", ".join(parts)


def size(count: int | None) -> str:
    if count is None:
        return "-"
    value = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError
