/* For tests: a program that the kernel accepts, with types that do not describe its argument. */
#include "bpf.h"

SEC("xdp")
int untyped(void *context)
{
	return context ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "Apache-2.0";
