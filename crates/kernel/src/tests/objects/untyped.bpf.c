/* For tests: a program that the kernel takes, with types that say nothing of what it is given. */
#include "bpf.h"

SEC("xdp")
int untyped(void *context)
{
	return context ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "Apache-2.0";
