"""Publish and subscribe: one thread measures, another one reads.

Run it with `python examples/pubsub.py`. It uses the server in NATS_URL, or starts one.
"""

import contextlib
import os
import threading

import jsclient


def measure(url: str, count: int) -> None:
    """Publishes some temperatures and then says that there are no more."""
    with jsclient.connect(url, name="sensor") as nc:
        for number in range(count):
            room = "kitchen" if number % 2 else "cellar"
            nc.publish(f"temperature.{room}", b"%d" % (18 + number))
        nc.publish("temperature.end")


def main() -> None:
    with contextlib.ExitStack() as stack:
        url = os.environ.get("NATS_URL")
        if not url:
            url = stack.enter_context(jsclient.server.run()).url
        nc = stack.enter_context(jsclient.connect(url, name="display"))

        temperatures = nc.subscribe("temperature.*")
        nc.flush()  # the server knows of the subscription before anything is published
        threading.Thread(target=measure, args=(url, 6)).start()

        for msg in temperatures:
            room = msg.subject.removeprefix("temperature.")
            if room == "end":
                break
            print(f"{room:>8}: {int(msg.data)} °C")
        print(f"{temperatures.delivered} messages read")


if __name__ == "__main__":
    main()
