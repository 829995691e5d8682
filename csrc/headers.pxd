"""The header block on (pointer, length): version line, status, fields. Reports failure by value."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memcmp

from scan cimport is_blank, parse_uint64


cdef struct StatusLine:
    int status               # the three digits, or -1
    Py_ssize_t description   # where the description starts
    Py_ssize_t end           # where it ends, before blanks and CR LF
    Py_ssize_t fields        # where the first field starts


cdef inline Py_ssize_t line_end(const char *at, Py_ssize_t start, Py_ssize_t size) noexcept nogil:
    """The place of the CR LF that ends the line at start, or -1 if a bare LF or nothing does."""
    cdef const char *found = <const char *>memchr(at + start, c'\n', <size_t>(size - start))
    cdef Py_ssize_t place
    if found == NULL:
        return -1
    place = found - at
    if place == start or at[place - 1] != c'\r':
        return -1
    return place - 1


cdef inline bint read_status_line(const char *at, Py_ssize_t size, StatusLine *line) noexcept nogil:
    """Whether at[:size] opens with a valid version line; its parts are in line[0]."""
    cdef Py_ssize_t i
    cdef Py_ssize_t end
    if size < 12 or memcmp(at, b"NATS/1.0", 8) != 0:
        return False
    end = line_end(at, 0, size)
    if end < 0:
        return False
    line.end = end
    line.fields = end + 2
    line.status = -1
    line.description = end
    if end == 8:
        return True
    if at[8] != c' ' or end < 12:
        return False
    line.status = 0
    for i in range(9, 12):
        if not c'0' <= at[i] <= c'9':
            return False
        line.status = line.status * 10 + (at[i] - c'0')
    if end > 12 and at[12] != c' ':
        return False
    i = 12
    while i < end and is_blank(at[i]):
        i += 1
    while end > i and is_blank(at[end - 1]):
        end -= 1
    line.description = i
    line.end = end
    return True


cdef inline Py_ssize_t find_header(
    const char *at, Py_ssize_t size, const char *key, Py_ssize_t key_size, Py_ssize_t *end
) noexcept nogil:
    """Where the value of a field starts, with its end in end[0], or -1; the key has its colon."""
    cdef Py_ssize_t start = line_end(at, 0, size)
    while start >= 0 and start + 2 < size:
        start += 2
        end[0] = line_end(at, start, size)
        if end[0] <= start:
            return -1
        if end[0] - start > key_size and memcmp(at + start, key, <size_t>key_size) == 0:
            start += key_size
            while start < end[0] and is_blank(at[start]):
                start += 1
            return start
        start = end[0]
    return -1


cdef inline bint has_header(
    const char *at, Py_ssize_t size, const char *key, Py_ssize_t key_size
) noexcept nogil:
    """Whether the block has that field; the key has its colon."""
    cdef Py_ssize_t end
    return find_header(at, size, key, key_size, &end) >= 0


cdef inline bint header_number(
    const char *at, Py_ssize_t size, const char *key, Py_ssize_t key_size, uint64_t *value
) noexcept nogil:
    """Whether a field of the block is a number, stored in value[0]; the key has its colon."""
    cdef Py_ssize_t end
    cdef Py_ssize_t start = find_header(at, size, key, key_size, &end)
    return start >= 0 and parse_uint64(at + start, end - start, value)


cdef inline bint is_key_byte(uint8_t byte) noexcept nogil:
    """Whether a header key may hold this byte when it is sent: printable ASCII, no colon."""
    return 33 <= byte <= 126 and byte != c':'
