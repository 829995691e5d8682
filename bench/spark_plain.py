"""A Spark source in plain Python: a socket, a loop over lines, and lists for Arrow.

That is what can be had without compiled code, and without a client in the way: it knows
only what a server sends that is in good health. The consumer that it reads is made and
deleted with jsclient, once for each task.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.spark_tuples import Range, TupleReader, TupleSource
from jsclient.spark.columns import COLUMNS
from jsclient.spark.rows import Rows

PULL = 5000  # messages of a pull, and of a record batch at least
CHUNK = 1 << 18  # bytes of a read


class PlainSource(TupleSource):
    """The format `jetstream-plain`."""

    @classmethod
    def name(cls) -> str:
        """What it is called."""
        return "jetstream-plain"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the whole stream."""
        return PlainReader(self.options)


class PlainReader(TupleReader):
    """Reads with a consumer, into lists and from them into Arrow."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        assert isinstance(partition, Range)
        schema = Rows(COLUMNS, self.stream, ()).schema
        count = partition.end - partition.start
        with self.consumer(partition.start) as consumer:
            for subjects, payloads, seqs, times in pulled(
                self.url, f"{self.stream}.{consumer.name}", count
            ):
                size = len(subjects)
                columns = [
                    pa.array(subjects, pa.binary()).view(pa.string()),
                    pa.array(payloads, pa.binary()),
                    pa.array([[]] * size, schema.field("headers").type),
                    pa.array(seqs, pa.int64()),
                    pa.array(times, schema.field("timestamp").type),
                    pa.repeat(pa.scalar(self.stream), size),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


Columns = tuple[list[bytes], list[bytes], list[int], list[int]]


def pulled(url: str, consumer: str, count: int) -> Iterator[Columns]:
    """Subjects, payloads, sequences and times in microseconds of the next messages."""
    place = urlsplit(url)
    assert place.port is not None
    inbox = f"_INBOX.{uuid4().hex}"
    asked = arrived = 0
    found: Columns = [], [], [], []
    waiting = b""
    with socket.create_connection((place.hostname, place.port), timeout=30) as link:
        hello = f'CONNECT {{"verbose": false, "headers": true}}\r\nSUB {inbox} 1\r\n'
        link.sendall(hello.encode())
        while arrived < count:
            while asked < count and asked - arrived <= PULL:
                size = min(PULL, count - asked)
                link.sendall(pull(consumer, inbox, size))
                asked += size
            chunk = link.recv(CHUNK)
            if not chunk:
                raise ConnectionError("the server has closed the link")
            waiting += chunk
            used = parsed(waiting, found, link)
            waiting = waiting[used:]
            arrived_now = len(found[0])
            if arrived_now >= PULL or arrived + arrived_now == count:
                yield found
                arrived += arrived_now
                found = [], [], [], []


def pull(consumer: str, inbox: str, size: int) -> bytes:
    """The request for so many messages."""
    body = json.dumps({"batch": size, "expires": 30_000_000_000})
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{consumer}"
    return f"PUB {subject} {inbox} {len(body)}\r\n{body}\r\n".encode()


def parsed(text: bytes, found: Columns, link: socket.socket) -> int:
    """Adds the messages that are whole; how many bytes they had."""
    subjects, payloads, seqs, times = found
    place = 0
    while (end := text.find(b"\r\n", place)) >= 0:
        words = text[place:end].split(b" ")
        if words[0] == b"MSG":
            begin = end + 2
            last = begin + int(words[4])
            if last + 2 > len(text):
                break
            # It ends with the sequence, the consumer's, the time, and what is left.
            where = words[3].split(b".")
            subjects.append(words[1])
            payloads.append(text[begin:last])
            seqs.append(int(where[-4]))
            times.append(int(where[-2]) // 1000)
            place = last + 2
        elif words[0] == b"PING":
            link.sendall(b"PONG\r\n")
            place = end + 2
        elif words[0] in (b"INFO", b"+OK"):
            place = end + 2
        else:
            raise ConnectionError(f"the server says {text[place:end]!r}")
    return place
