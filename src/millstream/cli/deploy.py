"""`millstream deploy`: runs a version of a pipeline beside the others, until Ctrl-C."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from millstream.admin.moments import parse_moment_ms
from millstream.cli.failures import usage_error
from millstream.cli.options import ClientConfig, Home
from millstream.cli.output import console, note
from millstream.cli.run import Checkpoint, PublishStatus, StatusLines, Trigger, note_start
from millstream.cli.versions import Broker, Store, explaining_unreachable, with_shared_broker
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.running.settings import Settings, load_settings
from millstream.pipelines.running.status import Status
from millstream.pipelines.versions.registry import Versions, private_topic

app = typer.Typer(
    help="Run a version of a pipeline beside the others, until Ctrl-C.",
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def deploy(
    target: Annotated[
        str, typer.Argument(metavar="FILE:NAME", help="The pipeline: shop.py:revenue.")
    ],
    version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Default: the version that the pipeline declares."),
    ] = None,
    start_at: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, a time (yesterday, 7d, 2026-11-14T08:30) or offsets "
            """('{"orders": {"0": 17}}'). Default: as the pipeline declares.""",
        ),
    ] = None,
    state_from: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="Begin where this version stands, with copies of its state and tables.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit when it has caught up.")] = False,
    broker: Broker = None,
    store: Store = None,
    checkpoint: Checkpoint = None,
    home: Home = None,
    trigger: Trigger = None,
    create_topics: Annotated[
        bool, typer.Option("--create-topics", help="Create missing topics.")
    ] = False,
    client_config: ClientConfig = None,
    publish_status: PublishStatus = None,
) -> None:
    """Run a version of a pipeline beside the others, until Ctrl-C.

    The version gets its own checkpoint, group, tables and topics. It starts from the
    beginning, or from a place, and is announced when it has caught up. The first version
    is in force at once: readers read what it writes. `millstream switch` moves readers to
    another one. Each version needs a process of its own. After Ctrl-C, run the same command
    again to continue the version.

    [bold]Examples[/bold]

    \b
      millstream deploy shop.py:revenue
      millstream deploy shop.py:revenue --version 2
      millstream deploy shop.py:revenue --version 2 --from 7d --once
      millstream deploy shop.py:revenue --version 3 --from '{"orders": {"0": 17}}'
      millstream deploy shop.py:revenue --version 3 --state-from 2
    """
    if start_at is not None and state_from is not None:
        raise usage_error("--from and --state-from: a version begins at one place")
    pipeline = load_version(target, version)
    given: dict[str, Any] = {
        "broker": broker,
        "store": store,
        "checkpoint": checkpoint,
        "home": home and str(Path(home).resolve()),
        "trigger": trigger,
        "create_topics": create_topics or None,
        "client_config": client_config,
        "publish_status": publish_status,
    }
    settings = with_shared_broker(load_settings(pipeline.home, overrides=given))
    with explaining_unreachable():
        place = parse_place(start_at, pipeline)
        deploy_shown(pipeline, settings, place, state_from, once=once)


def load_version(target: str, version: str | None) -> Pipeline:
    """The pipeline as the given version; raises for a target that is not one pipeline."""
    from millstream.pipelines.running.loading import load_pipelines, parse_target

    found = load_pipelines(parse_target(target))
    if len(found) != 1:
        names = ", ".join(it.name for it in found)
        raise usage_error(f"{target} has several pipelines ({names}): name one, FILE.py:NAME")
    (pipeline,) = found
    return pipeline if version is None else replace(pipeline, version=version)


def parse_place(text: str | None, pipeline: Pipeline) -> str | None:
    """Where the version starts, as it is stored: a word, a time in UTC, or offsets as JSON."""
    if text is None or text in ("earliest", "latest"):
        return text
    if not text.lstrip().startswith("{"):
        moment_ms = parse_moment_ms(text, datetime.now().astimezone())
        return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat()
    read = {it.name for it in pipeline.reads.values()}
    try:
        given = {
            topic: {str(int(partition)): int(offset) for partition, offset in offsets.items()}
            for topic, offsets in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError):
        raise usage_error(
            f"""--from {text}: write offsets as '{{"orders": {{"0": 17}}}}'"""
        ) from None
    for topic in given:
        if topic not in read:
            raise usage_error(f"--from: {pipeline.name} does not read topic {topic}")
    return json.dumps(given)


def deploy_shown(
    pipeline: Pipeline,
    settings: Settings,
    start_at: str | None,
    state_from: str | None,
    *,
    once: bool,
) -> None:
    from millstream.pipelines.running.runner import run as run_pipelines
    from millstream.pipelines.running.topics import check_topics
    from millstream.pipelines.versions.carrying import carry_state
    from millstream.pipelines.versions.catalog import open_catalog
    from millstream.pipelines.versions.deploying import deploy_version

    def announce(effective: Settings) -> None:
        check_topics(effective, [pipeline])  # a version that cannot run is not registered
        document = deploy_version(pipeline, effective, start_at, state_from)
        print_deployed(pipeline, document)
        with open_catalog(effective.store_url) as catalog:
            carry_state(catalog, effective, document, pipeline.version, show=note)
        note_start(settings)

    with CatchingUp(pipeline) as shown:
        run_pipelines([pipeline], settings, once=once, announce=announce, show=shown.show)
    if once:
        with open_catalog(settings.store_url) as catalog:
            catalog.note_caught_up(pipeline.name, pipeline.version)
        shown.announce()


def print_deployed(pipeline: Pipeline, document: Versions) -> None:
    version = document.get(pipeline.version)
    is_in_force = document.in_force == version.version
    topics = [it if is_in_force else private_topic(it, version.version) for it in version.topics]
    outputs = [
        *(f"table {it.physical}" for it in version.tables),
        *(f"topic {it}" for it in topics),
    ]
    console().print(
        f"deployed version {version.version} of {pipeline.name}: it writes {', '.join(outputs)}; "
        + ("it is in force" if is_in_force else f"version {document.in_force} is in force")
    )


class CatchingUp:
    """Shows how far a version is, as a bar in a terminal, and announces when it has caught up."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lines = StatusLines()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._is_announced = False

    def __enter__(self) -> CatchingUp:
        if console().is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]:,.0f} rows/s"),
                console=console(),
            )
            name = f"{self._pipeline.name} version {self._pipeline.version}"
            self._task = self._bar.add_task(name, total=None, rate=0.0)
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, statuses: list[Status]) -> None:
        (status,) = statuses
        if self._bar is not None:
            total = None if status.lag is None else status.rows + status.lag
            rate = status.rows_per_second
            self._bar.update(self._task, total=total, completed=status.rows, rate=rate)
        else:
            self._lines.show(statuses)
        if status.lag == 0 and status.batches:
            self.announce()

    def announce(self) -> None:
        if not self._is_announced:
            self._is_announced = True
            console().print(
                f"version {self._pipeline.version} of {self._pipeline.name} has caught up"
            )
