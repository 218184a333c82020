"""Where an archive is: a local directory, or a bucket.

A place holds files under names like `orders/<id>/partition=0/<file>`. A file appears under its name
complete or not at all. In a directory it is written as `<name>.<random>.tmp`, synced and renamed;
in a bucket, an object exists once its upload is complete.

`path` is a directory, or `s3://bucket/prefix?region=eu-central-1`. Other parameters of S3:
`endpoint_override=host:port` and `scheme=http` for compatible storage. Credentials come from the
environment, as for all AWS tools; those in a URI are refused, because settings are not secret.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from millstream.archive.manifest import ArchiveError
from millstream.config.archive import check_archive_path
from millstream.storage.filesystem import FileSystem, OsFileSystem, write_fully

if TYPE_CHECKING:
    from typing_extensions import Buffer

TEMPORARY_SUFFIX = ".tmp"
CONNECT_TIMEOUT_SECONDS = 10.0
REQUEST_TIMEOUT_SECONDS = 30.0
ATTEMPTS_MAX = 3


class Output(Protocol):
    """A file that is being written."""

    def write(self, content: Buffer, /) -> int: ...


class Place(Protocol):
    """Names are relative to the root. All methods raise `ArchiveError` if the storage fails."""

    root: str

    @contextmanager
    def create(self, name: str) -> Iterator[Output]:
        """Write a file. It exists, durably, when the block ends without an exception."""
        yield from ()

    def read(self, name: str) -> bytes:
        """Raises `FileNotFoundError`, as `open` does."""

    def open(self, name: str) -> Any:
        """The file for pyarrow."""

    def size(self, name: str) -> int | None:
        """None if there is no such file."""

    def list(self, directory: str) -> list[str]:
        """The names directly in a directory, sorted; none if it does not exist."""

    def delete(self, name: str) -> None:
        """Also if there is no such file."""

    def delete_directory(self, directory: str) -> None:
        """With all that is in it; also if there is none."""

    def path_of(self, name: str) -> str:
        """The name in `arrow_filesystem`."""

    def arrow_filesystem(self) -> Any:
        """A `pyarrow.fs.FileSystem`."""

    def uri_of(self, name: str) -> str:
        """For other software."""

    def delta_options(self) -> dict[str, str]:
        """The storage options of deltalake."""


def open_place(path: str, fs: FileSystem | None = None) -> Place:
    """The archive at that path. Connects to nothing yet."""
    check_archive_path(path)
    parts = urlsplit(path)
    if "://" not in path or parts.scheme == "file":
        directory = path if "://" not in path else parts.path
        return LocalPlace(str(Path(directory).absolute()), fs or OsFileSystem())
    return BucketPlace(parts.netloc + parts.path.rstrip("/"), dict(parse_qsl(parts.query)))


class LocalPlace:
    """A directory."""

    def __init__(self, root: str, fs: FileSystem) -> None:
        self.root = root.rstrip("/") or "/"
        self._fs = fs

    @contextmanager
    def create(self, name: str) -> Iterator[Output]:
        path = f"{self.root}/{name}"
        # Another name each time: a second writer of the file must not write to this one.
        temporary = f"{path}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        fs = self._fs
        try:
            self._make_directories(posixpath.dirname(name))
            output = _LocalOutput(fs, temporary)
            try:
                try:
                    yield output
                    fs.fdatasync(output.fd)
                finally:
                    fs.close(output.fd)
                fs.rename(temporary, path)
            except BaseException:
                with suppress(OSError):  # the disk may be full: give back what it holds
                    fs.unlink(temporary)
                raise
            fs.sync_directory(posixpath.dirname(path))
        except OSError as error:
            raise ArchiveError(f"cannot write {path}: {error}") from error

    def _make_directories(self, directory: str) -> None:
        """Create missing directories, and make their names durable."""
        fs, path = self._fs, self.root
        missing = [path] if not fs.exists(path) else []
        for part in directory.split("/"):
            path = f"{path}/{part}"
            if missing or not fs.exists(path):
                missing.append(path)
        for each in missing:
            fs.make_directory(each)
            fs.sync_directory(posixpath.dirname(each) or "/")

    def read(self, name: str) -> bytes:
        path = f"{self.root}/{name}"
        try:
            fd = self._fs.open(path)
            try:
                return self._fs.pread(fd, self._fs.size(fd), 0)
            finally:
                self._fs.close(fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArchiveError(f"cannot read {path}: {error}") from error

    def open(self, name: str) -> Any:
        import pyarrow as pa

        if not isinstance(self._fs, OsFileSystem):
            return pa.BufferReader(self.read(name))
        try:
            return pa.OSFile(f"{self.root}/{name}")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArchiveError(f"cannot read {self.root}/{name}: {error}") from error

    def size(self, name: str) -> int | None:
        try:
            return self._fs.file_size(f"{self.root}/{name}")
        except FileNotFoundError:
            return None

    def list(self, directory: str) -> list[str]:
        path = f"{self.root}/{directory}".rstrip("/")
        try:
            return sorted(self._fs.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ArchiveError(f"cannot list {path}: {error}") from error

    def delete(self, name: str) -> None:
        try:
            self._fs.unlink(f"{self.root}/{name}")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ArchiveError(f"cannot delete {self.root}/{name}: {error}") from error

    def delete_directory(self, directory: str) -> None:
        path = f"{self.root}/{directory}"
        try:
            while self._fs.exists(path):
                # Another broker may be deleting it, too: what is missing then is to be so.
                with suppress(FileNotFoundError):
                    self._fs.remove_tree(path)
                    self._fs.sync_directory(posixpath.dirname(path))
        except OSError as error:
            raise ArchiveError(f"cannot delete {path}: {error}") from error

    def path_of(self, name: str) -> str:
        return f"{self.root}/{name}"

    def arrow_filesystem(self) -> Any:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()

    def uri_of(self, name: str) -> str:
        return self.path_of(name)

    def delta_options(self) -> dict[str, str]:
        return {}


class _LocalOutput:
    """Appends to a file."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.fd = fs.open(path, create=True)
        self._position = 0

    def write(self, content: Buffer, /) -> int:
        view = memoryview(content).cast("B")
        write_fully(self._fs, self.fd, (view,), self._position)
        self._position += len(view)
        return len(view)


