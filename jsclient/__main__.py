"""The command line: `jsclient` gives help, and so does `python -m jsclient`.

`jsclient demo` starts a nats-server of its own and uses nothing but the public names;
`jsclient pipeline run` runs a pipeline on Spark.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles

import jsclient
from jsclient import Connection, JetStream, Msg, server

SIZE = 128  # bytes of a payload
REQUESTS = 10_000

# A machine with few cores may publish faster than it reads: the server holds the rest.
SERVER_CONFIG = "max_pending: 1GB"


PIPELINE_ENDS = (
    "The exit status is 0 after a clean end, also when Ctrl-C or SIGTERM asked for it; "
    "1 if the pipeline failed, 2 if its file is wrong, 3 if messages were gone "
    "from their stream before they were read, and 130 if Ctrl-C came while Spark was "
    "starting, or a second time."
)


class Progress:
    """One line of the terminal, written again and again; elsewhere only its end."""

    PERIOD = 0.1

    def __init__(self, total: int, unit: str) -> None:
        self._total = total
        self._unit = unit
        self._start = time.perf_counter()
        self._due = 0.0
        self._is_live = sys.stdout.isatty()

    def show(self, count: int) -> None:
        """Shows how far we are, if it is time to."""
        now = time.perf_counter()
        if self._is_live and now >= self._due:
            self._due = now + self.PERIOD
            print(f"\r  {self._text(count, now)}", end="", flush=True)

    def end(self, remark: str) -> None:
        """Replaces the line by the final one."""
        text = self._text(self._total, time.perf_counter())
        print(f"{chr(13) if self._is_live else ''}  {text}, {remark}", flush=True)

    def _text(self, count: int, now: float) -> str:
        rate = count / max(now - self._start, 1e-9)
        return f"{count:>9,} of {self._total:,} {self._unit}, {rate:>9,.0f}/s"


def stream(publisher: Connection, subscriber: Connection, count: int) -> None:
    """Publishes numbered messages on one connection and reads them on another."""
    numbers = subscriber.subscribe("demo.numbers")
    numbers.unsubscribe(limit=count)  # the loop below ends after so many
    subscriber.flush()

    def publish() -> None:
        try:
            for number in range(count):
                publisher.publish("demo.numbers", b"%0*d" % (SIZE, number))
            publisher.flush()
        except jsclient.ConnectionClosedError:
            return  # the demo was interrupted

    progress = Progress(count, "messages")
    thread = threading.Thread(target=publish, name="demo-publisher", daemon=True)
    thread.start()
    expected = 0
    for msg in numbers.messages(timeout=10.0):
        if int(msg.data) != expected:
            raise jsclient.Error(f"message {expected} is missing")
        expected += 1
        if not expected & 1023:
            progress.show(expected)
    if expected != count:
        raise jsclient.Error(f"only {expected:,} of {count:,} messages came")
    thread.join()
    progress.end("all there and in order")


def store(js: JetStream, count: int) -> None:
    """Publishes messages to a stream, each acknowledged, as one pipeline."""
    progress = Progress(count, "messages")
    payload = bytes(SIZE)
    stored = 0
    for ack in js.publish_all(("demo.orders", payload) for _ in range(count)):
        if not isinstance(ack, jsclient.PubAck):
            raise ack
        stored = ack.seq
        if not stored & 1023:
            progress.show(stored)
    if stored != count:
        raise jsclient.Error(f"only {stored:,} of {count:,} messages are stored")
    progress.end("published and stored")


def consume(js: JetStream, count: int) -> None:
    """Reads them again through a consumer and acknowledges each."""
    consumer = js.create_consumer("DEMO", durable_name="demo", max_ack_pending=-1)
    progress = Progress(count, "messages")
    expected = 0
    with consumer.messages(stop_after=count) as messages:
        for msg in messages:
            expected += 1
            msg.ack()
            if not expected & 1023:
                progress.show(expected)
                if msg.metadata.stream_seq != expected:
                    raise jsclient.Error(f"message {expected} is missing")
    if expected != count:
        raise jsclient.Error(f"only {expected:,} of {count:,} messages came")
    progress.end("consumed and acknowledged")


def ask(client: Connection, service: Connection, count: int) -> None:
    """Sends requests one after another and measures how long each answer takes."""

    def answer(msg: Msg) -> None:
        msg.respond(msg.data.upper())

    with service.subscribe("demo.upper", queue="workers", callback=answer):
        service.flush()
        progress = Progress(count, "requests")
        took = []
        for number in range(1, count + 1):
            start = time.perf_counter()
            client.request("demo.upper", b"ping")
            took.append(time.perf_counter() - start)
            if not number & 63:
                progress.show(number)
    p50, p99 = median(took), quantiles(took, n=100)[-1]
    progress.end(f"p50 {p50 * 1e6:.0f} µs, p99 {p99 * 1e6:.0f} µs")


def survive(client: Connection, local: server.Server) -> None:
    """Kills the server under a subscription, which goes on when it is back."""
    lost, back = threading.Event(), threading.Event()

    def on_event(event: jsclient.Event) -> None:
        if isinstance(event, jsclient.Disconnected):
            lost.set()
        elif isinstance(event, jsclient.Reconnected):
            back.set()

    client.on_event = on_event
    news = client.subscribe("demo.news")
    client.flush()
    local.kill()
    if not lost.wait(10.0):
        raise jsclient.Error("the loss of the server went unnoticed")
    client.publish("demo.news", b"written while the server was down")
    start = time.perf_counter()
    local.restart()
    if not back.wait(10.0):
        raise jsclient.Error("the connection did not come back")
    text = news.next(timeout=10.0).data.decode()
    took = time.perf_counter() - start
    print(f"  back {took * 1000:.0f} ms after the restart began; arrived: {text!r}")


def demo(count: int) -> None:
    """The whole demo."""
    began = time.perf_counter()
    with server.run(jetstream=True, config=SERVER_CONFIG) as local:
        ready = time.perf_counter() - began
        print(
            f"nats-server {local.version} runs at {local.url} ({ready * 1000:.0f} ms)"
        )
        with (
            jsclient.connect(local.url, name="demo-a", reconnect_wait=0.05) as one,
            jsclient.connect(local.url, name="demo-b", reconnect_wait=0.05) as other,
        ):
            print(f"a stream and its consumer, {SIZE} bytes each:")
            js = one.jetstream()
            js.create_stream(name="DEMO", subjects=["demo.orders"], storage="memory")
            store(js, count)
            consume(js, count)
            print(f"publish and subscribe, {SIZE} bytes each:")
            stream(one, other, count)
            print("request and reply, one at a time:")
            ask(one, other, REQUESTS)
            print("the server is killed and started again:")
            survive(other, local)
    print(f"done in {time.perf_counter() - began:.1f} s; the server is gone again")


@contextmanager
def quiet_log() -> Iterator[None]:
    """The demo kills its server on purpose: the log need not warn of it."""
    logger = logging.getLogger("jsclient")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def run_demo(options: argparse.Namespace) -> int:
    """`jsclient demo`."""
    try:
        with quiet_log():
            demo(options.messages)
    except KeyboardInterrupt:
        print("\ninterrupted; connections closed and the server stopped")
        return 130
    except jsclient.Error as error:
        print(f"jsclient: {error}", file=sys.stderr)
        return 1
    return 0


def run_pipeline(options: argparse.Namespace) -> int:
    """`jsclient pipeline run`."""
    from jsclient.spark.pipeline import command

    try:
        return command.main(options)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """What `jsclient pipeline run` understands."""
    parser.add_argument("file", help="a TOML file that describes the pipeline")
    parser.add_argument(
        "--validate",
        action="store_true",
        help="check the file and its streams, print the columns of its tables, and "
        "run nothing",
    )
    parser.add_argument(
        "--once", action="store_true", help="handle what is there now, then end"
    )
    parser.add_argument(
        "--master", metavar="URL", help="where to run: local[2], spark://..., sc://..."
    )
    parser.add_argument(
        "--log", metavar="FILE", help="append a JSON line for each batch to this file"
    )


def positive(text: str) -> int:
    """A count of messages."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit status is that of the process."""
    parser = argparse.ArgumentParser(
        prog="jsclient",
        description="A blocking, thread-safe NATS and JetStream client.",
    )
    parser.set_defaults(run=None)
    parser.add_argument(
        "--version", action="version", version=f"jsclient {jsclient.__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    shown = commands.add_parser(
        "demo", help="publish, subscribe, request and reconnect"
    )
    shown.add_argument(
        "--messages", type=positive, default=500_000, metavar="N", help="default 500000"
    )
    shown.set_defaults(run=run_demo)
    pipeline = commands.add_parser("pipeline", help="pipelines on Spark")
    actions = pipeline.add_subparsers(metavar="ACTION", required=True)
    pipeline_run = actions.add_parser(
        "run", help="run a pipeline, or check it", epilog=PIPELINE_ENDS
    )
    add_pipeline_arguments(pipeline_run)
    pipeline_run.set_defaults(run=run_pipeline)
    options = parser.parse_args(argv)
    if options.run is None:
        parser.print_help()
        return 0
    status: int = options.run(options)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
