"""ApiVersions, v0-4: what this broker speaks, straight from the registry of handlers.

* v1: throttle time
* v3: flexible; client software name and version (KIP-511); features (KIP-584)
* v4: a feature's minimum version may be 0

The response header is version 0 always, and a request in a version not known here is answered in v0
with UNSUPPORTED_VERSION and the versions, so that a client of the future can step down. The client
software's name is checked, as Kafka does, and not kept.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct

from millstream.broker.context import RequestContext
from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.apis import APIS, Api, api
from millstream.protocol.headers import API_VERSIONS_KEY
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

Feature = tuple[str, int, int]  # name, lowest level, highest level

# What Kafka 4.3 would say of itself, less what is not done here (transactions, share groups).
METADATA_VERSION_LEVEL_MIN = 7  # 3.3-IV3, the oldest that KRaft in 4.x still reads
METADATA_VERSION_LEVEL = 30  # 4.3-IV0
SUPPORTED_FEATURES: tuple[Feature, ...] = (
    ("group.version", 0, 1),
    ("metadata.version", METADATA_VERSION_LEVEL_MIN, METADATA_VERSION_LEVEL),
)
FINALIZED_FEATURES: tuple[Feature, ...] = (
    ("group.version", 1, 1),
    ("metadata.version", METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL),
)

_VERSION_RANGE = Struct(">hhh")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@api(API_VERSIONS_KEY, "api_versions", versions=(0, 4), first_flexible=3, raw=True)
def api_versions(context: RequestContext, body: Buffer) -> bytes:
    version = context.api_version
    error = ErrorCode.NONE
    if version >= 3:
        name, software_version = _client_software(body)
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version)):
            error = ErrorCode.INVALID_REQUEST
    return encode(version, error)


def encode_unsupported_version() -> bytes:
    """The answer to ApiVersions in a version that is not spoken here."""
    return encode(0, ErrorCode.UNSUPPORTED_VERSION)


@lru_cache(maxsize=16)
def encode(version: int, error: ErrorCode) -> bytes:
    """The response body: constant once the handlers are loaded."""
    flexible = version >= 3
    tags = NO_TAGS if flexible else b""
    ranges = [
        _VERSION_RANGE.pack(key, _advertised_min(APIS[key]), APIS[key].max_version) + tags
        for key in sorted(APIS)
    ]
    parts = [INT16.pack(error), write_array_length(len(ranges), compact=flexible), *ranges]
    if version >= 1:
        parts.append(b"\0\0\0\0")  # throttle time
    if flexible:
        parts.append(_feature_tags(version))
    return b"".join(parts)


def _advertised_min(entry: Api) -> int:
    return entry.min_version if entry.advertised_min is None else entry.advertised_min


def _client_software(body: Buffer) -> tuple[str, str]:
    try:
        name, position = read_string(body, 0, compact=True)
        version, position = read_string(body, position, compact=True)
        skip_tags(body, position)
    except IndexError:
        raise ProtocolError("not an ApiVersionsRequest: it ends too early") from None
    return name, version


def _feature_tags(version: int) -> bytes:
    # Before v4 a supported feature whose minimum is 0 must be left out (KAFKA-17011).
    supported = [f for f in SUPPORTED_FEATURES if version >= 4 or f[1] > 0]
    return write_tags(
        {
            0: _features(supported, highest_first=False),
            1: INT64.pack(0),  # the epoch of the finalized features
            2: _features(FINALIZED_FEATURES, highest_first=True),
        }
    )


def _features(features: list[Feature] | tuple[Feature, ...], *, highest_first: bool) -> bytes:
    parts = [write_array_length(len(features), compact=True)]
    for name, low, high in features:
        levels = (high, low) if highest_first else (low, high)
        parts += (
            write_nullable_string(name, compact=True),
            INT16.pack(levels[0]),
            INT16.pack(levels[1]),
            NO_TAGS,
        )
    return b"".join(parts)
