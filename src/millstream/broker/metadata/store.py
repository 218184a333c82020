"""What the broker needs of the cluster's metadata, wherever they are kept.

    MetadataStore    the image at a version, and notices of new images: what most parts use
    MetadataLog      a home that keeps the records in an ordered log and commits by compare-and-set

The homes are a log of one broker (`local`), the same log shared by the workers of one host
(`shared`), and ZooKeeper (`broker/cluster`). Parts that change the metadata state what they want
with `ClusterActions` (`actions`), not with records, so that a home whose controllers decide, such
as KRaft's, can be added without changing them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_features import SUPPORTED_FEATURES
from millstream.coordination.cluster_records import (
    BrokerEndpoint,
    MetadataRecord,
    RegisterBrokerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from millstream.clock import Clock
    from millstream.config.broker import BrokerConfig
    from millstream.storage.directories import LogDirectories

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = uuid.UUID(int=1)  # Kafka's reserved id

Subscriber: TypeAlias = Callable[[ClusterImage, ClusterImage], Awaitable[object] | None]
"""Called with the image before and the image now. Several commits may come as one call. One that
needs longer returns what the commit has to wait for."""

Decision: TypeAlias = Callable[[ClusterImage], Sequence[MetadataRecord]]
"""From an image, the records to commit on top of it; raises to refuse. May be called again."""

T = TypeVar("T")


class MetadataStore(Protocol):
    @property
    def image(self) -> ClusterImage:
        """The newest image known here."""
        ...

    def subscribe(self, subscriber: Subscriber) -> None: ...

    async def refresh(self) -> ClusterImage:
        """The newest image there is: contains every commit that was complete before the call."""
        ...


class MetadataLog(MetadataStore, Protocol):
    """A home. Belongs to the event loop's thread."""

    @property
    def controller_id(self) -> int | None:
        """The broker that is the controller, if there is one and it is known."""
        ...

    @property
    def controller_epoch(self) -> int:
        """Incremented when a controller is elected; the epoch of the log's batches if none ever
        is."""
        ...

    @property
    def has_controller(self) -> bool:
        """Whether a controller elects leaders. Without one, a broker that starts claims the
        leadership of its replicas, which is safe only if no partition has others."""
        ...

    @property
    def has_workers(self) -> bool:
        """Whether the brokers are the workers of one host."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether this broker is a member of the cluster now, as far as it can prove. If not,
        another one may lead its partitions: it must not acknowledge anything."""
        ...

    @property
    def deleted_topic_ids(self) -> AbstractSet[uuid.UUID]:
        """Topics that were deleted recently: their logs are not strays."""
        ...

    async def change(self, decide: Decision) -> ClusterImage:
        """Commit what `decide` makes of the newest image; nothing if it returns no records.

        The records become durable, then visible; all of them or none. If another broker commits
        first, `decide` is called again with the newer image. Returns the image that contains them.
        Subscribers on this broker have done their work by then; only new partitions may still have
        to be opened, which happens when they are needed.
        """
        ...

    async def register(self, broker: RegisterBrokerRecord) -> None:
        """Make this broker, at the addresses it now listens on, known to clients."""
        ...

    async def close(self) -> None:
        """The last step of a clean stop: wait for commits in progress, and leave the cluster. This
        broker leads nothing until it registers again."""
        ...


OpenMetadata: TypeAlias = Callable[
    ["LogDirectories", "BrokerConfig", "Clock"], Awaitable[MetadataLog]
]
"""Opens the home of a broker whose log directories are open."""


async def run_to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, which goes on if the caller is cancelled: a commit must not be left on the
    disk without becoming visible."""
    return await asyncio.shield(asyncio.get_running_loop().create_task(work))


def registration(
    broker_id: int,
    endpoints: Sequence[BrokerEndpoint],
    *,
    epoch: int,
    rack: str | None,
    directories: Sequence[uuid.UUID],
) -> RegisterBrokerRecord:
    """The registration record of a broker that has just started."""
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=uuid.uuid4(),
        broker_epoch=epoch,
        endpoints=tuple(endpoints),
        features=SUPPORTED_FEATURES,
        rack=rack,
        log_dirs=tuple(directories),
    )
