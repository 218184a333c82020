"""Settings of Apache Kafka that Millstream recognises but does not support.

An existing `server.properties` should work without hiding problems: harmless settings are accepted
with a warning each. Settings that restrict access are refused, because ignoring them would be
dangerous.
"""

from __future__ import annotations

from millstream.errors import ConfigError

_NO_TOKENS = "there are no delegation tokens, and ignoring it would hide that"
_NO_CLASSES = "it is a Java class; ignoring it could leave the broker open"
_NO_SASL = "this part of SASL is not supported, and ignoring it could leave the broker open"
_NO_POLICIES = "policies are Java classes; ignoring one would let through what it forbids"

# Refused: prefix or name -> reason.
DANGEROUS = {
    "ssl.engine.factory.class": _NO_CLASSES,
    "security.providers": _NO_CLASSES,
    "sasl.": _NO_SASL,
    "principal.builder.class": _NO_CLASSES,
    "delegation.token.": _NO_TOKENS,
    "zookeeper.ssl.": "this part of TLS is not supported, and ignoring it would weaken it",
    "create.topic.policy.class.name": _NO_POLICIES,
    "alter.config.policy.class.name": _NO_POLICIES,
    "client.quota.callback.class": _NO_POLICIES,
}

_THREADS = "one event loop serves all connections"
_QUORUM = "a single broker keeps its metadata in a log of its own"
_REPLICATION = "a single broker replicates nothing"
_PURGATORY = "waiting requests are woken, not purged"
_TIERED = "the archive is that of millstream.archive.path"
_METRICS = "metrics reporters are Java classes"
_STREAMS = "the streams group protocol is not served"
_COORDINATOR = "coordinators run on the event loop and write at once"
_OPENSSL = "TLS is OpenSSL's, and not Java's"

# Accepted without effect: prefix or name -> reason.
WITHOUT_EFFECT = {
    "zookeeper.clientCnxnSocket": _OPENSSL,
    "zookeeper.": "the session with ZooKeeper has no such setting",
    "process.roles": _QUORUM,
    "controller.": _QUORUM,
    "controlled.shutdown.": _REPLICATION,
    "metadata.log.dir": "the metadata log is in one of log.dirs",
    "metadata.": _QUORUM,
    "internal.metadata.": _QUORUM,
    "initial.broker.registration.timeout.ms": _QUORUM,
    "broker.heartbeat.interval.ms": _QUORUM,
    "broker.session.timeout.ms": _QUORUM,
    "broker.id.generation.enable": _QUORUM,
    "reserved.broker.max.id": _QUORUM,
    "early.start.listeners": _QUORUM,
    "inter.broker.protocol.version": "versions are negotiated",
    "log.message.format.version": "there is one record format, version 2",
    "num.network.threads": _THREADS,
    "num.io.threads": _THREADS,
    "background.threads": _THREADS,
    "num.replica.": _REPLICATION,
    "replica.": _REPLICATION,
    "replication.quota.": _REPLICATION,
    "leader.imbalance.": _REPLICATION,
    "follower.": _REPLICATION,
    "auto.leader.rebalance.enable": _REPLICATION,
    "alter.log.dirs.": _REPLICATION,
    "cordoned.log.dirs": _REPLICATION,
    "unclean.leader.election.interval.ms": _REPLICATION,
    "fetch.purgatory.": _PURGATORY,
    "producer.purgatory.": _PURGATORY,
    "delete.records.purgatory.": _PURGATORY,
    "share.fetch.purgatory.": _PURGATORY,
    "remote.": _TIERED,
    "metric.": _METRICS,
    "metrics.": _METRICS,
    "kafka.metrics.": _METRICS,
    "auto.include.jmx.reporter": _METRICS,
    "group.streams.": _STREAMS,
    "group.coordinator.": _COORDINATOR,
    "group.share.": _COORDINATOR,
    "share.coordinator.": _COORDINATOR,
    "add.partitions.to.txn.": _COORDINATOR,
    "ssl.provider": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "ssl.allow.dn.changes": "a new certificate may have another name",
    "ssl.allow.san.changes": "a new certificate may have other names",
    "config.providers": "values are not interpreted",
    "log.initial.task.delay.ms": "background work starts when there is some",
    "server.max.startup.time.ms": "the broker starts at once",
    "socket.connection.setup.timeout.": _REPLICATION,
    "unstable.": "only stable versions are served",
}


def check_foreign(name: str) -> str | None:
    """A warning for a Kafka setting without effect here, None for an unknown one.

    Raises `ConfigError` for one that must not be ignored.
    """
    danger = _reason(DANGEROUS, name)
    if danger is not None:
        raise ConfigError(f"{name} is not supported: {danger}. Remove it to run without.")
    reason = _reason(WITHOUT_EFFECT, name)
    return None if reason is None else f"{name} has no effect here: {reason}"


def _reason(table: dict[str, str], name: str) -> str | None:
    if name in table:
        return table[name]
    return next(
        (why for key, why in table.items() if key[-1] == "." and name.startswith(key)), None
    )
