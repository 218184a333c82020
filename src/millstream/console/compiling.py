"""Compiles templates in a child process, before they are needed.

Compiling them takes half a second of a processor, during which a broker in this process would wait
for the interpreter lock again and again, and leaves 3 MB of memory in pieces. The child writes
marshalled tuples, of a template's checksum and its marshalled and compressed code, in the order in
which pages need them; columns of tracebacks, a third of it, are left out. A template that it did
not compile is compiled here.

    python -m millstream.console.compiling
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import tempfile
import threading
import zlib
from functools import cache
from pathlib import Path
from typing import BinaryIO

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket

from millstream.console.formats import FILTERS
from millstream.console.paths import segment

TEMPLATES = Path(__file__).parent / "templates"

MODULE = "millstream.console.compiling"
FIRST = ("macros.html", "base.html", "charts.html", "overview.html", "topics.html")
SECONDS_MAX = 30.0  # to wait for one


def bare_environment(compiled: BytecodeCache | None = None) -> Environment:
    """All that compiling a template depends on."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=compiled,
    )
    made.filters |= {**FILTERS, "segment": segment}
    return made


class CompiledTemplates(BytecodeCache):
    """See the module: the templates of one child, in a file without a name, since each is read
    once in most processes."""

    def __init__(self) -> None:
        self._codes: dict[str, tuple[int, int]] = {}  # where they are: offset and size
        self._is_over = False
        self._news = threading.Condition()
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
            child = subprocess.Popen(
                [sys.executable, "-X", "no_debug_ranges", "-m", MODULE],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:  # no process can be started, or no file be made
            self._is_over = True
            return
        threading.Thread(
            target=self._read, args=(child,), name="console-templates", daemon=True
        ).start()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        try:
            with child.stdout:
                while True:
                    checksum, code = marshal.load(child.stdout)
                    at = self._file.seek(0, os.SEEK_END)
                    self._file.write(code)
                    self._file.flush()
                    with self._news:
                        self._codes[checksum] = (at, len(code))
                        self._news.notify_all()
        except (EOFError, ValueError, TypeError, OSError):
            pass  # it ended, or was ended in the middle of one; or the disk is full
        finally:
            with self._news:
                self._is_over = True
                self._news.notify_all()
            child.wait()

    def load_bytecode(self, bucket: Bucket) -> None:
        with self._news:
            self._news.wait_for(
                lambda: self._is_over or bucket.checksum in self._codes, timeout=SECONDS_MAX
            )
            found = self._codes.get(bucket.checksum)
        if found is not None:
            code = os.pread(self._file.fileno(), found[1], found[0])
            bucket.code = marshal.loads(zlib.decompress(code))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Nothing is kept: the environment has the template now."""


@cache
def compiled_templates() -> CompiledTemplates:
    """Those of all consoles in this process."""
    return CompiledTemplates()


def compile_all(out: BinaryIO) -> None:
    """What the child does."""
    environment = bare_environment()
    checksum = CompiledTemplates.get_source_checksum
    assert environment.loader is not None
    rest = sorted(it.name for it in TEMPLATES.iterdir() if it.suffix == ".html")
    for name in dict.fromkeys((*FIRST, *rest)):
        source, filename, _ = environment.loader.get_source(environment, name)
        code = marshal.dumps(environment.compile(source, name, filename))
        made = (checksum(CompiledTemplates, source), zlib.compress(code))  # type: ignore[arg-type]
        marshal.dump(made, out)
        out.flush()


if __name__ == "__main__":
    compile_all(sys.stdout.buffer)
