"""Whether a batch is to be written: pure, decided while the progress row is locked."""

from __future__ import annotations

import json

from millstream.connect.tables.identities import is_same_table
from millstream.connect.tables.spec import PROGRESS_TABLE
from millstream.errors import RoleChanged, StoreError, WriterFenced
from millstream.pipelines.stores.spec import BatchMark, Progress, Role


def is_due(stored: Progress, epoch: int, mark: BatchMark) -> bool:
    """True: write it. False: it is in the tables already. Anything else is an error.

    Spark repeats only the batch after its last complete one: that is the batch stored here, or the
    next. An older one comes from a checkpoint that was deleted, restored or lost in a power cut;
    its batches have other boundaries, so to skip them by number would lose records.

    A later batch than the next proves nothing: a program may leave out empty batches. The tables
    lack records only if, in some source, the batch begins after the end of the stored one.
    """
    if stored.epoch != epoch:
        raise WriterFenced(
            f"query {mark.query!r} was taken over by a newer run (epoch {stored.epoch}; this one "
            f"holds {epoch}); nothing of batch {mark.batch_id} is written: stop this run"
        )
    if stored.batch_id is None:
        _refuse_partial(mark)
        return True
    if _differ(stored.checkpoint, mark.checkpoint):
        raise StoreError(
            f"query {mark.query!r} wrote batches up to {stored.batch_id} from another checkpoint "
            f"({stored.checkpoint}, now {mark.checkpoint}); {_CURE}"
        )
    if mark.batch_id > stored.batch_id:
        _refuse_gap(stored, mark)  # first: forget(), a cure for other tables, would hide a gap
        _refuse_other_tables(stored, mark)
        return True
    _refuse_other_tables(stored, mark)
    if mark.batch_id < stored.batch_id:
        raise StoreError(
            f"query {mark.query!r} wrote batch {stored.batch_id} and now comes with batch "
            f"{mark.batch_id}: its checkpoint is behind the tables; {_CURE}"
        )
    if _differ(_parsed(stored.offsets), _parsed(mark.offsets)):
        raise StoreError(
            f"query {mark.query!r} wrote batch {mark.batch_id} up to {stored.offsets} and now "
            f"comes with another batch of that number, up to {mark.offsets}; {_CURE}"
        )
    return False


def check_role(role: Role, number: int | None) -> None:
    """Raises `RoleChanged` unless the pipeline was switched as often as when the batch began."""
    if number != role.number:
        raise RoleChanged(
            f"pipeline {role.pipeline} was switched to another version since the batch began "
            f"(switch {role.number}, now {'none' if number is None else number})"
        )


def _refuse_partial(mark: BatchMark) -> None:
    """The query has read records that this store has not seen."""
    for topic, partitions in _by_topic(mark.begins).items():
        for partition, begin in partitions.items():
            if begin == 0:
                continue  # there was nothing to read before it
            raise StoreError(
                f"the store has nothing of query {mark.query!r}, and batch {mark.batch_id} begins "
                f"at offset {begin} of {topic}-{partition}: the tables would lack what came "
                f"before. Use the store that the query wrote to until now, or {_REBUILD}"
            )


def _refuse_other_tables(stored: Progress, mark: BatchMark) -> None:
    if mark.tables is None or stored.tables is None:
        return
    known = json.loads(stored.tables)
    for name, identity in mark.tables.items():
        if is_same_table(known.get(name), identity):
            continue
        if name not in known:
            raise StoreError(
                f"table {name!r} was added to its tables since query {mark.query!r} wrote batch "
                f"{stored.batch_id}: it would lack what came before. Remove it, or {_REBUILD}"
            )
        raise StoreError(
            f"table {name!r} was dropped and created again, or restored by itself, since query "
            f"{mark.query!r} wrote batch {stored.batch_id}: it would lack what came before. "
            f"{RESTORE}, or {_REBUILD}"
        )


def _refuse_gap(stored: Progress, mark: BatchMark) -> None:
    reached, begins = _by_topic(stored.offsets), _by_topic(mark.begins)
    for topic, partitions in begins.items():
        for partition, begin in partitions.items():
            # A partition, or a source, that came since begins wherever it begins.
            end = reached.get(topic, {}).get(partition, begin)
            if end < begin:
                raise StoreError(
                    f"query {mark.query!r} wrote batch {stored.batch_id}, up to offset {end} of "
                    f"{topic}-{partition}, and now comes with batch {mark.batch_id}, which begins "
                    f"at {begin}: the tables are behind their checkpoint, as when they come from a "
                    "backup, and what lies between would be left out. Bring back the newer tables, "
                    "or give the query another name and new tables; or, if it may be left out, "
                    "call forget() with its name on the store"
                )


def _by_topic(text: str | None) -> dict[str, dict[str, int]]:
    """Offsets in the form of pipelines; none where a user keeps them in another."""
    found = _parsed(text)
    if not isinstance(found, dict):
        return {}
    return {topic: it for topic, it in found.items() if isinstance(it, dict)}


RESTORE = (
    "Bring that table back: rename it if it has another name now, or restore it from a backup "
    f"together with {PROGRESS_TABLE}"
)
_REBUILD = (
    "give the query another name, with which it builds its tables from the beginning; or, if they "
    "may begin here, call forget() with its name on the store"
)
_CURE = (
    "bring back the checkpoint that belongs to these tables, or give the query another name, or, "
    "if rows may be written once more, call forget() with its name on the store"
)


def _differ(stored: object | None, now: object | None) -> bool:
    return stored is not None and now is not None and stored != now


def _parsed(offsets: str | None) -> object | None:
    if offsets is None:
        return None
    try:
        return json.loads(offsets)  # type: ignore[no-any-return]
    except ValueError:
        return offsets
