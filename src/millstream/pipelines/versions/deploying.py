"""Deploying a version: it is registered, gets its physical names, and runs beside the others.

`register` is one transaction. If the pipeline has run without versions until then, the table that
it wrote is renamed to that of its version, and readers get a view in its place; a run that still
uses the old name is fenced, and has to be started again.

`find_deployed` is what every start of a pipeline asks: whether it is deployed, and if so, the
pipeline with its physical outputs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.connect.tables.identities import is_same_table
from millstream.errors import ConfigError
from millstream.pipelines.spec import FIRST_VERSION, PipelineSpec, Table, Topic, View
from millstream.pipelines.versions.catalog import (
    Catalog,
    ReadersHoldLocks,
    Work,
    has_catalog,
    open_catalog,
)
from millstream.pipelines.versions.marks import open_cluster, read_marks
from millstream.pipelines.versions.preparing import prepare_views
from millstream.pipelines.versions.registry import (
    Span,
    TableOutput,
    Version,
    Versions,
    deploy,
    identity_of,
    note_operators,
    physical_table,
)
from millstream.pipelines.versions.roles import Roles

if TYPE_CHECKING:
    from millstream.pipelines.running.settings import Settings

HALTS_DIRECTORY = "halts"


@dataclass(frozen=True)
class Deployed:
    """A version that is about to run: `pipeline` has its physical tables."""

    pipeline: PipelineSpec
    store_url: str
    halt_file: Path
    document: Versions

    @property
    def roles(self) -> Roles | None:
        """None for a version that writes no topics: its tables do not depend on its role."""
        has_topics = any(isinstance(it, Topic) for it in self.pipeline.writes.values())
        if not has_topics:
            return None
        return Roles(self.store_url, self.pipeline.name, self.pipeline.version)

    def publish(self, by_arrival: Collection[str] = ()) -> None:
        """Create the views of a version in force, once its tables exist, and record which of its
        operators depend on when rows arrive."""
        name, version = self.pipeline.name, self.pipeline.version

        def change(work: Work) -> None:
            document = work.load(name, locked=True)
            if document is not None and version in document.versions:
                document = note_operators(document, version, by_arrival)
                work.save(document)
                publish(work, name, version, document)

        with open_catalog(self.store_url) as catalog:
            catalog.run(change, "publish")
            with suppress(ReadersHoldLocks):  # then the switch does it
                prepare_views(catalog, name, wait_ms=0)


def describe(
    pipeline: PipelineSpec,
    checkpoint: str = "",
    start_at: str | None = None,
    state_from: str | None = None,
) -> Version:
    """The version as its declaration describes it."""
    return Version(
        pipeline.version,
        reads=tuple(sorted({it.name for it in pipeline.reads.values()})),
        tables=tuple(
            TableOutput(it.name, physical_table(it.name, pipeline.version), it.key, it.mode)
            for it in pipeline.writes.values()
            if isinstance(it, Table)
        ),
        topics=tuple(it.name for it in pipeline.writes.values() if isinstance(it, Topic)),
        start_at=start_at,
        checkpoint=checkpoint,
        transactional_id=f"millstream-{pipeline.identity}",
        group=pipeline.group_id,
        state_from=state_from,
    )


def register(
    catalog: Catalog, pipeline: str, version: Version, writers: Collection[str] = ()
) -> Versions:
    """Add the version to the pipeline's, or find it there; raises `ConfigError`.

    `writers` are the queries that have written to topics, by the decision log: versions that ran
    before any was deployed.
    """

    def change(work: Work) -> Versions:
        document = work.load(pipeline, locked=True)
        if document is None:
            document = adopt(work, pipeline, version, writers)
        document = deploy(document, version)
        check_names_are_free(work, document, version)
        work.save(document)
        publish(work, pipeline, version.version, document)
        return document

    return catalog.run(change, f"deploy {identity_of(pipeline, version.version)}")


def adopt(work: Work, pipeline: str, version: Version, writers: Collection[str]) -> Versions:
    """A new document: with the version that has run until now, if there is one, in force."""
    written = {
        table.name: query
        for table in version.tables
        if work.kind(table.name) == "table"
        and (query := writer_of(work, pipeline, table.name)) is not None
    }
    before = {*written.values(), *(it for it in writers if is_version_of(it, pipeline))}
    if not before:
        return Versions(pipeline)
    if len(before) > 1:
        raise ConfigError(
            f"several versions of {pipeline} have run without being deployed: "
            f"{', '.join(sorted(before))}. Deploy each with outputs of its own under another name, "
            "or drop what readers no longer need"
        )
    query = before.pop()
    earlier = query.partition("@")[2] or FIRST_VERSION
    tables = tuple(
        replace(it, physical=physical_table(it.name, earlier))
        for it in version.tables
        if it.name in written
    )

    def rename() -> None:
        for table in tables:
            work.rename(table.name, table.physical)

    work.with_locks(rename)
    work.adopt_tables(query, {it.name: it.physical for it in tables})
    adopted = replace(
        version,
        version=earlier,
        tables=tables,
        start_at=None,
        state_from=None,
        checkpoint=_sibling(version.checkpoint, query),
        transactional_id=f"millstream-{query}",
        group=query,
        is_caught_up=True,
    )
    document = replace(
        Versions(pipeline),
        in_force=earlier,
        versions={earlier: adopted},
        spans=(Span(earlier),),
    )
    work.save(document)
    publish(work, pipeline, earlier, document)
    return document


def _sibling(checkpoint: str, query: str) -> str:
    return f"{checkpoint.rpartition('/')[0]}/{query}" if checkpoint else ""


def is_version_of(query: str, pipeline: str) -> bool:
    return query.partition("@")[0] == pipeline


def writer_of(work: Work, pipeline: str, table: str) -> str | None:
    """The version of the pipeline that wrote a table by that name."""
    from millstream.connect.tables.spec import PROGRESS_TABLE

    identity = work.identity(table)
    found = work.execute(f"SELECT query, tables FROM {PROGRESS_TABLE} WHERE tables IS NOT NULL")
    for query, tables in found:
        known = json.loads(tables).get(table)
        if is_version_of(query, pipeline) and is_same_table(known, identity):
            return str(query)
    return None


def check_names_are_free(work: Work, document: Versions, version: Version) -> None:
    """The names that readers use must be ours: views, or nothing yet."""
    published = {it.name for each in document.versions.values() for it in each.tables}
    for table in version.tables:
        kind = work.kind(table.name)
        if kind == "table" or (kind == "view" and table.name not in published):
            raise ConfigError(
                f"there is a {kind} {table.name} that no version of {document.pipeline} wrote, and "
                "readers of the deployed version would find it in place of its rows: rename it, or "
                "write to another table"
            )


def publish(work: Work, pipeline: str, version: str, document: Versions | None = None) -> None:
    """Create the views of the version in force, where they are missing."""
    document = document or work.load(pipeline, locked=True)
    if document is None or document.in_force != version:
        return
    views = {
        it.name: it.physical
        for it in document.get(version).tables
        if work.kind(it.physical) == "table" and work.kind(it.name) is None
    }

    def put() -> None:
        for name, physical in views.items():
            work.put_view(name, physical)

    if views:
        work.with_locks(put)


def find_deployed(pipeline: PipelineSpec, settings: Settings) -> Deployed | None:
    """None if no version of the pipeline was deployed to this store."""
    if not has_catalog(settings.store_url):
        return None
    with open_catalog(settings.store_url) as catalog:
        document = catalog.find(pipeline.name)
    if document is None:
        return None
    found = document.get(pipeline.version)
    if found.is_removing:
        raise ConfigError(
            f"version {found.version} of {pipeline.name} is being removed: complete that with "
            f"`millstream versions remove {pipeline.name} {found.version}`"
        )
    halt_file = settings.home / HALTS_DIRECTORY / f"{pipeline.identity}.json"
    return Deployed(physical(pipeline, found, halt_file), settings.store_url, halt_file, document)


def physical(pipeline: PipelineSpec, version: Version, halt_file: Path) -> PipelineSpec:
    """The pipeline with the tables of its version, and inputs that can be halted."""
    tables = {it.name: it.physical for it in version.tables}
    writes = {
        name: replace(it, name=tables[it.name]) if isinstance(it, Table) else it
        for name, it in pipeline.writes.items()
    }
    reads = {
        parameter: start_topic(
            replace(it, options={**it.options, "haltFile": str(halt_file)}), version.start_at
        )
        for parameter, it in pipeline.reads.items()
    }
    return replace(pipeline, writes=writes, reads=reads)


def start_topic(topic: Topic, start_at: str | None) -> Topic:
    """The topic with the place where the version was deployed from; tables are read whole."""
    if start_at is None or topic.table_key or topic.load_first:
        return topic
    if start_at in ("earliest", "latest"):
        return replace(topic, start_at=start_at)
    if start_at.startswith("{"):
        offsets: Mapping[str, Mapping[str, int]] = json.loads(start_at)
        if topic.name not in offsets:
            return topic
        named = {int(partition): offset for partition, offset in offsets[topic.name].items()}
        return replace(topic, start_at=named)
    return replace(topic, start_at=datetime.fromisoformat(start_at).astimezone(UTC))


def deploy_version(
    pipeline: PipelineSpec,
    settings: Settings,
    start_at: str | None = None,
    state_from: str | None = None,
) -> Versions:
    """Register a version that is about to run with these settings, from the beginning, from a
    place, or with the state of another version (`carrying.py`)."""
    for it in pipeline.writes.values():
        if isinstance(it, View):
            raise ConfigError(
                f"{pipeline.name} writes the maintained view {it.name}, whose stamps have one "
                "version only: write a table(...), or run it under another name"
            )
    checkpoint = f"{settings.required_checkpoint().rstrip('/')}/{pipeline.identity}"
    version = describe(pipeline, checkpoint, start_at, state_from)
    writers: Collection[str] = ()
    if version.topics:
        with open_cluster(settings) as cluster:
            writers = read_marks(cluster, pipeline.name).writers
    with open_catalog(settings.store_url) as catalog:
        return register(catalog, pipeline.name, version, writers)
