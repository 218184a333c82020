"""Preparing the views of a pipeline, so that a switch changes a row of each and no definition.

What readers see does not change, so each view is prepared in a transaction of its own: only one
lock is waited for, and none is held meanwhile that readers could wait for in turn. A switch of
several views in one transaction would give up again and again while readers read them without a
pause. It still replaces views whose columns change.

Only PostgreSQL needs this (`postgres_views.py`): in SQLite no reader is waited for.
"""

from __future__ import annotations

from millstream.pipelines.versions.catalog import LOCK_WAIT_MS, Catalog, Work
from millstream.pipelines.versions.registry import Versions


def prepare_views(catalog: Catalog, pipeline: str, *, wait_ms: int = LOCK_WAIT_MS) -> None:
    """For all versions of a pipeline that can be switched to; raises `ReadersHoldLocks`."""
    document = catalog.find(pipeline)
    if document is None or not catalog.prepares_views:
        return
    for view in shown_tables(document):

        def prepare(work: Work, view: str = view) -> None:
            found = work.load(pipeline, locked=True)
            shown = {} if found is None else shown_tables(found)
            if found is not None and view in shown and work.kind(view) == "view":
                tables = [it for it in tables_under(found, view) if work.kind(it) == "table"]
                work.prepare_view(view, shown[view], tables, wait_ms=wait_ms)

        catalog.run(prepare, f"prepare view {view}")


def shown_tables(document: Versions) -> dict[str, str]:
    """The tables that readers see, by the names that they use."""
    if document.in_force is None:
        return {}
    return {it.name: it.physical for it in document.get(document.in_force).tables}


def tables_under(document: Versions, view: str) -> list[str]:
    """The tables of all versions that are not being removed."""
    return [
        table.physical
        for version in document.versions.values()
        if not version.is_removing
        for table in version.tables
        if table.name == view
    ]
