"""Files that Hadoop writes on a local disk, without starting processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.running.local_disk import CLASS, use_local_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def files(spark: SparkSession) -> Iterator[Any]:
    """What the session's JVM has for `file:`; Hadoop's own is back afterwards."""
    assert use_local_disk(spark), (
        "local_disk: this Spark does not compile or use our class for local files; without it, "
        "every file of a checkpoint starts processes"
    )
    jvm: Any = spark._jvm
    settings = spark._jsc.hadoopConfiguration()
    found = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), settings)
    assert found.getClass().getName() == CLASS
    yield found
    found.close()
    own = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), settings)
    assert own.getClass().getName() != CLASS  # Hadoop's, or where there is Hive, its wrapper


def test_local_disk_sets_permissions_as_hadoop_does(
    spark: SparkSession, files: Any, tmp_path: Path
) -> None:
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop.fs
    (tmp_path / "file").touch()
    for mode in ("640", "755", "1777"):
        files.setPermission(
            hadoop.Path(str(tmp_path / "file")), hadoop.permission.FsPermission(mode)
        )
        assert oct((tmp_path / "file").stat().st_mode).endswith(mode)


def test_local_disk_writes_files_with_checksums_that_hadoop_reads(
    spark: SparkSession, files: Any, tmp_path: Path
) -> None:
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop.fs
    path = hadoop.Path(str(tmp_path / "file"))
    stream = files.create(path, True)
    stream.writeBytes("content")
    stream.close()
    assert (tmp_path / ".file.crc").exists()
    theirs = hadoop.LocalFileSystem()
    theirs.initialize(jvm.java.net.URI("file:///"), spark._jsc.hadoopConfiguration())
    assert theirs.open(path).readLine() == "content"
    (tmp_path / "file").write_text("changed")
    with pytest.raises(Exception, match="Checksum error"):
        theirs.open(path).readLine()


def test_hadoop_still_sets_permissions_in_a_method_that_can_be_overridden(
    spark: SparkSession,
) -> None:
    """If this fails, look whether local_disk.py is needed at all."""
    jvm: Any = spark._jvm
    native = jvm.org.apache.hadoop.util.NativeCodeLoader.isNativeCodeLoaded()
    assert not native, "local_disk: Hadoop has its native library now, and starts no processes"
    raw = jvm.java.lang.Class.forName("org.apache.hadoop.fs.RawLocalFileSystem")
    names = {it.getName() for it in raw.getDeclaredMethods()}
    assert "setPermission" in names, "local_disk: Hadoop sets permissions in another method"
    jvm.java.lang.Class.forName("org.codehaus.janino.SimpleCompiler")  # which compiles our class
