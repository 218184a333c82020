"""A webhook endpoint that fails for an hour: how often it is called, and that nothing is lost.

Time is a clock that this program advances, for the broker and for the bridge; the broker, the
bridge and the endpoint are real. The first requests come at once. Then each record is delayed by
the broker (5 min, doubled each time), and the endpoint is left alone in between. When it works
again it gets all orders, each with the id that it had in every attempt."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import Broker
from millstream.bridges.config import WebhookConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.signatures import standard_key, verify_standard
from millstream.bridges.webhooks.endpoint import Endpoint
from millstream.testing.clock import ManualClock

KEY = standard_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
ORDERS = [f'{{"order":{number}}}'.encode() for number in range(20)]
OUTAGE_SECONDS = 3600
STEP_MS = 20_000
QUIET_SECONDS = 0.1  # of real time, before the clock moves on
PATIENCE_SECONDS = 300
# A member of a group sends heartbeats by its own clock, every few seconds of real time.
CONFIG = {"group.share.session.timeout.ms": 86_400_000} | {
    "group.share.max.session.timeout.ms": 86_400_000
}


class Shop:
    """The endpoint: answers 500 until the hour is over."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.began_ms = clock.now_ms()
        self.failed: Counter[int] = Counter()  # requests by minute
        self.taken: dict[str, bytes] = {}
        self.ids: set[str] = set()
        self.repeated = 0
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.send_response(shop.take(headers, body))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/orders"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, headers: dict[str, str], body: bytes) -> int:
        now_ms = self.clock.now_ms()
        message_id = verify_standard(headers, body, [KEY], now_ms / 1000).id
        self.ids.add(message_id)
        if now_ms - self.began_ms < OUTAGE_SECONDS * 1000:
            self.failed[(now_ms - self.began_ms) // 60_000] += 1
            return 500
        self.repeated += message_id in self.taken
        self.taken[message_id] = body
        return 200

    def close(self) -> None:
        self._server.shutdown()


def write_orders(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result()
    producer = Producer({"bootstrap.servers": address})
    for order in ORDERS:
        producer.produce("orders", order)
    producer.flush()


def main() -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    shop, counts = Shop(clock), Counts()
    with Broker.start(config=CONFIG, clock=clock) as broker:
        address = broker.bootstrap_servers
        write_orders(address)
        loopback = ipaddress.ip_network("127.0.0.0/8")
        config = WebhookConfig(
            "shop", ("orders",), shop.url, (KEY,), (loopback,),
            dead_letters="dlq.webhooks.shop", start="earliest",
        )  # fmt: skip
        client = {"bootstrap.servers": address}
        endpoint = Endpoint(config, client, counts, again_seconds=0, poll_seconds=0.05, clock=clock)
        endpoint.start()
        until = time.monotonic() + PATIENCE_SECONDS
        while not shop.ids:  # the first request
            assert time.monotonic() < until, "no request came"
            time.sleep(0.05)
        seen = -1
        while len(shop.taken) < len(ORDERS):
            assert time.monotonic() < until, f"{len(shop.taken)} of {len(ORDERS)} orders came"
            if (requests := counts.of("webhook_attempts")) == seen:
                clock.advance(STEP_MS)  # nothing more happens at this time
            seen = requests
            time.sleep(QUIET_SECONDS)
        endpoint.stop()
    shop.close()
    hours = (clock.now_ms() - shop.began_ms) / 3_600_000
    print("failed requests by minute:", dict(sorted(shop.failed.items())))
    print(f"{sum(shop.failed.values())} failed requests in an hour for {len(ORDERS)} orders")
    print(f"all {len(shop.taken)} orders were taken {hours:.1f} hours after the first request")
    assert sorted(shop.taken.values()) == sorted(ORDERS)
    assert shop.ids == shop.taken.keys(), "an id changed between attempts"
    assert sum(shop.failed.values()) <= 10 * len(ORDERS)
    assert counts.of("webhook_pauses") > 0


if __name__ == "__main__":
    main()
