"""`millstream versions`: lists and removes versions; and what the commands for versions share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.failures import EXIT_UNREACHABLE, CommandFailed
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, ClientConfig, Home
from millstream.cli.output import console, note, print_json, print_rows
from millstream.errors import ConfigError
from millstream.pipelines.offsets import count_between, from_json
from millstream.pipelines.running.settings import Settings, load_settings
from millstream.pipelines.running.topics import BrokerUnreachable
from millstream.pipelines.versions.catalog import Catalog, Work, open_catalog
from millstream.pipelines.versions.registry import Version, Versions, private_topic

Broker = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        help="The cluster. Default: that of millstream.toml, or 127.0.0.1:9092.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The store with the tables. Default: sqlite:///HOME/store.db."
    ),
]
Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="The name of the pipeline.")]

app = typer.Typer(
    help="List the deployed versions of pipelines, and remove retired ones.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)


def settings_here(
    broker: str | None = None,
    store: str | None = None,
    home: str | None = None,
    client_config: Path | None = None,
) -> Settings:
    """Of this directory."""
    given = {
        "broker": broker,
        "store": store,
        "home": home and str(Path(home).resolve()),
        "client_config": client_config,
    }
    return with_shared_broker(load_settings(Path.cwd(), overrides=given))


def with_shared_broker(settings: Settings) -> Settings:
    """Versions run in several processes, so none of them has a broker of its own."""
    return replace(settings, broker=BOOTSTRAP_DEFAULT) if settings.is_embedded else settings


@contextmanager
def opened(settings: Settings) -> Iterator[Catalog]:
    """The versions in the store; raises `ConfigError` if there are none."""
    with open_catalog(settings.store_url) as catalog:
        if not catalog.exists():
            raise ConfigError(
                f"no pipeline is deployed to {settings.store_url}: run `millstream deploy "
                "FILE.py:NAME`. If you have done so, run this command in the directory of FILE.py, "
                "or name the store with --store"
            )
        with explaining_unreachable():
            yield catalog


@contextmanager
def explaining_unreachable() -> Iterator[None]:
    try:
        yield
    except BrokerUnreachable as error:
        raise CommandFailed(
            f"{error}; start one with `millstream serve`, or set --bootstrap-server",
            EXIT_UNREACHABLE,
        ) from error


@app.command(name="list")
def list_versions(
    pipeline: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="Only this pipeline.")
    ] = None,
    store: Store = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List versions: which is in force, where each stands, what it writes.

    [bold]Examples[/bold]

    \b
      millstream versions list
      millstream versions list revenue --json
    """
    with opened(settings_here(store=store, home=home)) as catalog:
        found = catalog.read(lambda work: describe_all(work, pipeline))
    if as_json:
        print_json(found)
        return
    columns = {
        "pipeline": "PIPELINE",
        "version": "VERSION",
        "in_force": "IN FORCE",
        "state": "STATE",
        "behind": "BEHIND",
        "tables": "TABLES",
        "topics": "TOPICS",
    }
    shown = [it | {"in_force": "yes" if it["in_force"] else ""} for it in found]
    print_rows(shown, columns, empty="no versions")


def describe_all(work: Work, pipeline: str | None) -> list[dict[str, Any]]:
    documents = work.load_all()
    if pipeline is not None:
        documents = [it for it in documents if it.pipeline == pipeline]
    return [
        describe_version(work, document, version)
        for document in documents
        for version in document.versions.values()
    ]


def describe_version(work: Work, document: Versions, version: Version) -> dict[str, Any]:
    """`behind` counts the records that the version in force has read, and this one has not."""
    stored = work.progress(document.identity(version.version))
    leader = work.progress(document.identity(document.in_force or ""))
    position = from_json(json.loads((stored and stored.offsets) or "{}"))
    ahead = from_json(json.loads((leader and leader.offsets) or "{}"))
    is_in_force = document.in_force == version.version
    return {
        "pipeline": document.pipeline,
        "version": version.version,
        "in_force": is_in_force,
        "state": version.label,
        "behind": count_between(position, ahead) if ahead else None,
        "tables": [it.physical for it in version.tables],
        "topics": [
            it if is_in_force else private_topic(it, version.version) for it in version.topics
        ],
        "start_at": version.start_at,
        "offsets": json.loads((stored and stored.offsets) or "{}"),
        "checkpoint": version.checkpoint,
    }


@app.command(name="remove")
def remove(
    pipeline: Pipeline,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The version to remove.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    broker: Broker = None,
    store: Store = None,
    home: Home = None,
    client_config: ClientConfig = None,
) -> None:
    """Remove a version with its tables, private topics, group and state.

    The version in force cannot be removed, unless it is the last of its pipeline. If the command is
    interrupted, repeat it.

    [bold]Examples[/bold]

    \b
      millstream versions remove revenue 1
      millstream versions remove revenue 1 --yes
    """
    from millstream.pipelines.versions.removing import remove_version

    settings = settings_here(broker, store, home, client_config)
    if not yes and not typer.confirm(f"Remove version {version} of {pipeline} and its tables?"):
        raise CommandFailed("nothing is removed")
    with opened(settings) as catalog:
        remove_version(catalog, settings, pipeline, version, show=note)
    console().print(f"removed version {version} of {pipeline}")
