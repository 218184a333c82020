"""Carrying state over: a version that begins where another stands, with a copy of its state.

The other version is halted, or its checkpoint is locked if it does not run. Then

1.  its checkpoint is copied, under another query id, into a directory that is renamed when it is
    complete;
2.  one transaction of the store copies its tables and its progress.

Until the second step the version has not begun: if the process dies, `deploy` does both again. The
version then runs on from there, with its own checkpoint, tables and topics. What it wrote to a
topic before it began is what the other version wrote (`Version.state_ends`).

Whether the state fits is checked when the version starts, by the descriptions of its stateful
operators (`Checkpoint.check_state`), and once more by the operators and by Spark, which compare
settings and schemas.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.connect.tables.spec import PROGRESS_TABLE
from millstream.errors import ConfigError
from millstream.pipelines.offsets import Offsets, from_json, to_json
from millstream.pipelines.query_files import batch_ends, is_local, local_path, replace_file
from millstream.pipelines.running.checkpoint import CARRIED, OWNER_FILE, STATE
from millstream.pipelines.running.locking import LOCK_FILE, locked
from millstream.pipelines.versions.catalog import Catalog, Work
from millstream.pipelines.versions.halting import Operator, halted
from millstream.pipelines.versions.marks import open_cluster
from millstream.pipelines.versions.registry import Version, Versions
from millstream.pipelines.versions.topics import output_ends, topic_ends

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster
    from millstream.pipelines.running.settings import Settings

ATTEMPTS_MAX = 5  # Spark deletes old files of the state while they are copied


def carry_state(
    catalog: Catalog,
    settings: Settings,
    document: Versions,
    version: str,
    *,
    show: Callable[[str], None] = lambda text: None,
) -> None:
    """Let a version begin with the state of the one that it was deployed with, unless it has
    begun; raises `ConfigError` if that is not possible."""
    new = document.get(version)
    if new.state_from is None or has_begun(catalog, document, version):
        return
    old = document.get(new.state_from)
    check_can_be_copied(document, old, new)
    with open_cluster(settings) as cluster, standing(catalog, cluster, document, old, show):
        query_id = copy_checkpoint(old, new)
        ends = output_ends(cluster, document)
        catalog.run(
            lambda work: copy_tables(work, document.pipeline, old, new, query_id, ends),
            f"copy the state of version {old.version}",
        )


def has_begun(catalog: Catalog, document: Versions, version: str) -> bool:
    found = catalog.read(lambda work: work.progress(document.identity(version)))
    return found is not None and found.offsets is not None


def check_can_be_copied(document: Versions, old: Version, new: Version) -> None:
    for it in (old, new):
        if not it.checkpoint or not is_local(it.checkpoint):
            raise ConfigError(
                f"the checkpoint {it.checkpoint} of version {it.version} of {document.pipeline} is "
                "not on this machine's disk, and cannot be copied: deploy without --state-from"
            )
    copied = {it.name: (it.key, it.mode) for it in old.tables}
    for table in new.tables:
        if copied.get(table.name) != (table.key, table.mode):
            raise ConfigError(
                f"version {old.version} of {document.pipeline} has no table {table.name} with the "
                f"key ({', '.join(table.key)}), and the one of version {new.version} would lack "
                "the rows up to now: deploy without --state-from"
            )
    if set(old.reads) != set(new.reads):
        raise ConfigError(
            f"version {old.version} of {document.pipeline} reads {', '.join(old.reads)}, and "
            f"version {new.version} {', '.join(new.reads)}: its state belongs to other topics; "
            "deploy without --state-from"
        )


@contextmanager
def standing(
    catalog: Catalog,
    cluster: Cluster,
    document: Versions,
    version: Version,
    show: Callable[[str], None],
) -> Iterator[None]:
    """While the version writes nothing: halted, or locked if it does not run."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(version.checkpoint))
        except ConfigError:  # it runs
            operator = Operator(catalog, document.pipeline, (version.version,), show=show)
            ends = stack.enter_context(halted(operator, lambda: topic_ends(cluster, version.reads)))
            stack.enter_context(operator.renewing(ends))
        yield


