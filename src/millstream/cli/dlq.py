"""`millstream dlq`: lists, shows, replays and purges dead letters of groups and pipelines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer
from rich.text import Text

from millstream.admin import letters as mail
from millstream.admin.letters import (
    Filter,
    Letter,
    Position,
    dead_letter_topics,
    read_letters,
    unique,
)
from millstream.admin.moments import show_moment
from millstream.admin.offsets import end_offsets, start_offsets
from millstream.admin.replay import (
    Memory,
    Tally,
    plan_matching,
    plan_selected,
    replay_matching,
    replay_selected,
)
from millstream.admin.values import decode_text
from millstream.cli.cluster import Cluster
from millstream.cli.failures import usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, error_console, note, print_json, print_rows, warn
from millstream.cli.topic import TopicName
from millstream.partitions import DEAD_LETTER_PREFIX

app = typer.Typer(
    help="Show, replay and purge dead letters.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

WHICH = "Which letters"
VALUE_CHARACTERS = 60

Group = Annotated[
    str | None,
    typer.Option("--group", "-g", rich_help_panel=WHICH, help="Only letters of this group."),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        "-s",
        metavar="TOPIC[:N]",
        rich_help_panel=WHICH,
        help="Only records of this topic.",
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", "-r", rich_help_panel=WHICH, help="rejected, limit, malformed, ..."),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="WHEN", rich_help_panel=WHICH, help="Written since: 2h, today."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="WHEN", rich_help_panel=WHICH, help="Written before."),
]
Unique = Annotated[
    bool,
    typer.Option(
        "--unique", "-u", rich_help_panel=WHICH, help="Only one letter per record and group."
    ),
]


@app.command("list")
def list_topics(
    prefix: Annotated[
        str, typer.Option("--prefix", help="Prefix of dead-letter topics.")
    ] = DEAD_LETTER_PREFIX,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List dead-letter topics with the number, origin and reason of their letters.

    Lists topics that accept dead letters (errors.deadletterqueue.group.enable), and topics with
    the prefix of dead-letter topics.

    [bold]Examples[/bold]

    \b
      millstream dlq list
      millstream dlq list --json | jq '[.[].letters] | add'
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    rows = [
        row
        for topic in dead_letter_topics(cluster.protocol, prefix)
        for row in count(cluster, topic)
    ]
    if as_json:
        print_json(rows)
        return
    columns = {
        "topic": "TOPIC",
        "group": "GROUP",
        "source": "SOURCE",
        "reason": "REASON",
        "letters": "LETTERS",
        "oldest": "OLDEST",
        "newest": "NEWEST",
    }
    moments = [
        row | {key: row[key] and to_the_second(row[key]) for key in ("oldest", "newest")}
        for row in rows
    ]
    print_rows(moments, columns, empty=f"no dead-letter topics (none is named {prefix}...)")


def count(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """The topic's letters by group, source and reason; an empty topic has one row."""
    counted: dict[tuple[str, str, str], dict[str, Any]] = {}
    with progress(cluster, topic) as advance:
        for letter in read_letters(cluster.protocol, topic):
            key = (letter.group, letter.source, letter.reason)
            row = counted.setdefault(
                key,
                {
                    "topic": topic,
                    "group": letter.group,
                    "source": letter.source,
                    "reason": letter.reason,
                    "letters": 0,
                    "oldest": letter.written_ms,
                    "newest": letter.written_ms,
                },
            )
            row["letters"] += 1
            row["oldest"] = min(row["oldest"], letter.written_ms)
            row["newest"] = max(row["newest"], letter.written_ms)
            advance(1)
    empty = {"topic": topic, "letters": 0, "oldest": None, "newest": None}
    return [counted[key] for key in sorted(counted)] or [empty]


