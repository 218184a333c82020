"""Checkpoints on a local disk without a process for every file.

Spark writes two small files to the checkpoint in every batch, and more if there is state. Without
its native library, which Spark does not include, Hadoop sets the permissions of every file and of
its checksum by starting `chmod`: at least four processes per batch, a fifth of the time of a small
batch. Java can set permissions itself.

Hadoop has no setting for it. So its class is overridden in five lines of Java, compiled by Janino,
which Spark uses for generated code. Files and checksums are the same. If any of this fails,
Hadoop's class is used.
"""

from __future__ import annotations

import logging
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

CLASS = "millstream.LocalDisk"
# A sticky bit, which Java does not know, is left to Hadoop.
SOURCE = """
package millstream;

import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalDisk extends LocalFileSystem {
    public LocalDisk() { super(new Raw()); }

    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission wanted) throws java.io.IOException {
            if (wanted.getStickyBit()) { super.setPermission(path, wanted); return; }
            Files.setPosixFilePermissions(
                pathToFile(path).toPath(), PosixFilePermissions.fromString(wanted.toString()));
        }
    }
}
"""


def use_local_disk(spark: SparkSession) -> bool:
    """Make the session's JVM use our class for `file:` from now on; returns whether it does."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        _install(spark)
    except (Py4JError, PySparkException, TypeError) as error:  # the last if a class is missing
        logger.warning(
            "small batches will be slower: cannot replace Hadoop's class for local files: %s", error
        )
        return False
    return True


def _install(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE)
    settings = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    settings.setClassLoader(compiler.getClassLoader())
    settings.set("fs.file.impl", CLASS)
    # Hadoop caches one object per scheme and user, whatever the settings of the caller are.
    root, file_systems = jvm.java.net.URI("file:///"), jvm.org.apache.hadoop.fs.FileSystem
    file_systems.get(root, settings).close()
    installed = file_systems.get(root, settings)
    try:
        _try_out(jvm, installed)
    except BaseException:
        installed.close()  # the next caller gets Hadoop's own
        raise


def _try_out(jvm: Any, files: Any) -> None:
    """The operations of Spark on a file of the checkpoint."""
    path = jvm.org.apache.hadoop.fs.Path
    with TemporaryDirectory(prefix="millstream-") as directory:
        files.mkdirs(path(f"{directory}/offsets"))
        files.create(path(f"{directory}/offsets/.0.tmp"), True).close()
        files.rename(path(f"{directory}/offsets/.0.tmp"), path(f"{directory}/offsets/0"))
        files.open(path(f"{directory}/offsets/0")).close()
