"""Messages through kio: versions are taken off at the edge."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol import messages
from tests.protocol.kio_messages import kio_request, kio_response


def test_older_request_is_read_into_the_newest_class_with_its_defaults() -> None:
    fields = {"replica_id": -1, "topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]}
    body = kio_request("list_offsets", 1, fields)
    request = messages.decode_request("list_offsets", 1, 11, body)
    assert type(request).__version__ == 11
    assert request.topics[0].partitions[0].partition_index == 3
    assert request.topics[0].partitions[0].current_leader_epoch == -1
    assert request.isolation_level == 0


def test_request_can_be_read_in_its_own_version() -> None:
    body = kio_request("list_offsets", 1, {})
    assert type(messages.decode_request_exactly("list_offsets", 1, body)).__version__ == 1


def test_response_leaves_out_what_a_version_does_not_know() -> None:
    fields = {
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 3, "offset": 5, "leader_epoch": 7, "error_code": 0}
                ],
            }
        ]
    }
    for version, has_epoch in ((1, False), (4, True)):
        body = messages.encode_response("list_offsets", version, fields)
        (partition,) = kio_response("list_offsets", version, body).topics[0].partitions
        assert partition.offset == 5
        assert getattr(partition, "leader_epoch", None) == (7 if has_epoch else None)


def test_response_takes_our_error_codes_and_plain_milliseconds() -> None:
    fields = {"throttle_time": 1500, "error_code": ErrorCode.NOT_COORDINATOR}
    body = messages.encode_response("heartbeat", 4, fields)
    read = kio_response("heartbeat", 4, body)
    assert read.error_code == ErrorCode.NOT_COORDINATOR
    assert messages.milliseconds(read.throttle_time) == 1500


def test_duration_is_given_in_milliseconds() -> None:
    assert messages.milliseconds(timedelta(seconds=1, microseconds=1999)) == 1001


def test_bytes_after_the_end_of_a_request_are_ignored_as_kafka_does() -> None:
    body = kio_request("heartbeat", 4, {"group_id": "g"})
    assert messages.decode_request("heartbeat", 4, 4, body + b"\0").group_id == "g"


@pytest.mark.parametrize("version", [2, 7])
def test_array_of_a_billion_is_refused_without_memory_for_it(version: int) -> None:
    length = b"\x3b\x9a\xca\x00" if version < 5 else b"\x81\x94\xeb\xdc\x03"
    with pytest.raises(ProtocolError, match="malformed CreateTopicsRequest"):
        messages.decode_request("create_topics", version, 7, length + b"\0" * 50)


@given(body=st.binary(max_size=100), version=st.integers(2, 7))
def test_any_bytes_are_read_or_refused(body: bytes, version: int) -> None:
    with contextlib.suppress(ProtocolError):
        messages.decode_request("create_topics", version, 7, body)


def test_messages_load_without_hypothesis() -> None:
    """kio takes Hypothesis along where it is installed; a broker should not wait for that."""
    program = (
        "import sys\n"
        "from millstream.protocol.messages import encode_response\n"
        "encode_response('heartbeat', 4, {})\n"
        "assert 'hypothesis' not in sys.modules\n"
        "import hypothesis.strategies\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


THREADS_THAT_MEET = """
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from threading import Barrier, BrokenBarrierError
from millstream.protocol.messages import is_flexible

class Meeting:
    def find_spec(self, name, path, target=None):
        if not name.startswith("kio.schema."):
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def wait_and_execute(module):
            try:
                here.wait(0.5)
                met.append(name)
            except BrokenBarrierError:
                pass
            execute(module)

        spec.loader.exec_module = wait_and_execute
        return spec

is_flexible("heartbeat", 4)  # what all need
here, met = Barrier(2), []
sys.meta_path.insert(0, Meeting())
with ThreadPoolExecutor(2) as threads:
    found = list(threads.map(is_flexible, ["metadata", "find_coordinator"], [12, 4]))
assert found == [True, True]
assert met == []
"""


def test_messages_load_in_one_thread_at_a_time() -> None:
    """Two that load packages of kio at once may find themselves in a deadlock."""
    subprocess.run([sys.executable, "-c", THREADS_THAT_MEET], check=True)
