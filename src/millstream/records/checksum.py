"""CRC-32C, the checksum of record batches and of our own files.

It is the compiled function of the `crc32c` package, without the package around it: importing that
reads its version through `importlib.metadata`, which is a tenth of a broker's start
(docs/decisions/0008-start-up.md).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TypeAlias, cast

Checksum: TypeAlias = Callable[..., int]  # of the data, and of what was summed before it, if any


def _load() -> Checksum:
    package = find_spec("crc32c")  # finds it, and runs none of it
    where = package.submodule_search_locations if package is not None else None
    compiled = PathFinder.find_spec("_crc32c", where) if where is not None else None
    if compiled is None or compiled.loader is None:
        from crc32c import crc32c  # a release that is built otherwise, or that is not there

        return cast(Checksum, crc32c)
    module = module_from_spec(compiled)
    compiled.loader.exec_module(module)
    return cast(Checksum, module.crc32c)


crc32c = _load()
