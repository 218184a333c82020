"""Starts Spark's JVM as `spark-submit` does, by a command that was prepared (`jvm_command`).

    python -I -S light_submit.py --conf name=value ... pyspark-shell

`spark-submit` asks a JVM of its own, Spark's launcher, for the command: half a second of a core on
which everything waits. The answer is the same every time, but for the driver's memory and Java
options. Where something else could change it, the launcher is asked, and no archive is used.

This is a script without imports of ours, in the place of `bin/spark-submit` of a light home.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PREPARED = "MILLSTREAM_JVM_COMMAND"  # the path of a file that `jvm_command` has written
LAUNCHER = "org.apache.spark.deploy.SparkSubmit"
MEMORY, OPTIONS = "spark.driver.memory", "spark.driver.extraJavaOptions"
DEFAULT_MEMORY = "1g"
SCALA = {"SPARK_SCALA_VERSION": "2.13"}  # `load-spark-env.sh` sets it
# Other settings of the driver, and of the environment, that the launcher does not look at.
HARMLESS_SETTINGS = ("host", "bindAddress", "port", "cores", "maxResultSize")
HARMLESS_VARIABLES = (
    *("HOME", "LOCAL_IP", "LOCAL_DIRS", "LOCAL_HOSTNAME", "USER", "CONNECT_MODE"),
    *("AUTH_SOCKET_TIMEOUT", "BUFFER_SIZE"),  # a process that has had a session has set them
)
HADOOP = {"HADOOP_CONF_DIR", "YARN_CONF_DIR"}
# Options that choose an archive, or none.
CHOOSE_ARCHIVE = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:AOT", "-Xshare")


def main() -> None:
    home, arguments = os.environ["SPARK_HOME"], sys.argv[1:]
    command = prepared_command(arguments, os.environ)
    if command is None:
        command = [f"{home}/bin/spark-class", LAUNCHER, *arguments]
    else:
        os.environ |= {"SPARK_ENV_LOADED": "1", "SPARK_CONF_DIR": f"{home}/conf"} | SCALA
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(command[0], command)


def prepared_command(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str] | None:
    """What the launcher would answer; None if it has to be asked."""
    settings = settings_in(arguments)
    if settings is None or not is_ordinary(settings, environ):
        return None
    try:
        prepared = json.loads(Path(environ[PREPARED]).read_text())
        before, after, archive = (prepared[it] for it in ("before", "after", "archive"))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    options = shlex.split(settings.get(OPTIONS, ""))
    if not any(it.startswith(CHOOSE_ARCHIVE) for it in options):
        options = [*archive, *options]
    memory = f"-Xmx{settings.get(MEMORY, DEFAULT_MEMORY)}"
    return [*before, memory, *options, *after, LAUNCHER, *arguments]


def settings_in(arguments: Sequence[str]) -> dict[str, str] | None:
    """The settings, if there is nothing else but `pyspark-shell`."""
    pairs = arguments[:-1]
    if arguments[-1:] != ["pyspark-shell"] or len(pairs) % 2 or set(pairs[::2]) - {"--conf"}:
        return None
    if not all("=" in it for it in pairs[1::2]):
        return None
    return dict(it.split("=", 1) for it in pairs[1::2])


def is_ordinary(settings: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether the launcher would look at nothing but memory and Java options."""
    harmless = {MEMORY, OPTIONS, *(f"spark.driver.{it}" for it in HARMLESS_SETTINGS)}
    variables = {f"SPARK_{it}" for it in HARMLESS_VARIABLES}
    return (
        not any(it.startswith("spark.driver.") and it not in harmless for it in settings)
        and not {"spark.remote", "spark.api.mode", "spark.submit.deployMode"} & settings.keys()
        and not any(it.startswith("SPARK_") and it not in variables for it in environ)
        and not environ.keys() & HADOOP
        and not Path(environ["SPARK_HOME"], "conf").exists()
        and "-Xmx" not in settings.get(OPTIONS, "")
        and is_quoted_well(settings.get(OPTIONS, ""))
    )


def is_quoted_well(options: str) -> bool:
    try:
        shlex.split(options)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
