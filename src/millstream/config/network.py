"""Identity of the broker, listeners, sockets and limits."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.config.setting import INT_MAX, Mode, boolean, integer, long, string, strings
from millstream.security.protocol import SecurityProtocol


@dataclass(frozen=True, init=False, repr=False, eq=False)
class NetworkSettings:
    """Identity, listeners and limits."""

    node_id: int = integer(
        1,
        low=0,
        importance="high",
        doc="This broker's id in its cluster; same as broker.id.",
    )
    broker_id: int = integer(
        -1, importance="high", doc="Kafka's older name of node.id; -1: use node.id."
    )
    broker_rack: str | None = string(
        None, doc="The rack or zone of this broker; consumers may prefer nearby replicas."
    )
    listeners: tuple[str, ...] = strings(
        ("PLAINTEXT://127.0.0.1:9092",),
        importance="high",
        doc="Listeners, as NAME://host:port; an empty host: every interface, port 0: any free "
        "port. (Kafka's default is every interface; Millstream's is localhost, because PLAINTEXT "
        "has no authentication.)",
    )
    advertised_listeners: tuple[str, ...] | None = strings(
        None,
        importance="high",
        doc="Addresses for clients, if they differ from listeners.",
    )
    listener_security_protocol_map: str = string(
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        importance="low",
        doc="The security protocol of each listener name: PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL.",
    )
    controller_listener_names: tuple[str, ...] = strings(
        (),
        importance="high",
        doc="Listeners for KRaft controllers: not used, but accepted, so that Kafka's own "
        "server.properties works.",
    )
    inter_broker_listener_name: str | None = string(
        None, doc="The listener that other brokers use; by default, the first one of listeners."
    )
    security_inter_broker_protocol: str = string(
        "PLAINTEXT",
        options=tuple(SecurityProtocol.__members__),
        doc="Without inter.broker.listener.name: brokers use the first listener with this "
        "protocol, if it is set.",
    )
    connection_failed_authentication_delay_ms: int = integer(
        100,
        low=0,
        importance="low",
        doc="How long the answer to a failed authentication is delayed. After ten failures from "
        "one address, further authentications from there have to wait for seconds.",
    )
    millstream_authentication_delay_exempt: tuple[str, ...] = strings(
        (),
        ours=True,
        mode=Mode.CLUSTER_WIDE,
        doc="Addresses and networks (such as 10.1.2.3, 192.168.0.0/16) from which authentications "
        "do not have to wait, however many have failed there: those of a proxy or NAT with many "
        "clients behind it, which has to limit the guessing of passwords itself. Each failure is "
        "still answered after connection.failed.authentication.delay.ms.",
    )
    millstream_authentication_timeout_ms: int = integer(
        10_000,
        low=1,
        ours=True,
        doc="A connection whose TLS handshake, or whose authentication with SASL, is not complete "
        "after this time is closed.",
    )
    max_connections: int = integer(
        INT_MAX,
        low=0,
        mode=Mode.CLUSTER_WIDE,
        doc="Connections open at once; one more is closed at once. If there are several listeners, "
        "that of the brokers goes on accepting.",
    )
    max_connections_per_ip: int = integer(
        INT_MAX,
        low=0,
        mode=Mode.CLUSTER_WIDE,
        doc="Connections open at once from one address.",
    )
    max_connections_per_ip_overrides: str = string(
        "",
        mode=Mode.CLUSTER_WIDE,
        doc="Other limits for some addresses, as address:number,address:number.",
    )
    max_connection_creation_rate: int = integer(
        INT_MAX, low=0, mode=Mode.CLUSTER_WIDE, doc="New connections accepted per second."
    )
    connections_max_idle_ms: int = long(
        600_000, doc="A connection without a request for this long is closed."
    )
    socket_request_max_bytes: int = integer(
        104_857_600, low=1, importance="high", doc="The largest request accepted."
    )
    socket_receive_buffer_bytes: int = integer(
        102_400,
        importance="high",
        doc="SO_RCVBUF of the server's sockets; -1 leaves it to the system.",
    )
    socket_send_buffer_bytes: int = integer(
        102_400,
        importance="high",
        doc="SO_SNDBUF of the server's sockets; -1 leaves it to the system.",
    )
    socket_listen_backlog_size: int = integer(50, low=1, doc="Backlog of the listening sockets.")
    queued_max_requests: int = integer(
        500,
        low=1,
        importance="high",
        doc="Maximum number of requests being processed, over all connections.",
    )
    queued_max_request_bytes: int = long(
        -1,
        doc="Memory for requests that have not arrived completely or cannot be handled yet, over "
        "all connections; -1 is 256 MB here, and no limit in Kafka. Beyond it a connection "
        "receives no more of a request over 128 KB until there is memory again.",
    )
    millstream_queued_max_response_bytes: int = long(
        134_217_728,
        low=1_048_576,
        ours=True,
        doc="Memory for responses that clients have not read, over all connections. Each "
        "connection may use an eighth of what is left of it.",
    )
    millstream_connection_queued_max_response_bytes: int = long(
        4_194_304,
        low=65_536,
        ours=True,
        doc="Memory for responses that one client has not read. Beyond it the connection's next "
        "request waits.",
    )
    millstream_connection_stalled_max_ms: int = long(
        30_000,
        low=1,
        ours=True,
        doc="While memory for responses or requests is short, a connection whose client has read "
        "nothing for this long, or whose request has been arriving for this long, is closed.",
    )
    request_timeout_ms: int = integer(
        30_000, importance="high", doc="How long the broker waits for another broker's answer."
    )
    fetch_max_bytes: int = integer(
        57_671_680, low=1024, doc="The maximum size of a fetch response."
    )
    max_incremental_fetch_session_cache_slots: int = integer(
        1000, low=0, doc="Incremental fetch sessions kept at once."
    )
    max_request_partition_size_limit: int = integer(
        2000, low=1, doc="Partitions described in one DescribeTopicPartitions answer."
    )
    auto_create_topics_enable: bool = boolean(
        True,
        importance="high",
        doc="Create a topic when a client asks for the metadata of a new one.",
    )
    delete_topic_enable: bool = boolean(
        True, importance="high", doc="Whether topics can be deleted."
    )
