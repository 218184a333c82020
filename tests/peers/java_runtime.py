"""Java peers: Apache Kafka's jars from Maven, our few Java programs, and a JVM that runs tools.

A JVM takes a second to start and more to warm up, and Apache's tools are dozens of calls; so
`ToolRunner` keeps one JVM (`java/ToolDriver.java`) that runs one tool's `main` after another and
catches their `Exit.exit`.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.peers.cache import PROGRAMS, PeerMissing, cached, fingerprint, require_command, run_build
from tests.peers.patience import PATIENCE_SECONDS

KAFKA_VERSION = "4.3.1"
OLD_CLIENT_VERSION = "3.9.1"  # what Spark's connector brings along; the last with ZooKeeper
DEBEZIUM_VERSION = "3.6.1.Final"
AVRO_CONVERTER_VERSION = "2.6.13.Final"
OPENSEARCH_VERSION = "2.19.6"  # the last one for Java 17
TRINO_VERSION = "435"  # the last one for Java 17
LUCENE_VERSION = "9.11.1"  # 10 needs Java 21
DOGSTATSD_VERSION = "4.4.4"
JEROMQ_VERSION = "0.6.0"

_DEBEZIUM: list[tuple[str, ...]] = [
    ("io.debezium", "debezium-api", DEBEZIUM_VERSION),
    ("io.debezium", "debezium-embedded", DEBEZIUM_VERSION),
    ("io.debezium", "debezium-connector-postgres", DEBEZIUM_VERSION),
    ("io.debezium", "debezium-storage-file", DEBEZIUM_VERSION),
]
# Group, artifact, version, and the classifier of jars that have one.
_BUNDLES: dict[str, list[tuple[str, ...]]] = {
    "kafka": [
        ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ],
    "kafka-tiered": [  # with a remote storage in a directory, of Kafka's own tests
        ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        ("org.apache.kafka", "kafka-storage", KAFKA_VERSION, "test"),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ],
    "kafka-zookeeper": [
        ("org.apache.kafka", "kafka_2.13", OLD_CLIENT_VERSION),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ],
    "kafka-streams": [
        ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ],
    "kafka-clients-old": [
        ("org.apache.kafka", "kafka-clients", OLD_CLIENT_VERSION),
        ("com.fasterxml.jackson.core", "jackson-databind", "2.17.2"),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ],
    "debezium": _DEBEZIUM,
    # With the converter to Avro of Debezium's documentation; Confluent's is in no public registry.
    "debezium-avro": [
        *_DEBEZIUM,
        ("io.apicurio", "apicurio-registry-utils-converter", AVRO_CONVERTER_VERSION),
    ],
    "opensearch": [
        ("org.opensearch", "opensearch", OPENSEARCH_VERSION),
        ("org.opensearch.plugin", "transport-netty4-client", OPENSEARCH_VERSION),
        ("org.apache.logging.log4j", "log4j-core", "2.25.4"),
    ],
    "trino": [
        ("io.trino", "trino-main", TRINO_VERSION),
        ("org.slf4j", "slf4j-jdk14", "2.0.9"),
    ],
    "lucene": [
        ("org.apache.lucene", "lucene-monitor", LUCENE_VERSION),
        ("org.apache.lucene", "lucene-queryparser", LUCENE_VERSION),
        ("com.fasterxml.jackson.core", "jackson-databind", "2.17.2"),
    ],
    "senders": [
        ("com.datadoghq", "java-dogstatsd-client", DOGSTATSD_VERSION),
        ("org.zeromq", "jeromq", JEROMQ_VERSION),
    ],
}
_SOURCES = {  # of the others: java
    "kafka-streams": "java/streams",
    "debezium": "java/debezium",
    "debezium-avro": "java/debezium",
    "opensearch": "java/opensearch",
    "trino": "java/trino",
    "lucene": "java/lucene",
    "senders": "java/senders",
}
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>millstream</groupId><artifactId>peers</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""
_JVM_OPTIONS = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # tools run for a second: the optimising compiler only costs
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]


def java_command() -> str:
    return require_command(
        "java", "install a Java 17 runtime, e.g. `apt-get install openjdk-17-jdk`"
    )


@cache
def jars(bundle: str) -> Path:
    """The directory with a bundle's jars and all they depend on."""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{_classifier(more)}</dependency>"
        for group, artifact, version, *more in _BUNDLES[bundle]
    )
    pom = _POM.format(dependencies=dependencies)

    def download(directory: Path) -> None:
        maven = require_command("mvn", "install Maven, e.g. `apt-get install maven`")
        (directory / "pom.xml").write_text(pom)
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=jars"]
        run_build([maven, "-q", "-B", *goal], directory)

    java_command()
    return cached(f"jars-{bundle}", fingerprint(pom), download) / "jars"


