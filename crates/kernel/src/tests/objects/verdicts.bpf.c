/* Programs of somebody else's, for tests: each UDP packet says by its destination port what becomes
 * of it. */
#include "bpf.h"

#define FIRST_PORT 7000

enum { MAP_DEVMAP = 14 };

static long (*bpf_xdp_adjust_head)(struct xdp_md *context, int delta) = (void *)44;
static long (*bpf_xdp_adjust_tail)(struct xdp_md *context, int delta) = (void *)65;

struct {
	__uint(type, MAP_DEVMAP);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 4);
} ways SEC(".maps");

/* Distance of a packet's port from FIRST_PORT; none for packets other than UDP. */
inline_always int number(struct xdp_md *context)
{
	u8 *packet = (u8 *)(long)context->data, *end = (u8 *)(long)context->data_end;

	if (packet + 42 > end || packet[12] != 0x08 || packet[13] != 0x00 || packet[23] != 17)
		return -1;
	return (packet[36] << 8 | packet[37]) - FIRST_PORT;
}

/* The verdict that the port encodes; XDP_PASS for other ports. */
SEC("xdp.frags")
int verdicts(struct xdp_md *context)
{
	int verdict = number(context);

	if (verdict == XDP_REDIRECT)
		return bpf_redirect_map(&ways, 0, XDP_ABORTED);
	return verdict >= XDP_ABORTED && verdict <= 5 ? verdict : XDP_PASS;
}

/* A packet's queue is its port, its mark that and 5. */
SEC("xdp")
int steers(struct xdp_md *context)
{
	int queue = number(context);
	u32 *metadata;

	if (queue < 0 || bpf_xdp_adjust_meta(context, -8))
		return XDP_PASS;
	metadata = (void *)(long)context->data_meta;
	if ((void *)(metadata + 2) > (void *)(long)context->data)
		return XDP_ABORTED;
	metadata[0] = queue == 9 ? ~0U : queue;
	metadata[1] = queue + 5;
	return XDP_PASS;
}

/* Takes an outer header of 14 bytes off, and cuts the end. */
SEC("xdp")
int shortens(struct xdp_md *context)
{
	if (bpf_xdp_adjust_head(context, 14) || bpf_xdp_adjust_tail(context, -4))
		return XDP_ABORTED;
	return XDP_PASS;
}

/* Code that the verifier refuses. */
SEC("xdp")
int unbounded(struct xdp_md *context)
{
	return *(u8 *)(long)context->data;
}

char LICENSE[] SEC("license") = "GPL";
