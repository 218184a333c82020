"""Removes what a pipeline has of excised records: its state on Spark, its tables and views.

State cannot be searched for a person: it is sums, windows and joins. So it is computed again from
the log, which no longer has the records, and what was there before is deleted: checkpoints,
tables, and what deleted rows leave in the files of the store.

    views        of a pipeline that has views only: built beside the old ones as another
                 generation (`millstream.views.generations`); readers see the old ones until then
    in place     of one that writes tables: its tables are emptied, and filled again
    version      of one that writes topics, or is deployed: readers of its topics must not get all
                 results once more, so another version takes its place, which the operator deploys
                 (docs/guides/versions.md). The job waits until the old ones are removed

A checkpoint has an id, and so has the state in it: `states`. When a job comes to a pipeline it
writes down which there are; the pipeline is done when none of these is left.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import Cluster
from millstream.connect.sinks.config import without_password
from millstream.connect.tables.schema import quote
from millstream.connect.tables.spec import (
    POSTGRES,
    PROGRESS_TABLE,
    SQLITE,
    STAMPS_TABLE,
    VIEWS_TABLE,
)
from millstream.errors import ConfigError, MillstreamError, ViewError
from millstream.excision.digests import Digest, RowsDigest, compare, digest_directory
from millstream.excision.documents import DerivedPlan, Job
from millstream.excision.sinks import lost_records
from millstream.pipelines.running.sinks import view_name
from millstream.pipelines.spec import Table, Topic, View

if TYPE_CHECKING:
    from millstream.pipelines.pipeline import Pipeline
    from millstream.pipelines.running.settings import Settings
    from millstream.pipelines.versions.catalog import Catalog, Work

VIEWS, IN_PLACE, VERSION = "views", "in place", "version"
HISTORY = " (history)"  # of a view, in receipts
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


class PipelineWaits(MillstreamError):
    """The operator has to do something first; the message says what."""


def load_pipeline(declared: str, bootstrap_servers: str) -> tuple[Pipeline, Settings]:
    """The pipeline `FILE.py:NAME`, and its settings with these brokers."""
    from millstream.pipelines.running.loading import load_pipelines, parse_target
    from millstream.pipelines.running.runner import with_defaults
    from millstream.pipelines.running.settings import load_settings

    found = load_pipelines(parse_target(declared))
    if len(found) != 1:
        names = ", ".join(it.name for it in found)
        raise ConfigError(f"{declared} has several pipelines ({names}): name one, FILE.py:NAME")
    (pipeline,) = found
    settings = load_settings(pipeline.home, overrides={"broker": bootstrap_servers})
    return pipeline, with_defaults(settings)


def plan_pipeline(
    cluster: Cluster, declared: str, bootstrap_servers: str, topics: Sequence[str]
) -> tuple[DerivedPlan, list[str]]:
    """The plan, and the topics that it writes. Raises `ConfigError` if what it has of the records
    cannot be removed."""
    pipeline, settings = load_pipeline(declared, bootstrap_servers)
    read = sorted({it.name for it in pipeline.reads.values()})
    if not set(read) & set(topics):
        raise ConfigError(f"pipeline {pipeline.name} reads none of {', '.join(topics)}")
    _refuse_unreachable(pipeline, settings)
    lost = [it for it in read if lost_records(cluster, it)]
    if lost:
        raise ConfigError(
            f"pipeline {pipeline.name}: {', '.join(lost)} has lost older records to retention, so "
            "it cannot be computed again without losing what came from them. Leave it out, and "
            "remove what it has yourself"
        )
    outputs = sorted(it.name for it in pipeline.writes.values() if isinstance(it, Topic))
    plan = DerivedPlan(
        kind="pipeline",
        declared=_absolute(declared),
        host=platform.node(),
        directory=str(Path.cwd()),
        name=pipeline.name,
        how=_choose(pipeline, settings),
        tables=tuple(_all_tables(pipeline)),
        store=without_password(settings.store_url),
    )
    return plan, outputs


def _absolute(declared: str) -> str:
    file, colon, name = declared.partition(".py:")
    return f"{Path(file).resolve()}{colon}{name}" if colon else str(Path(declared).resolve())


def _refuse_unreachable(pipeline: Pipeline, settings: Settings) -> None:
    from millstream.pipelines.query_files import is_local

    scheme = settings.store_url.partition("://")[0]
    if _all_tables(pipeline) and not settings.store_url.startswith((SQLITE, *POSTGRES)):
        raise ConfigError(
            f"pipeline {pipeline.name}: its store is {scheme}://, and only tables in SQLite and "
            "PostgreSQL are emptied. Leave it out, and remove what it has yourself"
        )
    if not is_local(settings.required_checkpoint()):
        raise ConfigError(
            f"pipeline {pipeline.name}: its checkpoint {settings.checkpoint} is not on a local "
            "disk. Leave it out, and remove what it has yourself"
        )


def _tables(pipeline: Pipeline) -> list[str]:
    """Without its views, which are tables, too."""
    written = [it for it in pipeline.writes.values() if isinstance(it, Table)]
    return sorted(it.name for it in written if not isinstance(it, View))


def _all_tables(pipeline: Pipeline) -> list[str]:
    """And its views, by the names that readers use."""
    views = [view_name(output, it) for output, it in pipeline.views.items()]
    return _tables(pipeline) + sorted(views)


def _choose(pipeline: Pipeline, settings: Settings) -> str:
    from millstream.pipelines.versions.deploying import find_deployed

    has_topics = any(isinstance(it, Topic) for it in pipeline.writes.values())
    if has_topics or find_deployed(pipeline, settings) is not None:
        return VERSION
    return IN_PLACE if _tables(pipeline) else VIEWS


# What there is


def states(pipeline: Pipeline, settings: Settings) -> dict[str, str]:
    """The checkpoints of all versions and generations of the pipeline: directories by their id."""
    root = Path(_local(settings.required_checkpoint()))
    found = {}
    for directory in sorted(root.iterdir()) if root.is_dir() else ():
        name = directory.name.removeprefix(".").removesuffix(".removed")
        if not _is_of(name, pipeline.name):
            continue
        try:
            found[json.loads((directory / "metadata").read_text())["id"]] = str(directory)
        except (OSError, ValueError, KeyError):
            continue  # not begun, or half deleted
    return found


def _is_of(query: str, pipeline: str) -> bool:
    """Whether it is a version or a generation of the pipeline."""
    return query.partition("@")[0].partition("+")[0] == pipeline


def _local(location: str) -> str:
    from millstream.pipelines.query_files import local_path

    return local_path(location)


def leftovers(pipeline: Pipeline, settings: Settings, known: Sequence[str]) -> list[str]:
    """Where state with these ids, or rows that came from it, still are."""
    found = [path for state, path in states(pipeline, settings).items() if state in known]
    with _snapshot(settings) as work:
        if work is not None:
            found += _tables_of(work, pipeline.name, known)
    return found


def _tables_of(work: Work, pipeline: str, known: Sequence[str]) -> list[str]:
    """The tables that were last written from one of these checkpoints."""
    found = []
    if work.kind(PROGRESS_TABLE) is None:
        return []
    rows = work.execute(f"SELECT query, checkpoint, tables FROM {PROGRESS_TABLE}")
    for query, checkpoint, tables in rows:
        if _is_of(query, pipeline) and checkpoint in known:
            found += [it for it in json.loads(tables or "{}") if work.kind(it) == "table"]
    return found


@dataclass(frozen=True)
class Look:
    """What a pipeline has: tables, views with their histories, and state."""

    tables: Mapping[str, Digest]
    states: Mapping[str, Digest]  # by the id of the checkpoint
    progress: Mapping[str, Any]  # of its queries, as of which the tables are

    def fields(self, when: str) -> dict[str, Any]:
        """As a report has it. The ids of the state from before stay: none of it may be left."""
        fields = {
            f"rows_{when}": {name: it["rows"] for name, it in self.tables.items()},
            f"hashes_{when}": {name: it["sha256"] for name, it in self.tables.items()},
            f"state_hashes_{when}": dict(self.states),
            "progress": dict(self.progress),
        }
        return fields | ({"states": sorted(self.states)} if when == "before" else {})


def look(plan: DerivedPlan, job: Job, bootstrap_servers: str) -> Look:
    """What it has now."""
    pipeline, settings = load_pipeline(plan.declared, bootstrap_servers)
    found = {it: digest_directory(Path(path)) for it, path in states(pipeline, settings).items()}
    tables, progress = _look_at_tables(plan, job, pipeline, settings)
    return Look(tables, found, progress)


def _look_at_tables(
    plan: DerivedPlan, job: Job, pipeline: Pipeline, settings: Settings
) -> tuple[dict[str, Digest], dict[str, Any]]:
    """The hashes of its tables, and the progress that they are of."""
    with _snapshot(settings) as work:
        if work is None:
            return {}, {}
        physical = {table: _table_of(work, pipeline.public_name, table) for table in plan.tables}
        for entry in _entries(work, pipeline.public_name):
            physical[f"{entry.view}{HISTORY}"] = _declared(entry.history)
        tables = {
            name: _digest(work, table, job)
            for name, table in physical.items()
            if work.kind(table) is not None
        }
        return tables, _progress(work, pipeline.name)


def _digest(work: Work, table: str, job: Job) -> Digest:
    from millstream.connect.sinks.columns import to_json

    names = work.columns(table)
    rows = RowsDigest(job.salt)
    selected = ", ".join(quote(it) for it in names)
    for values in work.stream(f"SELECT {selected} FROM {work.quoted(table)}"):
        rows.add([("", dict(zip(names, map(to_json, values), strict=True)))])
    return rows.result()


def _progress(work: Work, pipeline: str) -> dict[str, Any]:
    """The checkpoint of each of its queries, and the last batch that the tables have."""
    if work.kind(PROGRESS_TABLE) is None:
        return {}
    rows = work.execute(f"SELECT query, checkpoint, batch_id FROM {PROGRESS_TABLE} ORDER BY query")
    return {query: list(rest) for query, *rest in rows if _is_of(query, pipeline)}


def verify_pipeline(
    plan: DerivedPlan,
    report: Mapping[str, Any],
    job: Job,
    bootstrap_servers: str,
    *,
    compare_hashes: bool,
) -> list[str]:
    """What is wrong with it now. The hashes of the report say what its tables had right after the
    excision."""
    pipeline, settings = load_pipeline(plan.declared, bootstrap_servers)
    left = leftovers(pipeline, settings, report["states"])
    problems = [f"pipeline {plan.name} has state from before the excision: {it}" for it in left]
    if not compare_hashes or not report.get("hashes_after"):
        return problems
    tables, progress = _look_at_tables(plan, job, pipeline, settings)
    for name, after in report["hashes_after"].items():
        if name in tables:
            problems += compare(
                f"{name} of pipeline {plan.name}",
                plan.kind,
                tables[name],
                report.get("hashes_before", {}).get(name),
                after,
                has_gone_on=progress != report["progress"],
            )
    return problems


def _table_of(work: Work, pipeline: str, name: str) -> str:
    """The table of a view has the name of the generation that readers read."""
    for entry in _entries(work, pipeline):
        if entry.view == name:
            return _declared(entry.table)
    return name


def _declared(quoted: str) -> str:
    """A name as declarations have it: `main."a"`, of SQLite, is a, and `"sales"."a"` sales.a."""
    return ".".join(it.replace('""', '"') for it in _QUOTED.findall(quoted))


def _entries(work: Work, pipeline: str) -> list[Any]:
    from millstream.views.spec import ViewEntry

    if work.kind(VIEWS_TABLE) is None:
        return []
    found = []
    rows = work.execute(f"SELECT document FROM {VIEWS_TABLE} WHERE query = ?", (pipeline,))
    for (document,) in rows:
        try:
            found.append(ViewEntry.decode(document))
        except ViewError:
            continue  # of another version of Millstream
    return found


@contextmanager
def _catalog(settings: Settings) -> Iterator[Catalog | None]:
    """None if there is no store."""
    from millstream.pipelines.versions.catalog import open_catalog

    url = settings.store_url
    is_known = url.startswith((SQLITE, *POSTGRES))
    if not is_known or (url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists()):
        yield None
        return
    with open_catalog(url) as catalog:
        yield catalog


@contextmanager
def _snapshot(settings: Settings) -> Iterator[Work | None]:
    """The store at one moment: reading may take long, and keeps no writer waiting."""
    with _catalog(settings) as catalog:
        if catalog is None:
            yield None
            return
        with catalog.snapshot() as work:
            yield work


# What is done


def excise_pipeline(
    plan: DerivedPlan, job: Job, known: Sequence[str], bootstrap_servers: str
) -> list[str]:
    """What it may still have of the records, which are no longer in the log. `known` are the ids of
    the state from before. Raises `MillstreamError`; then it can be repeated."""
    pipeline, settings = load_pipeline(plan.declared, bootstrap_servers)
    if plan.how == VERSION:
        _wait_for_versions(pipeline, settings, known, job)
    elif plan.how == VIEWS:
        _rebuild_views(pipeline, settings, known)
    else:
        _rebuild_tables(pipeline, settings, known)
    return _purge(pipeline, settings)


def _wait_for_versions(
    pipeline: Pipeline, settings: Settings, known: Sequence[str], job: Job
) -> None:
    left = leftovers(pipeline, settings, known)
    if left:
        raise PipelineWaits(
            f"pipeline {pipeline.name} still has state of the records in {', '.join(left)}. Its "
            "results are in use, so put another version in its place: `millstream deploy "
            "FILE.py:NAME --version VERSION`, which reads the log from the beginning, `millstream "
            "switch`, and `millstream versions remove` of all earlier ones. Then: millstream "
            f"excise resume {job.id}"
        )


def _rebuild_tables(pipeline: Pipeline, settings: Settings, known: Sequence[str]) -> None:
    """Its tables are empty from the first step on, and whole again after the last."""
    from millstream.pipelines.running.launching import checkpoint_location
    from millstream.pipelines.running.runner import run
    from millstream.pipelines.versions.removing import delete_checkpoint

    if leftovers(pipeline, settings, known):
        with _stopped(checkpoint_location(pipeline, settings)) as directory:
            with _catalog(settings) as catalog:
                if catalog is not None:
                    catalog.run(lambda work: _empty(work, pipeline), "excise a pipeline")
            delete_checkpoint(directory)
    run([pipeline], settings, once=True, allow_new_checkpoint=True)


def _empty(work: Work, pipeline: Pipeline) -> None:
    work.progress(pipeline.identity, locked=True)
    for it in _entries(work, pipeline.public_name):
        work.execute(f"DELETE FROM {it.table}")
        work.execute(f"DELETE FROM {it.history}")  # which the triggers have just written to
        work.execute(f"DELETE FROM {STAMPS_TABLE} WHERE query = ?", (it.writer,))
    for name in _tables(pipeline):
        if work.kind(name) == "table":
            work.execute(f"DELETE FROM {work.quoted(name)}")
    work.erase_progress(pipeline.identity)


def _rebuild_views(pipeline: Pipeline, settings: Settings, known: Sequence[str]) -> None:
    from millstream.pipelines.running.launching import checkpoint_location
    from millstream.pipelines.running.runner import run
    from millstream.pipelines.stores import open_store
    from millstream.pipelines.versions.removing import delete_checkpoint

    public = pipeline.public_name
    with open_store(settings.store_url) as store:
        serving = store.generations(public).serving
    if serving is not None:
        location = checkpoint_location(replace(pipeline, generation=serving), settings)
        if _id_of(Path(_local(location))) in known:
            with _stopped(location):
                pass
            run([pipeline], settings, once=True, rebuild_views=True)
    with open_store(settings.store_url) as store:
        found = store.generations(public)
        current = replace(pipeline, generation=found.serving or pipeline.generation)
        if _id_of(Path(_local(checkpoint_location(current, settings)))) in known:
            raise PipelineWaits(
                f"the views of pipeline {pipeline.name} were built again, but have not reached "
                "those that readers read. Stop what writes them, and resume"
            )
        store.retire(public)
    for state, directory in states(pipeline, settings).items():
        if state in known:
            with _stopped(directory):
                delete_checkpoint(Path(directory))


def _id_of(directory: Path) -> str | None:
    try:
        return str(json.loads((directory / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):
        return None


@contextmanager
def _stopped(location: str) -> Iterator[Path]:
    """Raises `PipelineWaits` while the pipeline runs."""
    from millstream.pipelines.running.locking import locked

    try:
        with locked(location):
            yield Path(_local(location))
    except ConfigError as error:
        raise PipelineWaits(f"{error}; the job goes on when it is resumed") from error


def _purge(pipeline: Pipeline, settings: Settings) -> list[str]:
    """Remove what deleted rows leave in the files of the store."""
    from millstream.connect.tables import postgres_connection, sqlite_tables

    url = settings.store_url
    if not _all_tables(pipeline):
        return []
    if url.startswith(SQLITE):
        path = Path(url.removeprefix(SQLITE))
        connection = sqlite_tables.open_database(path)
        try:
            return sqlite_tables.purge(connection, path)
        finally:
            connection.close()

    with _snapshot(settings) as work:
        tables = [] if work is None else _existing(work, pipeline)
    return postgres_connection.purge(url, tables)


def _existing(work: Work, pipeline: Pipeline) -> list[str]:
    """The tables of the pipeline, its views' too; quoted."""
    entries = _entries(work, pipeline.public_name)
    views = [name for it in entries for name in (it.table, it.history)]
    return views + [work.quoted(it) for it in _tables(pipeline) if work.kind(it) == "table"]
