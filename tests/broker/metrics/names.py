"""Metrics of Kafka that dashboards use, with the names of Strimzi's rules and kafka_exporter."""

from __future__ import annotations

_TIMES = ("total", "requestqueue", "local", "remote", "responsequeue", "responsesend", "throttle")

# Apache Kafka has these too, over JMX.
KAFKA = {
    *(
        f"kafka_server_brokertopicmetrics_{name}_total"
        for name in (
            "messagesin",
            "bytesin",
            "bytesout",
            "bytesrejected",
            "failedproducerequests",
            "failedfetchrequests",
            "totalproducerequests",
            "totalfetchrequests",
            "totalsharefetchrequests",
            "totalshareacknowledgementrequests",
        )
    ),
    "kafka_network_requestmetrics_requests_total",
    "kafka_network_requestmetrics_errors_total",
    *(f"kafka_network_requestmetrics_{name}timems" for name in _TIMES),
    "kafka_network_requestchannel_requestqueuesize",
    "kafka_network_requestchannel_responsequeuesize",
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    *(
        f"kafka_server_socket_server_metrics_{name}"
        for name in (
            "connection_count",
            "connection_creation_rate",
            "connections_software",
            "successful_authentication_total",
            "failed_authentication_total",
            "expired_connections_killed_count",
        )
    ),
    *(f"kafka_log_log_{it}" for it in ("size", "logstartoffset", "logendoffset", "numlogsegments")),
    "kafka_log_logflushstats_logflushrateandtimems",
    "kafka_log_logmanager_offlinelogdirectorycount",
    "kafka_log_logcleaner_deadthreadcount",
    "kafka_log_logcleanermanager_max_dirty_percent",
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    "kafka_log_logcleanermanager_time_since_last_run_ms",
    *(
        f"kafka_server_replicamanager_{name}"
        for name in (
            "partitioncount",
            "leadercount",
            "underreplicatedpartitions",
            "underminisrpartitioncount",
            "atminisrpartitioncount",
            "offlinereplicacount",
            "produceridcount",
            "partitionswithlatetransactionscount",
            "isrshrinks_total",
            "isrexpands_total",
        )
    ),
    *(
        f"kafka_cluster_partition_{name}"
        for name in ("underreplicated", "underminisr", "atminisr", "laststableoffsetlag")
    ),
    *(
        f"kafka_controller_kafkacontroller_{name}"
        for name in (
            "activecontrollercount",
            "offlinepartitionscount",
            "globaltopiccount",
            "globalpartitioncount",
            "activebrokercount",
            "fencedbrokercount",
            "metadataerrorcount",
            "preferredreplicaimbalancecount",
        )
    ),
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_server_kafkaserver_brokerstate",
    "kafka_server_kafkaserver_linux_disk_read_bytes",
    "kafka_server_kafkaserver_linux_disk_write_bytes",
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    "kafka_server_fetchsessioncache_numincrementalfetchsessions",
    "kafka_server_sharegroupmetrics_recordacknowledgements_total",
    "kafka_server_quota_byte_rate",
    "kafka_server_quota_throttle_time",
}
EXPORTER = {
    "kafka_brokers",
    "kafka_broker_info",
    "kafka_topic_partitions",
    *(
        f"kafka_topic_partition_{name}"
        for name in (
            "current_offset",
            "oldest_offset",
            "leader",
            "leader_is_preferred",
            "replicas",
            "in_sync_replica",
            "under_replicated_partition",
        )
    ),
    *(
        f"kafka_consumergroup_{name}"
        for name in ("current_offset", "lag", "current_offset_sum", "lag_sum", "members")
    ),
}
PROCESS = {"process_open_fds", "process_resident_memory_bytes"}
