"""A broker joins the cluster in ZooKeeper: session, identity, home, membership, candidacy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.cluster.controller import Controller, Policy
from millstream.broker.cluster.home import ZooKeeperMetadata
from millstream.broker.cluster.identity import find_cluster_id
from millstream.broker.cluster.membership import Membership
from millstream.broker.cluster.protection import secure_nodes
from millstream.broker.cluster.security import MakeContext, security_of
from millstream.broker.cluster.session import ZooKeeperSession
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.storage.filesystem import FileSystem, OsFileSystem

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.config.broker import BrokerConfig
    from millstream.coordination.cluster_records import RegisterBrokerRecord
    from millstream.storage.directories import LogDirectories

UNCLEAN = "unclean.leader.election.enable"
FLUSH = "millstream.acks.all.flush"


class ZooKeeperCluster:
    """One broker's part in the cluster. `cluster_id` is known before its log directories are
    opened; `open` is then its `OpenMetadata`."""

    membership: Membership
    controller: Controller

    def __init__(self, session: ZooKeeperSession, config: BrokerConfig, cluster_id: str) -> None:
        self._session = session
        self._config = config
        self.cluster_id = cluster_id

    @classmethod
    async def connect(
        cls,
        config: BrokerConfig,
        make_context: MakeContext,
        filesystem: FileSystem | None = None,
    ) -> ZooKeeperCluster:
        """Raises `MillstreamError` if no server answers, it refuses this broker, or the log
        directories belong to another cluster."""
        assert config.zookeeper_connect is not None
        session = ZooKeeperSession(
            config.zookeeper_connect,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
            security=security_of(config, make_context),
        )
        await session.start(config.zookeeper_connection_seconds)
        try:
            fs = filesystem or OsFileSystem()
            cluster_id = await session.repeating(
                lambda: find_cluster_id(session, fs, config.log_directories)
            )
            # Only now: the chroot is that of this broker's cluster.
            await session.repeating(lambda: secure_nodes(session))
        except BaseException:
            await session.close()
            raise
        return cls(session, config, cluster_id)

    async def open(
        self, directories: LogDirectories, config: BrokerConfig, clock: Clock
    ) -> ZooKeeperMetadata:
        """The metadata, read to their end."""
        home = ZooKeeperMetadata(
            self._session,
            clock,
            snapshot_bytes=config.metadata_log_max_record_bytes_between_snapshots,
        )
        await home.start()
        is_clean = directories.clean
        self.membership = Membership(
            self._session,
            home,
            clock,
            node_id=directories.node_id,
            has_kept_records=lambda image: is_clean or _all_flush(config, image),
        )
        self.controller = Controller(
            self._session, home, clock, node_id=directories.node_id, policy=_policy(config)
        )
        home.member = self
        return home

    async def close(self) -> None:
        """End the session. Until then, other brokers count on this one."""
        await self._session.close()

    # Member

    @property
    def is_live(self) -> bool:
        return self.membership.is_live

    @property
    def controller_id(self) -> int | None:
        return self.controller.current_id

    @property
    def controller_epoch(self) -> int:
        return self.controller.current_epoch

    async def register(self, broker: RegisterBrokerRecord) -> None:
        await self.membership.register(broker, when_claimed=self.controller.start)

    async def leave(self) -> None:
        await self.controller.stop()
        await self.membership.leave()


def _all_flush(config: BrokerConfig, image: ClusterImage) -> bool:
    """Whether every topic flushes before it acknowledges: a power cut takes nothing back."""
    return config.millstream_acks_all_flush and not any(
        settings.get(FLUSH) == "false" for settings in image.configs.values()
    )


def _policy(config: BrokerConfig) -> Policy:
    def is_unclean_allowed(image: ClusterImage, topic: str) -> bool:
        for settings in (image.topic_overrides(topic), image.config(ResourceType.BROKER, "")):
            if UNCLEAN in settings:
                return settings[UNCLEAN] == "true"
        return config.unclean_leader_election_enable

    interval = config.leader_imbalance_check_interval_seconds
    return Policy(
        is_unclean_allowed=is_unclean_allowed,
        rebalance_seconds=interval if config.auto_leader_rebalance_enable else None,
        imbalance_percent=config.leader_imbalance_per_broker_percentage,
    )
