"""The command that starts Spark's JVM, asked of Spark's launcher once and kept in a file.

`light_submit` completes it whenever a session starts. The file is JSON:

    before      the program and its class path; the heap's size and Java options follow
    after       what the launcher adds to them
    archive     the options with which the JVM uses, or writes, its archive of classes
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream.errors import ConfigError
from millstream.pipelines.running import light_submit
from millstream.pipelines.running.light_submit import (
    HADOOP,
    LAUNCHER,
    MEMORY,
    OPTIONS,
    PREPARED,
    SCALA,
)
from millstream.pipelines.running.spark_home import HOME, JARS, SUBMIT

MEMORY_MARK, OPTIONS_MARK = "4321m", "-Dmillstream=options"
# Spark calculates with vectors of the processor where it can, in MLlib only. While this module is
# not final, a JVM that has it cannot use the links between classes that are in its archive.
VECTORS = "--add-modules=jdk.incubator.vector"


def write_command(
    path: Path, java: Path, home: Path, archive: Sequence[str], *, without: Sequence[str] = ()
) -> None:
    """Ask the launcher, and write its answer without some of the options."""
    before, after = ask_launcher(java, home)
    after = [it for it in after if it not in without]
    content = {"before": before, "after": after, "archive": list(archive)}
    path.write_text(json.dumps(content, indent=2))


def variables(path: Path) -> Mapping[str, str]:
    """With these, `spark-submit` of a light home starts a JVM by the command in the file."""
    return {PREPARED: str(path), SUBMIT: light_submit.__file__}


def ask_launcher(java: Path, home: Path) -> tuple[list[str], list[str]]:
    """What is before memory and options of the driver, and what is after these."""
    settings = {MEMORY: MEMORY_MARK, OPTIONS: OPTIONS_MARK}
    pairs = [it for name, value in settings.items() for it in ("--conf", f"{name}={value}")]
    command = launcher_command(java, home, [*pairs, "pyspark-shell"])
    middle = command.index(f"-Xmx{MEMORY_MARK}")
    if command[middle + 1] != OPTIONS_MARK:
        raise ConfigError(f"Spark's launcher gave a command that we do not know: {command}")
    return command[:middle], command[middle + 2 : command.index(LAUNCHER)]


def launcher_command(java: Path, home: Path, arguments: Sequence[str]) -> list[str]:
    """The launcher's answer to arguments of `spark-submit`, as `spark-class` gets it."""
    launcher = [str(java), "-cp", f"{home / JARS}/*", "org.apache.spark.launcher.Main", LAUNCHER]
    environ = plain_environment() | {HOME: str(home), "JAVA_HOME": str(java.parent.parent)} | SCALA
    answer = subprocess.run(
        [*launcher, *arguments], env=environ, capture_output=True, text=True, check=False
    )
    # First an empty line. That and each part end with a NUL; the first begins with a newline.
    command = answer.stdout.lstrip("\0\n").split("\0")[:-1]
    if answer.returncode != 0 or not command:
        raise ConfigError(
            f"Spark's launcher ended with {answer.returncode}: {answer.stderr[-500:]}"
        )
    return command


def plain_environment() -> dict[str, str]:
    """This process's environment, without settings for Spark."""
    return {
        name: it
        for name, it in os.environ.items()
        if not name.startswith("SPARK_") and name not in HADOOP
    }
