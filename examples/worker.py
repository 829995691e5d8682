"""A work queue: a stream keeps orders, two workers share one consumer, none is lost.

Run it with `python examples/worker.py`. It uses the server in NATS_URL, which needs
JetStream, or starts one.
"""

import contextlib
import os
import threading

import jsclient

ORDERS = 100


class Kitchen:
    """Handles orders on as many threads as there are workers."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.is_all_done = threading.Event()
        self._lock = threading.Lock()

    def cook(self, msg: jsclient.Msg) -> None:
        """One order: acknowledged when it is ready, asked for again when it fails."""
        order = int(msg.data)
        if order % 10 == 7 and msg.metadata.num_delivered == 1:
            msg.nak()  # burnt: the server delivers it again
            return
        with self._lock:
            self.done.append(order)
            is_last = len(self.done) == ORDERS
        msg.ack_sync()
        if is_last:
            self.is_all_done.set()


def main() -> None:
    with contextlib.ExitStack() as stack:
        url = os.environ.get("NATS_URL")
        if not url:
            url = stack.enter_context(jsclient.server.run(jetstream=True)).url
        nc = stack.enter_context(jsclient.connect(url, name="kitchen"))
        js = nc.jetstream()
        stream = js.create_stream(
            name="KITCHEN",
            subjects=["kitchen.orders"],
            retention="workqueue",
            storage="memory",
        )
        stack.callback(stream.delete)
        orders = ((b"%d" % number) for number in range(ORDERS))
        for _ in js.publish_all(("kitchen.orders", order) for order in orders):
            pass
        print("stored:", stream.info().state.messages)

        kitchen = Kitchen()
        consumer = stream.create_consumer(durable_name="cooks")
        with consumer.consume(kitchen.cook, workers=2):
            kitchen.is_all_done.wait(10.0)
        print("cooked:", len(kitchen.done), "orders, each once:", end=" ")
        print(sorted(kitchen.done) == list(range(ORDERS)))
        print("left in the stream:", stream.info().state.messages)


if __name__ == "__main__":
    main()
