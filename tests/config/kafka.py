"""What Apache Kafka 4.3.1 says about its own settings, for tests to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class KafkaSetting(NamedTuple):
    name: str
    kind: str
    default: str | None
    mode: str
    internal: bool


def kafka_settings(scope: str) -> dict[str, KafkaSetting]:
    """The settings of `broker`, `topic` or `group`, by name."""
    found = {}
    for line in (Path(__file__).parent / "kafka_4_3_settings.tsv").read_text().splitlines():
        if line.startswith("#"):
            continue
        where, name, kind, default, mode, internal = line.split("\t")
        if where == scope:
            value = {"null": None, "<none>": None, "''": ""}.get(default, default)
            found[name] = KafkaSetting(name, kind, value, mode, internal == "internal")
    return found
