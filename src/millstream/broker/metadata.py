"""Where the cluster's metadata live: one interface, and its home for a single broker, a log.

`MetadataStore` is what the broker knows: an image at a version, commits that only succeed on the
version they were decided on, and notices of change, which may be coalesced. A cluster will put
another home behind the same interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import MetadataRecord
from millstream.errors import MillstreamError

Subscriber: TypeAlias = Callable[[ClusterImage, ClusterImage], None]
"""Called with the image before and the image now. Several commits may come as one call."""

Decision: TypeAlias = Callable[[ClusterImage], Sequence[MetadataRecord]]
"""From an image, the records to commit on top of it; raises to refuse. May be called again."""


class MetadataConflict(MillstreamError):
    """The metadata changed since the version that a commit was decided on: decide again."""


class MetadataStore(Protocol):
    @property
    def image(self) -> ClusterImage:
        """The newest image known here."""
        ...

    async def commit(
        self, records: Sequence[MetadataRecord], expected_version: int
    ) -> ClusterImage:
        """Make the records durable, then visible; all of them or none.

        Returns the image that has them. Raises `MetadataConflict` if the image's version is not
        `expected_version`. Subscribers on this broker have been called when it returns.
        """
        ...

    def subscribe(self, subscriber: Subscriber) -> None: ...


async def decide_and_commit(store: MetadataStore, decide: Decision) -> ClusterImage:
    """Commit what `decide` makes of the image, as often as another commit comes first."""
    while True:
        image = store.image
        records = decide(image)
        if not records:
            return image
        try:
            return await store.commit(records, image.version)
        except MetadataConflict:
            continue
