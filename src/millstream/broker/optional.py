"""Parts of a broker that most do without. Their modules are imported only if the settings ask for
them, or with their first use: see docs/decisions/0008-start-up.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.security.protocol import SecurityProtocol

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataLog
    from millstream.broker.security.audit import Audit
    from millstream.broker.security.authorizer import Authorizer
    from millstream.broker.security.brokers import BrokerSecurity
    from millstream.broker.services import Services
    from millstream.broker.sharing.partitions import SharePartitions
    from millstream.broker.tasks import Tasks
    from millstream.broker.telemetry.clients import ClientTelemetry
    from millstream.clock import Clock
    from millstream.config.broker import BrokerConfig


def new_broker_security(configs: ConfigManager, *, has_peers: bool) -> BrokerSecurity | None:
    """TLS and SASL of connections to other brokers."""
    config = configs.current
    if config.listener_protocols[config.inter_broker_listener] is SecurityProtocol.PLAINTEXT:
        return None
    from millstream.broker.security.brokers import BrokerSecurity, check_broker_login

    if has_peers:
        check_broker_login(config)
    return BrokerSecurity(lambda: configs.current)


def new_audit(tasks: Tasks, clock: Clock, config: BrokerConfig) -> Audit | None:
    """Of decisions and of failed authentications."""
    if not (config.has_authorizer or config.millstream_audit_log):
        return None
    from millstream.broker.security.audit import Audit

    return Audit(tasks, clock, config.id, with_allowed=config.millstream_audit_allowed)


def new_authorizer(
    metadata: MetadataLog, config: BrokerConfig, audit: Audit | None, *, has_peers: bool
) -> Authorizer | None:
    if not config.has_authorizer:
        return None
    assert audit is not None, "decisions are audited"
    from millstream.broker.security.authorizer import Authorizer, warn_about_brokers

    authorizer = Authorizer(metadata, config, audit)
    if has_peers:
        warn_about_brokers(config, authorizer)
    return authorizer


def new_telemetry(configs: ConfigManager) -> ClientTelemetry | None:
    """The metrics that clients push."""
    clients_max = configs.current.millstream_telemetry_clients_max
    if not clients_max:
        return None
    from millstream.broker.telemetry.clients import ClientTelemetry

    return ClientTelemetry(
        configs.client_metrics,
        clients_max=clients_max,
        bytes_max=lambda: configs.current.telemetry_max_bytes,
    )


def new_share_partitions(
    services: Services, on_connection_closed: list[Callable[[int], None]]
) -> SharePartitions:
    """With the first share group."""
    from millstream.broker.peers.partitions import RemotePartitions
    from millstream.broker.sharing.dead_letters import DeadLetters
    from millstream.broker.sharing.partitions import SharePartitions

    dead_letters = DeadLetters(
        tasks=services.tasks,
        clock=services.clock,
        metadata=services.metadata,
        configs=services.configs,
        actions=services.actions,
        partitions=services.partitions,
        remote=RemotePartitions(services.peers),
    )
    return SharePartitions(
        broker_id=services.broker_id,
        tasks=services.tasks,
        clock=services.clock,
        metadata=services.metadata,
        configs=services.configs,
        partitions=services.partitions,
        persister=services.coordinators.share_persister,
        dead_letters=dead_letters,
        archiving=services.archiving,
        on_connection_closed=on_connection_closed,
    )