def copy_checkpoint(old: Version, new: Version) -> str:
    """Copy the checkpoint, and return the query id of the copy."""
    source, target = (Path(local_path(it.checkpoint)) for it in (old, new))
    check_is_complete(source, old)
    unfinished = target.with_name(f".{target.name}.copying")
    for attempt in range(ATTEMPTS_MAX):
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            shutil.copytree(source, unfinished, ignore=shutil.ignore_patterns(LOCK_FILE))
            break
        except (FileNotFoundError, shutil.Error):
            if attempt + 1 == ATTEMPTS_MAX:
                raise
    query_id = str(uuid.uuid4())
    replace_file(unfinished / "metadata", json.dumps({"id": query_id}))
    (unfinished / ".metadata.crc").unlink(missing_ok=True)
    owner = json.loads((unfinished / OWNER_FILE).read_text(encoding="utf-8"))
    replace_file(unfinished / OWNER_FILE, json.dumps(owner | {CARRIED: old.version}))
    shutil.rmtree(target, ignore_errors=True)  # of an attempt that was interrupted
    unfinished.rename(target)
    return query_id


def newest_batch(checkpoint: Path, name: str) -> int | None:
    return max((int(it.name) for it in (checkpoint / name).glob("[0-9]*")), default=None)


def last_ends(checkpoint: Path) -> Offsets | None:
    number = newest_batch(checkpoint, "offsets")
    return None if number is None else batch_ends(str(checkpoint), number)


def check_is_complete(checkpoint: Path, version: Version) -> None:
    begun = newest_batch(checkpoint, "offsets")
    if begun is None or begun != newest_batch(checkpoint, "commits"):
        raise ConfigError(
            f"version {version.version} was stopped in the middle of a batch, and its state is "
            "behind what it has written: start it once, and stop it with Ctrl-C or let it run"
        )
    owner = json.loads((checkpoint / OWNER_FILE).read_text(encoding="utf-8"))
    if STATE not in owner:
        raise ConfigError(
            f"version {version.version} has not run since its operators are recorded in its "
            "checkpoint: start it once"
        )


def copy_tables(
    work: Work, pipeline: str, old: Version, new: Version, query_id: str, ends: Offsets
) -> None:
    document = work.load(pipeline, locked=True)
    if document is None or new.version not in document.versions:
        raise ConfigError(f"version {new.version} of {pipeline} was removed meanwhile")
    stored = work.progress(document.identity(old.version), locked=True)
    if stored is None or stored.offsets is None:
        raise ConfigError(f"version {old.version} of {pipeline} has written nothing yet")
    if last_ends(Path(local_path(new.checkpoint))) != from_json(json.loads(stored.offsets)):
        raise ConfigError(
            f"version {old.version} of {pipeline} went on while its checkpoint was copied: repeat "
            "the command"
        )
    physical = {it.name: it.physical for it in old.tables}
    for table in new.tables:
        work.drop_table(table.physical)
        work.copy_table(physical[table.name], table.physical)
    tables = {it.physical: work.identity(it.physical) for it in new.tables}
    query = document.identity(new.version)
    work.execute(
        f"INSERT INTO {PROGRESS_TABLE} (query, epoch, batch_id, offsets, checkpoint, tables) "
        "VALUES (?, 1, ?, ?, ?, ?) ON CONFLICT (query) DO UPDATE SET "
        f"epoch = {PROGRESS_TABLE}.epoch + 1, batch_id = excluded.batch_id, offsets = "
        "excluded.offsets, checkpoint = excluded.checkpoint, tables = excluded.tables",
        (query, stored.batch_id, stored.offsets, query_id, json.dumps(tables) if tables else None),
    )
    begun = replace(document.get(new.version), state_ends=to_json(ends))
    work.save(replace(document, versions={**document.versions, new.version: begun}))
