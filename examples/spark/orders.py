"""A pipeline from end to end: `make pipeline`, or `python examples/spark/orders.py`.

Orders are generated and published to a stream; the pipeline in orders.toml writes them
to files and publishes what it finds out to other streams; here the result is shown, and
compared with what was ordered. It uses the server in NATS_URL, which needs JetStream,
or starts one.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet
import shop

import jsclient
from jsclient.__main__ import main as command_line

PIPELINE = Path(__file__).with_name("orders.toml")


def show(js: jsclient.JetStream, folder: str, count: int) -> bool:
    """Prints what the pipeline has made; whether it is all there, and each once."""
    table = pyarrow.parquet.read_table(f"{folder}/lines", columns=["id", "cents"])
    ids = table.column("id").to_pylist()
    print(f"files: {len(ids):,} orders")
    is_right = sorted(ids) == list(range(1, count + 1))

    expected = [order for order in shop.orders(count) if int(order["cents"]) > 10_000]
    news = js.stream("NEWS").info().state.messages
    print(f"NEWS: {news:,} large orders")
    is_right = is_right and news == len(expected)

    for region in shop.REGIONS:
        message = js.stream("REVENUE").get_msg(last_for=f"revenue.{region}")
        revenue = json.loads(message.data)
        print(
            f"REVENUE: {region:>4} {revenue['orders']:>9,} orders, "
            f"{revenue['cents'] / 100:>16,.2f}"
        )
        mine = [order for order in shop.orders(count) if order["region"] == region]
        is_right = is_right and revenue["cents"] == sum(int(o["cents"]) for o in mine)
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(description="a pipeline from end to end")
    parser.add_argument("--orders", type=int, default=200_000, metavar="N")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = os.environ.get("NATS_URL")
        if not url:
            url = stack.enter_context(jsclient.server.run(jetstream=True)).url
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        js = stack.enter_context(shop.open_shop(url, options.orders))
        print(f"ORDERS: {options.orders:,} orders, published and stored", flush=True)

        os.environ |= {"NATS_URL": url, "FOLDER": folder}
        status = command_line(["pipeline", "run", str(PIPELINE), "--once"])
        if status:
            return status
        is_right = show(js, folder, options.orders)
    print("all there, each once" if is_right else "this is not what was ordered")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
