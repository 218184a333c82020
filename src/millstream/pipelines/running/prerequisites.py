"""Spark's prerequisites: PySpark, and a Java that it runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from millstream.errors import ConfigError

JAVA_VERSION_MIN = 17
JAVA_CURE = (
    "install it (apt install openjdk-17-jre-headless, brew install openjdk@17) or point JAVA_HOME "
    "to one"
)


def check_spark() -> None:
    """Raise `ConfigError`, with how to install it, if Spark or Java is missing."""
    check_pyspark()
    java = find_java()
    if java is None:
        raise ConfigError(f"Spark needs Java {JAVA_VERSION_MIN} and there is none: {JAVA_CURE}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', answer)
    if found is not None and int(found[1]) < JAVA_VERSION_MIN:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN}, and {java} is Java {found[1]}: {JAVA_CURE}"
        )


def check_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise ConfigError("pipelines need Spark: pip install 'millstream[spark]'")


def find_java() -> str | None:
    """Where Spark looks: in JAVA_HOME, or else on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home is None:
        return shutil.which("java")
    java = Path(home) / "bin" / "java"
    return str(java) if java.exists() else None
