"""Calls over topics: a price service, its callers, an error, and a call that nobody answers."""

from __future__ import annotations

import time

from millstream import Broker
from millstream.rpc import CallTimeout, Client, NoResponders, RemoteError, Request, Server

PRICES = {"apples": "2.10", "pears": "3.40"}


def price(request: Request) -> str:
    return PRICES[(request.value or b"").decode()]


def main() -> None:
    with Broker.start() as broker:
        address = broker.bootstrap_servers
        with Client(address, "prices", group="prices-servers", timeout=10) as client:
            try:
                client.call("apples")
            except NoResponders as error:
                print(f"before the server starts: {error}")
            with Server(address, "prices", price, group="prices-servers") as server:
                found = first_call(client)
                print(f"apples: {found}")
                assert found == b"2.10"
                try:
                    client.call("plums")
                except RemoteError as error:
                    print(f"plums: {error}")
                assert (server.handled, server.failed) == (1, 1)


def first_call(client: Client) -> bytes | None:
    """Retried until the server has joined its group."""
    while True:
        try:
            return client.call("apples")
        except (NoResponders, CallTimeout):
            time.sleep(0.1)


if __name__ == "__main__":
    main()
