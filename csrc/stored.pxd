"""What the server adds to a message that is read directly, on (pointer, length)."""

from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memcmp

from headers cimport line_end
from scan cimport Token, is_blank, parse_uint64


# The header fields that are added, in the order of the slots below.
cdef enum:
    STORED_STREAM = 0
    STORED_SUBJECT = 1
    STORED_SEQUENCE = 2
    STORED_TIME = 3
    STORED_PENDING = 4
    STORED_LAST = 5
    STORED_FIELDS = 6


cdef struct StoredHeader:
    Token[6] lines           # each with its CR LF
    Token subject
    uint64_t seq
    int64_t timestamp_ns
    uint64_t num_pending
    Py_ssize_t own           # the size of the block without these lines


cdef inline int stored_slot(const char *at, Py_ssize_t size) noexcept nogil:
    """Which of the added fields a key is, or -1; its size is without the colon."""
    if size < 11 or memcmp(at, b"Nats-", 5) != 0:
        return -1
    if size == 11:
        return STORED_STREAM if memcmp(at, b"Nats-Stream", 11) == 0 else -1
    if size == 12:
        return STORED_SUBJECT if memcmp(at, b"Nats-Subject", 12) == 0 else -1
    if size == 13:
        return STORED_SEQUENCE if memcmp(at, b"Nats-Sequence", 13) == 0 else -1
    if size == 15:
        return STORED_TIME if memcmp(at, b"Nats-Time-Stamp", 15) == 0 else -1
    if size == 16:
        return STORED_PENDING if memcmp(at, b"Nats-Num-Pending", 16) == 0 else -1
    if size == 18:
        return STORED_LAST if memcmp(at, b"Nats-Last-Sequence", 18) == 0 else -1
    return -1


cdef inline int64_t digits(const char *at, Py_ssize_t size) noexcept nogil:
    """The number that a few digits are, or a negative one if they are none."""
    cdef int64_t value = 0
    cdef Py_ssize_t i
    for i in range(size):
        if not c'0' <= at[i] <= c'9':
            return -1000000
        value = value * 10 + (at[i] - c'0')
    return value


cdef inline int64_t parse_utc(const char *at, Py_ssize_t size) noexcept nogil:
    """Nanoseconds since 1970 of a time such as 2026-01-02T03:04:05.678Z, or -1."""
    cdef int64_t year, month, day, hour, minute, second, era, days
    cdef int64_t fraction = 0
    if size < 20 or size > 30 or at[size - 1] != c'Z' or at[10] != c'T':
        return -1
    year = digits(at, 4)
    month = digits(at + 5, 2)
    day = digits(at + 8, 2)
    hour = digits(at + 11, 2)
    minute = digits(at + 14, 2)
    second = digits(at + 17, 2)
    if year < 1970 or year > 2261 or month < 1 or month > 12 or day < 1 or day > 31:
        return -1
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 60:
        return -1
    if size > 20:
        if at[19] != c'.':
            return -1
        fraction = digits(at + 20, size - 21)
        if fraction < 0 or size == 21:
            return -1
        while size < 30:
            fraction *= 10
            size += 1
    # Days of the civil calendar, with years that begin in March.
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    days = (
        era * 146097 + (year - era * 400) * 365 + (year - era * 400) // 4
        - (year - era * 400) // 100 + (153 * (month - 3) + 2) // 5 + day - 1 - 719468
    )
    return ((days * 24 + hour) * 60 + minute) * 60 * 1000000000 + second * 1000000000 + fraction


cdef inline bint read_stored_header(
    const char *at, Py_ssize_t size, StoredHeader *found
) noexcept nogil:
    """Whether a block has all the added fields; the last ones of their names count.

    A message that was republished has older ones of the same names before them.
    """
    cdef Py_ssize_t start, end, colon
    cdef int slot
    for slot in range(STORED_FIELDS):
        found.lines[slot].size = 0
    start = line_end(at, 0, size)
    if start < 0:
        return False
    start += 2
    while start + 2 < size:
        end = line_end(at, start, size)
        if end <= start:
            return False
        if at[start] == c'N':
            colon = start
            while colon < end and at[colon] != c':':
                colon += 1
            slot = stored_slot(at + start, colon - start) if colon < end else -1
            if slot >= 0:
                found.lines[slot].start = start
                found.lines[slot].size = end + 2 - start
        start = end + 2
    found.own = size
    for slot in range(STORED_FIELDS):
        if found.lines[slot].size == 0:
            return False
        found.own -= found.lines[slot].size
    found.subject = stored_value(at, found.lines[STORED_SUBJECT], 13)
    if found.subject.size == 0:
        return False
    return read_stored_numbers(at, found)


cdef inline Token stored_value(const char *at, Token line, Py_ssize_t key) noexcept nogil:
    """The value of a line whose key and colon have that size."""
    cdef Token value
    value.start = line.start + key
    value.size = line.size - key - 2
    while value.size and is_blank(at[value.start]):
        value.start += 1
        value.size -= 1
    while value.size and is_blank(at[value.start + value.size - 1]):
        value.size -= 1
    return value


cdef inline bint read_stored_numbers(const char *at, StoredHeader *found) noexcept nogil:
    cdef Token seq = stored_value(at, found.lines[STORED_SEQUENCE], 14)
    cdef Token time = stored_value(at, found.lines[STORED_TIME], 16)
    cdef Token pending = stored_value(at, found.lines[STORED_PENDING], 17)
    found.timestamp_ns = parse_utc(at + time.start, time.size)
    return (
        found.timestamp_ns >= 0
        and parse_uint64(at + seq.start, seq.size, &found.seq)
        and parse_uint64(at + pending.start, pending.size, &found.num_pending)
        and found.num_pending <= <uint64_t>INT64_MAX
    )
