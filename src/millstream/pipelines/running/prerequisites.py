"""Spark's prerequisites: PySpark, and a Java that it runs on."""

from __future__ import annotations

from importlib.util import find_spec

from millstream.errors import ConfigError
from millstream.pipelines.running.javas import ask_version, find_java, java_at

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
    version = java_at(java).version or ask_version(java)
    if version and version[0] < JAVA_VERSION_MIN:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN}, and {java} is Java {version[0]}: {JAVA_CURE}"
        )


def check_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise ConfigError("pipelines need Spark: pip install 'millstream[spark]'")
