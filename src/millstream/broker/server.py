"""The broker: owns everything, starts it in order, stops it in order.

    start   data directories (lock, recovery) -> metadata -> settings -> partitions -> listeners
            are bound -> the broker registers with its addresses -> requests are served
    stop    no more connections or requests -> what is in flight is answered -> everything is
            flushed -> data directories are marked as cleanly closed

It is the composition root: only it depends on every part, and it passes each part its dependencies.
`Services` contains what handlers may use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from millstream.broker import handlers, optional
from millstream.broker.archiving.archiving import Archiving
from millstream.broker.backlog.backlog import BacklogPolicies
from millstream.broker.coordinators.registry import Coordinators
from millstream.broker.maintenance.cleaning import CleaningThread
from millstream.broker.maintenance.excisions import Excisions
from millstream.broker.maintenance.jobs import Background
from millstream.broker.maintenance.loop_lag import LoopLag
from millstream.broker.maintenance.strays import Strays
from millstream.broker.metadata.actions import LoggedActions
from millstream.broker.metadata.cache import MetadataCache
from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.local import open_local
from millstream.broker.metadata.producer_ids import ProducerIds
from millstream.broker.metadata.reconciler import Reconciler
from millstream.broker.metadata.store import MetadataLog, OpenMetadata, registration
from millstream.broker.metadata.topics import TopicManager
from millstream.broker.network.connection import ConnectionLimits
from millstream.broker.network.connections import Connections
from millstream.broker.network.listeners import Listeners
from millstream.broker.network.quotas import QuotaSwitch
from millstream.broker.peers.peers import Peers
from millstream.broker.replicas.fetch_sessions import FetchSessionCache
from millstream.broker.replicas.flushing import Flusher
from millstream.broker.replicas.produce_templates import ProduceTemplates
from millstream.broker.replicas.table import PartitionTable
from millstream.broker.replication.log_moves import LogMoves
from millstream.broker.replication.replicas import Replication
from millstream.broker.services import Load, Services, Throttling
from millstream.broker.tasks import Tasks
from millstream.broker.turn import Turn
from millstream.clock import Clock, SystemClock
from millstream.config.broker import BrokerConfig, Endpoint
from millstream.coordination.cluster_records import BrokerEndpoint
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.storage.directories import LogDirectories
from millstream.storage.directory import LogDirectory
from millstream.storage.filesystem import FileSystem
from millstream.storage.log import Log

if TYPE_CHECKING:
    from millstream.broker.cluster.joining import ZooKeeperCluster
    from millstream.broker.counters import ConnectionSurvey, Counters
    from millstream.broker.metrics.collector import MetricsServer
    from millstream.broker.security.audit import Audit
    from millstream.broker.security.authentication import AuthenticationCounters
    from millstream.broker.sharing.partitions import SharePartitions

logger = logging.getLogger("millstream.server")

COLD_READ_THREADS = 4
SHUTDOWN_GRACE_SECONDS = 5.0
HAND_OVER_SECONDS = 10.0


class BrokerServer:
    """One broker in one event loop."""

    loop: asyncio.AbstractEventLoop
    directories: LogDirectories
    metadata: MetadataLog
    configs: ConfigManager
    flusher: Flusher
    loop_lag: LoopLag
    partitions: PartitionTable
    topics: TopicManager
    actions: LoggedActions
    coordinators: Coordinators
    connections: Connections
    listeners: Listeners
    peers: Peers
    replication: Replication
    producer_ids: ProducerIds
    tasks: Tasks
    services: Services

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        filesystem: FileSystem | None = None,
        open_metadata: OpenMetadata = open_local,
        shared_listeners: Sequence[Endpoint] = (),
    ) -> None:
        """`shared_listeners` are not advertised, and other processes listen there too."""
        self._static_config = config
        self._shared_listeners = shared_listeners
        self._open_metadata = open_metadata
        self._filesystem = filesystem
        self.clock: Clock = clock or SystemClock()
        self.id = config.id
        self.metadata_cache = MetadataCache()
        self._executor = ThreadPoolExecutor(COLD_READ_THREADS, "millstream-cold-read")
        self._share_partitions: SharePartitions | None = None
        self._counters: Counters | None = None
        self.metrics: MetricsServer | None = None  # if they are served
        self.is_serving = False  # whether clients are served
        self.is_stopping = False
        self.loop_delays: LoopLag | None = None
        self.cleaning: CleaningThread | None = None
        self._audit: Audit | None = None
        self._full_directories: set[LogDirectory] = set()
        self.stop_soon: Callable[[], None] = lambda: None  # for a process that is a broker
        self._undo = contextlib.AsyncExitStack()  # what stop(), or a failed start, has to undo

    @property
    def config(self) -> BrokerConfig:
        """The settings in force now."""
        return self.configs.current

    @property
    def _has_peers(self) -> bool:
        """Whether there are other brokers, or workers."""
        return bool(self._shared_listeners) or self._static_config.zookeeper_connect is not None

    @property
    def cluster_id(self) -> str:
        return self.directories.cluster_id

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Advertised host and port of each listener."""
        endpoints = self.metadata.image.brokers[self.id].endpoints
        return [(endpoint.host, endpoint.port) for endpoint in endpoints]

    @property
    def listening_ports(self) -> dict[str, int]:
        """The port of each listener that is this broker's own."""
        return self.listeners.ports

    @property
    def metrics_address(self) -> str | None:
        """Host and port where metrics are served, if they are."""
        if self.metrics is None:
            return None
        host, port = self.metrics.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def listener_addresses(self) -> dict[str, str]:
        """Advertised host and port of each listener, by its name."""
        endpoints = self.metadata.image.brokers[self.id].endpoints
        return {it.name: f"{it.host}:{it.port}" for it in endpoints}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    # Life

    async def start(self) -> None:
        """Serve when it returns. If it raises, nothing is left open."""
        self.loop = asyncio.get_running_loop()
        self.tasks = Tasks(self.loop, self._executor)
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            raise

    async def _start(self) -> None:
        for warning in self._static_config.warnings:
            logger.warning("%s", warning)
        self._undo.callback(self._executor.shutdown)
        await self._open_data()
        self._wire()
        self._undo.callback(self.listeners.close)
        endpoints = await self.listeners.bind()
        await self._start_metrics()
        await self._claim_leadership()
        await self._create_first_users()
        self._reconciler.start(self.metadata.deleted_topic_ids)
        self.strays = Strays(self.metadata, self.configs, self.directories, self.clock)
        self.strays.start()
        self._undo.push_async_callback(self._reconciler.stop)
        self._undo.push_async_callback(self.log_moves.stop)
        self._undo.push_async_callback(self.replication.stop)
        await self._register(endpoints)
        self.coordinators.start()
        self._undo.push_async_callback(self._stop_serving)
        self._start_maintenance()
        self.backlog.start()
        self.archiving.start()
        if not self.directories.clean:
            # It forgets what was lost, before others can write something else to that place.
            await self.coordinators.share_state_loaded()
        await self.listeners.prepare()
        self.listeners.start()
        self.is_serving = True
        await self.log_moves.start()
        if self.metadata.has_controller:
            self._undo.push_async_callback(self._hand_over)

    async def stop(self) -> None:
        """Answer what is in flight, flush, and close."""
        self.is_serving = False
        self.is_stopping = True
        await self._undo.aclose()

    async def _open_data(self) -> None:
        config = self._static_config
        open_metadata, cluster_id = self._open_metadata, None
        if config.zookeeper_connect is not None:
            cluster = await self._join_cluster(config)
            open_metadata, cluster_id = cluster.open, cluster.cluster_id
        self.directories = LogDirectories.open(
            config.log_directories,
            node_id=self.id,
            cluster_id=cluster_id,
            fs=self._filesystem,
            clock=self.clock,
            recovery_threads=config.num_recovery_threads_per_data_dir,
            producer_expiration_ms=config.producer_id_expiration_ms,
        )
        for directory in self.directories.directories:
            directory.on_full = self._directory_full
        self._undo.push_async_callback(self._close_data)
        self.metadata = await open_metadata(self.directories, config, self.clock)

    async def _join_cluster(self, config: BrokerConfig) -> ZooKeeperCluster:
        """Imported only with `zookeeper.connect`: see docs/decisions/0032-zookeeper.md."""
        try:
            from millstream.broker.cluster.joining import ZooKeeperCluster
        except ModuleNotFoundError as error:
            raise MillstreamError(
                f"zookeeper.connect needs the package {error.name}: pip install "
                "'millstream[cluster]'"
            ) from None
        from millstream.broker.security.tls import client_context

        cluster = await ZooKeeperCluster.connect(config, client_context, self._filesystem)
        self._undo.push_async_callback(cluster.close)
        return cluster

    async def _close_data(self) -> None:
        if hasattr(self, "partitions"):
            self.directories.high_watermarks.update(self.partitions.high_watermarks())
        if hasattr(self, "metadata"):
            await self.metadata.close()
        self.directories.close()

    def _wire(self) -> None:
        self.configs = ConfigManager(self.metadata, self._static_config)
        self.turn = Turn(self.loop)
        self.flusher = Flusher(self.loop, self.clock, self.turn)
        self.flusher.on_directory_failed = self.directory_failed
        self._undo.callback(self.flusher.close)
        self.partitions = PartitionTable(self.flusher, self.clock)
        self.topics = TopicManager(self.metadata, self.configs)
        self.actions = LoggedActions(self.metadata, self.configs, self.topics)
        self.peers = Peers(
            self.loop,
            self.metadata,
            self.id,
            self._static_config.inter_broker_listener,
            optional.new_broker_security(self.configs, has_peers=self._has_peers),
        )
        self._wire_replicas()
        self.producer_ids = ProducerIds(self.actions)
        self.coordinators = Coordinators(
            metadata=self.metadata,
            configs=self.configs,
            topics=self.topics,
            partitions=self.partitions,
            producer_ids=self.producer_ids,
            peers=self.peers,
            clock=self.clock,
        )
        if self._static_config.metrics_address is not None:
            from millstream.broker.counters import Counters

            self._counters = Counters()
        self.backlog = BacklogPolicies(
            metadata=self.metadata,
            configs=self.configs,
            partitions=self.partitions,
            coordinators=self.coordinators,
            peers=self.peers,
            directories=self.directories,
            tasks=self.tasks,
            clock=self.clock,
        )
        self.archiving = Archiving(
            metadata=self.metadata,
            configs=self.configs,
            partitions=self.partitions,
            tasks=self.tasks,
            clock=self.clock,
        )
        self.services = self._services()
        self._open_audit()
        config = self.config
        limits = ConnectionLimits(
            frame_bytes_max=config.socket_request_max_bytes,
            idle_ms_max=config.connections_max_idle_ms,
            stalled_ms_max=config.millstream_connection_stalled_max_ms,
            request_bytes_max=config.queued_request_bytes_max,
            response_bytes_max=config.millstream_queued_max_response_bytes,
            connection_response_bytes_max=config.millstream_connection_queued_max_response_bytes,
        )
        self.connections = Connections(self.services, limits, handlers.find)
        QuotaSwitch(self.services, self.connections.quotas_changed)
        self.listeners = Listeners(self.connections, self._shared_listeners)

    def _wire_replicas(self) -> None:
        self.replication = Replication(
            metadata=self.metadata,
            actions=self.actions,
            configs=self.configs,
            partitions=self.partitions,
            peers=self.peers,
            tasks=self.tasks,
            clock=self.clock,
            on_directory_failed=self.directory_failed,
        )
        self._reconciler = Reconciler(
            self.metadata,
            self.configs,
            self.directories,
            self.partitions,
            self.tasks.run_blocking,
            self.replication,
        )
        self.replication.retake_role = self._reconciler.retake_role
        self.log_moves = LogMoves(
            directories=self.directories,
            partitions=self.partitions,
            configs=self.configs,
            tasks=self.tasks,
            clock=self.clock,
            unfollow=self.replication.unfollow,
            retake_role=self._reconciler.retake_role,
            on_directory_failed=self.directory_failed,
        )

    def _open_audit(self) -> None:
        if self._audit is not None and self.config.millstream_audit_log:
            from millstream.broker.security.audit_places import open_audit

            open_audit(self._audit, self.config.millstream_audit_log, self.services)

    def _services(self) -> Services:
        produce_templates = ProduceTemplates()
        self._audit = optional.new_audit(self.tasks, self.clock, self.config)
        authorizer = optional.new_authorizer(
            self.metadata, self.config, self._audit, has_peers=self._has_peers
        )
        self.partitions.on_remove.append(produce_templates.forget)
        return Services(
            broker_id=self.id,
            cluster_id=self.cluster_id,
            loop=self.loop,
            clock=self.clock,
            metadata=self.metadata,
            metadata_cache=self.metadata_cache,
            configs=self.configs,
            topics=self.topics,
            actions=self.actions,
            producer_ids=self.producer_ids,
            peers=self.peers,
            coordinators=self.coordinators,
            partitions=self.partitions,
            throttles=self.replication.throttles,
            throttling=Throttling(),
            directories=self.directories,
            log_moves=self.log_moves,
            fetch_sessions=FetchSessionCache(self.config.max_incremental_fetch_session_cache_slots),
            produce_templates=produce_templates,
            backlog=self.backlog,
            archiving=self.archiving,
            load=Load(),
            tasks=self.tasks,
            turn=self.turn,
            counters=self._counters,
            authorizer=authorizer,
            audit=self._audit,
            telemetry=None if self._counters is None else optional.new_telemetry(self.configs),
            start_sharing=self._start_sharing,
        )

    def _start_sharing(self) -> SharePartitions:
        self._share_partitions = optional.new_share_partitions(
            self.services, self.connections.on_close
        )
        return self._share_partitions

    async def _start_metrics(self) -> None:
        """Before the broker serves, so that it can be asked whether it is ready."""
        if self._counters is not None:
            from millstream.broker.metrics.collector import MetricsServer

            self.metrics = MetricsServer(self, self._counters)
            self._undo.push_async_callback(self.metrics.stop)
            await self.metrics.start()

    @property
    def authentications(self) -> AuthenticationCounters | None:
        authenticator = self.connections.authenticator
        return None if authenticator is None else authenticator.counters

    @property
    def failed_handshakes(self) -> int:
        return self.connections.failed_handshakes

    async def survey_connections(self) -> ConnectionSurvey:
        return await self.connections.survey()

    def _start_maintenance(self) -> None:
        excisions = Excisions(self.services)
        background = Background(
            tasks=self.tasks,
            clock=self.clock,
            configs=self.configs,
            partitions=self.partitions,
            directories=self.directories,
            flusher=self.flusher,
            strays=self.strays,
            close_idle=self.connections.close_idle,
            check_lag=self.coordinators.check_lag,
            look_for_excisions=excisions.look,
            on_directory_failed=self.directory_failed,
        )
        background.start()
        self._undo.callback(background.stop)
        self.loop_lag = self.loop_delays = LoopLag(self.loop)
        self.loop_lag.start()
        self._undo.callback(self.loop_lag.stop)
        cleaning = CleaningThread(
            loop=self.loop,
            clock=self.clock,
            configs=self.configs,
            partitions=self.partitions,
            on_excised=excisions.excised,
        )
        cleaning.start()
        self._undo.push_async_callback(cleaning.stop)
        excisions.start(cleaning)
        if self.config.log_cleaner_enable:
            self.cleaning = cleaning

    async def _claim_leadership(self) -> None:
        """After an unclean stop offsets may be reused: a new leader epoch shows it to clients.

        Also of partitions without a log: its first records may have been lost with its files.
        """
        if self.metadata.has_controller:
            return
        topics = {} if self.directories.clean else self.metadata.image.topics
        await self.actions.claim_leadership(
            (name, index) for name, it in topics.items() for index in range(len(it.partitions))
        )

    async def _create_first_users(self) -> None:
        """Of SCRAM, before this broker or another one has to log in. Imported only with SASL."""
        if self.connections.authenticator is None or self.metadata.image.scram:
            return
        from millstream.broker.security.mechanisms import first_users

        users = first_users(self.config)
        if users:
            names = ", ".join(sorted({user for user, _ in users}))
            logger.info("there are no users of SCRAM yet: creating %s of sasl.jaas.config", names)
            await self.actions.create_first_users(users)

    async def _register(self, endpoints: list[BrokerEndpoint]) -> None:
        await self.metadata.register(
            registration(
                self.id,
                endpoints,
                epoch=self.metadata.image.version + 1,
                rack=self.config.broker_rack,
                directories=[
                    directory.directory_id for directory in self.directories.live_directories
                ],
            )
        )

    async def _hand_over(self) -> None:
        """Let other replicas lead, before this broker stops serving (controlled shutdown)."""
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self.actions.shut_down()
        except (MillstreamError, TimeoutError) as error:
            logger.warning(
                "stopping without handing over partitions; they have no leader until the "
                "controller notices: %s",
                error or "no answer from the metadata",
            )

    async def _stop_serving(self) -> None:
        self.listeners.close()
        self.connections.begin_close()
        if self._share_partitions is not None:
            await self._share_partitions.stop()
        await self.coordinators.stop()
        if self._audit is not None:  # while other brokers can be reached
            await self._audit.close()
        self.peers.close()
        await self.connections.close(grace_seconds=SHUTDOWN_GRACE_SECONDS)
        if self._audit is not None:  # of the last requests
            await self._audit.close()
        await self.tasks.cancel()
        await self.archiving.stop()

    def log_counters(self) -> None:
        """Log one line of counters."""
        flusher = self.flusher
        lag = self.loop_lag.take_summary()
        logger.info(
            "connections=%d queued_response_bytes=%d queued_request_bytes=%d partitions=%d "
            "flushes=%d flush_ms_typical=%.2f loop_lag_ms_p99=%.2f loop_lag_ms_max=%.2f",
            len(self.connections),
            self.connections.response_memory.held_bytes,
            self.connections.receive_buffer.kept_bytes,
            len(self.partitions),
            flusher.flush_count,
            flusher.typical_ms,
            lag.p99_ms,
            lag.max_ms,
        )

    def directory_failed(self, failed: list[Log]) -> None:
        """All partitions in a failed directory go offline, not only those that were flushed. In a
        cluster, others lead them; a broker without any directory stops, as Kafka's do."""
        directories = {log.directory for log in failed}
        for partition in self.partitions:
            directory = partition.log.directory
            if directory in directories and partition.offline_error is None:
                partition.go_offline(
                    ApiError(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"log directory {directory.path} is offline: {directory.failure}",
                    )
                )
        self.metadata_cache.clear()
        self.replication.cannot_write()
        if self.metadata.has_controller and not self.directories.live_directories:
            self.stop_soon()

    def _directory_full(self, directory: LogDirectory) -> None:
        """In any thread, and once per append."""
        if directory not in self._full_directories:
            self._full_directories.add(directory)
            self.loop.call_soon_threadsafe(self._hand_over_full)

    def _hand_over_full(self) -> None:
        full, self._full_directories = self._full_directories, set()
        self.replication.cannot_write(full)
