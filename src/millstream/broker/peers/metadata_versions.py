"""How far other brokers have read the metadata.

Brokers do not report it, but ApiVersions contains it: the epoch of the finalized features is the
version of the image that they are taken from, in Kafka as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.broker.peers.connection import PeerError
from millstream.broker.peers.peers import API_VERSIONS_VERSION, SOFTWARE

if TYPE_CHECKING:
    from millstream.broker.peers.peers import Peers

TIMEOUT_SECONDS = 5.0
LANE = "status"  # a time-out closes the connection


async def metadata_versions(peers: Peers, broker_ids: Iterable[int]) -> dict[int, int]:
    """The versions of the brokers that answer in time."""
    ids = tuple(broker_ids)
    versions = await asyncio.gather(*(_version(peers, it) for it in ids))
    return {id: version for id, version in zip(ids, versions, strict=True) if version is not None}


async def _version(peers: Peers, broker_id: int) -> int | None:
    try:
        answer = await peers.peer(broker_id, LANE).call(
            "api_versions", SOFTWARE, version=API_VERSIONS_VERSION, timeout_seconds=TIMEOUT_SECONDS
        )
    except PeerError:
        return None
    return int(answer.finalized_features_epoch)
