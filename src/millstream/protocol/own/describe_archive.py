"""DescribeArchive v0: what is archived of the partitions that a broker leads, and how far that is
behind.

Sent to every broker. Without topics it answers for all that it leads and the client may describe.
A broker cannot answer sizes and times before it has read the manifest: they are -1 then.

Without postponed annotations: kio wants the types themselves.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta, i64

KEY = i16(20001)
VERSION = i16(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeArchiveRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = VERSION
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = KEY
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    topics: tuple[TopicName, ...] | None = field(metadata={"kafka_type": "string"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePartition:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = VERSION
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = KEY
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    start_offset: i64 = field(metadata={"kafka_type": "int64"})
    end_offset: i64 = field(metadata={"kafka_type": "int64"})
    local_start_offset: i64 = field(metadata={"kafka_type": "int64"})
    log_end_offset: i64 = field(metadata={"kafka_type": "int64"})
    files: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))
    records: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    size_bytes: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    segment_bytes: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    lag_bytes: i64 = field(metadata={"kafka_type": "int64"}, default=i64(0))
    newest_ms: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    archived_ms: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    problem: str | None = field(metadata={"kafka_type": "string"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTopic:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = VERSION
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = KEY
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    topic_name: TopicName = field(metadata={"kafka_type": "string"})
    partitions: tuple[ResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeArchiveResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = VERSION
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = KEY
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    topics: tuple[ResponseTopic, ...]
