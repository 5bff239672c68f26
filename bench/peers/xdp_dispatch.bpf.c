/* Hand-written packet dispatch: an XDP program that hashes UDP and TCP over IPv4 with JHash and passes
 * each packet to a core through a cpumap. It has no counters and no filters, and handles no other
 * packets. `picnic-micro feed --peer` compares a card in the kernel with it.
 *
 * Source: Bob Jenkins, lookup3.c (2006); Documentation/bpf/map_cpumap.rst.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define ROTATE(word, by) ((word) << (by) | (word) >> (32 - (by)))
#define MOST_CORES 256
#define ENTRIES 128

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 rest[4];
};

static long (*bpf_redirect_map)(void *map, u64 key, u64 flags) = (void *)51;

/* Set by the loader: the core of each entry. */
const volatile u32 CORES[ENTRIES] = {};

struct {
	int (*type)[16];
	int (*max_entries)[MOST_CORES];
	int (*key_size)[4];
	int (*value_size)[8];
} CPUS SEC(".maps");

SEC("xdp")
int xdp_dispatch(struct xdp_md *context)
{
	u8 *data = (u8 *)(long)context->data, *end = (u8 *)(long)context->data_end;
	u32 a, b, c;

	if (data + 38 > end || *(u16 *)(data + 12) != __builtin_bswap16(0x0800) ||
	    data[14] != 0x45 || (data[23] != 17 && data[23] != 6) ||
	    (*(u16 *)(data + 20) & __builtin_bswap16(0x3fff)))
		return 2;
	a = b = c = 0xdeadbeef + 12;
	a += *(u32 *)(data + 26), b += *(u32 *)(data + 30), c += *(u32 *)(data + 34);
	c ^= b, c -= ROTATE(b, 14);
	a ^= c, a -= ROTATE(c, 11);
	b ^= a, b -= ROTATE(a, 25);
	c ^= b, c -= ROTATE(b, 16);
	a ^= c, a -= ROTATE(c, 4);
	b ^= a, b -= ROTATE(a, 14);
	c ^= b, c -= ROTATE(b, 24);
	return bpf_redirect_map(&CPUS, CORES[c % ENTRIES], 1);
}

char LICENSE[] SEC("license") = "Apache-2.0";
