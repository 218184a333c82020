"""`millstream watch`: prints changes of a key, of keys with a prefix, or that match a predicate."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.admin.moments import show_moment
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed
from millstream.cli.formats import decode_text
from millstream.cli.options import BOOTSTRAP_DEFAULT, BootstrapServer, ClientConfig
from millstream.cli.output import note, warn

if TYPE_CHECKING:
    from millstream.query.watching import Change, Watch

app = typer.Typer(
    help="Print the changes of a topic that match, as they come.",
    rich_markup_mode="rich",
    add_completion=False,
)

Key = Annotated[str | None, typer.Option("--key", "-k", help="Only this key.")]
Prefix = Annotated[str | None, typer.Option("--prefix", help="Only keys that begin with this.")]
Where = Annotated[str, typer.Option("--where", "-w", help="An SQL predicate, as in queries.")]
Schema = Annotated[str, typer.Option("--schema", "-s", help="Columns of values for --where.")]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", help="A file that keeps the position: continue there."),
]
Count = Annotated[int | None, typer.Option("--count", "-c", min=1, help="Stop after N changes.")]
FromBeginning = Annotated[
    bool, typer.Option("--from-beginning", "-a", help="Start with the oldest record.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@app.command()
def watch(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    key: Key = None,
    prefix: Prefix = None,
    where: Where = "",
    schema: Schema = "",
    resume: Resume = None,
    from_beginning: FromBeginning = False,
    count: Count = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Print the changes of a topic that match, as they come.

    Starts at the end, or where the file of --resume says. Ctrl-C stops.

    [bold]Examples[/bold]

    \b
      millstream watch orders --key alice
      millstream watch orders --prefix eu- --resume orders.position
      millstream watch orders --where "amount > 100" --schema "amount double" --json
    """
    try:
        from millstream.query.watching import TopicReplaced
        from millstream.query.watching import watch as start
    except ImportError:
        raise CommandFailed(
            "watching needs DuckDB; install it with `pip install 'millstream[query]'`"
        ) from None
    cluster = Cluster.connect(bootstrap_server, client_config)
    position = resume.read_text(encoding="utf-8") if resume and resume.exists() else None
    try:
        with start(
            topic,
            cluster.bootstrap_servers,
            key=key,
            prefix=prefix,
            where=where,
            schema=schema,
            position=position,
            from_beginning=from_beginning,
            settings=cluster.settings,
        ) as changes:
            if resume is not None:
                save_position(resume, changes.position)  # of a watch that sees nothing, too
            print_changes(changes, resume, count, as_json)
    except TopicReplaced as error:
        raise CommandFailed(f"{error}{'' if resume is None else f': delete {resume}'}") from error


def print_changes(changes: Watch, resume: Path | None, count: int | None, as_json: bool) -> None:
    printed = 0
    try:
        for change in changes:
            sys.stdout.write(line_of(change, as_json) + "\n")
            sys.stdout.flush()
            if resume is not None:
                save_position(resume, changes.position)
            printed += 1
            if printed == count:
                return
    except KeyboardInterrupt:
        note(f"{printed} changes")
    finally:
        for it in changes.warnings:
            warn(it)


def line_of(change: Change, as_json: bool) -> str:
    key = None if change.key is None else decode_text(change.key)
    value = None if change.value is None else decode_text(change.value)
    if not as_json:
        shown = "null" if value is None else value
        return f"{show_moment(change.timestamp_ms)}\t{'null' if key is None else key}\t{shown}"
    fields = {
        "partition": change.partition,
        "offset": change.offset,
        "timestamp": change.timestamp_ms,
        "key": key,
        "value": value,
        "headers": {name: None if it is None else decode_text(it) for name, it in change.headers},
    }
    return json.dumps(fields, ensure_ascii=False)


def save_position(path: Path, position: str) -> None:
    """Replace the file as a whole: a crash leaves the old position or the new one."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(position, encoding="utf-8")
    temporary.replace(path)
