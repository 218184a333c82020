"""Who is asked for the admission of an append: only requests of producers."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.backlog.watch import Watch
from millstream.broker.replicas.admission import Admission
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.backlog.scenes import is_over, partition, produce, records, set_policy, until
from tests.broker.handlers.group_calls import commit, run
from tests.broker.serving import WireClient


def test_appends_of_the_broker_itself_are_admitted(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await commit(client, 0)
        await produce(client, records(12))
        await set_policy(server, policy="reject", bytes=10_000, groups="g")
        await until(lambda: is_over(server))
        led = partition(server)
        admission: Admission | None = led.admission
        assert isinstance(admission, Watch)
        assert not admission.is_open()
        refused = await produce(client, records())
        assert refused.error_code.value == ErrorCode.POLICY_VIOLATION
        pending = led.append(records(), acks=ACKS_ALL, internal=True)  # a coordinator's
        assert (await pending).first_offset == 12

    run(tmp_path, scenario)
