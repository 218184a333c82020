"""Spark's own Kafka connector and its Avro functions, which PySpark does not bring along: their
jars, from Maven.

Those of Spark 4.3.0 are not in the registry. The connector of 4.2.0 works under it, and the Avro
functions of 4.1.1, the newest there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.peers.cache import cached, fingerprint, require_command, run_build
from tests.peers.java_runtime import java_command

_ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
_AVRO = (("org.apache.spark", "spark-avro_2.13", "4.1.1"),)
_ALONE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>millstream</groupId><artifactId>spark-connector</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""


@cache
def connector_jars() -> list[Path]:
    """The four jars for `spark.jars`; raises `PeerMissing` where they cannot be had."""
    return _jars("spark-connector", _ARTIFACTS)


@cache
def avro_jars() -> list[Path]:
    """The jar with `from_avro` and `to_avro`, in the same way."""
    return _jars("spark-avro", _AVRO)


def _jars(name: str, artifacts: tuple[tuple[str, str, str], ...]) -> list[Path]:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{_ALONE}</dependency>"
        for group, artifact, version in artifacts
    )
    pom = _POM.format(dependencies=dependencies)

    def download(directory: Path) -> None:
        maven = require_command("mvn", "install Maven, e.g. `apt-get install maven`")
        (directory / "pom.xml").write_text(pom)
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=jars"]
        run_build([maven, "-q", "-B", *goal], directory)

    java_command()
    return sorted((cached(name, fingerprint(pom), download) / "jars").glob("*.jar"))
