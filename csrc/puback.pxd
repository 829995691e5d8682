"""The usual answer of a stream to a publish, `{"stream":"S","seq":N}`, on (pointer, length)."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from scan cimport Token, parse_uint64


cdef struct AckBody:
    Token stream
    Token domain             # size 0 when the answer names none
    uint64_t seq
    bint is_duplicate


cdef inline Py_ssize_t name_end(const char *at, Py_ssize_t start, Py_ssize_t size) noexcept nogil:
    """Where the quoted name at start ends; start itself if it is empty or needs a JSON parser."""
    cdef Py_ssize_t i = start
    while i < size and at[i] != c'"':
        # An escaped or non-ASCII name is for the JSON parser.
        if at[i] == c'\\' or <uint8_t>at[i] < 32 or <uint8_t>at[i] >= 127:
            return start
        i += 1
    return i if i < size else start


cdef inline bint read_ack_body(const char *at, Py_ssize_t size, AckBody *ack) noexcept nogil:
    """Whether at[:size] is such an answer, with `domain` and `duplicate` or without.

    What is none may still be a valid answer: it takes a JSON parser to tell.
    """
    cdef Py_ssize_t i, start
    if size < 20 or memcmp(at, b'{"stream":"', 11) != 0:
        return False
    ack.stream.start = 11
    i = name_end(at, 11, size)
    ack.stream.size = i - 11
    if ack.stream.size == 0:
        return False
    ack.domain.size = 0
    if size - i > 12 and memcmp(at + i, b'","domain":"', 12) == 0:
        ack.domain.start = i + 12
        i = name_end(at, ack.domain.start, size)
        ack.domain.size = i - ack.domain.start
        if ack.domain.size == 0:
            return False
    if size - i < 10 or memcmp(at + i, b'","seq":', 8) != 0:
        return False
    i += 8
    while i < size and at[i] == c' ':
        i += 1
    start = i
    while i < size and c'0' <= at[i] <= c'9':
        i += 1
    if i - start > 1 and at[start] == c'0':
        return False  # JSON has no such number
    if not parse_uint64(at + start, i - start, &ack.seq):
        return False
    ack.is_duplicate = size - i == 19 and memcmp(at + i, b',"duplicate": true}', 19) == 0
    return ack.is_duplicate or (size - i == 1 and at[i] == c'}')
