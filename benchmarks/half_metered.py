"""A broker with metrics that does not meter the requests of one client id: for `bench_metrics`.

Two processes of the same program differ by several percent in speed. So requests with and without
metrics are compared in one process.
"""

from __future__ import annotations

import sys

from millstream.broker.counters import RequestMeter
from millstream.broker.network import connection
from millstream.broker.services import RequestContext
from millstream.cli.entry import main
from millstream.protocol.apis import Api

PLAIN = "plain"


def patch() -> None:
    meter_of = connection._meter

    def only_others(api: Api, context: RequestContext) -> RequestMeter | None:
        return None if context.client_id == PLAIN else meter_of(api, context)

    connection._meter = only_others


if __name__ == "__main__":
    patch()
    main(sys.argv[1:])
