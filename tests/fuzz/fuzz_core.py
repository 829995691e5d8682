"""Seeded random sessions through the compiled core, with the plain reference as oracle.

    python -m tests.fuzz.fuzz_core --seconds 60 --seed 1

Each round makes a valid stream of server bytes, damages it most of the time, cuts it
anywhere and compares what the compiled parser makes of it with what the reference does;
and so with a header block and an ack subject. A round depends on its seed alone; on a
difference the program prints that seed and ends with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import time
from collections.abc import Callable

from jsclient._core import rebuild_msg
from jsclient.errors import BadHeadersError, NotJetStreamMessageError
from tests.harness import reference
from tests.harness.compiled import ack_of, block_of, disagreement, metadata_of

TELLING = b"\r\n \t0129-+:.{}'\x00\x7f\x80\xff_$aMHIPO/"
VERBS = [b"MSG", b"HMSG", b"PING", b"PONG", b"+OK", b"-ERR", b"INFO", b"msg", b"hMsG"]
BORDERS = [0, 1, 9, 255, 4096, 65_535, 65_536, 1 << 31, 1 << 32, 1 << 63, 1 << 64]


class Difference(Exception):
    """The compiled core and the reference disagree."""


def number(rng: random.Random) -> bytes:
    """A number as hostile as it gets."""
    kind = rng.random()
    if kind < 0.6:
        return b"%d" % rng.randrange(20)
    if kind < 0.9:
        return b"%d" % (rng.choice(BORDERS) + rng.randrange(-2, 3))
    return bytes(rng.choice(b"0123456789") for _ in range(rng.randrange(1, 24)))


def word(rng: random.Random) -> bytes:
    """A subject of any bytes but blanks and line breaks."""
    size = rng.randrange(1, 12)
    return bytes(rng.choice(b"abc.*>$_\x00\x7f\xc3\xa4\xff") for _ in range(size))


def payload(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.02:
        return rng.randbytes(rng.randrange(32_000, 70_000))
    if kind < 0.2:
        return rng.choice([b"\r\n", b"\r\nPING\r\n", b"MSG a 1 1\r\nx\r\n", b"\r", b""])
    return rng.randbytes(rng.randrange(40))


def header_block(rng: random.Random) -> bytes:
    block = b"NATS/1.0"
    if rng.random() < 0.4:
        block += b" %03d" % rng.randrange(1000)
        if rng.random() < 0.5:
            block += b" " + word(rng) + b" \t"
    block += b"\r\n"
    for _ in range(rng.randrange(4)):
        block += (
            rng.choice([word(rng), b"K", b""]) + b":" + rng.choice([b" ", b"", b"\t"])
        )
        block += word(rng) + rng.choice([b"", b" ", b"\r"]) + b"\r\n"
    return block + b"\r\n"


def ack_subject(rng: random.Random) -> bytes:
    tokens = [b"$JS", b"ACK"]
    if rng.random() < 0.5:
        tokens += [rng.choice([b"_", b"hub", b""]), b"hash"]
    tokens += [word(rng).replace(b".", b""), b"C", *(number(rng) for _ in range(5))]
    return b".".join(tokens + [b"x"] * rng.choice([0, 0, 1, 2]))


def frame(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.15:
        return rng.choice([b"PING", b"PONG", b"+OK", b"pong x", b"PING\t"]) + b"\r\n"
    if kind < 0.25:
        return (
            rng.choice([b"-ERR ", b"INFO ", b"info", b"INFO{"]) + word(rng) + b" \r\n"
        )
    subject, body = word(rng), payload(rng)
    reply = rng.choice([b"", b"", word(rng) + b" ", ack_subject(rng) + b" "])
    sid = b"%d" % rng.choice([1, 1, 2, 3, 99])
    if kind < 0.6:
        line = b"MSG %b %b %b%d" % (subject, sid, reply, len(body))
    else:
        block = rng.choice([header_block(rng), payload(rng)])
        sizes = b"%d %d" % (len(block), len(block) + len(body))
        line = b"HMSG %b %b %b%b" % (subject, sid, reply, sizes)
        body = block + body
    return line + b"\r\n" + body + b"\r\n"


def noise(rng: random.Random) -> bytes:
    """A line that is a frame in its verb at most."""
    line = rng.choice(VERBS)
    for _ in range(rng.randrange(7)):
        line += rng.choice([b" ", b"\t", b"  "]) + rng.choice([number(rng), word(rng)])
    return line + b"\r\n"


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The data after some small changes anywhere."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            data = data[:at] + bytes([rng.choice(TELLING)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 2:
            data = data[:at] + data[at + rng.randrange(1, 5) :]
        elif kind == 3:
            data = data[:at] + bytes([rng.choice(TELLING)]) + data[at:]
        elif kind == 4:
            data = data[:at]
        else:
            data = data[:at] + data[rng.randrange(len(data) + 1) :]
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    if rng.random() < 0.05 and len(data) < 2000:
        return [data[i : i + 1] for i in range(len(data))]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    borders = [0, *cuts, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


def check_stream(rng: random.Random) -> None:
    wire = b"".join(frame(rng) for _ in range(rng.randrange(1, 8)))
    if rng.random() < 0.1:
        wire += noise(rng) + frame(rng)
    if rng.random() < 0.1:
        long = rng.choice([b"MSG ", b"INFO ", b"INF", b"PING "])
        wire += long + b"x" * rng.choice([4348, 4349, 4352, 5000, 70_000]) + b"\r\n"
    if rng.random() < 0.8:
        wire = damaged(rng, wire)
    max_payload = rng.choice([1 << 20, 1 << 20, 100])
    expected = reference.outcome(wire, max_payload)
    found = disagreement(expected, pieces(rng, wire), max_payload)
    if found is not None:
        raise Difference(f"{found[:2000]}\nfor {wire[:2000]!r}")


def check_headers(rng: random.Random) -> None:
    block = header_block(rng)
    if rng.random() < 0.8:
        block = damaged(rng, block)
    if not block:
        return
    msg = rebuild_msg(b"a", b"", block, b"")
    wanted: reference.HeaderBlock | None = None
    seen: reference.HeaderBlock | None = None
    with contextlib.suppress(reference.BadHeaders):
        wanted = reference.decode_headers(block)
    with contextlib.suppress(BadHeadersError):
        headers = msg.headers
        assert headers is not None
        seen = block_of(headers)
    if seen != wanted or (
        wanted is not None and wanted[:2] != (msg.status, msg.description)
    ):
        raise Difference(f"expected {wanted}, saw {seen}\nfor {block!r}")


def check_ack(rng: random.Random) -> None:
    subject = ack_subject(rng)
    if rng.random() < 0.6:
        subject = damaged(rng, subject)
    wanted: reference.Ack | None = None
    seen: reference.Ack | None = None
    with contextlib.suppress(reference.NotAck):
        wanted = reference.decode_ack(subject)
    with contextlib.suppress(NotJetStreamMessageError):
        seen = ack_of(metadata_of(subject))
    if seen != wanted:
        raise Difference(f"expected {wanted}, saw {seen}\nfor {subject!r}")


CHECKS: tuple[Callable[[random.Random], None], ...] = (
    check_stream,
    check_headers,
    check_ack,
)


def one_round(seed: int) -> None:
    """Everything that a seed stands for; any exception is a finding."""
    rng = random.Random(seed)
    for check in CHECKS:
        check(rng)


def run(seconds: float, seed: int, say: Callable[[str], object]) -> int:
    """How many rounds were done; the seed of a failing one is said before it raises."""
    deadline = time.monotonic() + seconds
    report = time.monotonic() + 5.0
    rounds = 0
    while (now := time.monotonic()) < deadline:
        for _ in range(50):
            try:
                one_round(seed + rounds)
            except BaseException:
                say(f"failed: repeat with --seed {seed + rounds} --rounds 1\n")
                raise
            rounds += 1
        if now >= report:
            say(f"{rounds} rounds, the next seed is {seed + rounds}\n")
            report = now + 5.0
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--rounds", type=int, help="so many rounds instead of seconds")
    options = parser.parse_args()
    say = sys.stdout.write
    try:
        if options.rounds is not None:
            for seed in range(options.seed, options.seed + options.rounds):
                one_round(seed)
            rounds = options.rounds
        else:
            rounds = run(options.seconds, options.seed, say)
    except Difference as found:
        say(f"{found}\n")
        return 1
    say(f"{rounds} rounds from seed {options.seed} without a difference\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
