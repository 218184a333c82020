"""Millstream: an event log that speaks the Kafka protocol.

from millstream import Broker

with Broker.start() as broker:
    ...  # any Kafka client, at broker.bootstrap_servers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.broker.embedded import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): the command line must not wait for the broker."""
    if name == "Broker":
        from millstream.broker.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
