"""What Spark's Python processes run before their own programs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millstream.pipelines.process_server import DAEMON, SOURCE_RUNNER
from millstream.pipelines.running.python_processes import SITE

pytest.importorskip("pyspark")


def run(program: str, path: Path | None = None) -> str:
    """What a process prints which has the directory in its import path."""
    places = [str(SITE)] if path is None else [str(SITE), str(path)]
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    return ended.stdout


def test_programs_do_not_see_our_directory_and_have_none_of_our_imports() -> None:
    program = f"import sys; print({str(SITE)!r} in sys.path, 'millstream' in sys.modules)"
    assert run(program).split() == ["False", "False"]


@pytest.mark.parametrize(
    ("jar", "name", "module"),
    [
        ("spark-core", "org/apache/spark/api/python/PythonWorkerFactory$.class", DAEMON),
        (
            "spark-sql",
            "org/apache/spark/sql/execution/python/streaming/PythonStreamingSourceRunner.class",
            SOURCE_RUNNER,
        ),
    ],
)
def test_spark_starts_its_processes_by_these_names(jar: str, name: str, module: str) -> None:
    """Spark names the module in its JVM: `-m pyspark.daemon`."""
    import pyspark

    (path,) = (Path(pyspark.__file__).parent / "jars").glob(f"{jar}_*.jar")
    with zipfile.ZipFile(path) as opened:
        assert module.encode() in opened.read(name), (
            f"process_server: this Spark does not start {module}, so what it starts instead "
            "imports our source again"
        )


def test_a_module_that_is_hidden_by_ours_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs', end=' ')")
    assert run("print('program')", tmp_path).split() == ["theirs", "program"]
