"""Switching readers to another version, in one transaction of the store; and back.

Tables: the views that readers read show the tables of the new version (`preparing.py`). Both
versions go on with their own tables. The new version must not be behind the old one, or readers
would go back in time.

Topics: both versions halt at a cut. The old one has written everything up to the cut to the topic
that readers read, and the new one has written the same to its private topic. The transaction
compares both positions with the cut and counts the switch, which is one decision for both: a batch
that either of them decides from then on has the new role, or is refused (`roles.py`). So the topic
has the records of the old version up to the cut, and of the new one from the cut on.

Before that, the last batch of the old version is completed, by this process if need be: after the
switch nothing would bring a version that was killed back to do so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.offsets import Offsets, count_between
from millstream.pipelines.versions.catalog import Catalog, Work
from millstream.pipelines.versions.halting import Operator, halted, is_at, is_past, position_of
from millstream.pipelines.versions.marks import note_switch, open_cluster
from millstream.pipelines.versions.preparing import prepare_views
from millstream.pipelines.versions.registry import (
    Version,
    Versions,
    check_switch,
    rollback_target,
    switch,
)
from millstream.pipelines.versions.topics import complete_last_batch, output_ends, topic_ends

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster
    from millstream.pipelines.running.settings import Settings

Show = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where versions are switched: the cut, the ends of the topics that they write, and the last
    batch of the old version, which is completed."""

    cut: Offsets
    ends: Offsets = field(default_factory=dict)
    completed: int | None = None


class Behind(ConfigError):
    """The version to switch to has read less than the one in force."""


def switch_readers(
    catalog: Catalog,
    settings: Settings,
    pipeline: str,
    version: str | None = None,
    *,
    drop_tables: bool = False,
    allow_behind: bool = False,
    show: Show = lambda text: None,
) -> Versions:
    """Put a version in force: the given one, or the one before, and the document after that.

    Raises `ConfigError` if it is not possible; readers then read what they read before.
    """
    document = find_document(catalog, pipeline)
    wanted = version or rollback_target(document)
    drop_tables = drop_tables or version is None
    target = check_switch(document, wanted, may_drop_tables=drop_tables)
    prepare_views(catalog, pipeline)

    def swap(place: Place | None) -> Versions:
        return catalog.run(
            lambda work: swap_views(
                work,
                document,
                wanted,
                place,
                drop_tables=drop_tables,
                allow_behind=allow_behind,
            ),
            f"switch {pipeline}",
        )

    if not target.topics:
        try:
            return swap(None)
        except Behind:
            show(f"version {wanted} is behind version {document.in_force}: halting both")
    versions = (document.in_force or wanted, wanted)
    operator = Operator(catalog, pipeline, versions, show=show)
    with open_cluster(settings) as cluster:
        reads = {it for each in versions for it in document.get(each).reads}
        with halted(operator, lambda: topic_ends(cluster, reads)) as cut:
            return switch_at(catalog, cluster, document, cut, swap)


def switch_at(
    catalog: Catalog,
    cluster: Cluster,
    document: Versions,
    cut: Offsets,
    swap: Callable[[Place], Versions],
) -> Versions:
    """While both versions stand at the cut."""
    old = document.get(document.in_force or "")
    if not old.topics:
        return swap(Place(cut))
    completed = complete_last_batch(catalog, cluster, document.identity(old.version), old)
    switched = swap(Place(cut, output_ends(cluster, document), completed))
    note_switch(cluster, switched)
    return switched


def find_document(catalog: Catalog, pipeline: str) -> Versions:
    document = catalog.find(pipeline)
    if document is None:
        raise ConfigError(
            f"no version of {pipeline} is deployed to this store: run `millstream deploy "
            f"FILE.py:{pipeline}`"
        )
    return document


def swap_views(
    work: Work,
    expected: Versions,
    version: str,
    place: Place | None,
    *,
    drop_tables: bool = False,
    allow_behind: bool = False,
) -> Versions:
    """The transaction of a switch. Without a place, only versions without topics are switched."""
    document = work.load(expected.pipeline, locked=True)
    if document is None or document.number != expected.number:
        raise MillstreamError(
            f"the versions of {expected.pipeline} were switched by another process meanwhile: look "
            f"at `millstream versions list {expected.pipeline}`"
        )
    target = check_switch(document, version, may_drop_tables=drop_tables)
    old = None if document.in_force is None else document.get(document.in_force)
    cut = {} if place is None else place.cut
    if old is not None:
        cut = check_positions(work, document, old, target, place, allow_behind=allow_behind)
    for table in target.tables:
        if work.kind(table.physical) != "table":
            raise ConfigError(f"table {table.physical} of version {version} was dropped")

    show_tables(work, old, target)
    switched = switch(document, version, cut, None if place is None else place.ends)
    work.save(switched)
    return switched


def show_tables(work: Work, old: Version | None, target: Version) -> None:
    """Only views that were not prepared, which get other columns or are dropped, need locks."""
    names = {it.name for it in target.tables}
    doomed = [] if old is None else [it.name for it in old.tables if it.name not in names]
    replaced = [it for it in target.tables if not work.show(it.name, it.physical)]

    def put() -> None:
        for view in doomed:
            work.drop_view(view)
        for table in replaced:
            work.put_view(table.name, table.physical)

    if doomed or replaced:
        work.with_locks(put)


def check_positions(
    work: Work,
    document: Versions,
    old: Version,
    new: Version,
    place: Place | None,
    *,
    allow_behind: bool,
) -> Offsets:
    """Where the new version takes over; raises `ConfigError` if that is not possible."""
    pipeline = document.pipeline
    # Locked, so that neither decides a batch before this transaction ends.
    last, _ = (work.progress(document.identity(it.version), locked=True) for it in (old, new))
    if allow_behind and not new.topics:
        return position_of(work, pipeline, new.version)
    reached = {it.version: position_of(work, pipeline, it.version) for it in (old, new)}
    before, after = reached[old.version], reached[new.version]
    if new.topics:
        is_there = place is not None and is_at(before, place.cut) and is_at(after, place.cut)
        # A batch without new records, which a watermark can cause, moves no offsets.
        is_completed = place is not None and place.completed in (None, last and last.batch_id)
        if place is None or not is_there or not is_completed:
            raise ConfigError(
                f"version {old.version} or {new.version} of {pipeline} did not stay at the cut: "
                "nothing is switched; repeat it"
            )
        return place.cut
    if is_past(before, after):
        raise Behind(
            f"version {new.version} of {pipeline} is {count_between(after, before)} records behind "
            f"version {old.version}: wait until it has caught up, or accept that readers go back "
            "in time, --allow-behind"
        )
    return after
