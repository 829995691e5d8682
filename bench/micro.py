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
    ("nats-py", "parse"): natspy_parse,
    ("nats-py", "create"): natspy_create,
}


def main() -> None:
    client, cell, messages, size = sys.argv[1:]
    print(json.dumps(dict(WORK[client, cell](int(messages), int(size)))))


if __name__ == "__main__":
    main()