def _classifier(given: Sequence[str]) -> str:
    return "".join(f"<classifier>{it}</classifier>" for it in given)


@cache
def classpath(bundle: str, sources: str | None = None) -> str:
    """A bundle's jars with our own Java programs of one directory compiled against them."""
    of_ours = PROGRAMS / (sources or _SOURCES.get(bundle, "java"))
    programs = sorted(of_ours.glob("*.java"))
    libraries = f"{jars(bundle)}/*"

    def compile_sources(directory: Path) -> None:
        javac = require_command("javac", "install a JDK 17, e.g. `apt-get install openjdk-17-jdk`")
        run_build([javac, "-nowarn", "-cp", libraries, "-d", directory, *programs], directory)

    classes = cached(f"classes-{bundle}", fingerprint(libraries, *programs), compile_sources)
    return f"{classes}:{libraries}"


def java_program(
    main_class: str,
    bundle: str = "kafka",
    options: Sequence[str] = (),
    sources: str | None = None,
) -> list[str]:
    """The command line that starts a Java class with a bundle on its class path."""
    libraries = classpath(bundle, sources)
    return [java_command(), *_JVM_OPTIONS, *options, "-cp", libraries, main_class]


@dataclass(frozen=True)
class ToolResult:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.stdout.splitlines() if line.strip()]


class ToolRunner:
    """Runs the `main` of Apache's tools, one after another, in one JVM."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def run(
        self,
        tool: str,
        *arguments: str | Path | int,
        stdin: str = "",
        timeout_seconds: float = PATIENCE_SECONDS,
    ) -> ToolResult:
        """Run a tool; `tool` is a class name, without the leading `org.apache.kafka.tools.`."""
        main_class = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        command = {"main": main_class, "args": [str(a) for a in arguments], "stdin": stdin}
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        try:
            answer: dict[str, Any] = json.loads(self._answers.get(timeout=timeout_seconds))
        except queue.Empty:
            self.close()  # whatever hangs in there, the next tool gets a fresh JVM
            raise AssertionError(
                f"{tool} {arguments} gave no answer in {timeout_seconds} s"
            ) from None
        return ToolResult(answer["code"], answer["stdout"], answer["stderr"])

    def check(
        self,
        tool: str,
        *arguments: str | Path | int,
        stdin: str = "",
        timeout_seconds: float = PATIENCE_SECONDS,
    ) -> ToolResult:
        """Run a tool that must succeed."""
        result = self.run(tool, *arguments, stdin=stdin, timeout_seconds=timeout_seconds)
        assert result.exit_code == 0, f"{tool} {arguments} failed: {result}"
        return result

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._answers = queue.Queue()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._answers = queue.Queue()
            self._process = subprocess.Popen(
                java_program("ToolDriver"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            threading.Thread(target=_pump, args=(self._process, self._answers), daemon=True).start()
        return self._process


def _pump(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)


__all__ = [
    "KAFKA_VERSION",
    "PeerMissing",
    "ToolResult",
    "ToolRunner",
    "classpath",
    "jars",
    "java_program",
]
