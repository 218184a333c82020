"""Connections to PostgreSQL: how they are made, which failures pass, what to say of the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from millstream.connect.tables.rows import NOT_UTF8_CURE
from millstream.errors import StoreError

if TYPE_CHECKING:
    import psycopg

Result = TypeVar("Result")

PATIENCE_SECONDS = 60.0  # how long a server that restarts is waited for
_CONNECT_SECONDS_MAX = 10
_PAUSE_SECONDS_MAX = 2.0
# Shut down, crashed, starting; deadlock, serialization; too many connections; we were too slow.
_PASSING = {"57P01", "57P02", "57P03", "40001", "40P01", "53300", "25P03"}
# A driver that hangs, or whose machine is gone, must not keep its successor waiting for its locks.
_WHEN_WE_HANG = {
    "idle_in_transaction_session_timeout": "'120s'",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_NUL_HINT = "PostgreSQL's text cannot hold NUL characters; take them out with replace()"
_HINTS = {
    "53100": "make room on the server's disk",
    "42501": "grant the user of the store what it needs",
    "22021": f"a string is not valid UTF-8; {NOT_UTF8_CURE}",
    "22P05": "PostgreSQL's jsonb cannot hold \\u0000; take it out with replace()",
    "23505": "rows break a unique index that is not the table's key",
    "23502": "a column that must not be null has no value in some row",
}


def purge(url: str, tables: Sequence[str]) -> list[str]:
    """Write tables again without what deleted rows have left in their pages; `tables` are quoted.
    Readers wait meanwhile. Returns where these may still be."""
    import psycopg

    try:
        with connect(url) as connection:
            for table in tables:
                connection.execute(f"VACUUM (FULL, ANALYZE) {table}")
    except psycopg.Error as error:
        raise explained(error, "vacuum tables") from error
    return ["the write-ahead log of PostgreSQL and its copies, until they are recycled"]


def connect(url: str) -> psycopg.Connection:
    """A connection that commits by itself, outside of transactions."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise StoreError(
            "PostgreSQL needs psycopg: pip install 'millstream[postgres]', on executors too"
        ) from error
    settings = {
        "connect_timeout": _CONNECT_SECONDS_MAX,
        "fallback_application_name": "millstream",
        **conninfo_to_dict(url),
        "client_encoding": "UTF8",
    }
    # Statements name temporary tables, which are others in the next batch: prepare none.
    connection = psycopg.connect(autocommit=True, prepare_threshold=None, **settings)  # type: ignore[arg-type]
    connection.execute(  # a commit that is answered must be on disk, whatever the server's default
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )
    for name, value in _WHEN_WE_HANG.items():
        connection.execute(f"SET {name} = {value}")
    return connection


def passes(error: psycopg.Error) -> bool:
    """Whether the same may succeed a little later."""
    import psycopg

    if error.sqlstate in _PASSING:
        return True
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith("08")


def explained(error: psycopg.Error, doing: str) -> StoreError:
    """Without PostgreSQL's detail and context, which quote rows: the message goes where people
    read it who may not read these."""
    told = (error.diag.message_primary, error.diag.message_hint)
    text = " ".join(" ".join(filter(None, told)).split() or str(error).split())
    hint = _HINTS.get(error.sqlstate or "", "nothing of the batch was kept")
    if error.sqlstate == "22021" and ": 0x00" in text:
        hint = _NUL_HINT
    return StoreError(f"PostgreSQL cannot {doing}: {text}; {hint}")


def patiently(
    action: Callable[[], Result], doing: str, *, seconds_max: float = PATIENCE_SECONDS
) -> Result:
    """Try until it succeeds, fails for good, or time is up."""
    import psycopg

    deadline = time.monotonic() + seconds_max
    pause = 0.05
    while True:
        try:
            return action()
        except psycopg.Error as error:
            if not passes(error) or time.monotonic() + pause > deadline:
                raise explained(error, doing) from error
        time.sleep(pause)
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)
