"""Many threads on one connection: a pool of workers, each asking on its own.

Run it with `python examples/threads.py`. It uses the server in NATS_URL, or starts one.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import jsclient

THREADS = 16
REQUESTS = 50  # of each thread


def square(msg: jsclient.Msg) -> None:
    msg.respond(b"%d" % int(msg.data) ** 2)


def main() -> None:
    with contextlib.ExitStack() as stack:
        url = os.environ.get("NATS_URL")
        if not url:
            url = stack.enter_context(jsclient.server.run()).url
        nc = stack.enter_context(jsclient.connect(url, name="threads"))
        nc.subscribe("square", callback=square)

        def work(first: int) -> int:
            """The sum of the squares of some numbers, asked one by one."""
            numbers = range(first, first + REQUESTS)
            answers = (nc.request("square", b"%d" % number) for number in numbers)
            return sum(int(answer.data) for answer in answers)

        with ThreadPoolExecutor(THREADS) as pool:
            total = sum(pool.map(work, range(0, THREADS * REQUESTS, REQUESTS)))
        count = THREADS * REQUESTS
        print(f"{THREADS} threads sent {count} requests on one connection")
        print(f"the squares of 0 to {count - 1} add up to {total}")


if __name__ == "__main__":
    main()
