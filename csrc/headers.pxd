"""The header block on (pointer, length): version line, status, fields. Reports failure by value."""

from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp


cdef struct StatusLine:
    int status               # the three digits, or -1
    Py_ssize_t description   # where the description starts
    Py_ssize_t end           # where the line ends, before CR LF
    Py_ssize_t fields        # where the first field starts


cdef inline Py_ssize_t line_end(const char *at, Py_ssize_t start, Py_ssize_t size) noexcept nogil:
    """The place of the CR LF that ends the line at start, or -1; a bare LF or CR is no end."""
    cdef const char *found = <const char *>memchr(at + start, c'\n', <size_t>(size - start))
    cdef Py_ssize_t place
    if found == NULL:
        return -1
    place = found - at
    if place == start or at[place - 1] != c'\r':
        return -1
    place -= 1
    if memchr(at + start, c'\r', <size_t>(place - start)) != NULL:
        return -1
    return place


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
    if at[8] != c' ' and at[8] != c'\t':
        return False
    i = 8
    while i < end and (at[i] == c' ' or at[i] == c'\t'):
        i += 1
    if i == end:
        return True
    if end - i < 3:
        return False
    line.status = 0
    for _ in range(3):
        if not c'0' <= at[i] <= c'9':
            return False
        line.status = line.status * 10 + (at[i] - c'0')
        i += 1
    if i < end and at[i] != c' ' and at[i] != c'\t':
        return False
    while i < end and (at[i] == c' ' or at[i] == c'\t'):
        i += 1
    line.description = i
    return True


cdef inline bint is_key_byte(uint8_t byte) noexcept nogil:
    """Whether a header key may hold this byte when it is sent: printable ASCII, no colon."""
    return 33 <= byte <= 126 and byte != c':'
