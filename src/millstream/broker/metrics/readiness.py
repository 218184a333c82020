"""Whether the broker is alive, and whether it is ready for clients.

    /health    the event loop answers: 200
    /ready     200 if nothing keeps the broker from serving; otherwise 503, one reason per line

A broker is ready if it has recovered its logs, is registered in the metadata and not fenced, is a
member of its cluster, accepts connections, and all of its log directories work.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker.services import Services


def problems(services: Services, *, is_serving: Callable[[], bool]) -> list[str]:
    """What keeps the broker from serving, one line each; empty: it is ready."""
    found: list[str] = []
    if not is_serving():
        found.append("not serving: starting or stopping")
    registered = services.metadata.image.brokers.get(services.broker_id)
    if registered is None:
        found.append("not registered in the metadata")
    elif registered.fenced:
        found.append("fenced in the metadata")
    if not services.metadata.is_live:
        found.append("not a member of the cluster now")
    failed = [it for it in services.directories.directories if it.failure is not None]
    if failed:
        found.append(f"log directories offline: {len(failed)}")
    return found
