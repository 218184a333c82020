"""The version of the metadata that each worker has published, for the others to wait for.

    <directory>/1, <directory>/2     int64, big endian: the version; overwritten in place

A worker that has committed waits, for a short time, until all live workers have its version. So a
client that has created a topic at one worker finds it at every other. Nothing here is durable or
needed for safety: a worker that does not answer in time is not waited for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from millstream.storage.filesystem import FileSystem

_VERSION = struct.Struct(">q")


class SeenVersions:
    """The versions of all workers, and this worker's own."""

    def __init__(self, fs: FileSystem, directory: str, node_id: int) -> None:
        self._fs = fs
        self._directory = directory
        self._node_id = node_id
        self._fds: dict[int, int] = {}
        fs.make_directory(directory)

    def publish(self, version: int) -> None:
        """This worker has published this version."""
        self._fs.pwritev(self._fd(self._node_id), (_VERSION.pack(version),), 0)

    def are_at(self, version: int, node_ids: Iterable[int]) -> bool:
        """Whether all of these workers have published this version or a later one."""
        return all(self._seen(node_id) >= version for node_id in node_ids)

    def close(self) -> None:
        for fd in self._fds.values():
            self._fs.close(fd)
        self._fds.clear()

    def _seen(self, node_id: int) -> int:
        content = self._fs.pread(self._fd(node_id), _VERSION.size, 0)
        if len(content) < _VERSION.size:
            return -1  # it has not published any
        version: int = _VERSION.unpack(content)[0]
        return version

    def _fd(self, node_id: int) -> int:
        fd = self._fds.get(node_id)
        if fd is None:
            fd = self._fds[node_id] = self._fs.open(f"{self._directory}/{node_id}", create=True)
        return fd
