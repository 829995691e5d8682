"""Runs one cell with nats-py, as its own documentation shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from time import perf_counter

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

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


async def connected(job: Job) -> Client:
    return await nats.connect(job.url, allow_reconnect=False)


async def subscribe(job: Job) -> Sample:
    nc = await connected(job)
    sub = await nc.subscribe(
        SUBJECT, pending_msgs_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT
    )
    await nc.flush()
    memory = Memory()
    say_ready()
    arrived = total = 0
    async for msg in sub.messages:
        if not arrived:
            meter = Meter()
        arrived += 1
        total += len(msg.data)
        if arrived == job.messages:
            break
    sample = meter.sample(job.messages)
    check_size(total, job)
    growth = memory.sample()
    await nc.close()
    return sample | growth


async def hold(job: Job) -> Sample:
    nc = await connected(job)
    sub = await nc.subscribe(
        SUBJECT, pending_msgs_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT
    )
    await nc.flush()
    held: list[Msg | None] = [None] * job.messages
    memory = Memory()
    say_ready()
    arrived = 0
    async for msg in sub.messages:
        if not arrived:
            meter = Meter()
        held[arrived] = msg
        arrived += 1
        if arrived == job.messages:
            break
    sample = meter.sample(job.messages) | memory.sample()
    check_size(sum(len(msg.data) for msg in held if msg is not None), job)
    await nc.close()
    return sample


async def publish(job: Job) -> Sample:
    nc = await connected(job)
    payload = b"x" * job.size
    await nc.request(SERVICE, payload, timeout=10)
    meter = Meter()
    for _ in range(job.messages):
        await nc.publish(SUBJECT, payload)
    await nc.request(SERVICE, payload, timeout=10)
    sample = meter.sample(job.messages)
    await nc.close()
    return sample


async def request(job: Job) -> Sample:
    nc = await connected(job)
    payload = b"x" * job.size
    latencies: list[float] = []
    await nc.request(SERVICE, payload, timeout=10)
    meter = Meter()
    await request_in_turn(nc, payload, job.messages, latencies)
    sample = meter.sample(job.messages)
    await nc.close()
    return sample | latency_sample(latencies)


async def request_from_tasks(job: Job) -> Sample:
    nc = await connected(job)
    payload = b"x" * job.size
    latencies: list[float] = []
    await nc.request(SERVICE, payload, timeout=10)
    meter = Meter()
    # Tasks are to this client what threads are to a blocking one.
    await asyncio.gather(
        *(
            request_in_turn(nc, payload, job.messages // THREADS, latencies)
            for _ in range(THREADS)
        )
    )
    sample = meter.sample(len(latencies))
    await nc.close()
    return sample | latency_sample(latencies)


async def store(job: Job) -> Sample:
    nc = await connected(job)
    js = nc.jetstream()
    payload = b"x" * job.size
    latencies: list[float] = []
    await js.publish(STORED, payload)
    meter = Meter()
    for seq in range(2, job.messages + 2):
        start = perf_counter()
        ack = await js.publish(STORED, payload)
        latencies.append(perf_counter() - start)
        assert ack.seq == seq
    sample = meter.sample(job.messages)
    await nc.close()
    return sample | latency_sample(latencies)


async def store_with_futures(job: Job) -> Sample:
    nc = await connected(job)
    js = nc.jetstream(publish_async_max_pending=WINDOW)
    payload = b"x" * job.size
    await (await js.publish_async(STORED, payload))
    meter = Meter()
    for _ in range(job.messages):
        future = await js.publish_async(STORED, payload)
    await js.publish_async_completed()
    sample = meter.sample(job.messages)
    assert (await future).seq == job.messages + 1
    await nc.close()
    return sample


async def consume(job: Job, batch: int, consumer: str = ACK_NONE) -> Sample:
    nc = await connected(job)
    sub = await nc.jetstream().pull_subscribe_bind(consumer, STREAM)
    latencies: list[float] = []
    arrived = total = 0
    meter = Meter()
    while arrived < job.messages:
        start = perf_counter()
        found = await sub.fetch(min(batch, job.messages - arrived), timeout=10)
        latencies.append(perf_counter() - start)
        for msg in found:
            total += len(msg.data)
            if consumer == ACK_EACH:
                await msg.ack()
        arrived += len(found)
    if consumer == ACK_EACH:
        await nc.flush()
    sample = meter.sample(job.messages)
    check_size(total, job)
    await nc.close()
    return sample | latency_sample(latencies)


async def consume_pushed(job: Job) -> Sample:
    nc = await connected(job)
    arrived = total = 0
    meter = Meter()
    sub = await nc.jetstream().subscribe(
        STORED,
        stream=STREAM,
        config=ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True),
        flow_control=True,
        idle_heartbeat=5.0,
        pending_msgs_limit=NO_LIMIT,
        pending_bytes_limit=NO_LIMIT,
    )
    async for msg in sub.messages:
        total += len(msg.data)
        arrived += 1
        if arrived == job.messages:
            break
    sample = meter.sample(job.messages)
    check_size(total, job)
    await nc.close()
    return sample


async def request_in_turn(
    nc: Client, payload: bytes, count: int, latencies: list[float]
) -> None:
    for _ in range(count):
        start = perf_counter()
        reply = await nc.request(SERVICE, payload, timeout=10)
        latencies.append(perf_counter() - start)
        assert len(reply.data) == len(payload)


def running(
    work: Callable[[Job], Coroutine[None, None, Sample]],
) -> Callable[[Job], Sample]:
    return lambda job: asyncio.run(work(job))


if __name__ == "__main__":
    main(
        {
            "request": running(request),
            "threads": running(request_from_tasks),
            "sub": running(subscribe),
            "memory": running(subscribe),
            "held": running(hold),
            "pub": running(publish),
            "jspub": running(store),
            "jsasync": running(store_with_futures),
            # It has no consume: fetches follow each other.
            "consume-500": running(partial(consume, batch=500)),
            "consume-5000": running(partial(consume, batch=5000)),
            "consume-500-ack": running(partial(consume, batch=500, consumer=ACK_EACH)),
            "push": running(consume_pushed),
            "fetch-100": running(partial(consume, batch=FETCH)),
            "next": running(partial(consume, batch=1)),
        }
    )
