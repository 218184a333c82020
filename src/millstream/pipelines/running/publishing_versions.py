"""What is published of a pipeline's versions: which is in force, and how two of them differ.

Versions are in the store, which only the pipelines reach. So the process of one of them reads it
for everybody, and compares two versions when it is asked to. Numbers and names are published, no
rows: whoever reads the status topic may have no right to these. `millstream diff` shows them.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.admin.pipeline_records import (
    Command,
    DiffShown,
    OutputDiff,
    VersionShown,
    VersionsShown,
    shortened,
)
from millstream.errors import MillstreamError
from millstream.pipelines.offsets import to_json
from millstream.pipelines.running.failures import without_values
from millstream.pipelines.versions.catalog import open_catalog
from millstream.pipelines.versions.differences import Diff
from millstream.pipelines.versions.registry import private_topic

if TYPE_CHECKING:
    from millstream.pipelines.running.settings import Settings


def versions_shown(settings: Settings, pipeline: str) -> VersionsShown:
    """From the store."""
    with open_catalog(settings.store_url) as catalog:
        document = catalog.read(lambda work: work.load(pipeline))
    if document is None:
        return VersionsShown(pipeline)
    return VersionsShown(
        pipeline,
        document.in_force,
        document.previous,
        document.number,
        tuple(
            VersionShown(
                it.version,
                it.label,
                tuple(table.physical for table in it.tables),
                tuple(
                    topic if it.version == document.in_force else private_topic(topic, it.version)
                    for topic in it.topics
                ),
                it.start_at,
            )
            for it in document.versions.values()
        ),
    )


def running_diff(pipeline: str, command: Command) -> DiffShown:
    return DiffShown(pipeline, command.versions, command.id, _now_ms(), is_running=True)


def diff_shown(settings: Settings, pipeline: str, command: Command) -> DiffShown:
    """Compare two versions, as `millstream diff` does; an error is part of what is shown."""
    from millstream.pipelines.versions.differing import compare_versions

    shown = DiffShown(pipeline, command.versions, command.id, _now_ms())
    try:
        one, two = command.versions
        with open_catalog(settings.store_url) as catalog:
            found = compare_versions(
                catalog, settings, pipeline, (one, two), time=command.time, samples=0
            )
    except (MillstreamError, OSError, ValueError) as error:
        return _with(shown, error=_published(str(error), pipeline, command))
    except Exception as error:  # noqa: BLE001  # of the database: whoever asked waits for an answer
        text = f"{type(error).__name__}: {error}"
        return _with(shown, error=_published(text, pipeline, command))
    outputs = tuple(output_diff(it) for it in (*found.tables, *found.topics))
    return _with(shown, outputs=outputs, cut=shortened(json.dumps(to_json(found.cut))))


def _published(error: str, pipeline: str, command: Command) -> str:
    return shortened(without_values(error, " ".join((pipeline, *command.versions))))


def output_diff(found: Diff) -> OutputDiff:
    return OutputDiff(
        f"{'topic' if found.is_topic else 'table'} {found.name}",
        found.is_equal,
        found.rows,
        found.open_rows,
        found.only,
        found.differing,
        dict(found.by_column),
    )


def _with(shown: DiffShown, **changes: object) -> DiffShown:
    return replace(shown, at_ms=_now_ms(), **changes)  # type: ignore[arg-type]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
