"""ApiVersions, v0-4: the supported APIs and versions.

* v1: throttle time
* v3: flexible; client software name and version (KIP-511); features (KIP-584)
* v4: a feature's minimum version may be 0

The response header is version 0 always, and a request in a version not known here is answered in v0
with UNSUPPORTED_VERSION and the versions, so that a client of the future can step down. The name
and version of the client software are checked, as in Kafka, and stored with the connection.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct

from millstream.broker.services import RequestContext
from millstream.coordination.cluster_features import SUPPORTED_FEATURES
from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.apis import APIS, TELEMETRY_APIS, Api
from millstream.protocol.wire import (
    INT16,
    INT64,
    NO_TAGS,
    Buffer,
    read_string,
    skip_tags,
    write_array_length,
    write_nullable_string,
    write_tags,
)

_VERSION_RANGE = Struct(">hhh")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(context: RequestContext, body: Buffer) -> bytes:
    version = context.api_version
    error = ErrorCode.NONE
    if version >= 3:
        name, software_version = _client_software(body)
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version)):
            error = ErrorCode.INVALID_REQUEST
        else:
            context.client.software = f"{name} {software_version}"
    image = context.services.metadata.image
    finalized = tuple(sorted(feature for feature in image.features.items() if feature[1] > 0))
    with_telemetry = context.services.telemetry is not None
    return encode(version, error, image.version, finalized, with_telemetry)


def encode_unsupported_version() -> bytes:
    """The answer to ApiVersions in an unsupported version."""
    return encode(0, ErrorCode.UNSUPPORTED_VERSION, 0, ())


@lru_cache(maxsize=32)
def encode(
    version: int,
    error: ErrorCode,
    epoch: int,
    finalized: tuple[tuple[str, int], ...],
    with_telemetry: bool = False,
) -> bytes:
    """The response body: constant as long as the finalized features are."""
    flexible = version >= 3
    tags = NO_TAGS if flexible else b""
    ranges = [
        _VERSION_RANGE.pack(key, _advertised_min(APIS[key]), APIS[key].max_version) + tags
        for key in sorted(APIS)
        if with_telemetry or key not in TELEMETRY_APIS
    ]
    parts = [INT16.pack(error), write_array_length(len(ranges), compact=flexible), *ranges]
    if version >= 1:
        parts.append(b"\0\0\0\0")  # throttle time
    if flexible:
        parts.append(_feature_tags(version, epoch, finalized))
    return b"".join(parts)


def _advertised_min(entry: Api) -> int:
    return entry.min_version if entry.advertised_min is None else entry.advertised_min


def _client_software(body: Buffer) -> tuple[str, str]:
    try:
        name, position = read_string(body, 0, compact=True)
        version, position = read_string(body, position, compact=True)
        skip_tags(body, position)
    except IndexError:
        raise ProtocolError("malformed ApiVersionsRequest: truncated") from None
    return name, version


def _feature_tags(version: int, epoch: int, finalized: tuple[tuple[str, int], ...]) -> bytes:
    # Before v4 a supported feature whose minimum is 0 must be left out (KAFKA-17011).
    supported = [
        _feature(feature.name, feature.min_supported_version, feature.max_supported_version)
        for feature in SUPPORTED_FEATURES
        if version >= 4 or feature.min_supported_version > 0
    ]
    levels = [_feature(name, level, level) for name, level in finalized]
    return write_tags({0: _array(supported), 1: INT64.pack(epoch), 2: _array(levels)})


def _feature(name: str, first: int, second: int) -> bytes:
    levels = INT16.pack(first) + INT16.pack(second)
    return write_nullable_string(name, compact=True) + levels + NO_TAGS


def _array(elements: list[bytes]) -> bytes:
    return write_array_length(len(elements), compact=True) + b"".join(elements)
