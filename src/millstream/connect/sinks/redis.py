"""A cache that speaks Redis's protocol: Redis, Valkey and others.

    items:42                    the row as JSON, at the table's name and the key
    millstream:positions:shop   a hash: topic/partition -> topic id and next offset, leader epoch
                                and timestamp of the record before it; "written_at topic" -> the
                                time of the last write of a topic

A Lua script compares the positions, then writes rows and positions. Redis runs a script without
interruption and logs it as one unit, so that rows and positions survive, are replicated and are
lost together. That is why one server holds all keys: a Redis Cluster is refused. A policy that may
evict the positions is refused too; rows with a time to live are not written here.

A rebuild fills a second database of the server, `redis://host/0?rebuild=1`, and exchanges the two
with SWAPDB. So the database must be the sink's own: a rebuild is refused if it has other keys.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from millstream.connect.sinks.changes import Key, Row, document_id
from millstream.connect.sinks.positions import UNKNOWN, Place, Position, PositionMoved, check_steps
from millstream.connect.sinks.sink import Sink, SinkUnavailable, Target, Write
from millstream.errors import ConfigError, StoreError

if TYPE_CHECKING:
    import redis

POSITIONS_PREFIX = "millstream:positions:"
_WRITTEN_AT = "written_at"
_SCAN_COUNT = 1000
_TIMEOUT_SECONDS = 30.0
# KEYS: the positions, then rows. ARGV: the number of steps; of each its field, the position before
# and after; the time; then the rows, empty if deleted.
_SCRIPT = """
local steps = tonumber(ARGV[1])
for i = 1, steps do
    local found = redis.call('HGET', KEYS[1], ARGV[3 * i - 1]) or ''
    if found ~= ARGV[3 * i] then return ARGV[3 * i - 1] .. ' ' .. found end
end
for i = 1, steps do
    local topic = string.match(ARGV[3 * i - 1], '^(.*)/')
    redis.call('HSET', KEYS[1], ARGV[3 * i - 1], ARGV[3 * i + 1])
    redis.call('HSET', KEYS[1], 'written_at ' .. topic, ARGV[3 * steps + 2])
end
local first = 3 * steps + 1
for i = 2, #KEYS do
    local row = ARGV[first + i]
    if row == '' then redis.call('DEL', KEYS[i]) else redis.call('SET', KEYS[i], row) end
