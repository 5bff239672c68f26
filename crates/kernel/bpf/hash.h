/* The hashes of receive-side scaling, over the words of a flow.
 *
 * The results equal those of the crate `picnic-hash`.
 * Source: Microsoft, "RSS Hashing Functions"; Bob Jenkins, lookup3.c (2006) and Dr. Dobb's Journal
 * 22(9), 1997 (lookup2).
 */
#pragma once
#include "bpf.h"

/* Contribution of each input byte, by position: Toeplitz is linear. */
struct toeplitz {
	u32 bytes[36][256];
};

#define ROTATE(word, by) ((word) << (by) | (word) >> (32 - (by)))

/* In registers, word by word. */
inline_always u32 toeplitz_v4(const struct toeplitz *table, const u32 *words)
{
	u32 hash = 0;

#pragma unroll
	for (int i = 0; i < 12; i++)
		hash ^= table->bytes[i][byte_of(words[i / 4], i % 4)];
	return hash;
}

/* Separate, since it takes too much of a program's stack. */
apart u32 toeplitz_v6(const struct toeplitz *table, const u32 *words)
{
	const u8 *bytes = (const u8 *)words;
	u32 hash = 0;

	if (!table || !words)
		return 0;
#pragma unroll
	for (int i = 0; i < 36; i++) {
		hash ^= table->bytes[i][bytes[i]];
		forget(hash);
	}
	return hash;
}

#define LOOKUP3_MIX(a, b, c)                     \
	do {                                     \
		a -= c, a ^= ROTATE(c, 4), c += b;  \
		b -= a, b ^= ROTATE(a, 6), a += c;  \
		c -= b, c ^= ROTATE(b, 8), b += a;  \
		a -= c, a ^= ROTATE(c, 16), c += b; \
		b -= a, b ^= ROTATE(a, 19), a += c; \
		c -= b, c ^= ROTATE(b, 4), b += a;  \
	} while (0)

#define LOOKUP3_FINISH(a, b, c)          \
	do {                             \
		c ^= b, c -= ROTATE(b, 14); \
		a ^= c, a -= ROTATE(c, 11); \
		b ^= a, b -= ROTATE(a, 25); \
		c ^= b, c -= ROTATE(b, 16); \
		a ^= c, a -= ROTATE(c, 4);  \
		b ^= a, b -= ROTATE(a, 14); \
		c ^= b, c -= ROTATE(b, 24); \
	} while (0)

inline_always u32 lookup3(const u32 *words, int count, u32 initial)
{
	u32 a, b, c;

	a = b = c = 0xdeadbeef + 4 * count + initial;
#pragma unroll
	for (int i = 0; i < count; i += 3) {
		a += words[i], b += words[i + 1], c += words[i + 2];
		if (i + 3 < count)
			LOOKUP3_MIX(a, b, c);
	}
	LOOKUP3_FINISH(a, b, c);
	return c;
}

#define LOOKUP2_ROUND(a, b, c, x, y, z)    \
	do {                               \
		a -= b, a -= c, a ^= c >> x;  \
		b -= c, b -= a, b ^= a << y;  \
		c -= a, c -= b, c ^= b >> z;  \
	} while (0)

#define LOOKUP2_MIX(a, b, c)                      \
	do {                                      \
		LOOKUP2_ROUND(a, b, c, 13, 8, 13);   \
		LOOKUP2_ROUND(a, b, c, 12, 16, 5);   \
		LOOKUP2_ROUND(a, b, c, 3, 10, 15);   \
	} while (0)

inline_always u32 lookup2(const u32 *words, int count, u32 initial)
{
	u32 a = 0x9e3779b9, b = 0x9e3779b9, c = initial;

#pragma unroll
	for (int i = 0; i < count; i += 3) {
		a += words[i], b += words[i + 1], c += words[i + 2];
		LOOKUP2_MIX(a, b, c);
	}
	/* The last block is empty: only the length remains of its words. */
	c += 4 * count;
	LOOKUP2_MIX(a, b, c);
	return c;
}
