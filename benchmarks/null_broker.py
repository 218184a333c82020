"""A broker that answers and stores nothing: how fast the clients themselves can go.

It knows just enough for a producer: ApiVersions, Metadata, CreateTopics, Produce up to version 8.
Records are not even looked at. `python -m benchmarks.null_broker PORT`
"""

from __future__ import annotations

import asyncio
import struct
import sys
import uuid
from typing import Any

import uvloop

from millstream.errors import ErrorCode
from millstream.protocol.messages import Fields, decode_request, encode_response

VERSIONS = {0: ("produce", 3, 8), 3: ("metadata", 1, 8), 18: ("api_versions", 0, 2)}
VERSIONS |= {19: ("create_topics", 2, 4), 1: ("fetch", 4, 11), 2: ("list_offsets", 1, 5)}


class NullBroker(asyncio.Protocol):
    topics: dict[str, int] = {}  # noqa: RUF012 - one broker per process, shared by its connections
    port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        position, answers = 0, []
        while len(self.buffer) - position >= 4:
            (size,) = struct.unpack_from(">i", self.buffer, position)
            if len(self.buffer) - position - 4 < size:
                break
            frame = bytes(self.buffer[position + 4 : position + 4 + min(size, 4096)])
            answer = self.answer(frame, size)
            if answer:
                answers.append(struct.pack(">i", len(answer)) + answer)
            position += 4 + size
        del self.buffer[:position]
        if answers:
            self.transport.write(b"".join(answers))

    def answer(self, frame: bytes, size: int) -> bytes:
        api_key, version, correlation, client_bytes = struct.unpack_from(">hhih", frame)
        body = frame[10 + max(0, client_bytes) :]
        head = struct.pack(">i", correlation)
        if api_key == 0:
            return head + _produced(body, version)
        name, low, high = VERSIONS.get(api_key, ("", 0, -1))
        if not low <= version <= high:
            return head + encode_response(
                "api_versions", 0, _api_versions(ErrorCode.UNSUPPORTED_VERSION)
            )
        return head + encode_response(name, version, self.fields(name, version, high, body))

    def fields(self, name: str, version: int, newest: int, body: bytes) -> Fields:
        if name == "api_versions":
            return _api_versions(ErrorCode.NONE)
        request = decode_request(name, version, newest, body)
        if name == "create_topics":
            self.topics.update({t.name: t.num_partitions for t in request.topics})
            return {
                "topics": [{"name": t.name, "error_code": ErrorCode.NONE} for t in request.topics]
            }
        node = {"node_id": 1, "host": "127.0.0.1", "port": self.port}
        topics = [_topic(name, count) for name, count in self.topics.items()]
        return {"brokers": [node], "cluster_id": "null", "controller_id": 1, "topics": topics}


def _produced(body: bytes, version: int) -> bytes:
    """An answer to the one topic and partition that a benchmark's request holds."""
    (transactional,) = struct.unpack_from(">h", body)
    position = 2 + max(0, transactional) + 6 + 4
    (name_bytes,) = struct.unpack_from(">h", body, position)
    name = body[position : position + 2 + name_bytes]
    partition = body[position + 2 + name_bytes + 4 : position + 2 + name_bytes + 8]
    answer = b"\0\0\0\1" + name + b"\0\0\0\1" + partition + struct.pack(">hqq", 0, 0, -1)
    if version >= 5:
        answer += struct.pack(">q", 0)
    if version >= 8:
        answer += struct.pack(">ih", 0, -1)
    return answer + struct.pack(">i", 0)


def _api_versions(error: ErrorCode) -> Fields:
    keys = [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (_, low, high) in VERSIONS.items()
    ]
    return {"error_code": error, "api_keys": keys}


def _topic(name: str, partitions: int) -> Fields:
    return {
        "error_code": ErrorCode.NONE,
        "name": name,
        "topic_id": uuid.UUID(int=1),
        "partitions": [
            {
                "error_code": ErrorCode.NONE,
                "partition_index": index,
                "leader_id": 1,
                "leader_epoch": 0,
                "replica_nodes": [1],
                "isr_nodes": [1],
            }
            for index in range(partitions)
        ],
    }


async def serve(port: int) -> None:
    NullBroker.port = port
    loop = asyncio.get_running_loop()
    server = await loop.create_server(NullBroker, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
