/* Looking at eight bytes at a time. What is left at the end is looked at byte by byte, so
   nothing beyond the given length is ever read. */
#ifndef JSCLIENT_WORDS_H
#define JSCLIENT_WORDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define JSC_EACH(byte) (UINT64_C(0x0101010101010101) * (uint64_t)(byte))

#if defined(_MSC_VER)
#include <intrin.h>
#define JSC_WORDS 1
static inline int jsc_lowest(uint64_t mask) {
    unsigned long bit;
    _BitScanForward64(&bit, mask);
    return (int)bit;
}
#elif defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define JSC_WORDS 1
static inline int jsc_lowest(uint64_t mask) { return __builtin_ctzll(mask); }
#else
#define JSC_WORDS 0 /* the first byte is the highest: byte by byte, then */
static inline int jsc_lowest(uint64_t mask) { return (int)(mask & 0); }
#endif

static inline uint64_t jsc_word(const char *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* The first place from `from` on whose byte is a blank or a control character, or `size`. */
static inline ptrdiff_t jsc_find_blank(const char *at, ptrdiff_t from, ptrdiff_t size) {
    ptrdiff_t i = from;
    while (JSC_WORDS && i + 8 <= size) {
        uint64_t word = jsc_word(at + i);
        /* The lowest bit that is set is right; borrows spoil higher ones only. */
        uint64_t found = (word - JSC_EACH(33)) & ~word & JSC_EACH(0x80);
        if (found) return i + jsc_lowest(found) / 8;
        i += 8;
    }
    while (i < size && (unsigned char)at[i] > 32) i++;
    return i;
}

/* How many dots there are; the places of the first `limit` ones are in dots[]. */
static inline int jsc_find_dots(const char *at, ptrdiff_t size, ptrdiff_t *dots, int limit) {
    ptrdiff_t i = 0;
    int count = 0;
    while (JSC_WORDS && i + 8 <= size) {
        uint64_t word = jsc_word(at + i) ^ JSC_EACH('.');
        /* A byte of `found` has its highest bit exactly where that of `word` is 0. */
        uint64_t found = ~(((word & JSC_EACH(0x7f)) + JSC_EACH(0x7f)) | word | JSC_EACH(0x7f));
        for (; found; found &= found - 1) {
            if (count < limit) dots[count] = i + jsc_lowest(found) / 8;
            count++;
        }
        i += 8;
    }
    for (; i < size; i++) {
        if (at[i] != '.') continue;
        if (count < limit) dots[count] = i;
        count++;
    }
    return count;
}

/* Whether the next eight bytes are digits; their number is in value[0]. */
static inline int jsc_eight_digits(const char *at, uint64_t *value) {
    uint64_t word = jsc_word(at);
    if (!JSC_WORDS || ((word & (word + JSC_EACH(6)) & JSC_EACH(0xf0)) != JSC_EACH(0x30)))
        return 0;
    word &= JSC_EACH(0x0f);
    /* Neighbours become pairs, pairs become fours, fours the number. */
    word = word * 10 + (word >> 8);
    word = ((word & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x000f424000000064) +
            ((word >> 16) & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x0000271000000001)) >> 32;
    value[0] = word;
    return 1;
}

#endif
