"""A Grafana dashboard for brokers and pipelines, as JSON.

`millstream metrics dashboard` prints it; import it in Grafana. Every expression uses the names that
Millstream serves, most of which are those of Kafka's exporters: `tests/metrics/test_dashboard.py`
has a real Prometheus answer all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

WIDTH = 24
HEIGHT = 8
SCHEMA_VERSION = 39  # of Grafana 10.4
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

BROKER = '{job=~"$job",instance=~"$instance"'
ALL = BROKER + "}"
TOPICS = BROKER + ',topic=~"$topic",topic!=""}'


class Panel(NamedTuple):
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]  # expression and legend
    kind: str = "timeseries"
    width: int = 8
    description: str = ""


def _rate(name: str, selector: str, by: str) -> str:
    return f"sum by ({by}) (rate({name}{selector}[$__rate_interval]))"


_TOPIC = "kafka_server_brokertopicmetrics"
_REQUEST = "kafka_network_requestmetrics"

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Cluster",
        (
            Panel("Brokers", "short", ((f"sum(millstream_ready{ALL})", ""),), "stat", 4),
            Panel(
                "Partitions without a leader",
                "short",
                ((f"sum(kafka_controller_kafkacontroller_offlinepartitionscount{ALL})", ""),),
                "stat",
                4,
            ),
            Panel(
                "Under-replicated partitions",
                "short",
                ((f"sum(kafka_server_replicamanager_underreplicatedpartitions{ALL})", ""),),
                "stat",
                4,
            ),
            Panel(
                "Failed log directories",
                "short",
                ((f"sum(kafka_log_logmanager_offlinelogdirectorycount{ALL})", ""),),
                "stat",
                4,
            ),
            Panel(
                "Connections",
                "short",
                ((f"sum(kafka_server_socket_server_metrics_connection_count{ALL})", ""),),
                "stat",
                4,
            ),
            Panel(
                "Largest lag of a group",
                "short",
                ((f"max(kafka_consumergroup_lag_sum{ALL})", ""),),
                "stat",
                4,
            ),
        ),
    ),
    (
        "Traffic",
        (
            Panel(
                "Records in",
                "short",
                ((_rate(f"{_TOPIC}_messagesin_total", TOPICS, "topic"), "{{topic}}"),),
            ),
            Panel(
                "Bytes in",
                "Bps",
                ((_rate(f"{_TOPIC}_bytesin_total", TOPICS, "topic"), "{{topic}}"),),
            ),
            Panel(
                "Bytes out",
                "Bps",
                ((_rate(f"{_TOPIC}_bytesout_total", TOPICS, "topic"), "{{topic}}"),),
            ),
            Panel(
                "Requests",
                "reqps",
                ((_rate(f"{_REQUEST}_requests_total", ALL, "request"), "{{request}}"),),
            ),
            Panel(
                "p99 of a request",
                "ms",
                (
                    (
                        f'max by (request) ({_REQUEST}_totaltimems{BROKER},quantile="0.99",'
                        'request=~"Produce|FetchConsumer|Metadata|OffsetCommit"})',
                        "{{request}}",
                    ),
                ),
                description="Fetches wait for records, up to fetch.max.wait.ms.",
            ),
            Panel(
                "Refused requests",
                "reqps",
                (
                    (_rate(f"{_TOPIC}_failedproducerequests_total", ALL, "instance"), "produce"),
                    (_rate(f"{_TOPIC}_failedfetchrequests_total", ALL, "instance"), "fetch"),
                ),
            ),
        ),
    ),
    (
        "Consumers",
        (
            Panel(
                "Lag by group",
                "short",
                (
                    (
                        f"sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{ALL})",
                        "{{consumergroup}} {{topic}}",
                    ),
                ),
            ),
            Panel(
                "Consumed per second",
                "short",
                (
                    (
                        "sum by (consumergroup) "
                        f"(rate(kafka_consumergroup_current_offset{ALL}[$__rate_interval]))",
                        "{{consumergroup}}",
                    ),
                ),
            ),
            Panel(
                "Members",
                "short",
                (
                    (
                        f"sum by (consumergroup) (kafka_consumergroup_members{ALL})",
                        "{{consumergroup}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Broker",
        (
            Panel(
                "Event loop busy",
                "percentunit",
                (
                    (
                        "1 - kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
                        + ALL,
                        "{{instance}}",
                    ),
                ),
                width=6,
            ),
            Panel(
                "p99 lag of the event loop",
                "s",
                (
                    (
                        "histogram_quantile(0.99, sum by (instance, le) "
                        f"(rate(millstream_loop_lag_seconds_bucket{ALL}[$__rate_interval])))",
                        "{{instance}}",
                    ),
                ),
                width=6,
            ),
            Panel(
                "p99 of a flush",
                "s",
                (
                    (
                        "histogram_quantile(0.99, sum by (instance, le) "
                        f"(rate(millstream_flush_seconds_bucket{ALL}[$__rate_interval])))",
                        "{{instance}}",
                    ),
                ),
                width=6,
            ),
            Panel(
                "Appends per flush",
                "short",
                (
                    (
                        f"rate(millstream_group_commit_requests_sum{ALL}[$__rate_interval]) / "
                        f"rate(millstream_group_commit_requests_count{ALL}[$__rate_interval])",
                        "{{instance}}",
                    ),
                ),
                width=6,
            ),
            Panel(
                "Memory",
                "bytes",
                ((f"process_resident_memory_bytes{ALL}", "{{instance}}"),),
                width=6,
            ),
            Panel(
                "Data on disk",
                "bytes",
                ((f"sum by (topic) (kafka_log_log_size{TOPICS})", "{{topic}}"),),
                width=6,
            ),
            Panel(
                "Open files",
                "short",
                ((f"process_open_fds{ALL} / process_max_fds{ALL}", "{{instance}}"),),
                width=6,
            ),
            Panel(
                "Muted connections",
                "short",
                ((f"millstream_muted_connections{ALL}", "{{instance}}"),),
                width=6,
            ),
        ),
    ),
    (
        "Pipelines",
        (
            Panel(
                "Rows per second",
                "short",
                ((_rate("millstream_pipeline_rows_total", ALL, "pipeline"), "{{pipeline}}"),),
            ),
            Panel(
                "Lag",
                "short",
                ((f"millstream_pipeline_lag_records{ALL}", "{{pipeline}}"),),
            ),
            Panel(
                "Duration of a batch",
                "s",
                ((f"millstream_pipeline_last_batch_seconds{ALL}", "{{pipeline}}"),),
            ),
            Panel(
                "Watermark delay",
                "s",
                ((f"millstream_pipeline_watermark_delay_seconds{ALL}", "{{pipeline}}"),),
            ),
            Panel(
                "Late rows and bad records",
                "short",
                (
                    (_rate("millstream_pipeline_late_rows_total", ALL, "pipeline"), "late"),
                    (_rate("millstream_pipeline_bad_records_total", ALL, "pipeline"), "bad"),
                ),
            ),
            Panel(
                "State",
                "bytes",
                ((f"millstream_pipeline_state_bytes{ALL}", "{{pipeline}}"),),
            ),
        ),
    ),
)


def expressions() -> Iterator[str]:
    """All expressions, with Grafana's variables."""
    for _, panels in ROWS:
        for panel in panels:
            for expression, _ in panel.queries:
                yield expression


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    return {
        "uid": "millstream",
        "title": "Millstream",
        "tags": ["millstream", "kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def render() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    for name, query in (
        ("job", "label_values(process_start_time_seconds, job)"),
        ("instance", 'label_values(process_start_time_seconds{job=~"$job"}, instance)'),
        ("topic", f'label_values({_TOPIC}_messagesin_total{{job=~"$job",topic!=""}}, topic)'),
    ):
        yield {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels() -> Iterator[dict[str, Any]]:
    number = y = 0
    for title, panels in ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
        }
        y += 1
        x = 0
        for panel in panels:
            number += 1
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            yield _panel(panel, number, x, y)
            x += panel.width
        y += HEIGHT


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression}
        | ({"legendFormat": legend} if legend else {})
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": targets,
    }
