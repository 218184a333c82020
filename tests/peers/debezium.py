"""Debezium's embedded engine, from Maven: the same database through another decoder."""

from __future__ import annotations

import base64
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.peers.java_runtime import java_program
from tests.peers.patience import PATIENCE_SECONDS

_SETTINGS = {
    "name": "debezium",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "1000",
    "database.password": "none",
    "topic.prefix": "shop",
    "plugin.name": "pgoutput",
    "slot.name": "debezium",
    "publication.name": "everything",
    "publication.autocreate.mode": "disabled",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "header.converter.schemas.enable": "false",
    "skipped.operations": "none",
}


# The wire format of Confluent's converter: a zero byte, the schema's id in four bytes, the value.
_AVRO_SETTINGS = {
    "schema.name.adjustment.mode": "avro",
    "field.name.adjustment.mode": "avro",
} | {
    f"{side}.converter.apicurio.registry.{name}": value
    for side in ("key", "value")
    for name, value in (
        ("as-confluent", "true"),
        ("use-id", "contentId"),
        ("auto-register", "true"),
        ("headers.enabled", "false"),
    )
}


@dataclass(frozen=True)
class DebeziumEvent:
    """An event as Debezium gives it to Kafka Connect's JSON converter. In Avro, key and value are
    the bytes that the converter made."""

    topic: str
    key: Any
    value: Any
    headers: tuple[tuple[str, Any], ...] = ()


@dataclass
class Debezium:
    """A running engine; its events in order."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str | None]
    is_avro: bool = False

    def next_line(self) -> str:
        line = self.lines.get(timeout=PATIENCE_SECONDS)
        assert line is not None, "Debezium has stopped"
        return line

    def next_event(self) -> DebeziumEvent:
        topic, key, value, *headers = self.next_line().rstrip("\n").split("\t")
        named = zip(headers[::2], map(json.loads, headers[1::2]), strict=True)
        read = _from_base64 if self.is_avro else json.loads
        return DebeziumEvent(topic, read(key), read(value), tuple(named))

    def events_until(self, topic: str) -> list[DebeziumEvent]:
        """The events before the next one of a topic, which is taken, too."""
        events = []
        while (event := self.next_event()).topic != topic:
            events.append(event)
        return events


def _from_base64(text: str) -> bytes | None:
    return base64.b64decode(text) if text else None


def avro_settings(registry_url: str) -> dict[str, str]:
    """For an engine whose events are Avro, with the schemas in an Apicurio registry."""
    urls = {f"{it}.converter.apicurio.registry.url": registry_url for it in ("key", "value")}
    return _AVRO_SETTINGS | urls


def database_settings(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    return {
        "database.hostname": str(parts.hostname),
        "database.port": str(parts.port),
        "database.user": str(parts.username),
        "database.dbname": parts.path.lstrip("/"),
    }


@contextmanager
def running_debezium(
    url: str,
    settings: Mapping[str, str] | None = None,
    *arguments: str,
    jvm_options: Sequence[str] = (),
) -> Iterator[Debezium]:
    """An engine that reads a database; raises `PeerMissing` where it cannot be had. `arguments` are
    the program's, behind the file of settings: `avro` with the settings of `avro_settings`."""
    is_avro = "avro" in arguments
    bundle = "debezium-avro" if is_avro else "debezium"
    command = java_program("DebeziumProgram", bundle, jvm_options)
    with tempfile.TemporaryDirectory(prefix="millstream-debezium-") as directory:
        given = _SETTINGS | database_settings(url) | dict(settings or {})
        given["offset.storage.file.filename"] = str(Path(directory) / "offsets")
        file = Path(directory) / "engine.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        process = subprocess.Popen(
            [*command, str(file), *(arguments or ("print",))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
        try:
            yield Debezium(process, lines, is_avro)
        finally:
            process.kill()
            process.wait()


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)
