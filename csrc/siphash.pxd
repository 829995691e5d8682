"""SipHash-2-4 with 128 bits, on (pointer, length).

Who does not know the key cannot make two inputs that meet. Chained, each hash being the key
of the next piece, it hashes a sequence of pieces: their borders count too.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cdef struct Hash:
    uint64_t low
    uint64_t high


cdef struct SipState:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d


cdef inline uint64_t turned(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void sip_round(SipState *state) noexcept nogil:
    state.a += state.b
    state.b = turned(state.b, 13) ^ state.a
    state.a = turned(state.a, 32)
    state.c += state.d
    state.d = turned(state.d, 16) ^ state.c
    state.a += state.d
    state.d = turned(state.d, 21) ^ state.a
    state.c += state.b
    state.b = turned(state.b, 17) ^ state.c
    state.c = turned(state.c, 32)


cdef inline uint64_t little_endian(const uint8_t *at) noexcept nogil:
    return (
        <uint64_t>at[0]
        | <uint64_t>at[1] << 8
        | <uint64_t>at[2] << 16
        | <uint64_t>at[3] << 24
        | <uint64_t>at[4] << 32
        | <uint64_t>at[5] << 40
        | <uint64_t>at[6] << 48
        | <uint64_t>at[7] << 56
    )


cdef inline Hash siphash(Hash key, const char *data, Py_ssize_t size) noexcept nogil:
    """The hash of data[:size] under the key."""
    cdef SipState state
    cdef const uint8_t *at = <const uint8_t *>data
    cdef Py_ssize_t left = size
    cdef uint64_t word
    cdef uint8_t[8] tail
    cdef Hash result
    cdef int i, _round
    state.a = key.low ^ <uint64_t>0x736F6D6570736575
    state.b = key.high ^ <uint64_t>0x646F72616E646F6D ^ 0xEE
    state.c = key.low ^ <uint64_t>0x6C7967656E657261
    state.d = key.high ^ <uint64_t>0x7465646279746573
    while left >= 8:
        word = little_endian(at)
        state.d ^= word
        sip_round(&state)
        sip_round(&state)
        state.a ^= word
        at += 8
        left -= 8
    for i in range(8):
        tail[i] = 0
    if left:
        memcpy(tail, at, <size_t>left)
    tail[7] = <uint8_t>(size & 0xFF)
    word = little_endian(tail)
    state.d ^= word
    sip_round(&state)
    sip_round(&state)
    state.a ^= word
    state.c ^= 0xEE
    for _round in range(4):
        sip_round(&state)
    result.low = state.a ^ state.b ^ state.c ^ state.d
    state.b ^= 0xDD
    for _round in range(4):
        sip_round(&state)
    result.high = state.a ^ state.b ^ state.c ^ state.d
    return result
