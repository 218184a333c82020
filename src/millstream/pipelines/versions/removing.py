"""Removing a version with everything that it has: tables, private topics, group, state.

A version is marked first, so that none of its runs starts any more. Every step can be repeated: if
the process dies, `remove` again completes it. At the end the version is forgotten, and one with the
same name can be deployed, from the beginning. Its epochs have risen, on the brokers and in the
store, so that a run of the removed version that is still alive writes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.query_files import is_local, local_path
from millstream.pipelines.running.locking import locked
from millstream.pipelines.versions.catalog import Catalog, Work
from millstream.pipelines.versions.halting import forget_run
from millstream.pipelines.versions.marks import open_cluster
from millstream.pipelines.versions.preparing import prepare_views
from millstream.pipelines.versions.registry import (
    Version,
    Versions,
    private_topic,
    removed,
    start_removing,
)
from millstream.pipelines.versions.switching import find_document
from millstream.pipelines.versions.topics import delete_group, delete_topics, forget_decisions

if TYPE_CHECKING:
    from millstream.pipelines.running.settings import Settings

LEFTOVER = "delete the checkpoint {} yourself: it is not on this machine's disk"


def remove_version(
    catalog: Catalog,
    settings: Settings,
    pipeline: str,
    version: str,
    *,
    show: Callable[[str], None] = lambda text: None,
) -> None:
    """Raises `ConfigError` if the version is in force, or runs."""
    found = find_document(catalog, pipeline).get(version)
    check_is_stopped(found)
    document = catalog.run(lambda work: mark(work, pipeline, version), "remove a version")
    query = document.identity(version)
    prepare_views(catalog, pipeline)  # for the versions that are left
    catalog.run(lambda work: drop_tables(work, document, found), "drop tables")
    with open_cluster(settings) as cluster:
        if found.topics:
            forget_decisions(cluster, found)
            delete_topics(cluster, [private_topic(it, version) for it in found.topics])
        delete_group(cluster, found.group or query)
    if found.checkpoint and is_local(found.checkpoint):
        delete_checkpoint(Path(local_path(found.checkpoint)))
    elif found.checkpoint:
        show(LEFTOVER.format(found.checkpoint))
    catalog.run(lambda work: forget(work, pipeline, version), "forget a version")


def check_is_stopped(version: Version) -> None:
    """Raises `ConfigError` if the version runs and holds a lock; elsewhere it is fenced."""
    checkpoint = version.checkpoint
    if not checkpoint or not is_local(checkpoint) or not Path(local_path(checkpoint)).exists():
        return
    with locked(checkpoint, is_required=False):
        pass


def mark(work: Work, pipeline: str, version: str) -> Versions:
    document = work.load(pipeline, locked=True)
    if document is None:
        raise ConfigError(f"no version of {pipeline} is deployed")
    marked = start_removing(document, version)
    work.save(marked)
    return marked


def drop_tables(work: Work, document: Versions, version: Version) -> None:
    """Its tables and progress; its views only if it is in force, the last of its pipeline."""
    query = document.identity(version.version)
    work.progress(query, locked=True)

    def drop() -> None:
        for table in version.tables:
            if document.in_force == version.version:
                work.drop_view(table.name)
            work.drop_table(table.physical)

    work.with_locks(drop)
    work.erase_progress(query)
    forget_run(work, query)


def delete_checkpoint(directory: Path) -> None:
    """Renamed first, so that what is left of it is not taken for a checkpoint."""
    if not directory.exists():
        return
    doomed = directory.with_name(f".{directory.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    directory.rename(doomed)
    shutil.rmtree(doomed)


def forget(work: Work, pipeline: str, version: str) -> None:
    document = work.load(pipeline, locked=True)
    if document is None:
        return
    left = removed(document, version)
    if left is None:
        work.delete(pipeline)
    else:
        work.save(left)
