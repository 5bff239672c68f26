/* A user's own XDP programs, as steps of the chain.
 *
 * A program cannot call a program of another file; it can only replace itself with it (a tail call).
 * So the loader wraps each user's program in a few instructions (`src/objects/wrap.rs`). They call
 * the program, store its result in OBJECT_STATE, and tail-call `resume`, which continues the chain.
 * Source: Documentation/bpf/bpf_design_QA.rst.
 */
#pragma once
#include "bpf.h"
#include "rules.h"

/* As in src/object.rs; after the programs of all steps. */
#define RESUME 8

/* Metadata that an object may write before a packet, see docs/kernel-engine.md. */
struct metadata {
	u32 queue;
	u32 mark;
};

/* A bit for each step whose metadata is used. */
const volatile u32 READS_METADATA = 0;

/* By step; then `resume`. */
struct {
	__uint(type, MAP_PROG_ARRAY);
	__uint(max_entries, RESUME + 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} OBJECTS SEC(".maps");

/* State of the packet at an object. */
struct object_state {
	/* The first word: the wrapper writes only this one. */
	u32 verdict;
	u32 wire;
	u32 step;
};

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct object_state);
} OBJECT_STATE SEC(".maps");

inline_always struct object_state *object_state(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&OBJECT_STATE, &zero);
}

/* Tail-calls the object of a step; returns if the step has none. */
inline_always void go_over(struct xdp_md *context, u32 wire, u32 step)
{
	struct object_state *state = object_state();

	if (!state)
		return;
	state->wire = wire;
	state->step = step;
	bpf_tail_call(context, &OBJECTS, step);
}

/* The queue that an object wrote before the packet; ONWARD without one. */
inline_always u32 queue_of_metadata(struct xdp_md *context, u32 step)
{
	const struct metadata *metadata = (void *)(long)context->data_meta;

	if (!(READS_METADATA >> step & 1) ||
	    (void *)(metadata + 1) > (void *)(long)context->data || metadata->queue >= ONWARD)
		return ONWARD;
	return metadata->queue;
}
