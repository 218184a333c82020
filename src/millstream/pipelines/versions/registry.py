"""The versions of a pipeline and which of them is in force: pure, one document per pipeline.

    table revenue    a view, over revenue__v1 or revenue__v2: that of the version in force
    topic alerts     written by the version in force; the others write to alerts.v1, alerts.v2

Physical names follow from the name and the version. The document is stored as JSON, in the same
database as the tables (`catalog.py`), and changes only in the functions below:

    deploy     a version is added; the first one is in force at once
    catch_up   it has read all that was there: it may be switched to
    switch     another version is in force, from a cut on: the offsets that both had reached
    remove     a version is marked before anything of it is deleted; `removed` forgets it

`spans` has an entry for each of the last switches: the version in force from then on, and where all
topics that versions write ended at that moment. It divides the records of a topic by version.

`number` counts the switches. Writers of topics compare it in the transaction of each batch, so that
none of them writes by a role that it no longer has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from millstream.errors import ConfigError
from millstream.pipelines.offsets import Offsets, to_json
from millstream.pipelines.spec import FIRST_VERSION

FORMAT = 3
SPANS_MAX = 100
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


def identity_of(pipeline: str, version: str) -> str:
    """The name of the version's query, checkpoint, group and progress: `revenue`, `revenue@2`."""
    return pipeline if version == FIRST_VERSION else f"{pipeline}@{version}"


def physical_table(table: str, version: str) -> str:
    """The table that a version writes: `revenue__v2`."""
    return f"{table}__v{_NOT_IN_NAMES.sub('_', version)}"


def private_topic(topic: str, version: str) -> str:
    """The topic that a version writes while it is not in force: `alerts.v2`."""
    return f"{topic}.v{version}"


@dataclass(frozen=True)
class TableOutput:
    """A table that a version writes, under the name that readers use."""

    name: str
    physical: str
    key: tuple[str, ...] = ()
    mode: str = "append"


@dataclass(frozen=True)
class Version:
    """A deployed version."""

    version: str
    reads: tuple[str, ...]
    tables: tuple[TableOutput, ...] = ()
    topics: tuple[str, ...] = ()  # by the names that readers use
    start_at: str | None = None  # given to `deploy`; None: as the pipeline declares
    checkpoint: str = ""
    transactional_id: str = ""
    group: str = ""
    is_caught_up: bool = False
    is_removing: bool = False
    by_arrival: tuple[str, ...] = ()  # operators whose results depend on when rows arrive
    state_from: str | None = None  # the version whose state it began with
    state_ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of topics, then

    @property
    def label(self) -> str:
        if self.is_removing:
            return "being removed"
        return "caught up" if self.is_caught_up else "catching up"


@dataclass(frozen=True)
class Span:
    """The time during which a version is in force; empty for one that was removed since."""

    version: str
    begins: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # ends of topics then


@dataclass(frozen=True)
class Versions:
    """The document of a pipeline."""

    pipeline: str
    number: int = 0
    in_force: str | None = None
    previous: str | None = None
    cut: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    versions: Mapping[str, Version] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()

    def identity(self, version: str) -> str:
        return identity_of(self.pipeline, version)

    def get(self, version: str) -> Version:
        """Raises `ConfigError` if it is not deployed."""
        if version not in self.versions:
            known = ", ".join(self.versions) or "none"
            raise ConfigError(
                f"version {version} of {self.pipeline} is not deployed (deployed: {known}): run "
                f"`millstream deploy FILE.py:{self.pipeline} --version {version}`"
            )
        return self.versions[version]


def encode(document: Versions) -> str:
    fields = asdict(document)
    fields["versions"] = list(fields["versions"].values())
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":"))


def decode(text: str) -> Versions:
    """Raises `ConfigError` for a document of another Millstream."""
    fields = json.loads(text)
    if (stored := fields.pop("format")) != FORMAT:
        raise ConfigError(
            f"the versions of {fields['pipeline']} are stored in format {stored}, and this "
            f"Millstream reads format {FORMAT}: use the Millstream that stored them"
        )
    versions = [_version(it) for it in fields.pop("versions")]
    spans = tuple(Span(**it) for it in fields.pop("spans"))
    return Versions(**fields, versions={it.version: it for it in versions}, spans=spans)


def _version(fields: dict[str, Any]) -> Version:
    tables = tuple(TableOutput(**it | {"key": tuple(it["key"])}) for it in fields["tables"])
    lists = {name: tuple(it) for name, it in fields.items() if isinstance(it, list)}
    return Version(**fields | lists | {"tables": tables})