end
return ''
"""


class RedisSink(Sink):
    """Rows as JSON in one database of one server."""

    rows_max = 2_000  # a script stops all other clients for its duration
    may_write_again = True

    def __init__(self, url: str, name: str, targets: Sequence[Target]) -> None:
        super().__init__(name, targets)
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        unknown = sorted(options.keys() - {"rebuild"})
        number, rebuild = parts.path.strip("/") or "0", options.get("rebuild", [""])[0]
        if unknown or not number.isdigit() or not (rebuild.isdigit() or not rebuild):
            raise ConfigError(
                f"sink {name}: write redis://user:password@host:port/DATABASE?rebuild=DATABASE"
                + (f"; unknown: {unknown}" if unknown else "")
            )
        self._url, self._database = urlunsplit(parts._replace(query="")), int(number)
        self._rebuild_database = int(rebuild) if rebuild else None
        self.may_rebuild = self._rebuild_database not in (None, self._database)
        self._positions_key = POSITIONS_PREFIX + name
        self._client: redis.Redis | None = None
        self._script: Callable[..., Any] | None = None

    def open(self) -> None:
        self.close()
        with self._reporting():
            client = self._connect()
            self._check_server(client)
            self._script = client.register_script(_SCRIPT)

    def positions(self) -> dict[Place, Position]:
        with self._reporting():
            found: Any = self._opened().hgetall(self._positions_key)
        positions = {}
        for place, position in found.items():
            topic, slash, partition = place.rpartition("/")
            if slash:  # it is not a time
                topic_id, _, numbers = position.rpartition(" ")
                positions[Place(topic, int(partition))] = Position(
                    topic_id, *map(int, numbers.split("/"))
                )
        return positions

    def apply(self, write: Write) -> None:
        rows: dict[str, str] = {}
        for target in self.targets:
            part = write.parts.get(target.topic)
            if part is None:
                continue
            if part.changes.clear:
                with self._reporting():
                    rows |= dict.fromkeys(self._keys(f"{_escaped(target.table)}:*"), "")
            for key, row in part.changes.last_by_key().items():
                text = "" if row is None else json.dumps(row, ensure_ascii=False)
                rows[f"{target.table}:{document_id(key)}"] = text
        arguments: list[str | int] = [len(write.steps)]
        for place, before, after in write.steps:
            arguments += [f"{place.topic}/{place.partition}", _text(before), _text(after)]
        arguments.append(str(time.time()))
        assert self._script is not None, "open() first"
        with self._reporting():
            keys = [self._positions_key, *rows]
            moved = self._script(keys=keys, args=[*arguments, *rows.values()])
        if moved:
            check_steps(write.steps, self.positions())
            raise PositionMoved(f"the target was at {moved!r} for a moment; another process writes")

    def written_at(self, target: Target) -> float | None:
        """Earlier versions kept one time for all topics; it is older than any of a topic."""
        names = [f"{_WRITTEN_AT} {target.topic}", _WRITTEN_AT]
        with self._reporting():
            found: Any = self._opened().hmget(self._positions_key, names)
        return next((float(it) for it in found if it is not None), None)

    def stored_rows(self, target: Target, keys: Sequence[Key]) -> dict[Key, Row]:
        names = [f"{target.table}:{document_id(key)}" for key in keys]
        with self._reporting():
            found: Any = self._opened().mget(names)
        return {
            key: json.loads(text) for key, text in zip(keys, found, strict=True) if text is not None
        }

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        """Not as of one moment: what is written meanwhile may be left out or not."""
        prefix = f"{target.table}:"
        with self._reporting():
            names = iter(set(self._keys(f"{_escaped(prefix)}*")))  # a scan may repeat one
            while page := list(islice(names, _SCAN_COUNT)):
                found: Any = self._opened().mget(page)
                for name, text in zip(page, found, strict=True):
                    if text is not None:
                        yield name.removeprefix(prefix), json.loads(text)

    def purge(self) -> list[str]:
        return ["dumps and append-only files of Redis, until it has written them again"]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def rebuilt(self) -> RedisSink:
        if self._rebuild_database is None or self._rebuild_database == self._database:
            raise ConfigError(
                f"sink {self.name}: a rebuild needs a second database: add ?rebuild=1 to `to`"
            )
        self._refuse_other_keys()
        parts = urlsplit(self._url)._replace(path=f"/{self._rebuild_database}")
        sink = RedisSink(urlunsplit(parts), self.name, self.targets)
        with self._reporting():
            client = sink._connect()
            sink._refuse_other_keys()
            client.flushdb()
        return sink

    def switch(self, rebuilt: Sink) -> None:
        assert isinstance(rebuilt, RedisSink)
        self._refuse_other_keys()
        with self._reporting():
            self._opened().swapdb(self._database, rebuilt._database)
            rebuilt._opened().flushdb()

    def _refuse_other_keys(self) -> None:
        own = tuple(f"{it.table}:" for it in self.targets)
        with self._reporting():
            for key in self._keys("*"):
                if key != self._positions_key and not key.startswith(own):
                    raise StoreError(
                        f"database {self._database} has the key {key!r}, which is not of sink "
                        f"{self.name}: a rebuild replaces the whole database. Give the sink a "
                        "database of its own"
                    )

    def _keys(self, pattern: str) -> Iterator[str]:
        found: Iterator[str] = self._opened().scan_iter(pattern, count=_SCAN_COUNT)
        return found

    def _check_server(self, client: redis.Redis) -> None:
        from redis.exceptions import ResponseError

        if client.info("cluster").get("cluster_enabled"):
            raise ConfigError(
                f"sink {self.name}: a Redis Cluster cannot change keys of several slots at once; "
                "use a server of its own for the sink"
            )
        try:
            policy = str(client.config_get("maxmemory-policy").get("maxmemory-policy"))
        except ResponseError:
            return  # CONFIG is not permitted everywhere
        if policy.startswith("allkeys"):
            raise ConfigError(
                f"sink {self.name}: maxmemory-policy {policy} may evict the positions; use "
                "noeviction, or a volatile policy"
            )

    def _connect(self) -> redis.Redis:
        try:
            import redis
        except ImportError as error:
            raise ConfigError("Redis needs its client: pip install 'millstream[redis]'") from error
        self._client = redis.Redis.from_url(
            self._url,
            decode_responses=True,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=None,  # the outcome of a write is found out from the positions instead
        )
        return self._client

    def _opened(self) -> redis.Redis:
        assert self._client is not None, "open() first"
        return self._client

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        from redis.exceptions import BusyLoadingError, ConnectionError, RedisError, TimeoutError

        try:
            yield
        except (ConnectionError, TimeoutError, BusyLoadingError) as error:
            raise SinkUnavailable(f"Redis cannot be reached: {error}") from error
        except RedisError as error:
            raise StoreError(f"Redis refuses: {error}") from error


def _text(position: Position | None) -> str:
    if position is None:
        return ""
    topic_id, *numbers = position
    if position[2:] == (UNKNOWN, UNKNOWN):
        del numbers[1:]  # as earlier versions wrote it: texts are compared
    return f"{topic_id} {'/'.join(map(str, numbers))}"


def _escaped(text: str) -> str:
    """As a pattern that matches the text itself."""
    return "".join(f"\\{it}" if it in "*?[]\\" else it for it in text)
