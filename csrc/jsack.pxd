"""The reply subject of a JetStream message, `$JS.ACK.…`, on (pointer, length)."""

from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memcmp

from scan cimport Token, parse_uint, parse_uint64


cdef struct AckSubject:
    Token domain             # size 0 when the subject names none
    Token stream
    Token consumer
    uint64_t num_delivered
    uint64_t stream_seq
    uint64_t consumer_seq
    uint64_t timestamp_ns
    uint64_t num_pending


cdef extern from "words.h":
    int jsc_find_dots(
        const char *at, Py_ssize_t size, Py_ssize_t *dots, int limit
    ) noexcept nogil


cdef inline Token token_between(const Py_ssize_t *dots, int i) noexcept nogil:
    """The token after the dot with that number."""
    cdef Token token
    token.start = dots[i] + 1
    token.size = dots[i + 1] - dots[i] - 1
    return token


cdef inline bint number_between(
    const char *at, const Py_ssize_t *dots, int i, uint64_t *value
) noexcept nogil:
    """Whether the token after the dot with that number is one, stored in value[0]."""
    return parse_uint64(at + dots[i] + 1, dots[i + 1] - dots[i] - 1, value)


cdef inline bint read_ack_subject(const char *at, Py_ssize_t size, AckSubject *ack) noexcept nogil:
    """Whether at[:size] is an ack subject (9 tokens, or 11 and more); its parts are in ack[0]."""
    cdef Py_ssize_t[12] dots
    cdef int count
    cdef int first = 1       # the dot before the stream's name
    if size < 9 or memcmp(at, b"$JS.ACK.", 8) != 0:
        return False
    count = jsc_find_dots(at, size, dots, 11)
    if count < 8 or count == 9:
        return False
    if count < 11:
        dots[count] = size   # where the last token ends
    ack.domain.start = 0
    ack.domain.size = 0
    if count > 8:
        first = 3
        ack.domain = token_between(dots, 1)
        if ack.domain.size == 1 and at[ack.domain.start] == c'_':
            ack.domain.size = 0
    ack.stream = token_between(dots, first)
    ack.consumer = token_between(dots, first + 1)
    return (
        ack.stream.size > 0
        and ack.consumer.size > 0
        and number_between(at, dots, first + 2, &ack.num_delivered)
        and number_between(at, dots, first + 3, &ack.stream_seq)
        and number_between(at, dots, first + 4, &ack.consumer_seq)
        and number_between(at, dots, first + 5, &ack.timestamp_ns)
        and number_between(at, dots, first + 6, &ack.num_pending)
        and ack.timestamp_ns <= <uint64_t>INT64_MAX
    )


cdef inline bint third_number(const char *at, Py_ssize_t size, uint64_t *value) noexcept nogil:
    """Whether at[:size] begins with three numbers; the third is stored in value[0].

    After the names in an ack subject it is the consumer's sequence.
    """
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t start = 0
    cdef int64_t found
    cdef int dots = 0
    while i < size:
        if at[i] == c'.':
            if i == start or dots == 2:
                break
            dots += 1
            start = i + 1
        elif not c'0' <= at[i] <= c'9':
            return False
        i += 1
    if dots < 2:
        return False
    found = parse_uint(at + start, i - start)
    value[0] = <uint64_t>found
    return found >= 0
