"""The cluster: ZooKeeper, and what its controller does by itself."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.config.setting import boolean, integer, long, password, string, strings


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClusterSettings:
    """ZooKeeper and the controller."""

    zookeeper_connect: str | None = string(
        None,
        importance="high",
        ours=True,  # of Kafka 3
        doc="Servers of ZooKeeper, as host:port,host:port/chroot; same as serve --zookeeper. Not "
        "set: this broker is a cluster of its own.",
    )
    zookeeper_session_timeout_ms: int = integer(
        18_000,
        low=500,
        importance="high",
        ours=True,  # of Kafka 3
        doc="After this time without contact, other brokers lead the partitions of this one. "
        "ZooKeeper allows 2 to 20 of its ticks.",
    )
    zookeeper_connection_timeout_ms: int | None = integer(
        None,
        low=1,
        importance="high",
        ours=True,  # of Kafka 3
        doc="How long a start waits for ZooKeeper; not set: as long as a session.",
    )
    zookeeper_set_acl: bool = boolean(
        False,
        importance="high",
        ours=True,  # of Kafka 3
        doc="The cluster's nodes in ZooKeeper belong to the brokers: others can change none of "
        "them, and read no metadata. Needs a login or a certificate, the same for all brokers.",
    )
    millstream_zookeeper_sasl_jaas_config: str | None = password(
        None,
        ours=True,
        doc="The user and password for ZooKeeper (SASL with DIGEST-MD5), as Kafka has them in the "
        "section Client of a JAAS file: org.apache.zookeeper.server.auth.DigestLoginModule "
        'required username="..." password="...";',
    )
    zookeeper_ssl_client_enable: bool = boolean(
        False, ours=True, doc="Connect to ZooKeeper with TLS: to its secureClientPort."
    )
    zookeeper_ssl_keystore_location: str | None = string(
        None,
        ours=True,
        doc="A PEM file with the private key and the certificates that brokers show to ZooKeeper. "
        "It is read again for each connection.",
    )
    zookeeper_ssl_keystore_password: str | None = password(
        None, ours=True, doc="The password of that private key, if it has one."
    )
    zookeeper_ssl_keystore_type: str = string(
        "PEM", ours=True, doc="The format of that keystore: PEM. (Others are read by Java only.)"
    )
    zookeeper_ssl_truststore_location: str | None = string(
        None,
        ours=True,
        doc="A PEM file with the authorities that sign the certificates of ZooKeeper's servers. By "
        "default, the system's.",
    )
    zookeeper_ssl_truststore_password: str | None = password(
        None, ours=True, doc="Not used: PEM files of certificates have none."
    )
    zookeeper_ssl_truststore_type: str = string(
        "PEM", ours=True, doc="The format of that truststore: PEM."
    )
    zookeeper_ssl_protocol: str = string(
        "TLSv1.2",
        importance="low",
        ours=True,
        doc="Not used: of zookeeper.ssl.enabled.protocols, the newest that both sides have is "
        "taken.",
    )
    zookeeper_ssl_enabled_protocols: tuple[str, ...] = strings(
        ("TLSv1.2", "TLSv1.3"),
        options=("TLSv1.2", "TLSv1.3"),
        importance="low",
        ours=True,
        doc="The versions of TLS to ZooKeeper.",
    )
    zookeeper_ssl_cipher_suites: tuple[str, ...] = strings(
        (),
        importance="low",
        ours=True,
        doc="The ciphers of TLS 1.2 to ZooKeeper; as ssl.cipher.suites.",
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = string(
        "HTTPS",
        options=("HTTPS", "https", "none", ""),
        importance="low",
        ours=True,
        doc="Whether the name in the certificate of a ZooKeeper server has to be the one in "
        "zookeeper.connect: HTTPS; none or empty if not.",
    )
    auto_leader_rebalance_enable: bool = boolean(
        True,
        importance="high",
        doc="Preferred replicas lead again some time after they have caught up.",
    )
    leader_imbalance_check_interval_seconds: int = long(
        300,
        low=1,
        importance="high",
        doc="How often the controller lets preferred replicas lead again.",
    )
    leader_imbalance_per_broker_percentage: int = integer(
        10,
        low=0,
        importance="high",
        ours=True,  # of Kafka 3
        doc="Preferred replicas of a broker lead again if more than this share of them does not.",
    )