@app.command()
def show(
    topic: TopicName,
    group: Group = None,
    source: Source = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    only_unique: Unique = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of letters.")
    ] = 100,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show dead letters: the failed record, the group, the reason and the delivery count.

    [bold]Examples[/bold]

    \b
      millstream dlq show dlq.orders
      millstream dlq show dlq.orders --group billing --reason limit --since 2h
      millstream dlq show dlq.orders --json | jq -r '.[].value'
    """
    matches = Filter(group, source, reason, since, until).matcher()
    cluster = Cluster.connect(bootstrap_server, client_config)
    letters: Iterator[Letter] = filter(matches, read_letters(cluster.protocol, topic))
    if only_unique:
        letters = unique(letters)
    shown = list(islice(letters, limit))
    more = next(letters, None) is not None
    if as_json:
        print_json([as_dict(letter) for letter in shown])
    else:
        show_letters(shown)
    if more:
        note(f"more than {limit}; show more with --limit")


def as_dict(letter: Letter) -> dict[str, Any]:
    origin, replay_of = letter.origin, letter.replay_of
    key, value = letter.key, letter.value
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "written_ms": letter.written_ms,
        "origin": None if origin is None else origin._asdict(),
        "origin_timestamp_ms": int(letter.error("timestamp") or 0) or None,
        "group": letter.group,
        "reason": letter.reason,
        "message": letter.error("message"),
        "delivery_count": letter.delivery_count,
        "replay_count": letter.replay_count,
        "replay_of": None if replay_of is None else replay_of._asdict(),
        "has_copy": letter.has_copy,
        "key": None if key is None else decode_text(key),
        "value": None if value is None else decode_text(value),
        "headers": [
            [name, None if data is None else decode_text(data)] for name, data in letter.raw_headers
        ],
    }


def show_letters(letters: list[Letter]) -> None:
    """A block of lines per letter: a table with this many columns does not fit a terminal."""
    if not letters:
        console().print("no matching dead letters", style="dim")
    for letter in letters:
        origin = (
            "{}[{}]@{}".format(*letter.origin) if letter.origin else "a record of unknown origin"
        )
        deliveries = f", deliveries: {letter.delivery_count}" if letter.delivery_count else ""
        replays = f", replays: {letter.replay_count}" if letter.replay_count else ""
        heading = Text(f"[{letter.partition}]@{letter.offset}  {origin}", style="bold")
        heading.append(f"  {to_the_second(letter.written_ms)}", style="not bold dim")
        console().print(heading)
        console().print(Text(f"    {letter.group}: {letter.reason}{deliveries}{replays}"))
        console().print(Text(f"    {letter.error('message') or 'no message'}", style="dim"))
        content = f"{brief(letter.key)}: {brief(letter.value)}"
        console().print(Text(f"    {content if letter.has_copy else 'without a copy'}"))


def to_the_second(timestamp_ms: int) -> str:
    return show_moment(timestamp_ms)[: len("2026-11-14 08:30:00")]


def brief(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = decode_text(data).replace("\n", "\\n")
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"


@app.command()
def replay(
    topic: TopicName,
    group: Group = None,
    source: Source = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    letter: Annotated[
        list[str] | None,
        typer.Option(
            "--letter",
            metavar="PARTITION:OFFSET",
            rich_help_panel=WHICH,
            help="Only this letter; repeatable.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="Default: the original topic of each."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Send, or only count.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Replay dead letters to their original topics. Only counts them without --execute.

    Replayed letters are recorded (as offsets of the group millstream-dlq-replay) and not sent
    again by a second replay; neither are duplicates of the same failure. A record keeps its
    history in its headers: __dlq.errors.* of its failures, and __dlq.replay.count.
    For a letter without a copy, the record is read from the original topic, if it is still there.

    [bold]Examples[/bold]

    \b
      millstream dlq replay dlq.orders
      millstream dlq replay dlq.orders --execute
      millstream dlq replay dlq.orders --group billing --reason limit --since 2h --execute
      millstream dlq replay dlq.orders --letter 0:17 --letter 0:21 --execute
      millstream dlq replay dlq.orders --to orders-retry --execute
    """
    chosen = Filter(group, source, reason, since, until)
    if letter and chosen != Filter():
        raise usage_error("give --letter, or --group, --source, --reason, --since and --until")
    positions = [Position.parse(it) for it in letter or []]
    matches = chosen.matcher()
    cluster = Cluster.connect(bootstrap_server, client_config)
    if to is not None:
        cluster.partitions_of(to)
    cluster.partitions_of(topic)
    protocol = cluster.protocol
    if positions and execute:
        tally = replay_selected(protocol, topic, positions, target=to)
    elif positions:
        tally = plan_selected(protocol, topic, positions)
    else:
        with progress(cluster, topic) as advance:
            if execute:
                tally = replay_matching(protocol, topic, matches, target=to, advance=advance)
            else:
                tally = plan_matching(protocol, topic, matches, advance=advance)
    if as_json:
        print_json({"topic": topic, "executed": execute} | asdict(tally))
        return
    say(tally, execute)


def say(tally: Tally, execute: bool) -> None:
    verb = "replayed" if execute else "would replay"
    plural = "letter" if tally.sent == 1 else "letters"
    console().print(f"{verb} {tally.sent} {plural}", markup=False)
    if tally.replayed_before:
        note(f"{tally.replayed_before} already replayed")
    if tally.duplicates:
        note(f"{tally.duplicates} duplicates of the same failure")
    if tally.originals_gone:
        warn(
            f"{tally.originals_gone} have no copy of their record, which has expired; set "
            "errors.deadletterqueue.copy.record.enable on the group"
        )
    if not execute:
        note("dry run: nothing was sent; add --execute to do it")


@app.command()
def purge(
    topic: TopicName,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Only before the first letter not replayed yet.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Delete a topic's dead letters. Asks first when it runs in a terminal.

    Letters that arrive meanwhile are kept.

    [bold]Examples[/bold]

    \b
      millstream dlq purge dlq.orders
      millstream dlq purge dlq.orders --replayed --yes
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    places = [(topic, index) for index in cluster.partitions_of(topic)]
    starts, ends = start_offsets(cluster.protocol, places), end_offsets(cluster.protocol, places)
    if replayed:
        memory = Memory.load(cluster.protocol, topic)
        ends = {place: memory.replayed_below(*place) or 0 for place in places}
    doomed = sum(max(0, ends[place] - starts[place]) for place in places)
    if doomed and not yes and sys.stdin.isatty():
        typer.confirm(f"delete {doomed} dead letters of {topic} for good?", abort=True)
    deleted = mail.purge(cluster.protocol, topic, ends)
    console().print(f"deleted {deleted} dead letters of {topic}", markup=False)


@contextmanager
def progress(cluster: Cluster, topic: str) -> Iterator[Callable[[int], None]]:
    """A progress bar over all letters of the topic, in a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    places = [(topic, index) for index in cluster.partitions_of(topic)]
    starts, ends = start_offsets(cluster.protocol, places), end_offsets(cluster.protocol, places)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    hidden = not sys.stderr.isatty()
    with Progress(*columns, console=error_console(), transient=True, disable=hidden) as bar:
        task = bar.add_task(topic, total=sum(ends[it] - starts[it] for it in places))
        yield lambda letters: bar.advance(task, letters)
