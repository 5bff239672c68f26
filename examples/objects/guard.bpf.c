/* An XDP program for any loader: drops packets from blocked addresses.
 *
 *     clang -O2 -g -target bpf -c guard.bpf.c -o guard.bpf.o
 *
 * In a card file with engine = "kernel" and handover = "cpumap":
 *
 *     [[rx]]
 *     object = "guard.bpf.o"
 *
 * While the card runs, an address is blocked, and the packets that it has sent since are shown, by
 *
 *     picnic ctl object update --map blocked --key "10 0 0 1" --value 0
 *     picnic ctl object dump --map blocked
 */

/* Of <linux/bpf.h> and <bpf/bpf_helpers.h>, which objects usually include: the parts used here. */
typedef unsigned char __u8;
typedef unsigned int __u32;
typedef unsigned long long __u64;

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
enum xdp_action { XDP_DROP = 1, XDP_PASS = 2 };

struct xdp_md {
	__u32 data;
	__u32 data_end;
};

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;

/* Dropped packets by source address, in network byte order. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} blocked SEC(".maps");

/* Packets by protocol. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

SEC("xdp")
int guard(struct xdp_md *context)
{
	__u8 *packet = (__u8 *)(long)context->data, *end = (__u8 *)(long)context->data_end;
	__u32 source, protocol;
	__u64 *count;

	/* An Ethernet header and one of IPv4. */
	if (packet + 34 > end || packet[12] != 0x08 || packet[13] != 0x00)
		return XDP_PASS;
	protocol = packet[23];
	count = bpf_map_lookup_elem(&seen, &protocol);
	if (count)
		*count += 1;
	source = *(__u32 *)(packet + 26);
	count = bpf_map_lookup_elem(&blocked, &source);
	if (!count)
		return XDP_PASS;
	__sync_fetch_and_add(count, 1);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
