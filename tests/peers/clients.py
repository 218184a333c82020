"""The list of clients that every broker must please, each with the way to get and start it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.peers.cache import PROGRAMS, cached, fingerprint, require_command, run_build
from tests.peers.java_runtime import java_program
from tests.peers.kcat import Kcat
from tests.peers.programs import Client, python_program

ALL_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@cache
def node_program() -> Sequence[str]:
    """kafkajs in a directory of its own with its `node_modules`."""
    node = require_command("node", "install Node.js, e.g. `apt-get install nodejs npm`")
    sources = sorted((PROGRAMS / "node").iterdir())

    def install(directory: Path) -> None:
        npm = require_command("npm", "install npm, e.g. `apt-get install npm`")
        for source in sources:
            shutil.copy(source, directory)
        run_build([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"], directory)

    return [node, str(cached("node", fingerprint(*sources), install) / "client.js")]


@cache
def go_program() -> Sequence[str]:
    """franz-go, compiled without optimizations: that takes half the time."""
    sources = sorted((PROGRAMS / "go").iterdir())

    def build(directory: Path) -> None:
        go = require_command("go", "install Go 1.26 or newer")
        for source in sources:
            shutil.copy(source, directory)
        plain = ["-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w"]
        run_build([go, "build", *plain, "-o", "client", "."], directory)

    return [str(cached("go", fingerprint(*sources), build) / "client")]


CLIENTS: dict[str, Any] = {
    "confluent": Client("confluent", lambda: python_program("confluent_program")),
    "kafka-python": Client("kafka-python", lambda: python_program("kafka_python_program")),
    "aiokafka": Client("aiokafka", lambda: python_program("aiokafka_program")),
    "java": Client("java", lambda: java_program("ClientProgram")),
    "java-3.9": Client("java-3.9", lambda: java_program("ClientProgram", "kafka-clients-old")),
    "kcat": Kcat(),
    "kafkajs": Client("kafkajs", lambda: list(node_program())),
    "franz-go": Client("franz-go", lambda: list(go_program())),
}

# kafkajs brings only gzip along; kafka-python takes the others from packages of their own.
_KAFKA_PYTHON_CODECS = {"snappy": "snappy", "lz4": "lz4", "zstd": "zstandard"}
COMPRESSIONS: dict[str, tuple[str, ...]] = dict.fromkeys(CLIENTS, ALL_COMPRESSIONS) | {
    "kafkajs": ("none", "gzip"),
    "kafka-python": (
        "none",
        "gzip",
        *(name for name, package in _KAFKA_PYTHON_CODECS.items() if find_spec(package)),
    ),
}
