"""The cells `parse` and `create` of the Python clients: no server and no socket.

Called as `python -m bench.micro CLIENT CELL MESSAGES SIZE`. Each client gets the same
MSG frames in blocks as large as one of its own reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping

from bench.peers.meter import SUBJECT, Meter

Sample = Mapping[str, float]


def block(read_size: int, size: int) -> tuple[bytes, int]:
    """Whole MSG frames that fill one read, and how many they are."""
    frame = b"MSG %s 1 %d\r\n%s\r\n" % (SUBJECT.encode(), size, b"x" * size)
    count = max(read_size // len(frame), 1)
    return frame * count, count


def jsclient_parse(messages: int, size: int) -> Sample:
    """jsclient's parser up to a route that lets every message fall.

    `feed` also copies the block into the parser's buffer, as a receive would.
    """
    from jsclient._core import Parser, Route, Routes

    data, count = block(64 * 1024, size)
    routes = Routes()
    routes.add(1, Route())
    feed = Parser(routes).feed
    rounds = -(-messages // count)
    meter = Meter()
    for _ in range(rounds):
        feed(data)
    return meter.sample(rounds * count)


def jsclient_create(messages: int, size: int) -> Sample:
    """What it adds to parsing to make the messages, queue them and free them again."""
    from jsclient._core import Inbox, Parser, Routes

    data, count = block(64 * 1024, size)
    routes = Routes()
    inbox = Inbox()
    routes.add(1, inbox)
    feed, clear = Parser(routes).feed, inbox.clear
    rounds = -(-messages // count)
    meter = Meter()
    for _ in range(rounds):
        feed(data)
        clear()
    both = meter.sample(rounds * count)
    parsing = jsclient_parse(messages, size)
    added = {name: both[name] - parsing[name] for name in both}
    return added | {"messages": both["messages"]}


def jsclient_gaps(messages: int, size: int) -> Sample:
    """What it adds to parsing and keeping deliveries to look for gaps between them."""
    from jsclient._core import Courier, Outbox, Parser, PushInbox, Routes

    count = 400
    frames = (
        b"MSG %s 1 $JS.ACK.BENCH.push.1.%d.%d.1794822688406701443.0 %d\r\n%s\r\n"
        % (SUBJECT.encode(), number, number, size, b"x" * size)
        for number in range(1_000_000, 1_000_000 + count)
    )
    data = b"".join(frames)
    # Nothing is acknowledged or answered here, so it turns to nobody.
    courier = Courier(None, Outbox(1, 1))  # type: ignore[arg-type]
    rounds = -(-messages // count)

    def used(*, checks_gaps: bool) -> Sample:
        meter = Meter()
        for _ in range(rounds):
            routes = Routes()
            inbox = PushInbox(courier, checks_gaps=checks_gaps)
            routes.add(1, inbox)
            Parser(routes).feed(data)
        return meter.sample(rounds * count)

    with_checks, without = used(checks_gaps=True), used(checks_gaps=False)
    added = {name: with_checks[name] - without[name] for name in without}
    return added | {"messages": without["messages"]}


def natspy_parse(messages: int, size: int) -> Sample:
    """nats-py's parser up to the call that would make and route the message."""
    from nats.protocol.parser import Parser

    class Client:
        arrived = 0

        async def _process_msg(self, *_: object) -> None:
            self.arrived += 1

    data, count = block(32 * 1024, size)
    client = Client()
    parser = Parser(client)

    async def parse() -> Sample:
        meter = Meter()
        for _ in range(-(-messages // count)):
            await parser.parse(data)
        return meter.sample(client.arrived)

    return asyncio.run(parse())


def natspy_create(messages: int, size: int) -> Sample:
    """nats-py's message object from the fields of a parsed frame."""
    from nats.aio.client import Client

    build = Client()._build_message
    subject, payload = SUBJECT.encode(), b"x" * size
    meter = Meter()
    for _ in range(messages):
        build(1, subject, b"", payload, None)
    return meter.sample(messages)


WORK: dict[tuple[str, str], Callable[[int, int], Sample]] = {
    ("jsclient", "parse"): jsclient_parse,
    ("jsclient", "create"): jsclient_create,
    ("jsclient", "gaps"): jsclient_gaps,
    ("nats-py", "parse"): natspy_parse,
    ("nats-py", "create"): natspy_create,
}


def main() -> None:
    client, cell, messages, size = sys.argv[1:]
    print(json.dumps(dict(WORK[client, cell](int(messages), int(size)))))


if __name__ == "__main__":
    main()
