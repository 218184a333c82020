"""Reads the metrics of a broker as Prometheus does."""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Metrics:
    """All samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = list(_parse(text))
        self.names = {it.name for it in self.samples}

    def all(self, name: str, **labels: object) -> list[Sample]:
        wanted = {key: str(value) for key, value in labels.items()}
        return [
            it for it in self.samples if it.name == name and wanted.items() <= it.labels.items()
        ]

    def value(self, name: str, **labels: object) -> float:
        """Of the only sample with exactly these labels."""
        wanted = {key: str(value) for key, value in labels.items()}
        found = [it.value for it in self.samples if it.name == name and it.labels == wanted]
        assert len(found) == 1, (name, wanted, found)
        return found[0]

    def sum(self, name: str, **labels: object) -> float:
        return sum(it.value for it in self.all(name, **labels))


def scrape(url: str, token: str | None = None) -> Metrics:
    request = urllib.request.Request(url)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return Metrics(response.read().decode())


def _parse(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.match(line)
        assert match, line
        name, labels, value = match.groups()
        parsed = {
            key: it.replace(r"\"", '"').replace(r"\n", "\n").replace("\\\\", "\\")
            for key, it in _LABEL.findall(labels or "")
        }
        yield Sample(name, parsed, math.nan if value == "NaN" else float(value))