def deploy(document: Versions, version: Version) -> Versions:
    """Add a version, or describe it again; raises `ConfigError` if it cannot be deployed."""
    found = document.versions.get(version.version)
    if found is not None:
        if found.is_removing:
            raise ConfigError(
                f"version {version.version} of {document.pipeline} is being removed: complete that "
                f"with `millstream versions remove {document.pipeline} {version.version}`, then "
                "deploy it"
            )
        _check_same_outputs(document, found, version)
        if version.state_from not in (None, found.state_from):
            raise ConfigError(
                f"version {version.version} of {document.pipeline} is deployed without the state "
                f"of version {version.state_from}: remove it first, or deploy another version"
            )
        version = replace(
            version,
            start_at=found.start_at,
            state_from=found.state_from,
            state_ends=found.state_ends,
            is_caught_up=found.is_caught_up,
            by_arrival=found.by_arrival,
        )
    elif version.state_from is not None and document.get(version.state_from).is_removing:
        raise ConfigError(f"version {version.state_from} of {document.pipeline} is being removed")
    _check_names_differ(document, version)
    return replace(
        document,
        in_force=document.in_force or version.version,
        versions={**document.versions, version.version: version},
        spans=document.spans or (Span(version.version),),
    )


def _check_same_outputs(document: Versions, found: Version, now: Version) -> None:
    if (found.tables, found.topics) != (now.tables, now.topics):
        raise ConfigError(
            f"version {now.version} of {document.pipeline} is deployed with other outputs "
            f"({_outputs(found)}, now {_outputs(now)}): deploy it as another version, or remove it "
            "first"
        )


def _outputs(version: Version) -> str:
    tables = [f"table {it.name} by ({', '.join(it.key)})" for it in version.tables]
    return ", ".join(tables + [f"topic {it}" for it in version.topics])


def _check_names_differ(document: Versions, version: Version) -> None:
    """Versions such as 2.1 and 2-1 would have one table."""
    used = {
        table.physical: it.version
        for it in document.versions.values()
        if it.version != version.version
        for table in it.tables
    }
    for table in version.tables:
        if table.physical in used:
            raise ConfigError(
                f"version {version.version} of {document.pipeline} would write the table "
                f"{table.physical} of version {used[table.physical]}: choose another version"
            )


def catch_up(document: Versions, version: str) -> Versions:
    found = replace(document.get(version), is_caught_up=True)
    return replace(document, versions={**document.versions, version: found})


def note_operators(document: Versions, version: str, by_arrival: Iterable[str]) -> Versions:
    """Record which operators of a version depend on when rows arrive."""
    found = replace(document.get(version), by_arrival=tuple(sorted(by_arrival)))
    return replace(document, versions={**document.versions, version: found})


def switch(document: Versions, version: str, cut: Offsets, ends: Offsets | None = None) -> Versions:
    """Put another version in force, which takes over at the cut; `ends` are those of the topics
    that versions write."""
    return replace(
        document,
        number=document.number + 1,
        in_force=version,
        previous=document.in_force,
        cut=to_json(cut),
        spans=(*document.spans, Span(version, to_json(ends or {})))[-SPANS_MAX:],
    )


def check_switch(document: Versions, version: str, *, may_drop_tables: bool = False) -> Version:
    """The version to switch to; raises `ConfigError` if it cannot be in force."""
    wanted = document.get(version)
    if document.in_force == version:
        raise ConfigError(f"version {version} of {document.pipeline} is in force already")
    if wanted.is_removing:
        raise ConfigError(f"version {version} of {document.pipeline} is being removed")
    if not wanted.is_caught_up:
        raise ConfigError(
            f"version {version} of {document.pipeline} is catching up: wait until `millstream "
            f"versions list {document.pipeline}` shows that it has caught up"
        )
    if document.in_force is None:
        return wanted
    now = document.get(document.in_force)
    missing = {it.name for it in now.tables} - {it.name for it in wanted.tables}
    if missing and not may_drop_tables:
        raise ConfigError(
            f"version {version} of {document.pipeline} does not write table "
            f"{', '.join(sorted(missing))}, which version {now.version} does, and readers would "
            "find nothing there: write it, or use --drop-tables"
        )
    if set(now.topics) != set(wanted.topics):
        raise ConfigError(
            f"version {version} of {document.pipeline} writes topics "
            f"{', '.join(wanted.topics) or '(none)'}, and version {now.version} writes "
            f"{', '.join(now.topics) or '(none)'}: readers of a topic can only be moved between "
            "versions that both write it"
        )
    return wanted


def rollback_target(document: Versions) -> str:
    """The version that was in force before; raises `ConfigError` if there is none."""
    if document.previous is None or document.previous not in document.versions:
        raise ConfigError(
            f"there is no version of {document.pipeline} to go back to: it was never switched, or "
            "the version before was removed"
        )
    return document.previous


def start_removing(document: Versions, version: str) -> Versions:
    """Mark a version before anything of it is deleted; raises `ConfigError` if it is in force."""
    found = document.get(version)
    if document.in_force == version and len(document.versions) > 1:
        raise ConfigError(
            f"version {version} of {document.pipeline} is in force: switch to another one first"
        )
    marked = replace(found, is_removing=True)
    return replace(document, versions={**document.versions, version: marked})


def removed(document: Versions, version: str) -> Versions | None:
    """The document without the version; None if it was the last."""
    rest = {
        name: replace(it, state_from=None, state_ends={}) if it.state_from == version else it
        for name, it in document.versions.items()
        if name != version
    }
    if not rest:
        return None
    previous = None if document.previous == version else document.previous
    spans = tuple(replace(it, version="") if it.version == version else it for it in document.spans)
    return replace(document, versions=rest, previous=previous, spans=spans)
