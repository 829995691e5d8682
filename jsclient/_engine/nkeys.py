"""NATS keys and credentials as text: nkeys, seeds and the blocks of a creds file.

An nkey is base32 without padding over a role prefix, 32 raw bytes and their CRC16. A
public key has a prefix of one byte, a seed one of two that packs the seed marker
with the role, so that the first letters tell what it is: `U…` is a user's public
key, `SU…` a user's seed.

Seeds pass through here only in bytearrays, which the receiver zeroes with `wipe`. No
step makes an immutable copy of one; that is why base32 is done here and not by the
standard library. No error text and no repr shows any part of what was read. Nothing
here signs or reads files.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterator
from typing import NoReturn

from ..errors import CredentialsError, InvalidArgumentError

ACCOUNT = 0
CLUSTER = 16
SERVER = 104
OPERATOR = 112
USER = 160
CURVE = 184

ROLES = {
    ACCOUNT: "account",
    CLUSTER: "cluster",
    SERVER: "server",
    OPERATOR: "operator",
    USER: "user",
    CURVE: "curve",
}

KEY_SIZE = 32
PUBLIC_LENGTH = 56
SEED_LENGTH = 58

_SEED_MARKER = 144
_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_VALUES = {letter: value for value, letter in enumerate(_DIGITS)}

_JWT = re.compile(rb"[\w-]+={0,2}\.[\w-]+={0,2}\.[\w-]+={0,2}")
# Outside a section, only a line that can hardly be prose counts as a seed.
_LOOSE_SEED = re.compile(rb"S[AOU]\S{40,}")
_BLANKS = b" \t\r\f\v"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_Span = tuple[int, int]


class Credentials:
    """A user's JWT and the text of its seed; without a seed the JWT is a bearer's."""

    __slots__ = ("jwt", "seed")

    def __init__(self, jwt: str, seed: bytearray | None) -> None:
        self.jwt = jwt
        self.seed = seed

    def __repr__(self) -> str:
        return f"<Credentials: JWT {'without' if self.seed is None else 'and'} seed>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Credentials hold secrets and cannot be pickled or copied")


def wipe(buffer: bytearray) -> None:
    """Overwrite all of `buffer` with zeros, in place."""
    buffer[:] = bytes(len(buffer))


def crc16(data: bytes | bytearray | memoryview) -> int:
    """The CRC16 of `data` as nkeys use it: polynomial 0x1021, initial value 0."""
    return crc_hqx(data, 0)


def encode_public(role: int, raw: bytes | bytearray) -> str:
    """The text of the public key `raw`, for example `U…` for `USER`."""
    return _encode(bytes((_known(role),)), raw).decode("ascii")


def decode_public(text: str | bytes) -> tuple[int, bytes]:
    """The role and the raw bytes of a public key."""
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    if len(text) != PUBLIC_LENGTH:
        raise CredentialsError(
            f"a public nkey has {PUBLIC_LENGTH} characters, not {len(text)}"
        )
    raw = _decode(text, "public nkey")
    if raw[0] not in ROLES:
        wipe(raw)
        raise CredentialsError("this nkey is not a public key")
    return raw[0], bytes(raw[1 : 1 + KEY_SIZE])


def encode_seed(role: int, raw: bytes | bytearray) -> bytearray:
    """The text of a seed, for example `SU…` for `USER`."""
    role = _known(role)
    return _encode(bytes((_SEED_MARKER | role >> 5, (role & 31) << 3)), raw)


def decode_seed(text: bytes | bytearray) -> tuple[int, bytearray]:
    """The role and the raw bytes of a seed; the caller wipes the bytes."""
    if len(text) != SEED_LENGTH:
        raise CredentialsError(
            f"the seed is damaged: it has {len(text)} characters, not {SEED_LENGTH}"
        )
    raw = _decode(text, "seed")
    try:
        role = (raw[0] & 7) << 5 | raw[1] >> 3
        if raw[0] & 0xF8 != _SEED_MARKER or role not in ROLES:
            raise CredentialsError("this nkey is not a seed")
        return role, raw[2 : 2 + KEY_SIZE]
    finally:
        wipe(raw)


def parse_credentials(text: bytes | bytearray) -> Credentials:
    """The JWT and the seed in the text of a creds file; the caller wipes the seed.

    A section is one line between two lines that start and end with three dashes.
    What the opening line calls JWT or SEED is that; with other words the first
    section is the JWT and the next the seed. Without sections, lines that look like a
    JWT and a seed are taken. A file without a seed is a bearer's.
    """
    found = _scan(text)
    jwt = _only(found, "JWT")
    if jwt is None:
        raise CredentialsError("there is no JWT")
    if not _JWT.fullmatch(text, *jwt):
        raise CredentialsError("the JWT is damaged: it is not three dotted parts")
    seed = _only(found, "seed")
    return Credentials(
        _copy(text, jwt).decode("ascii"), None if seed is None else _copy(text, seed)
    )


def parse_seed(text: bytes | bytearray) -> bytearray:
    """The seed in the text of a seed or creds file; the caller wipes it.

    A text of one line is taken for the seed as it is, so that what is wrong with it
    is said by `decode_seed`.
    """
    lines = list(_lines(text))
    seed = lines[0] if len(lines) == 1 else _only(_scan(text), "seed")
    if seed is None:
        raise CredentialsError("there is no seed")
    return _copy(text, seed)


def _known(role: int) -> int:
    if role not in ROLES:
        raise InvalidArgumentError(f"{role!r} is no nkey role; known are {ROLES}")
    return role


def _encode(prefix: bytes, raw: bytes | bytearray) -> bytearray:
    """The base32 text of prefix, key and checksum."""
    if len(raw) != KEY_SIZE:
        raise InvalidArgumentError(f"a key has {KEY_SIZE} bytes, not {len(raw)}")
    # Buffers are made at their final size: one that grows leaves copies behind.
    body = bytearray(len(prefix) + KEY_SIZE + 2)
    body[: len(prefix)] = prefix
    body[len(prefix) : -2] = raw
    body[-2:] = crc16(memoryview(body)[:-2]).to_bytes(2, "little")
    text = bytearray((len(body) * 8 + 4) // 5)
    held = bits = at = 0
    for byte in body:
        held, bits = held << 8 | byte, bits + 8
        while bits >= 5:
            bits -= 5
            text[at], at = _DIGITS[held >> bits], at + 1
            held &= (1 << bits) - 1
    if bits:
        text[at] = _DIGITS[held << 5 - bits]
    wipe(body)
    return text


def _decode(text: bytes | bytearray, what: str) -> bytearray:
    """Prefix, key and verified checksum of base32 text."""
    body = bytearray(len(text) * 5 // 8)
    held = bits = at = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            wipe(body)
            raise CredentialsError(f"the {what} is damaged: it is not base32")
        held, bits = held << 5 | value, bits + 5
        if bits >= 8:
            bits -= 8
            body[at], at = held >> bits, at + 1
            held &= (1 << bits) - 1
    # Bits after the last whole byte carry nothing; a writer leaves them zero.
    view = memoryview(body)
    if held or crc16(view[:-2]) != int.from_bytes(view[-2:], "little"):
        wipe(body)
        raise CredentialsError(f"the {what} is damaged: its checksum is wrong")
    return body


def _scan(text: bytes | bytearray) -> dict[str, list[_Span]]:
    """Where JWTs and seeds stand; loose lines count only for what has no section."""
    sections: dict[str, list[_Span]] = {"JWT": [], "seed": []}
    loose: dict[str, list[_Span]] = {"JWT": [], "seed": []}
    opened: str | None = None
    is_filled = False
    for start, end in _lines(text):
        if _is_dashed(text, start, end):
            if opened is None:
                opened, is_filled = _kind(text, start, end, sections), False
                continue
            if not is_filled:
                raise CredentialsError(f"the {opened} section is empty")
            opened = None
        elif opened is not None:
            sections[opened].append((start, end))
            is_filled = True
        elif _JWT.fullmatch(text, start, end):
            loose["JWT"].append((start, end))
        elif _LOOSE_SEED.fullmatch(text, start, end):
            loose["seed"].append((start, end))
    if opened is not None:
        raise CredentialsError(f"the {opened} section has no closing line")
    return {kind: sections[kind] or loose[kind] for kind in sections}


def _lines(text: bytes | bytearray) -> Iterator[_Span]:
    """The span of every line that is not blank, without the blanks around it."""
    at = len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0
    while at < len(text):
        stop = text.find(b"\n", at)
        following = len(text) if stop < 0 else stop + 1
        start, end = at, len(text) if stop < 0 else stop
        while start < end and text[start] in _BLANKS:
            start += 1
        while start < end and text[end - 1] in _BLANKS:
            end -= 1
        if start < end:
            yield start, end
        at = following


def _is_dashed(text: bytes | bytearray, start: int, end: int) -> bool:
    return (
        end - start >= 6
        and text.startswith(b"---", start, end)
        and text.endswith(b"---", start, end)
    )


def _kind(
    text: bytes | bytearray, start: int, end: int, sections: dict[str, list[_Span]]
) -> str:
    """What the section that opens with this line holds."""
    title = text[start:end].upper()
    if b"JWT" in title:
        return "JWT"
    if b"SEED" in title:
        return "seed"
    return "seed" if sections["JWT"] else "JWT"


def _only(found: dict[str, list[_Span]], kind: str) -> _Span | None:
    if len(found[kind]) > 1:
        raise CredentialsError(f"there is more than one {kind}")
    return found[kind][0] if found[kind] else None


def _copy(text: bytes | bytearray, span: _Span) -> bytearray:
    with memoryview(text) as view:
        return bytearray(view[span[0] : span[1]])
