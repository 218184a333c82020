"""Find what the tests want of the system; install it where that is possible, else say how.

    python3 tools/system.py             everything
    python3 tools/system.py java        what is named

Nothing here is needed to run the broker, and a test whose peer is missing is skipped with its
reason; so a missing component never stops anything. Plain Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Component(NamedTuple):
    command: str  # or a file
    debian: str  # the packages that bring it
    purpose: str


COMPONENTS = [
    Component("java", "openjdk-17-jdk-headless", "Spark; Apache Kafka, its tools and client"),
    Component("mvn", "maven", "fetching Apache Kafka's jars"),
    Component("kcat", "kcat", "conformance tests with kcat"),
    Component("ip", "iproute2", "tests in which the network is cut"),
    Component("strace", "strace", "proof that acknowledged means flushed"),
    Component("node", "nodejs npm", "conformance tests with kafkajs"),
    Component("go", "golang-go", "conformance tests with franz-go"),
    Component("prometheus", "prometheus", "tests with a Prometheus that scrapes"),
    Component("chromium", "chromium", "tests of the console in a browser"),
    Component("/usr/include/zmq.h", "libzmq3-dev", "tests with ZeroMQ's own library"),
    Component("pg_ctlcluster", "postgresql", "tests of PostgreSQL as a store"),
]


def main(names: list[str]) -> None:
    missing = find_missing(names)
    if missing and can_install():
        packages = " ".join(component.debian for component in missing).split()
        print(f"system: apt-get install {' '.join(packages)}", flush=True)
        apt_get("update")
        for package in packages:  # one by one: one that is not to be had spoils only itself
            apt_get("install", "--yes", package)
        missing = find_missing(names)
    for component in missing:
        print(f"system: no {component.command} ({component.purpose}); {how_to(component)}")


def find_missing(names: list[str]) -> list[Component]:
    """Of those named, or of all."""
    wanted = [component for component in COMPONENTS if not names or component.command in names]
    return [component for component in wanted if not is_there(component.command)]


def is_there(command: str) -> bool:
    path = Path(command)
    return path.exists() if path.is_absolute() else shutil.which(command) is not None


def apt_get(*arguments: str) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "-qq", *arguments], env=environment, capture_output=True)


def can_install() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def how_to(component: Component) -> str:
    if sys.platform == "darwin":
        return f"try: brew install {component.command}"
    return f"try: apt-get install {component.debian}"


if __name__ == "__main__":
    main(sys.argv[1:])
