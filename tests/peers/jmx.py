"""Apache Kafka's own metrics, read over JMX, with the names of Strimzi's rules for the exporter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.peers.java_runtime import ToolRunner

ATTRIBUTES = (
    "Count",
    "Value",
    "MeanRate",
    "connection-count",
    "connection-creation-rate",
    "connections",
    "successful-authentication-total",
    "failed-authentication-total",
    "expired-connections-killed-count",
)

_LINE = re.compile(r"(?P<domain>[\w.]+):(?P<keys>.*):(?P<attribute>[\w-]+)=(?P<value>\S+)$")
_KEY = re.compile(r'([^=,]+)=("(?:[^"\\]|\\.)*"|[^,]*)')
_PERCENT = re.compile(r"(.+)Percent\w*$")
_PER_SECOND = re.compile(r"(.+)PerSec\w*$")


class JmxSample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def jvm_options(port: int) -> list[str]:
    """What a JVM needs so that its metrics can be read at this port of 127.0.0.1."""
    prefix = "-Dcom.sun.management.jmxremote"
    return [
        prefix,
        f"{prefix}.port={port}",
        f"{prefix}.rmi.port={port}",
        f"{prefix}.host=127.0.0.1",
        f"{prefix}.authenticate=false",
        f"{prefix}.ssl=false",
        "-Djava.rmi.server.hostname=127.0.0.1",
    ]


def read_jmx(tools: ToolRunner, port: int) -> list[JmxSample]:
    """All of kafka's metrics that have one of the attributes."""
    url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
    options = ("--one-time", "--report-format", "properties")
    result = tools.check("JmxTool", "--jmx-url", url, *options)
    return list(_samples(result.lines))


def _samples(lines: list[str]) -> Iterator[JmxSample]:
    for line in lines:
        match = _LINE.match(line)
        if match is None or not match["domain"].startswith("kafka."):
            continue
        if match["attribute"] not in ATTRIBUTES:
            continue
        try:
            value = float(match["value"])
        except ValueError:  # texts and lists
            continue
        keys = {name: it.strip('"') for name, it in _KEY.findall(match["keys"])}
        name = _name(match["domain"], keys, match["attribute"])
        if name is not None:
            yield JmxSample(name, keys, value)


def _name(domain: str, keys: dict[str, str], attribute: str) -> str | None:
    """The name in Prometheus; what is left in `keys` are the labels."""
    parts = [domain.replace(".", "_"), keys.pop("type", "")]
    name = keys.pop("name", None)
    percent, rate = (_PERCENT.match(name or ""), _PER_SECOND.match(name or ""))
    if "clientSoftwareName" in keys:
        parts += [attribute, "software"]
    elif name is None:
        parts += [attribute]
    elif percent is not None and attribute in ("MeanRate", "Value"):
        parts += [percent[1], "percent"]
    elif rate is not None and attribute == "Count":
        parts += [rate[1], "total"]
    elif attribute == "Value":
        parts += [name]
    elif attribute == "Count":
        parts += [name, "count"]
    else:
        return None
    return re.sub(r"[^a-z0-9_]", "_", "_".join(parts).lower())
