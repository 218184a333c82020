"""Prints a record as a line of text, or as a JSON object for `produce --envelope`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from millstream.admin.moments import show_moment
from millstream.cli.formats import Decoder, decode_text, show

DIM, RESET = "\x1b[2m", "\x1b[0m"


@dataclass
class RecordPrinter:
    """Writes records to stdout; the caller decides when to flush."""

    decode_value: Decoder
    decode_key: Decoder
    as_json: bool = False
    keys: bool = False
    headers: bool = False
    metadata: bool = False
    printed: int = 0

    def print(self, record: Message) -> None:
        line = self.json_line(record) if self.as_json else self.text_line(record)
        self.printed += 1  # first: Ctrl-C may follow as soon as the line is visible
        sys.stdout.write(line + "\n")

    def flush(self) -> None:
        sys.stdout.flush()

    def json_line(self, record: Message) -> str:
        value, key = record.value(), record.key()
        fields: dict[str, Any] = {
            "topic": record.topic(),
            "partition": record.partition(),
            "offset": record.offset(),
            "timestamp_ms": record.timestamp()[1],
            "key": None if key is None else self.decode_key(key),
            "value": None if value is None else self.decode_value(value),
            "headers": [
                [name, None if data is None else decode_text(data)]
                for name, data in record.headers() or []
            ],
        }
        return json.dumps(fields, ensure_ascii=False, default=str)

    def text_line(self, record: Message) -> str:
        """The requested parts, separated by tabs: metadata, headers, key, value."""
        value, key = record.value(), record.key()
        parts = []
        if self.metadata:
            place = f"{record.topic()}[{record.partition()}]@{record.offset()}"
            parts.append(dim(f"{show_moment(record.timestamp()[1])} {place}"))
        if self.headers:
            pairs = record.headers() or []
            parts.append(
                dim(",".join(f"{name}={decode_text(data or b'')}" for name, data in pairs))
            )
        if self.keys:
            parts.append("null" if key is None else show(self.decode_key(key)))
        parts.append("null" if value is None else show(self.decode_value(value)))
        return "\t".join(parts)


def dim(text: str) -> str:
    return f"{DIM}{text}{RESET}" if sys.stdout.isatty() else text
