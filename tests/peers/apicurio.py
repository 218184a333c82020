"""Apicurio Registry, a schema registry that speaks Confluent's REST API (`/apis/ccompat/v7`).

Confluent's own and Karapace are in no public registry of packages; Apicurio's is on Maven Central,
as a program that keeps its schemas in memory.
"""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.peers.cache import cached, fingerprint, require_command, run_build
from tests.peers.java_runtime import java_command
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, wait_until_listening

_VERSION = "2.6.13.Final"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>millstream</groupId><artifactId>apicurio</artifactId><version>1</version>
<dependencies><dependency>
<groupId>io.apicurio</groupId><artifactId>apicurio-registry-app</artifactId>
<version>{_VERSION}</version><type>tar.gz</type><classifier>all</classifier>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
</dependency></dependencies>
</project>
"""


@dataclass
class Apicurio:
    server: Server
    url: str  # of the API that is Confluent's

    def stop(self) -> None:
        self.server.stop()


@cache
def program() -> Path:
    """The jar to run; raises `PeerMissing` where it cannot be had."""

    def download(directory: Path) -> None:
        maven = require_command("mvn", "install Maven, e.g. `apt-get install maven`")
        (directory / "pom.xml").write_text(_POM)
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=archive"]
        run_build([maven, "-q", "-B", *goal], directory)
        [archive] = (directory / "archive").glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(directory / "app", filter="data")
        archive.unlink()

    java_command()
    [jar] = (cached("apicurio", fingerprint(_POM), download) / "app").glob("*-runner.jar")
    return jar


def start_apicurio(directory: Path) -> Apicurio:
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log_path = directory / "apicurio.log"
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    address = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [java_command(), *options, *address, "-jar", str(program())], stdout=log, stderr=log
        )
    server = Server("apicurio", "127.0.0.1", port, process, directory)
    wait_until_listening(server, log_path, PATIENCE_SECONDS)
    return Apicurio(server, f"http://127.0.0.1:{port}/apis/ccompat/v7")
