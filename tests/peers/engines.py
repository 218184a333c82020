"""Other stream processors, from the registries: PyFlink and Quix Streams, each in an environment of
its own, since what they pin does not go together with what we use."""

from __future__ import annotations

import sys
import venv
from functools import cache
from pathlib import Path

from tests.peers.cache import cached, fingerprint, require_command, run_build
from tests.peers.java_runtime import java_command

PACKAGES = {"flink": "apache-flink==2.3.0", "quix": "quixstreams==3.28.1"}
FLINK_CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"


@cache
def engine_python(name: str) -> Path:
    """The interpreter that has the engine; raises `PeerMissing` where it cannot be had."""
    package = PACKAGES[name]

    def install(directory: Path) -> None:
        venv.create(directory / "environment", with_pip=True)
        python = directory / "environment" / "bin" / "python"
        run_build([python, "-m", "pip", "install", "-q", package], directory)

    key = fingerprint(package, sys.version)
    return cached(name, key, install) / "environment" / "bin" / "python"


@cache
def flink_java_program(source: Path) -> list[str]:
    """The command of a Java program against the jars that come with PyFlink, CEP among them."""
    environment = engine_python("flink").parent.parent
    libraries = f"{next(environment.glob('lib/python*/site-packages/pyflink/lib'))}/*"

    def compile_source(directory: Path) -> None:
        javac = require_command("javac", "install a JDK 17, e.g. `apt-get install openjdk-17-jdk`")
        run_build([javac, "-nowarn", "-cp", libraries, "-d", directory, source], directory)

    classes = cached("classes-flink", fingerprint(libraries, source), compile_source)
    return [java_command(), "-Xmx3g", "-cp", f"{classes}:{libraries}", source.stem]


@cache
def flink_connector() -> Path:
    """The jar with which Flink's SQL reads topics."""
    java_command()

    def download(directory: Path) -> None:
        maven = require_command("mvn", "install Maven, e.g. `apt-get install maven`")
        goal = "dependency:copy"
        wanted = [f"-Dartifact={FLINK_CONNECTOR}", f"-DoutputDirectory={directory}"]
        run_build([maven, "-q", "-B", goal, *wanted], directory)

    directory = cached("flink-connector", fingerprint(FLINK_CONNECTOR), download)
    return next(directory.glob("*.jar"))
