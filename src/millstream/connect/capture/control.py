"""Looking at a capture and steering it from another process: status, new snapshots, a new start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from millstream.connect.capture.output import Output, Owner, TransactionLost
from millstream.connect.capture.pgoutput import format_lsn
from millstream.connect.capture.position import CaptureState, Position, TableState
from millstream.connect.capture.replication import ReplicationConnection
from millstream.connect.capture.selection import listed
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.snapshot import KEYLESS_BYTES_MAX, keyless_problem
from millstream.connect.capture.source import NotPrimary, Slot, Source
from millstream.connect.capture.tables import CaptureError

START_OVER_ATTEMPTS = 5


@dataclass(frozen=True)
class Status:
    """A capture, its slot and its tables."""

    name: str
    phase: str  # not started, creating, snapshot, streaming
    position: str | None  # an LSN
    is_running: bool
    slot: str
    wal_status: str | None
    lag_bytes: int | None  # written to the database's log, and not confirmed
    retained_bytes: int | None  # kept on the database's disk for the slot
    safe_bytes: int | None  # until the slot is invalidated; None: no limit
    problem: str | None  # what a start would refuse, or an alarm
    tables: dict[str, TableState] = field(default_factory=dict)
    table_problems: dict[str, str] = field(default_factory=dict)  # left out, or not as expected

    def to_json(self) -> dict[str, object]:
        return asdict(self)


class Removed(NamedTuple):
    dropped: list[str]  # in the database
    topics: list[str]  # that are left


def read_status(settings: CaptureSettings) -> Status:
    """The stored state and the slot; nothing is changed, nobody is fenced."""
    output, source = Output(settings), Source(settings)
    try:
        slot = source.slot()  # before the position, which a running capture writes first
        state, position = output.read_stored()
        problem = None
        if state is not None and position is not None and state.phase != "creating":
            problem = _start_problem(settings, source, slot, state, position)
        selection = source.select({} if state is None else state.tables)
        return Status(
            settings.name,
            "not started" if state is None else state.phase,
            None if position is None else format_lsn(position.lsn),
            slot is not None and slot.active_pid is not None,
            settings.slot,
            None if slot is None else slot.wal_status,
            None if slot is None else slot.lag_bytes,
            None if slot is None else slot.retained_bytes,
            None if slot is None else slot.safe_bytes,
            problem or _alarm(settings, slot),
            {} if state is None else state.tables,
            selection.problems,
        )
    finally:
        output.close()
        source.close()


def _start_problem(
    settings: CaptureSettings,
    source: Source,
    slot: Slot | None,
    state: CaptureState,
    position: Position,
) -> str | None:
    """What a start would refuse now."""
    replication = ReplicationConnection(settings.database)
    try:
        source.check_server()
        source.check_continued(replication, slot, state, position)
    except (CaptureError, NotPrimary) as error:
        return str(error)
    finally:
        replication.close()
    return None


def _alarm(settings: CaptureSettings, slot: Slot | None) -> str | None:
    if slot is None or not slot.keeps_more_than(settings.lag_alarm_bytes):
        return None
    return (
        f"slot {settings.slot} keeps {slot.retained_bytes} bytes of log on the database's disk, "
        f"more than lag_alarm_bytes ({settings.lag_alarm_bytes}): run the capture, or drop the slot"
    )


def request_snapshot(
    settings: CaptureSettings, tables: Sequence[str], *, replaces: bool = False
) -> list[str]:
    """Ask the capture, running or not, for a new snapshot of these tables (none: of all); returns
    their names. With `replaces` it begins with a truncate."""
    source = Source(settings)
    try:
        selection = source.select({})
        left_out = [f"{it}: {selection.left_out[it]}" for it in tables if it in selection.left_out]
        if left_out:
            raise CaptureError(f"cannot copy {listed(left_out, '; ')}")
        known = selection.tables
        unknown = [name for name in tables if name not in known]
        if unknown:
            raise CaptureError(
                f"not captured: {', '.join(unknown)}; captured are {', '.join(known) or 'none'}"
            )
        if source.slot() is None:
            raise CaptureError(
                f"slot {settings.slot} does not exist, so nothing would be streamed; start the "
                "capture first, or use --new-slot if the slot was lost"
            )
        chosen = list(tables) or list(known)
        for name in chosen:
            plan = source.copy_plan(known[name])
            if not plan.table.key and source.size_bytes(known[name]) > KEYLESS_BYTES_MAX:
                raise CaptureError(keyless_problem(name))
        content = json.dumps({"resnapshot": chosen, "replace": replaces})
        source.emit(settings.signal_prefix, content)
        return chosen
    finally:
        source.close()


def start_over(settings: CaptureSettings) -> None:
    """Drop the slot, so that the next run creates another one and copies all tables again, each
    after a truncate. A running capture is fenced, and stops."""
    for _ in range(START_OVER_ATTEMPTS - 1):
        try:
            return _start_over(settings)
        except TransactionLost:
            # The capture has continued before our claim was committed.
            continue
    return _start_over(settings)


def _start_over(settings: CaptureSettings) -> None:
    output, source = Output(settings), Source(settings)
    try:
        _refuse_foreign_slot(output, source)
        state = output.open(Owner())
        source.drop_slot()
        if state is not None:
            output.commit_state(_before_slot(state))
    finally:
        output.close()
        source.close()


def _refuse_foreign_slot(output: Output, source: Source) -> None:
    """Before anything is changed: a running process may be of another capture."""
    slot = source.slot()
    source.refuse_foreign_slot(slot, *output.read_stored())


def remove(settings: CaptureSettings) -> Removed:
    """Drop the slot, and the publication if the capture manages it. A running capture is fenced,
    and stops. The topics stay; a later run starts over."""
    output, source = Output(settings), Source(settings)
    try:
        state, _ = output.read_stored()
        if state is None:
            raise CaptureError(
                f"topic {settings.position_topic} has no state of capture {settings.name}: it has "
                "not been started with this broker, or the topic was deleted. If slot "
                f"{settings.slot} exists and no other capture uses it, drop it with `SELECT "
                f"pg_drop_replication_slot('{settings.slot}')`"
            )
        had_slot = source.slot() is not None
        start_over(settings)
        dropped = [f"slot {settings.slot}"] if had_slot else []
        if settings.manage_publication and source.drop_publication(state.publication_oid):
            dropped.append(f"publication {settings.publication}")
        topics = [settings.topic_of(*name.split(".", 1)) for name in state.tables]
        return Removed(dropped, [*topics, *settings.own_topics])
    finally:
        output.close()
        source.close()


def _before_slot(state: CaptureState) -> CaptureState:
    tables = {name: TableState(it.oid, replaces=True) for name, it in state.tables.items()}
    return replace(state, phase="creating", tables=tables)
