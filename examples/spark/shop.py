"""A shop whose orders the examples of this folder read: a stream, filled with JSON."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import jsclient

REGIONS = ("eu", "us", "asia")
PRODUCTS = {"pizza": 900, "pasta": 750, "salad": 600, "wine": 2100}  # cents
SCHEMA = "id BIGINT, region STRING, product STRING, amount INT, cents BIGINT"


def orders(count: int) -> Iterator[dict[str, int | str]]:
    """The same orders whenever they are asked for."""
    chance = Random(7)
    for number in range(1, count + 1):
        product = chance.choice(list(PRODUCTS))
        amount = chance.randint(1, 5)
        yield {
            "id": number,
            "region": chance.choice(REGIONS),
            "product": product,
            "amount": amount,
            "cents": amount * PRODUCTS[product],
        }


@contextmanager
def open_shop(url: str, count: int) -> Iterator[jsclient.JetStream]:
    """The streams of the shop, with so many orders; they are deleted at the end."""
    with jsclient.connect(url, name="shop") as nc:
        js = nc.jetstream()
        streams = [
            js.create_stream(name="ORDERS", subjects=["orders.*"]),
            js.create_stream(name="NEWS", subjects=["news.*"]),
            # Of each region the newest sum is enough.
            js.create_stream(
                name="REVENUE", subjects=["revenue.*"], max_msgs_per_subject=1
            ),
        ]
        try:
            messages = (
                (f"orders.{order['region']}", json.dumps(order).encode())
                for order in orders(count)
            )
            for ack in js.publish_all(messages):
                if not isinstance(ack, jsclient.PubAck):
                    raise ack
            yield js
        finally:
            for stream in streams:
                stream.delete()
