/*
 * The distance of two cores: the one-way time of one word, in nanoseconds.
 *
 * A hypervisor may move virtual cores between near and distant physical cores
 * while programs run. Packet rates between cores depend on that distance, so
 * a comparison of two programs must check that both had the same distance.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TRIPS 20000
#define SAMPLES 15

/* Two pairs of cache lines away from all other data. */
static struct {
	_Alignas(256) atomic_int turn;
	char padding[252];
} word;

static void pin(int core)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	const int failed = pthread_setaffinity_np(pthread_self(), sizeof(set),
						  &set);
	if (failed != 0) {
		fprintf(stderr, "core %d: %s\n", core, strerror(failed));
		exit(1);
	}
}

static void await(int turn)
{
	while (atomic_load_explicit(&word.turn, memory_order_acquire) != turn)
		;
}

static void *answer(void *argument)
{
	pin(*(const int *)argument);
	for (int i = 0; i < SAMPLES * TRIPS; i++) {
		await(2 * i + 1);
		atomic_store_explicit(&word.turn, 2 * i + 2,
				      memory_order_release);
	}
	return NULL;
}

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(void)
{
	const int here = (int)sysconf(_SC_NPROCESSORS_ONLN) - 1, there = 0;
	if (here < 1) {
		fprintf(stderr, "two cores are needed\n");
		return 1;
	}
	pthread_t thread;
	if (pthread_create(&thread, NULL, answer, (void *)&there) != 0) {
		fprintf(stderr, "no thread\n");
		return 1;
	}
	pin(here);
	/* The median of short samples: a preemption spoils only one sample. */
	double samples[SAMPLES];
	for (int s = 0; s < SAMPLES; s++) {
		const double begin = now_ns();
		for (int i = s * TRIPS; i < (s + 1) * TRIPS; i++) {
			atomic_store_explicit(&word.turn, 2 * i + 1,
					      memory_order_release);
			await(2 * i + 2);
		}
		samples[s] = (now_ns() - begin) / TRIPS / 2;
	}
	pthread_join(thread, NULL);
	qsort(samples, SAMPLES, sizeof(samples[0]), by_value);
	printf("{\"program\":\"core_distance\",\"cores\":[%d,%d],"
	       "\"one_way_ns\":%.1f,\"min_ns\":%.1f,\"max_ns\":%.1f}\n",
	       here, there, samples[SAMPLES / 2], samples[0],
	       samples[SAMPLES - 1]);
	return 0;
}
