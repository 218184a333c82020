"""SQL over topics: DuckDB over the column decoder.

    from millstream.query import query

    table = query("select _key, count(*) from orders group by 1", "localhost:9092")

Topics are tables, of Millstream or of any Kafka cluster. What a query says about offsets,
partitions and times bounds what is read (pushdown.py). The functions need the extra `query`;
importing the package, or its module `search`, does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.query.engine import Query, query
    from millstream.query.fetching import QueryFailed
    from millstream.query.watching import Change, Watch, WatchFailed, watch

__all__ = ["Change", "Query", "QueryFailed", "Watch", "WatchFailed", "query", "watch"]
_OF_WATCHES = ("Change", "Watch", "WatchFailed", "watch")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from millstream.query import engine, watching
    except ImportError as error:
        raise ImportError(
            f"{error}: queries need DuckDB, pip install 'millstream[query]'"
        ) from error

    return getattr(watching if name in _OF_WATCHES else engine, name)
