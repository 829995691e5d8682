"""The same pipeline on a cluster: `python examples/spark/cluster.py`.

A standalone Spark master and two workers are started on this machine, each a process of
its own, from what pip has installed; the pipeline is given to them by spark-submit,
with what else stands on the command line. All of it ends with this program, whatever
happens to it.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import orders
import pyspark
import shop

import jsclient
from jsclient.spark import standalone

HERE = Path(__file__).parent
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def submit(master: str, others: list[str], env: dict[str, str]) -> int:
    """Runs the pipeline on a cluster; its exit status."""
    settings = [
        word
        for name, value in standalone.SETTINGS.items()
        for word in ("--conf", f"{name}={value}")
    ]
    program = [str(HERE / "submit.py"), str(HERE / "orders.toml"), "--once"]
    command = [str(SUBMIT), "--master", master, *settings, *others, *program]
    # The workers are on this machine: they use the same interpreter and packages.
    env = {**os.environ, **env, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(command, env=env).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="a pipeline on a cluster")
    parser.add_argument("--orders", type=int, default=200_000, metavar="N")
    parser.add_argument("--master", metavar="URL", help="of a cluster that runs")
    options, others = parser.parse_known_args()
    with contextlib.ExitStack() as stack:
        url = os.environ.get("NATS_URL")
        if not url:
            url = stack.enter_context(jsclient.server.run(jetstream=True)).url
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        js = stack.enter_context(shop.open_shop(url, options.orders))
        master = options.master
        if not master:
            master = stack.enter_context(standalone.run(workers=2)).url
            print(f"{master}: a master and two workers", flush=True)
        status = submit(master, others, {"NATS_URL": url, "FOLDER": folder})
        if status:
            return status
        is_right = orders.show(js, folder, options.orders)
    print("all there, each once" if is_right else "this is not what was ordered")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
