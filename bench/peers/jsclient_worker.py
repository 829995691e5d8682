"""Runs one cell with jsclient."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping
from functools import partial
from itertools import islice, repeat
from time import perf_counter

import jsclient
from jsclient.columns import Column, Offsets, Rows

from .meter import (
    ACK_EACH,
    ACK_NONE,
    FETCH,
    NO_LIMIT,
    SERVICE,
    STORED,
    STREAM,
    SUBJECT,
    THREADS,
    WINDOW,
    Job,
    Memory,
    Meter,
    check_size,
    latency_sample,
    main,
    say_ready,
)

Sample = Mapping[str, float]
ROWS = 10_000  # of one batch


def subscribe(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        sub = nc.subscribe(
            SUBJECT, max_pending_messages=NO_LIMIT, max_pending_bytes=NO_LIMIT
        )
        nc.flush()
        messages = iter(sub)
        memory = Memory()
        say_ready()
        total = len(next(messages).data)
        meter = Meter()
        for msg in islice(messages, job.messages - 1):
            total += len(msg.data)
        sample = meter.sample(job.messages)
        check_size(total, job)
        return sample | memory.sample()


def hold(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        sub = nc.subscribe(
            SUBJECT, max_pending_messages=NO_LIMIT, max_pending_bytes=NO_LIMIT
        )
        nc.flush()
        messages = iter(sub)
        held: list[jsclient.Msg | None] = [None] * job.messages
        memory = Memory()
        say_ready()
        held[0] = next(messages)
        meter = Meter()
        for i in range(1, job.messages):
            held[i] = next(messages)
        sample = meter.sample(job.messages) | memory.sample()
        check_size(sum(len(msg.data) for msg in held if msg is not None), job)
        return sample


def publish(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        payload = b"x" * job.size
        nc.request(SERVICE, payload, timeout=10.0)
        meter = Meter()
        for _ in range(job.messages):
            nc.publish(SUBJECT, payload)
        nc.request(SERVICE, payload, timeout=10.0)
        return meter.sample(job.messages)


def request(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        payload = b"x" * job.size
        latencies: list[float] = []
        nc.request(SERVICE, payload, timeout=10.0)
        meter = Meter()
        request_in_turn(nc, payload, job.messages, latencies)
        return meter.sample(job.messages) | latency_sample(latencies)


def request_from_threads(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        payload = b"x" * job.size
        latencies: list[list[float]] = [[] for _ in range(THREADS)]
        nc.request(SERVICE, payload, timeout=10.0)
        start = threading.Barrier(THREADS + 1)

        def call(mine: list[float]) -> None:
            start.wait()
            request_in_turn(nc, payload, job.messages // THREADS, mine)

        threads = [threading.Thread(target=call, args=(mine,)) for mine in latencies]
        for thread in threads:
            thread.start()
        meter = Meter()
        start.wait()
        for thread in threads:
            thread.join()
        gathered = [latency for mine in latencies for latency in mine]
        sample = meter.sample(len(gathered))
        if len(gathered) != job.messages // THREADS * THREADS:
            raise SystemExit("a thread ended before its requests were done")
        return sample | latency_sample(gathered)


def store(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        js = nc.jetstream()
        payload = b"x" * job.size
        latencies: list[float] = []
        js.publish(STORED, payload)
        meter = Meter()
        for seq in range(2, job.messages + 2):
            start = perf_counter()
            ack = js.publish(STORED, payload)
            latencies.append(perf_counter() - start)
            assert ack.seq == seq
        return meter.sample(job.messages) | latency_sample(latencies)


def store_with_futures(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        js = nc.jetstream(max_pending=WINDOW)
        payload = b"x" * job.size
        js.publish_async(STORED, payload).result(10.0)
        meter = Meter()
        for _ in range(job.messages):
            future = js.publish_async(STORED, payload)
        js.flush_publishes()
        sample = meter.sample(job.messages)
        assert future.result(0).seq == job.messages + 1
        return sample


def store_all(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        js = nc.jetstream()
        payload = b"x" * job.size
        js.publish(STORED, payload)
        meter = Meter()
        messages = repeat((STORED, payload), job.messages)
        count = sum(1 for _ in js.publish_all(messages, window=WINDOW))
        assert count == job.messages
        return meter.sample(job.messages)


def store_columns(job: Job) -> Sample:
    batches = [
        numbered_rows(first, min(ROWS, job.messages - first), job.size)
        for first in range(0, job.messages, ROWS)
    ]
    with jsclient.connect(job.url) as nc:
        js = nc.jetstream()
        js.publish(STORED, b"x" * job.size)
        meter = Meter()
        published = js.publish_columns(
            batches, content_ids="bench-0-0-", expected_stream=STREAM, window=WINDOW
        )
        assert published.stored == job.messages
        return meter.sample(job.messages)


def numbered_rows(first: int, count: int, size: int) -> Rows:
    """Rows of different content, on plain buffers."""
    payloads = b"".join(b"%0*d" % (size, first + row) for row in range(count))
    places = array("i", range(0, (count + 1) * size, size))
    return Rows(count, Column(Offsets(places, count), payloads), STORED)


def consume(job: Job, limit: int) -> Sample:
    with jsclient.connect(job.url) as nc:
        consumer = nc.jetstream().consumer(STREAM, ACK_NONE)
        total = 0
        meter = Meter()
        with consumer.messages(limit, stop_after=job.messages) as messages:
            for msg in messages:
                total += len(msg.data)
        sample = meter.sample(job.messages)
        check_size(total, job)
        return sample


def consume_and_ack(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        consumer = nc.jetstream().consumer(STREAM, ACK_EACH)
        total = 0
        meter = Meter()
        with consumer.messages(500, stop_after=job.messages) as messages:
            for msg in messages:
                total += len(msg.data)
                msg.ack()
        nc.flush()
        sample = meter.sample(job.messages)
        check_size(total, job)
        return sample


def consume_batches(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        consumer = nc.jetstream().consumer(STREAM, ACK_NONE)
        total = 0
        meter = Meter()
        with consumer.batches(5000, stop_after=job.messages) as batches:
            for batch in batches:
                total += len(batch.data)
        sample = meter.sample(job.messages)
        check_size(total, job)
        return sample


def consume_pushed(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        js = nc.jetstream()
        total = 0
        meter = Meter()
        with js.subscribe(
            STORED,
            stream=STREAM,
            ack_policy="none",
            mem_storage=True,
            flow_control=True,
            idle_heartbeat=5.0,
        ) as sub:
            for msg in islice(sub, job.messages):
                total += len(msg.data)
            sample = meter.sample(job.messages)
        check_size(total, job)
        return sample


def fetch(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        consumer = nc.jetstream().consumer(STREAM, ACK_NONE)
        latencies: list[float] = []
        total = 0
        meter = Meter()
        for _ in range(job.messages // FETCH):
            start = perf_counter()
            found = consumer.fetch(FETCH, timeout=10.0)
            latencies.append(perf_counter() - start)
            for msg in found:
                total += len(msg.data)
        sample = meter.sample(job.messages)
        check_size(total, job)
        return sample | latency_sample(latencies)


def take_next(job: Job) -> Sample:
    with jsclient.connect(job.url) as nc:
        consumer = nc.jetstream().consumer(STREAM, ACK_NONE)
        latencies: list[float] = []
        meter = Meter()
        for _ in range(job.messages):
            start = perf_counter()
            msg = consumer.next(timeout=10.0)
            latencies.append(perf_counter() - start)
            assert len(msg.data) == job.size
        return meter.sample(job.messages) | latency_sample(latencies)


def request_in_turn(
    nc: jsclient.Connection, payload: bytes, count: int, latencies: list[float]
) -> None:
    for _ in range(count):
        start = perf_counter()
        reply = nc.request(SERVICE, payload, timeout=10.0)
        latencies.append(perf_counter() - start)
        assert len(reply.data) == len(payload)


if __name__ == "__main__":
    main(
        {
            "request": request,
            "threads": request_from_threads,
            "sub": subscribe,
            "memory": subscribe,
            "held": hold,
            "pub": publish,
            "jspub": store,
            "jsasync": store_with_futures,
            "jsall": store_all,
            "jsrows": store_columns,
            "consume-500": partial(consume, limit=500),
            "consume-5000": partial(consume, limit=5000),
            "consume-500-ack": consume_and_ack,
            "batches-5000": consume_batches,
            "push": consume_pushed,
            "fetch-100": fetch,
            "next": take_next,
        }
    )