class BucketPlace:
    """A bucket, by pyarrow."""

    def __init__(self, root: str, parameters: dict[str, str]) -> None:
        self.root = root
        self._parameters = parameters
        self._opened: Any = None

    @property
    def _fs(self) -> Any:
        if self._opened is None:
            self._opened = _open_s3(self._parameters)
        return self._opened

    @contextmanager
    def create(self, name: str) -> Iterator[Output]:
        path = self.path_of(name)
        try:
            # Leaving the block by an exception may leave part of the object, which no manifest
            # lists: the next attempt replaces it.
            with self._fs.open_output_stream(path) as stream:
                yield stream
        except OSError as error:
            raise ArchiveError(f"cannot write {path}: {_brief(error)}") from error

    def read(self, name: str) -> bytes:
        path = self.path_of(name)
        try:
            with self._fs.open_input_stream(path) as stream:
                content: bytes = stream.read()
            return content
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArchiveError(f"cannot read {path}: {_brief(error)}") from error

    def open(self, name: str) -> Any:
        path = self.path_of(name)
        try:
            return self._fs.open_input_file(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArchiveError(f"cannot read {path}: {_brief(error)}") from error

    def size(self, name: str) -> int | None:
        from pyarrow.fs import FileType

        info = self._info(name)
        return int(info.size) if info.type == FileType.File else None

    def _info(self, name: str) -> Any:
        try:
            return self._fs.get_file_info(self.path_of(name))
        except OSError as error:
            raise ArchiveError(f"cannot read {self.path_of(name)}: {_brief(error)}") from error

    def list(self, directory: str) -> list[str]:
        from pyarrow.fs import FileSelector

        path = self.path_of(directory).rstrip("/")
        try:
            found = self._fs.get_file_info(FileSelector(path, allow_not_found=True))
        except OSError as error:
            raise ArchiveError(f"cannot list {path}: {_brief(error)}") from error
        return sorted(info.base_name for info in found)

    def delete(self, name: str) -> None:
        try:
            self._fs.delete_file(self.path_of(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ArchiveError(f"cannot delete {self.path_of(name)}: {_brief(error)}") from error

    def delete_directory(self, directory: str) -> None:
        path = self.path_of(directory)
        try:
            self._fs.delete_dir(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ArchiveError(f"cannot delete {path}: {_brief(error)}") from error

    def path_of(self, name: str) -> str:
        return f"{self.root}/{name}"

    def arrow_filesystem(self) -> Any:
        return self._fs

    def uri_of(self, name: str) -> str:
        return f"s3://{self.path_of(name)}"

    def delta_options(self) -> dict[str, str]:
        given = self._parameters
        options = {"AWS_CONDITIONAL_PUT": "etag"}
        if "region" in given:
            options["AWS_REGION"] = given["region"]
        if "endpoint_override" in given:
            scheme = given.get("scheme", "https")
            options["AWS_ENDPOINT_URL"] = f"{scheme}://{given['endpoint_override']}"
            options["AWS_ALLOW_HTTP"] = "true" if scheme == "http" else "false"
        return options


def _open_s3(parameters: dict[str, str]) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    return S3FileSystem(
        **parameters,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        request_timeout=REQUEST_TIMEOUT_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX),
    )


def _brief(error: OSError) -> str:
    """The first line: AWS appends pages."""
    return str(error).strip().split("\n", 1)[0][:500]
