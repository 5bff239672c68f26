/* How each core spends its time: selected tasks, network softirqs, interrupts.
 *
 * At each kernel event (a task switch, the start or end of a softirq or an interrupt), the time since
 * the previous event is charged to the core's activity between the two.
 *
 * Guarantees: each core writes its own counters. No nanosecond is charged twice: interrupt time is
 * not charged to the interrupted softirq, nor softirq time to the interrupted task.
 * Source: Documentation/trace/events.rst; PICNIC, section 4.1.
 */
#include "bpf.h"

enum { SOFTIRQ_NET_TX = 2, SOFTIRQ_NET_RX = 3 };
/* A task changed its name. */
#define NONE (~0u)
#define MOST_NAMES 4

/* Interrupts of devices and other cores, which count, and interrupts of the core's own timer. */
enum { OF_OTHERS = 1, OF_TIMER };

/* Prefixes of task names, and a mask of the bits that count: 16 bytes, as in the kernel. */
struct name {
	u64 start[2];
	u64 mask[2];
};

const volatile struct name NAMES[MOST_NAMES] = {};

struct work {
	/* By name. */
	u64 tasks_ns[MOST_NAMES];
	u64 softirqs_ns;
	u64 interrupts_ns;
	/* Times that one of the tasks left the core. */
	u64 turns;
	u64 softirqs;
	u64 interrupts;
	u64 last_ns;
	/* The current activity, each plus one. */
	u32 softirq;
	u32 interrupt;
};

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct work);
} WORK SEC(".maps");

/* The names that the current task matches. */
inline_always u32 task(void)
{
	u64 name[2] = {};

	bpf_get_current_comm(name, sizeof(name));
	for (u32 i = 0; i < MOST_NAMES; i++) {
		const volatile struct name *chosen = &NAMES[i];

		if (chosen->mask[0] && (name[0] & chosen->mask[0]) == chosen->start[0] &&
		    (name[1] & chosen->mask[1]) == chosen->start[1])
			return i;
	}
	return NONE;
}

/* Charges the time since the last event to the current activity. */
inline_always struct work *charge(void)
{
	u32 zero = 0, at;
	struct work *work = bpf_map_lookup_elem(&WORK, &zero);
	u64 now = bpf_ktime_get_ns(), passed;

	if (!work)
		return 0;
	/* Zero before a core's first event. */
	passed = work->last_ns ? now - work->last_ns : 0;
	work->last_ns = now;
	if (work->interrupt) {
		if (work->interrupt == OF_OTHERS)
			work->interrupts_ns += passed;
	} else if (work->softirq) {
		if (work->softirq == SOFTIRQ_NET_RX + 1 || work->softirq == SOFTIRQ_NET_TX + 1)
			work->softirqs_ns += passed;
	} else {
		at = task();
		if (at < MOST_NAMES)
			work->tasks_ns[at] += passed;
	}
	return work;
}

inline_always int enter_interrupt(u32 kind)
{
	struct work *work = charge();

	if (work) {
		work->interrupt = kind;
		work->interrupts += kind == OF_OTHERS;
	}
	return 0;
}

inline_always int leave_interrupt(void)
{
	struct work *work = charge();

	if (work)
		work->interrupt = 0;
	return 0;
}

#define INTERRUPT(name, kind, start, end)                  \
	SEC("raw_tp/" #start)                              \
	int enter_##name(struct raw_tracepoint *context)   \
	{                                                  \
		(void)context;                             \
		return enter_interrupt(kind);              \
	}                                                  \
                                                           \
	SEC("raw_tp/" #end)                                \
	int leave_##name(struct raw_tracepoint *context)   \
	{                                                  \
		(void)context;                             \
		return leave_interrupt();                  \
	}

INTERRUPT(device, OF_OTHERS, irq_handler_entry, irq_handler_exit)
/* Interrupts from other cores: to run a function, and to reschedule. */
INTERRUPT(call, OF_OTHERS, call_function_single_entry, call_function_single_exit)
INTERRUPT(wake, OF_OTHERS, reschedule_entry, reschedule_exit)
INTERRUPT(timer, OF_TIMER, local_timer_entry, local_timer_exit)

/* softirq number */
SEC("raw_tp/softirq_entry")
int enter_softirq(struct raw_tracepoint *context)
{
	struct work *work = charge();
	u32 number = context->args[0];

	if (work) {
		work->softirq = number + 1;
		work->softirqs += number == SOFTIRQ_NET_RX;
	}
	return 0;
}

SEC("raw_tp/softirq_exit")
int leave_softirq(struct raw_tracepoint *context)
{
	struct work *work = charge();

	(void)context;
	if (work)
		work->softirq = 0;
	return 0;
}

/* The leaving task is still the current one. */
SEC("raw_tp/sched_switch")
int switched(struct raw_tracepoint *context)
{
	struct work *work = charge();

	(void)context;
	if (work && task() != NONE)
		work->turns += 1;
	return 0;
}

char LICENSE[] SEC("license") = "Apache-2.0";
