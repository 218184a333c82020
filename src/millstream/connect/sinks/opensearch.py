"""A search server with OpenSearch's API (which is Elasticsearch's, too).

    products            an alias, which is what readers search
    products-000001     the index behind it; a rebuild fills the next one and switches the alias

A server has no transactions over several documents. So each document has the version of the change
that wrote it, which grows with the offset ("external" versions), and the server refuses an older
one: a replay, or a paused process that continues, changes nothing. The position is a document of
the same index. It is replaced after the documents of a write are there, if nobody else has replaced
it since it was read.

A deleted document forgets its version after a minute (`index.gc_deletes`), and an older write would
bring it back. So a delete writes a small hidden document instead. The alias has a filter that hides
it, like the position. Hidden documents are deleted after a day.

    __hidden        "deleted" or "position"
    __written_at    when, in milliseconds
    __positions     of the position: for each partition its topic id, next offset and base, and the
                    leader epoch and timestamp of the record before the offset

The version of a change is its offset, plus 1, plus the base of its partition. The base of the first
partitions is 0. A partition that is added later begins above all versions that exist then, since
keys move to it from the others.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from millstream.connect.sinks.changes import MALFORMED, WRONG_TYPE, Failure, Key, Row, document_id
from millstream.connect.sinks.http import Answer, JsonServer
from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step, check_steps
from millstream.connect.sinks.sink import (
    REBUILD_SUFFIX,
    Part,
    RowsRefused,
    Sink,
    SinkUnavailable,
    Target,
    Write,
)
from millstream.errors import ConfigError, StoreError

HIDDEN, WRITTEN_AT, POSITIONS = "__hidden", "__written_at", "__positions"
POSITION_PREFIX = "__millstream:"
TOMBSTONE_SECONDS = 86_400.0
PURGE_SECONDS = 3_600.0
_ID_BYTES_MAX = 512
_BULK_BYTES = 5 * 1024 * 1024
_PAGE = 5_000
_VISIBLE = {"bool": {"must_not": {"exists": {"field": HIDDEN}}}}
_LINES = "application/x-ndjson"
_OK, _CREATED, _BAD_REQUEST, _NOT_FOUND, _CONFLICT = 200, 201, 400, 404, 409


@dataclass(frozen=True)
class Index:
    """The index behind an alias; another one has another identity, also if its name is the same."""

    alias: str
    name: str
    identity: str


class Stored(NamedTuple):
    """The document with the positions, as read."""

    positions: Mapping[Place, Position]
    bases: Mapping[Place, int]
    written_at: float | None = None
    condition: str = "op_type=create"  # of its replacement

    def bases_after(self, steps: Iterable[Step]) -> dict[Place, int]:
        """With those of new partitions."""
        reached = [self.bases[place] + it.offset for place, it in self.positions.items()]
        new = max(reached, default=0)
        return {step.place: new for step in steps} | dict(self.bases)


class Item(NamedTuple):
    """A line of a bulk request."""

    action: Mapping[str, Any]
    document: str
    record: int = -1  # that it comes from


class OpenSearchSink(Sink):
    """Indexes of one cluster."""

    def __init__(self, url: str, name: str, targets: Sequence[Target]) -> None:
        super().__init__(name, targets)
        self._url = url
        self._server = JsonServer(url)
        self._indexes: dict[str, Index] = {}  # by topic
        self._names: dict[str, str] = {}  # of the indexes to create, by topic
        self._next_purge = 0.0

    def open(self) -> None:
        self._server.close()
        for target in self.targets:
            name = self._names.get(target.topic, f"{target.table}-000001")
            self._indexes[target.topic] = self._find(target.table) or self._create(target, name)

    def positions(self) -> dict[Place, Position]:
        found: dict[Place, Position] = {}
        for target in self.targets:
            found |= self._stored(target).positions
        return found

    def apply(self, write: Write) -> None:
        stored: dict[str, Stored] = {}
        refused: dict[str, list[Failure]] = {}
        for target in self.targets:
            steps = [it for it in write.steps if it.place.topic == target.topic]
            if not steps:
                continue
            before = self._stored(target)
            check_steps(steps, before.positions)
            before = before._replace(bases=before.bases_after(steps))
            stored[target.topic] = before
            part = write.parts.get(target.topic)
            if part is not None:
                failures = self._write(target, part, before)
                if failures:
                    refused[target.topic] = failures
        if refused:
            raise RowsRefused(refused)
        for target in self.targets:
            if target.topic in stored:
                self._store(target, stored[target.topic], write.steps)
        self._purge()

    def written_at(self, target: Target) -> float | None:
        return self._stored(target).written_at

    def stored_rows(self, target: Target, keys: Sequence[Key]) -> dict[Key, Row]:
        path = f"/{quote(self._indexes[target.topic].name)}/_mget"
        body = {"ids": [document_id(key) for key in keys]}
        answer = self._checked(self._server.ask("POST", path, body))
        return {
            key: it["_source"]
            for key, it in zip(keys, answer.body["docs"], strict=True)
            if it.get("found") and HIDDEN not in it["_source"]
        }

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        index = self._indexes[target.topic]
        self._checked(self._server.ask("POST", f"/{quote(index.name)}/_refresh"))
        for hits in self._scroll(index, _VISIBLE, content=True):
            yield from ((it["_id"], it["_source"]) for it in hits)

    def purge(self) -> list[str]:
        return ["snapshots of the search server"]  # the index that was replaced is deleted

    def close(self) -> None:
        self._server.close()

    def rebuilt(self) -> OpenSearchSink:
        targets = [replace(it, table=it.table + REBUILD_SUFFIX) for it in self.targets]
        sink = OpenSearchSink(self._url, self.name, targets)
        for target, other in zip(self.targets, targets, strict=True):
            stem, _, number = self._indexes[target.topic].name.rpartition("-")
            name = f"{stem}-{int(number) + 1:06d}"
            left = self._find(other.table)
            for index in {name, left.name if left else name}:
                self._checked(self._server.ask("DELETE", f"/{quote(index)}"), _NOT_FOUND)
            sink._names[target.topic] = name
        return sink

    def switch(self, rebuilt: Sink) -> None:
        assert isinstance(rebuilt, OpenSearchSink)
        actions: list[Any] = []
        for target in self.targets:
            new, old = rebuilt._indexes[target.topic], self._indexes[target.topic]
            actions += [
                {"remove": {"index": new.name, "alias": new.alias}},
                {"remove_index": {"index": old.name}},
                {"add": {"index": new.name, "alias": old.alias, **_ALIAS}},
            ]
        self._checked(self._server.ask("POST", "/_aliases", {"actions": actions}))
        self.open()

    # Indexes

    def _find(self, alias: str) -> Index | None:
        answer = self._checked(self._server.ask("GET", f"/{quote(alias)}"), _NOT_FOUND)
        if answer.status == _NOT_FOUND:
            return None
        found = list(answer.body.items())
        (name, about) = found[0]
        identity = about["mappings"].get("_meta", {}).get("millstream", {}).get("identity")
        if len(found) > 1 or name == alias or identity is None:
            raise ConfigError(
                f"sink {self.name}: {alias!r} exists at {self._server.shown}, and is not an alias "
                "of one index that a sink created; delete it, or choose another `table`"
            )
        return Index(alias, name, identity)

    def _create(self, target: Target, name: str) -> Index:
        identity = uuid.uuid4().hex
        chosen = bool(target.fields or target.stored)
        text = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
        properties = {
            HIDDEN: {"type": "keyword"},
            WRITTEN_AT: {"type": "date"},
            POSITIONS: {"type": "object", "enabled": False},
        }
        mappings = {
            "_meta": {"millstream": {"identity": identity}},
            "dynamic": not chosen,
            "properties": properties | dict.fromkeys(target.fields, text),
        }
        body = {"aliases": {target.table: _ALIAS}, "mappings": mappings}
        answer = self._server.ask("PUT", f"/{quote(name)}", body)
        if _error_type(answer) == "resource_already_exists_exception":
            raise SinkUnavailable(f"index {name} exists, but not its alias {target.table}")
        self._checked(answer)
        return Index(target.table, name, identity)

    # Positions

    def _position_id(self, target: Target) -> str:
        return f"{POSITION_PREFIX}{self.name}:{self._indexes[target.topic].identity}"

    def _stored(self, target: Target) -> Stored:
        index = self._indexes[target.topic]
        path = f"/{quote(index.alias)}/_doc/{quote(self._position_id(target), safe='')}"
        answer = self._checked(self._server.ask("GET", path), _NOT_FOUND)
        if answer.status == _NOT_FOUND:
            if "error" in answer.body:
                raise SinkUnavailable(f"{index.alias} does not exist")
            return Stored({}, {})
        self._check_index(index, answer.body["_index"])
        content = answer.body["_source"]
        positions, bases = {}, {}
        for partition, (topic_id, offset, base, *before) in content[POSITIONS].items():
            place = Place(target.topic, int(partition))
            positions[place], bases[place] = Position(topic_id, offset, *before), base
        term, number = answer.body["_primary_term"], answer.body["_seq_no"]
        condition = f"if_seq_no={number}&if_primary_term={term}"
        return Stored(positions, bases, content[WRITTEN_AT] / 1000, condition)

    def _store(self, target: Target, before: Stored, steps: Iterable[Step]) -> None:
        index = self._indexes[target.topic]
        after = dict(before.positions)
        after |= {it.place: it.after for it in steps if it.place.topic == target.topic}
        content = {
            HIDDEN: "position",
            WRITTEN_AT: _now_ms(),
            POSITIONS: {
                str(place.partition): [*position[:2], before.bases[place], *position[2:]]
                for place, position in after.items()
            },
        }
        path = f"/{quote(index.alias)}/_doc/{quote(self._position_id(target), safe='')}"
        options = f"?require_alias=true&{before.condition}"
        answer = self._server.ask("PUT", path + options, content)
        if answer.status in (_CONFLICT, _NOT_FOUND):
            raise PositionMoved(f"{index.alias}: another process has written to it")
        self._checked(answer)
        self._check_index(index, answer.body["_index"])

    # Documents

    def _write(self, target: Target, part: Part, stored: Stored) -> list[Failure]:
        """Those that the server refuses."""

        def version(record: int) -> int:
            partition, offset = part.origin(record)
            return stored.bases[Place(target.topic, partition)] + offset + 1

        index = self._indexes[target.topic]
        failures: list[Failure] = []
        if part.changes.cleared_by is not None:
            number = version(part.changes.cleared_by)
            self._checked(self._server.ask("POST", f"/{quote(index.alias)}/_refresh"))
            for hits in self._scroll(index, _VISIBLE):
                self._bulk(index, [Item(_index_action(it["_id"], number), _gone()) for it in hits])
        last = {it.key: it for it in part.changes.changes}
        items = []
        for record, key, row, _ in last.values():
            id = document_id(key)
            try:
                _check_id(id)
                document = _gone() if row is None else _document(row, target)
            except ValueError as error:
                failures.append(Failure(record, WRONG_TYPE, str(error)))
                continue
            items.append(Item(_index_action(id, version(record)), document, record))
        return failures + self._bulk(index, items)

    def _bulk(self, index: Index, items: Sequence[Item]) -> list[Failure]:
        path = (
            f"/{quote(index.alias)}/_bulk?require_alias=true"
            "&filter_path=errors,items.*.status,items.*.error,items.*._index"
        )
        failures = []
        for body, sent in _bodies(items):
            answer = self._checked(self._server.ask("POST", path, body, content_type=_LINES))
            results = [next(iter(it.values())) for it in answer.body["items"]]
            for item, result in zip(sent, results, strict=True):
                self._check_index(index, result["_index"])
                failure = _failure(item, result)
                if failure is not None:
                    failures.append(failure)
        return failures

    def _scroll(self, index: Index, query: Any, *, content: bool = False) -> Iterator[list[Any]]:
        """Pages of documents."""
        path = f"/{quote(index.name)}/_search?scroll=5m"
        body: Any = {"size": _PAGE, "query": query, "_source": content, "sort": ["_doc"]}
        answer = self._checked(self._server.ask("POST", path, body | {"seq_no_primary_term": True}))
        try:
            while answer.body["hits"]["hits"]:
                yield answer.body["hits"]["hits"]
                more = {"scroll": "5m", "scroll_id": answer.body["_scroll_id"]}
                answer = self._checked(self._server.ask("POST", "/_search/scroll", more))
        finally:
            scroll = {"scroll_id": [answer.body["_scroll_id"]]}
            self._server.ask("DELETE", "/_search/scroll", scroll)

    def _purge(self) -> None:
        """Delete what was hidden long ago, now and then."""
        if time.monotonic() < self._next_purge:
            return
        self._next_purge = time.monotonic() + PURGE_SECONDS
        limit = _now_ms() - int(TOMBSTONE_SECONDS * 1000)
        old = [{"term": {HIDDEN: "deleted"}}, {"range": {WRITTEN_AT: {"lt": limit}}}]
        for index in self._indexes.values():
            for hits in self._scroll(index, {"bool": {"filter": old}}):
                self._bulk(index, [Item(_delete_action(it), "") for it in hits])

    def _check_index(self, index: Index, found: str) -> None:
        if found != index.name:
            raise PositionMoved(f"{index.alias} is {found} now, after a rebuild")

    def _checked(self, answer: Answer, *accepted: int) -> Answer:
        if answer.is_good or answer.status in accepted:
            return answer
        kind, error = _error_type(answer), (answer.body or {}).get("error")
        if kind == "index_not_found_exception":
            raise SinkUnavailable(f"{self._server.shown}: an index was deleted: {error}")
        raise StoreError(f"{self._server.shown} refuses: {answer.status} {_reason(error)}")


_ALIAS = {"filter": _VISIBLE, "is_write_index": True}


def _index_action(id: str, version: int) -> dict[str, Any]:
    return {"index": {"_id": id, "version": version, "version_type": "external"}}


def _delete_action(hit: Mapping[str, Any]) -> dict[str, Any]:
    condition = {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    return {"delete": {"_id": hit["_id"], **condition}}


def _gone() -> str:
    return json.dumps({HIDDEN: "deleted", WRITTEN_AT: _now_ms()})


def _document(row: Row, target: Target) -> str:
    if target.fields or target.stored:
        row = {name: row.get(name) for name in (*target.fields, *target.stored)}
    elif any(name.startswith("__") for name in row):
        row = {name: it for name, it in row.items() if not name.startswith("__")}
    return json.dumps(row, allow_nan=False)


def _check_id(id: str) -> None:
    if not id or len(id.encode("utf-8", "replace")) > _ID_BYTES_MAX:
        raise ValueError(f"the key must have 1 to {_ID_BYTES_MAX} bytes")
    if id.startswith(POSITION_PREFIX):
        raise ValueError(f"the key must not start with {POSITION_PREFIX}")


def _bodies(items: Sequence[Item]) -> Iterator[tuple[bytes, list[Item]]]:
    lines: list[str] = []
    sent: list[Item] = []
    size = 0
    for item in items:
        lines.append(json.dumps(item.action))
        if "delete" not in item.action:
            lines.append(item.document)
        sent.append(item)
        size += len(item.document) + 100
        if size > _BULK_BYTES:
            yield ("\n".join(lines) + "\n").encode(), sent
            lines, sent, size = [], [], 0
    if sent:
        yield ("\n".join(lines) + "\n").encode(), sent


def _failure(item: Item, result: Mapping[str, Any]) -> Failure | None:
    """What becomes of a line; raises if it is not the document that is wrong."""
    status, error = result["status"], result.get("error")
    if status in (_OK, _CREATED, _CONFLICT) or (status == _NOT_FOUND and "delete" in item.action):
        return None  # a conflict: this version, or a newer one, is there already
    if status == _BAD_REQUEST and item.record >= 0:
        return Failure(item.record, MALFORMED, f"the search server refuses it: {_reason(error)}")
    if status == _NOT_FOUND or status >= 429:
        raise SinkUnavailable(f"the search server answers {status}: {_reason(error)}")
    raise StoreError(f"the search server answers {status}: {_reason(error)}")


def _error_type(answer: Answer) -> str:
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    return str(error.get("type")) if isinstance(error, dict) else ""


def _reason(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    cause = error.get("caused_by") or {}
    return ": ".join(str(it["reason"]) for it in (error, cause) if it.get("reason"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
