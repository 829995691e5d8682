"""Byte scanning on (pointer, length): numbers, tokens, separators. No Python object is touched."""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t


cdef extern from "words.h":
    Py_ssize_t jsc_find_blank(const char *at, Py_ssize_t start, Py_ssize_t size) noexcept nogil
    bint jsc_eight_digits(const char *at, uint64_t *value) noexcept nogil


cdef inline bint parse_digits(const char *at, Py_ssize_t size, uint64_t *value) noexcept nogil:
    """Whether at[:size], at most 19 bytes, are digits; their number is in value[0]."""
    cdef uint64_t total = 0    # 19 digits cannot overflow it
    cdef uint64_t eight
    cdef Py_ssize_t i = 0
    while i + 8 <= size and jsc_eight_digits(at + i, &eight):
        total = total * 100000000 + eight
        i += 8
    while i < size:
        if not c'0' <= at[i] <= c'9':
            return False
        total = total * 10 + <uint64_t>(at[i] - c'0')
        i += 1
    value[0] = total
    return True


cdef inline int64_t parse_uint(const char *at, Py_ssize_t size) noexcept nogil:
    """The decimal number in at[:size], or -1 if it is none or does not fit an int64."""
    cdef uint64_t value = 0
    if size < 1 or size > 19 or not parse_digits(at, size, &value):
        return -1
    return <int64_t>value if value <= <uint64_t>INT64_MAX else -1


cdef inline bint parse_uint64(const char *at, Py_ssize_t size, uint64_t *value) noexcept nogil:
    """Whether at[:size] is a decimal number that fits a uint64, stored in value[0]."""
    cdef uint64_t total = 0
    cdef uint64_t last
    if size < 1 or size > 20 or not parse_digits(at, min(size, 19), &total):
        return False
    if size == 20:
        if not c'0' <= at[19] <= c'9':
            return False
        last = <uint64_t>(at[19] - c'0')
        if total > (<uint64_t>0xFFFFFFFFFFFFFFFF - last) // 10:
            return False
        total = total * 10 + last
    value[0] = total
    return True


cdef inline Py_ssize_t write_uint(char *at, uint64_t value) noexcept nogil:
    """Writes value in decimal at at[], at most 20 bytes, and returns the length."""
    cdef char[20] digits
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t i
    while True:
        digits[size] = <char>(c'0' + value % 10)
        size += 1
        value //= 10
        if value == 0:
            break
    for i in range(size):
        at[i] = digits[size - 1 - i]
    return size


cdef inline bint is_blank(char byte) noexcept nogil:
    return byte == c' ' or byte == c'\t'


cdef inline bint is_verb(const char *at, const char *upper, Py_ssize_t size) noexcept nogil:
    """Whether at[:size] spells upper in any letter case."""
    cdef Py_ssize_t i
    cdef char letter
    for i in range(size):
        letter = at[i]
        if c'a' <= letter <= c'z':
            letter -= 32
        if letter != upper[i]:
            return False
    return True


cdef struct Token:
    Py_ssize_t start
    Py_ssize_t size


cdef inline int split_line(
    const char *at, Py_ssize_t size, Token *tokens, int limit
) noexcept nogil:
    """Splits at[:size] at runs of SP and TAB into at most limit tokens.

    Returns their number, or -1 for a stray CR or for more tokens than the limit.
    """
    cdef int count = 0
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t start
    while True:
        while i < size and is_blank(at[i]):
            i += 1
        if i == size:
            return count
        if count == limit:
            return -1
        start = i
        i = jsc_find_blank(at, i, size)
        while i < size and not is_blank(at[i]):
            if at[i] == c'\r':
                return -1
            i = jsc_find_blank(at, i + 1, size)
        tokens[count].start = start
        tokens[count].size = i - start
        count += 1


cdef enum SubjectFault:
    SUBJECT_OK = 0
    SUBJECT_EMPTY = 1
    SUBJECT_BLANK = 2
    SUBJECT_TOKEN = 3


cdef inline SubjectFault check_subject_bytes(const char *at, Py_ssize_t size) noexcept nogil:
    """What is wrong with a literal or wildcard subject: blanks, NUL, or empty tokens."""
    cdef Py_ssize_t i
    cdef char last = c'.'
    if size == 0:
        return SUBJECT_EMPTY
    for i in range(size):
        if <uint8_t>at[i] <= 32:
            if at[i] == c' ' or c'\t' <= at[i] <= c'\r' or at[i] == 0:
                return SUBJECT_BLANK
        elif at[i] == c'.' and last == c'.':
            return SUBJECT_TOKEN
        last = at[i]
    return SUBJECT_TOKEN if last == c'.' else SUBJECT_OK


cdef inline bint has_wildcard(const char *at, Py_ssize_t size) noexcept nogil:
    """Whether a token is * or >."""
    cdef Py_ssize_t i
    for i in range(size):
        if at[i] == c'*' or at[i] == c'>':
            if (i == 0 or at[i - 1] == c'.') and (i + 1 == size or at[i + 1] == c'.'):
                return True
    return False


cdef inline bint has_bad_wildcard(const char *at, Py_ssize_t size) noexcept nogil:
    """Whether * or > stand inside a token, or > before the last token."""
    cdef Py_ssize_t i
    for i in range(size):
        if at[i] == c'*' or at[i] == c'>':
            if i > 0 and at[i - 1] != c'.':
                return True
            if i + 1 < size and (at[i + 1] != c'.' or at[i] == c'>'):
                return True
    return False
