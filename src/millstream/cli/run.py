"""`millstream run`: runs the pipelines of a file, with a status line for each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream import json_logs
from millstream.cli.failures import EXIT_UNREACHABLE, CommandFailed, usage_error
from millstream.cli.options import ClientConfig, Home
from millstream.cli.output import console, note, print_pairs
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.running.settings import Settings, load_settings
from millstream.pipelines.running.status import Status
from millstream.pipelines.running.topics import BrokerUnreachable
from millstream.pipelines.spec import Topic

LINE_EVERY_S = 5.0
STATE_STYLES = {"failed": "bold red", "done": "green", "stopped": "yellow", "working": "bold"}

Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Show each pipeline as a graph: state, keys, watermarks; run nothing."
    ),
]
AllowNewCheckpoint = Annotated[
    bool,
    typer.Option(
        "--allow-new-checkpoint",
        help="Start from the beginning if a pipeline has written from another checkpoint.",
    ),
]
PipelineBroker = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        help="The cluster. Default: an embedded broker with data in HOME/broker.",
    ),
]
Checkpoint = Annotated[str | None, typer.Option(metavar="DIR", help="Default: HOME/checkpoints.")]
Trigger = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Interval between batches: '10 seconds'.")
]
CreateTopics = Annotated[
    bool | None,
    typer.Option(
        "--create-topics/--no-create-topics",
        help="Create missing topics. Default: only on an embedded broker.",
    ),
]

Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at /metrics, and the probes /health and /ready.",
    ),
]
PublishStatus = Annotated[
    bool | None,
    typer.Option(
        "--publish-status/--no-publish-status",
        help="Publish graph and status to a topic, for the console. Default: yes.",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="text|json", help="Log to standard error in this format."),
]

app = typer.Typer(
    help="Run the pipelines of a file on Spark, until Ctrl-C.",
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def run(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="FILE[:NAME,...]...", help="All pipelines of a file, or FILE:NAME."),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Process the available records, then exit.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show inputs and outputs; run nothing.")
    ] = False,
    explain: Explain = False,
    broker: PipelineBroker = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Store for tables. Default: sqlite:///HOME/store.db."),
    ] = None,
    checkpoint: Checkpoint = None,
    home: Home = None,
    trigger: Trigger = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master. Default: local[*].")
    ] = None,
    allow_new_checkpoint: AllowNewCheckpoint = False,
    remove_views: Annotated[
        bool,
        typer.Option("--remove-views", help="Take views from readers that are no longer declared."),
    ] = False,
    create_topics: CreateTopics = None,
    client_config: ClientConfig = None,
    metrics: Metrics = None,
    publish_status: PublishStatus = None,
    log_format: LogFormat = None,
) -> None:
    """Run the pipelines of a file on Spark, until Ctrl-C.

    Settings come from millstream.toml next to the file, then from MILLSTREAM_*
    variables, then from options; later ones override earlier ones. Ctrl-C completes the
    running batches; the next run continues from there.

    [bold]Examples[/bold]

    \b
      millstream run shop.py
      millstream run shop.py:revenue --once
      millstream run shop.py -b kafka-1:9092 --store postgresql://shop@db/shop
      millstream run shop.py --metrics 127.0.0.1:9405
      millstream run shop.py --dry-run
      millstream run shop.py:revenue --explain
    """
    given: dict[str, Any] = {
        "broker": broker,
        "store": store,
        "checkpoint": checkpoint,
        "home": home and str(Path(home).resolve()),
        "trigger": trigger,
        "master": master,
        "create_topics": create_topics,
        "client_config": client_config,
        "metrics": metrics,
        "publish_status": publish_status,
    }
    configure_logs(log_format)
    flags = {
        "once": once,
        "allow_new_checkpoint": allow_new_checkpoint,
        "remove_views": remove_views,
    }
    run_targets(targets, given, **flags, dry_run=dry_run, explain=explain)


def configure_logs(log_format: str | None) -> None:
    if log_format is not None:
        if log_format not in json_logs.FORMATS:
            raise usage_error(f"--log-format {log_format}: it must be text or json")
        json_logs.configure(log_format)


def run_targets(
    targets: list[str],
    given: dict[str, Any],
    *,
    once: bool = False,
    allow_new_checkpoint: bool = False,
    remove_views: bool = False,
    dry_run: bool = False,
    explain: bool = False,
) -> None:
    """Run the targets, or show what would run."""
    from millstream.pipelines.running.loading import load_pipelines, parse_target

    parsed = [parse_target(it) for it in targets]
    pipelines = [it for target in parsed for it in load_pipelines(target)]
    refuse_twins(pipelines)
    settings = load_settings(parsed[0].path.resolve().parent, overrides=given)
    if dry_run:
        print_plan(pipelines, settings)
        return
    if explain:
        from millstream.cli.explain import explain_shown

        explain_shown(pipelines, settings)
        return
    try:
        run_shown(
            pipelines,
            settings,
            once=once,
            allow_new_checkpoint=allow_new_checkpoint,
            remove_views=remove_views,
        )
    except BrokerUnreachable as error:
        raise CommandFailed(
            f"{error}; start one with `millstream serve`, or set --bootstrap-server",
            EXIT_UNREACHABLE,
        ) from error


def refuse_twins(pipelines: list[Pipeline]) -> None:
    names = [it.name for it in pipelines]
    for name in names:
        if names.count(name) > 1:
            raise usage_error(f"{name} is there twice: a name is a checkpoint and a group")


def print_plan(pipelines: list[Pipeline], settings: Settings) -> None:
    from millstream.cli.explain import describe_output
    from millstream.pipelines.running.runner import with_defaults

    settings = with_defaults(settings)
    print_pairs(environment(settings))
    for pipeline in pipelines:
        console().print()
        console().print(Text(pipeline.name, style="bold"))
        print_pairs(
            [
                *(("reads", describe_input(topic)) for topic in pipeline.reads.values()),
                *(("bad records", bad_records(topic)) for topic in pipeline.reads.values()),
                *(("writes", describe_output(output)) for output in pipeline.writes.values()),
                ("checkpoint", f"{settings.checkpoint}/{pipeline.identity}"),
                ("group", pipeline.group_id),
                ("version", pipeline.version),
                ("trigger", settings.trigger or "as soon as there is something"),
            ]
        )


def describe_input(topic: Topic) -> str:
    return f"topic {topic.name} ({topic.read_format}), from {topic.start_at}"


def bad_records(topic: Topic) -> str:
    if topic.schema is None:
        return "none: values are not decoded"
    return (
        f"to topic {topic.dead_letters}" if topic.bad_records == "deadletter" else topic.bad_records
    )


def environment(settings: Settings) -> list[tuple[str, str]]:
    where = f"embedded, data in {shorten(settings.broker_data)}"
    return [
        ("broker", where if settings.is_embedded else settings.required_broker()),
        ("store", settings.store_url),
        ("checkpoints", shorten(settings.checkpoint)),
        ("spark", settings.master),
    ]


def shorten(path: Any) -> str:
    """Relative to the working directory, if it is below."""
    text, here = str(path), f"{Path.cwd()}/"
    return text.removeprefix(here)


def run_shown(
    pipelines: list[Pipeline],
    settings: Settings,
    *,
    once: bool,
    **allowed: bool,
) -> None:
    from millstream.pipelines.running.runner import run as run_pipelines

    def announce(settled: Settings) -> None:
        if settings.is_embedded:
            where = shorten(settings.broker_data)
            note(f"broker {settled.broker}, embedded: data in {where}, stopped on exit")
        note_start(settings)

    if console().is_terminal:
        with Live(console=console(), refresh_per_second=4) as live:
            run_pipelines(
                pipelines,
                settings,
                once=once,
                **allowed,
                announce=announce,
                show=lambda statuses: live.update(status_table(statuses)),
            )
        return
    lines = StatusLines()
    final = run_pipelines(
        pipelines,
        settings,
        once=once,
        **allowed,
        announce=announce,
        show=lines.show,
    )
    lines.print(final)


def note_start(settings: Settings) -> None:
    """What is to be known in the seconds in which Spark says nothing."""
    from millstream.pipelines.running.class_archive import would_help
    from millstream.pipelines.running.runner import LOG_NAME

    note(f"starting Spark, which writes its log to {shorten(settings.home / LOG_NAME)}")
    if would_help(settings.master, shortcuts=settings.spark_shortcuts):
        note("run `millstream prepare` once: Spark then starts with 40 % less work")


class StatusLines:
    """One line per pipeline every few seconds, if something changed: for pipes and logs."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_EVERY_S
        self._shown: dict[str, str] = {}

    def show(self, statuses: list[Status]) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            self.print(statuses)

    def print(self, statuses: list[Status]) -> None:
        for status in statuses:
            line = status_line(status)
            if self._shown.get(status.name) != line:
                self._shown[status.name] = line
                console().print(line)


