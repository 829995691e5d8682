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


cdef inline bint read_ack_subject(const char *at, Py_ssize_t size, AckSubject *ack) noexcept nogil:
    """Whether at[:size] is an ack subject (9 tokens, or 11 and more); its parts are in ack[0]."""
    cdef Token[11] tokens
    cdef Py_ssize_t i
    cdef Py_ssize_t start = 0
    cdef int count = 0
    cdef int first = 2       # the token that holds the stream's name
    if size < 9 or memcmp(at, b"$JS.ACK.", 8) != 0:
        return False
    for i in range(size + 1):
        if i == size or at[i] == c'.':
            if count < 11:
                tokens[count].start = start
                tokens[count].size = i - start
            count += 1
            start = i + 1
    if count < 9 or count == 10:
        return False
    ack.domain.start = 0
    ack.domain.size = 0
    if count > 9:
        first = 4
        if not (tokens[2].size == 1 and at[tokens[2].start] == c'_'):
            ack.domain = tokens[2]
    ack.stream = tokens[first]
    ack.consumer = tokens[first + 1]
    if ack.stream.size == 0 or ack.consumer.size == 0:
        return False
    return (
        parse_uint64(at + tokens[first + 2].start, tokens[first + 2].size, &ack.num_delivered)
        and parse_uint64(at + tokens[first + 3].start, tokens[first + 3].size, &ack.stream_seq)
        and parse_uint64(at + tokens[first + 4].start, tokens[first + 4].size, &ack.consumer_seq)
        and parse_uint64(at + tokens[first + 5].start, tokens[first + 5].size, &ack.timestamp_ns)
        and parse_uint64(at + tokens[first + 6].start, tokens[first + 6].size, &ack.num_pending)
        and ack.timestamp_ns <= <uint64_t>INT64_MAX
    )


cdef inline bint third_number(const char *at, Py_ssize_t size, uint64_t *value) noexcept nogil:
    """Whether the third of the tokens at[:size] is a number, stored in value[0].

    After the names in an ack subject it is the consumer's sequence.
    """
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t start
    cdef int64_t found
    cdef int dots = 0
    while i < size and dots < 2:
        dots += at[i] == c'.'
        i += 1
    start = i
    while i < size and at[i] != c'.':
        i += 1
    if dots < 2:
        return False
    found = parse_uint(at + start, i - start)
    value[0] = <uint64_t>found
    return found >= 0
