"""Sinks by address.

sqlite:///shop.db, sqlite:////var/lib/shop.db   tables of SQLite
postgresql://user@host:port/database            tables of PostgreSQL
fts5:///search.db                               a search index in a file of SQLite
duckdb:///warehouse.db                          tables of DuckDB
delta:///lake, parquet:///lake                  a directory with tables of Delta, or with files
redis://host:port/database                      a cache; rediss:// with TLS
opensearch://user:password@host:9200            a search server; opensearchs:// with TLS
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.connect.sinks.config import SinkConfig, TopicConfig
from millstream.connect.sinks.sink import Sink, Target
from millstream.errors import ConfigError


class Kind(NamedTuple):
    """What targets of an address need, and how to make the sink."""

    make: Callable[[str, str, Sequence[Target]], Sink]  # rest of the address, name, targets
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


def open_sink(config: SinkConfig) -> Sink:
    """The sink of a configuration; `open` it before use."""
    scheme, kind = _kind(config.to, config.name)
    targets = [_target(it, kind, scheme) for it in config.topics]
    sink = sink_for(config.to, config.name, targets)
    if config.pause_seconds is not None:
        sink.pause_seconds = config.pause_seconds
    return sink


def sink_for(url: str, name: str, targets: Sequence[Target]) -> Sink:
    """The sink of an address."""
    _, kind = _kind(url, name)
    return kind.make(url.partition("://")[2], name, targets)


def _kind(url: str, name: str) -> tuple[str, Kind]:
    scheme, _, rest = url.partition("://")
    kind = _KINDS.get(scheme)
    if kind is None or not rest:
        known = ", ".join(f"{it}://" for it in _KINDS)
        raise ConfigError(f"sink {name}: to is {url!r}; it must start with {known}")
    return scheme, kind


def _target(given: TopicConfig, kind: Kind, scheme: str) -> Target:
    for option in ("columns", "fields", "stored"):
        value = getattr(given, option)
        if option in kind.needs and not value:
            raise ConfigError(f"topic {given.topic}: {option} must be given for {scheme}://")
        if value and option not in (*kind.needs, *kind.takes):
            raise ConfigError(f"topic {given.topic}: {scheme}:// has no {option}")
    columns = None
    if given.columns is not None:
        from millstream.connect.sinks.columns import parse_columns, refuse_missing

        columns = parse_columns(given.columns, f"topic {given.topic}")
        refuse_missing(columns, given.key, f"topic {given.topic}")
    return Target(given.topic, given.table, given.key, columns, given.fields, given.stored)


def _path(rest: str) -> Path:
    """`/shop.db` is relative, `//var/lib/shop.db` is absolute."""
    if not rest.startswith("/") or len(rest) < 2:
        raise ConfigError(f"{rest!r} is no path; write three slashes before a relative one")
    return Path(rest[1:])


def _sqlite(rest: str, name: str, targets: Sequence[Target]) -> Sink:
    from millstream.connect.sinks.sqlite import SqliteSink

    return SqliteSink(_path(rest), name, targets)


def _search(rest: str, name: str, targets: Sequence[Target]) -> Sink:
    from millstream.connect.sinks.search import SearchSink

    return SearchSink(_path(rest), name, targets)


def _postgres(rest: str, name: str, targets: Sequence[Target]) -> Sink:
    from millstream.connect.sinks.postgres import PostgresSink

    return PostgresSink(f"postgresql://{rest}", name, targets)


def _duckdb(rest: str, name: str, targets: Sequence[Target]) -> Sink:
    from millstream.connect.sinks.duckdb import DuckdbSink

    return DuckdbSink(_path(rest), name, targets)


def _delta(rest: str, name: str, targets: Sequence[Target]) -> Sink:
    from millstream.connect.sinks.delta import DeltaSink

    return DeltaSink(_path(rest), name, targets)


def _parquet(rest: str, name: str, targets: Sequence[Target]) -> Sink:
    from millstream.connect.sinks.parquet import ParquetSink

    return ParquetSink(_path(rest), name, targets)


def _redis(scheme: str) -> Callable[[str, str, Sequence[Target]], Sink]:
    def make(rest: str, name: str, targets: Sequence[Target]) -> Sink:
        from millstream.connect.sinks.redis import RedisSink

        return RedisSink(f"{scheme}://{rest}", name, targets)

    return make


def _opensearch(scheme: str) -> Callable[[str, str, Sequence[Target]], Sink]:
    def make(rest: str, name: str, targets: Sequence[Target]) -> Sink:
        from millstream.connect.sinks.opensearch import OpenSearchSink

        return OpenSearchSink(f"{scheme}://{rest}", name, targets)

    return make


_KINDS = {
    "sqlite": Kind(_sqlite, needs=("columns",)),
    "postgresql": Kind(_postgres, needs=("columns",)),
    "postgres": Kind(_postgres, needs=("columns",)),
    "fts5": Kind(_search, needs=("fields",), takes=("stored",)),
    "duckdb": Kind(_duckdb, needs=("columns",)),
    "delta": Kind(_delta, needs=("columns",)),
    "parquet": Kind(_parquet, needs=("columns",)),
    "opensearch": Kind(_opensearch("http"), takes=("fields", "stored")),
    "opensearchs": Kind(_opensearch("https"), takes=("fields", "stored")),
    "elasticsearch": Kind(_opensearch("http"), takes=("fields", "stored")),
    "elasticsearchs": Kind(_opensearch("https"), takes=("fields", "stored")),
    "redis": Kind(_redis("redis")),
    "rediss": Kind(_redis("rediss")),
}
