/* The kernel's interface for programs: types, helpers, map declarations.
 *
 * All of it is the kernel's stable interface, so that building needs clang and no headers.
 * Source: include/uapi/linux/bpf.h; RFC 9669.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#define inline_always static inline __attribute__((always_inline))
/* Hides a value's range from the compiler. */
#define hide(variable) asm volatile("" : "+r"(variable))
/* Likewise, and hides the contents of memory. */
#define forget(variable) asm volatile("" : "+r"(variable) : : "memory")
/* Zero, which the verifier takes for any value: it then checks a loop body only once. */
static volatile u32 nothing;

#define apart static __attribute__((noinline))
/* Verified once, for any arguments. */
#define by_itself __attribute__((noinline))

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PROG_ARRAY = 3, MAP_PERCPU_ARRAY = 6, MAP_CPUMAP = 16 };
enum { XDP_ABORTED = 0, XDP_DROP = 1, XDP_PASS = 2, XDP_TX = 3, XDP_REDIRECT = 4 };
enum { TCX_NEXT = -1, TCX_DROP = 2, TCX_REDIRECT = 7 };
/* Flag: redirect to the interface's receive side. */
enum { REDIRECT_INGRESS = 1 };

/* A packet in an XDP program. */
struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

/* A packet in a tc program. */
struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex;
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
	u32 napi_id;
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 data_meta;
	u64 flow_keys;
	u64 tstamp;
	u32 wire_len;
	u32 gso_segs;
};

struct raw_tracepoint {
	u64 args[12];
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_tail_call)(void *context, void *programs, u32 index) = (void *)12;
static long (*bpf_get_current_comm)(void *to, u32 length) = (void *)16;
static long (*bpf_redirect)(u32 interface, u64 flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const struct __sk_buff *skb, u32 offset, void *to, u32 length) =
	(void *)26;
static long (*bpf_skb_pull_data)(struct __sk_buff *skb, u32 length) = (void *)39;
static void (*bpf_set_hash_invalid)(struct __sk_buff *skb) = (void *)41;
static long (*bpf_set_hash)(struct __sk_buff *skb, u32 hash) = (void *)48;
static long (*bpf_redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static long (*bpf_xdp_adjust_meta)(struct xdp_md *context, int delta) = (void *)54;
static long (*bpf_probe_read_kernel)(void *to, u32 length, const void *from) = (void *)113;
static long (*bpf_loop)(u32 turns, void *body, void *context, u64 flags) = (void *)181;
static long (*bpf_xdp_load_bytes)(struct xdp_md *context, u32 offset, void *to, u32 length) =
	(void *)189;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define from_be16(word) __builtin_bswap16(word)
#else
#define from_be16(word) (word)
#endif
#define be16(word) from_be16((u16)(word))

/* A byte of a word, in memory order. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define byte_of(word, place) ((word) >> 8 * (place) & 0xff)
#else
#define byte_of(word, place) ((word) >> (24 - 8 * (place)) & 0xff)
#endif