def status_line(status: Status) -> str:
    parts = [
        f"{status.name}: {status.state}",
        f"{status.rows:,} rows in {status.batches:,} batches",
        f"lag {'-' if status.lag is None else f'{status.lag:,}'}",
        f"bad records {status.failed:,}",
        *([f"keeps {kept_text(status)}"] if status.kept_bytes else []),
    ]
    return ", ".join(parts)


def kept_text(status: Status) -> str:
    """State size: here an unbounded join shows its growth."""
    if not status.kept_bytes:
        return "-"
    rows = f"{status.kept_rows:,} rows, " if status.kept_rows else ""
    return f"{rows}{status.kept_bytes / 1e6:,.1f} MB"


def status_table(statuses: list[Status]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("PIPELINE", "STATE"):
        table.add_column(heading)
    for heading in ("ROWS/S", "ROWS", "LAG", "BATCH", "TIME", "KEPT", "BAD"):
        table.add_column(heading, justify="right")
    for status in statuses:
        table.add_row(
            status.name,
            Text(status.state, style=STATE_STYLES.get(status.state, "")),
            f"{status.rows_per_second:,.0f}",
            f"{status.rows:,}",
            "-" if status.lag is None else f"{status.lag:,}",
            f"{status.batches:,}",
            "-" if status.batch_ms is None else f"{status.batch_ms:,} ms",
            kept_text(status),
            Text(f"{status.failed:,}", style="bold red" if status.failed else "dim"),
        )
    return table
