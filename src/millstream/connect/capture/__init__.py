"""Change data capture from PostgreSQL: logical replication to records in Debezium's envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.connect.capture.capture import Capture

__all__ = ["Capture"]


def __getattr__(name: str) -> Any:
    if name == "Capture":
        # Only here: it needs psycopg, the encoders do not.
        from millstream.connect.capture.capture import Capture

        return Capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
