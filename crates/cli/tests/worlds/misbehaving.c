/* An object whose function WHERE does what HOW says; both are in the environment. Elsewhere it is
 * good: it holds packets back for a while and lets them go on. */
#define _GNU_SOURCE
#include "picnic_function.h"
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int zero;
static int *volatile nowhere;

#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Winfinite-recursion"
#pragma GCC diagnostic ignored "-Wdiv-by-zero"

static void recurse(volatile char *above)
{
    volatile char frame[4096];
    frame[0] = above ? *above : 0;
    recurse(frame);
    frame[1] = frame[0];
}

static void misbehave(const char *here)
{
    const char *where = getenv("WHERE"), *how = getenv("HOW");
    if (!where || !how || strcmp(where, here))
        return;
    if (!strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "_exit"))
        _exit(0);
    if (!strcmp(how, "quick_exit"))
        quick_exit(0);
    if (!strcmp(how, "exit_group"))
        syscall(SYS_exit_group, 0);
    if (!strcmp(how, "thread"))
        syscall(SYS_exit, 0);
    if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    if (!strcmp(how, "hang"))
        for (;;)
            zero = 0;
    if (!strcmp(how, "SIGSEGV"))
        *nowhere = 1;
    if (!strcmp(how, "SIGFPE"))
        zero = 7 / zero;
    if (!strcmp(how, "SIGILL"))
        __builtin_trap();
    if (!strcmp(how, "SIGABRT"))
        abort();
    if (!strcmp(how, "SIGBUS"))
        raise(SIGBUS);
    if (!strcmp(how, "SIGTRAP"))
        raise(SIGTRAP);
    if (!strcmp(how, "recursion"))
        recurse(NULL);
    if (!strcmp(how, "child")) {
        pid_t child = fork();
        if (!child)
            _exit(0);
        if (system("exit 3") == -1)
            abort();
    }
}

__attribute__((constructor)) static void construct(void)
{
    misbehave("constructor");
}

__attribute__((destructor)) static void destruct(void)
{
    misbehave("destructor");
}

static int init(const struct picnic_context *context, const char *config, void **state, char *error,
                size_t error_size)
{
    (void)context, (void)config, (void)error, (void)error_size;
    misbehave("init");
    *state = calloc(1, 8);
    return 0;
}

__attribute__((unused)) static void process_burst(void *state, uint64_t now_ns, struct picnic_packet *packets,
                          uint32_t count, int32_t *targets)
{
    (void)state, (void)now_ns, (void)packets;
    misbehave("process_burst");
    for (uint32_t i = 0; i < count; i++)
        targets[i] = PICNIC_HOLD;
}

__attribute__((unused)) static int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *packet)
{
    (void)state, (void)now_ns, (void)packet;
    misbehave("process_packet");
    return PICNIC_NEXT;
}

static uint64_t next_deadline(void *state)
{
    (void)state;
    misbehave("next_deadline");
    return 0;
}

static void flush(void *state, uint64_t now_ns, struct picnic_packet *packets, uint32_t count,
                  int32_t *targets)
{
    (void)state, (void)now_ns, (void)packets, (void)count, (void)targets;
    misbehave("flush");
}

static int command(void *state, const char *command, const char *arguments, char *reply,
                   size_t reply_size)
{
    (void)state, (void)command, (void)arguments, (void)reply, (void)reply_size;
    misbehave("command");
    return 0;
}

static const struct picnic_counter counters[] = { { "seen", "Nothing." }, { NULL, NULL } };

static void count(void *state, uint64_t *values)
{
    (void)state;
    misbehave("count");
    values[0] = 0;
}

static void end(void *state)
{
    misbehave("exit");
    free(state);
}

const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE, .name = "odd", .init = init, .next_deadline = next_deadline, .flush = flush,
#ifdef BY_PACKET
    .process_packet = process_packet,
#else
    .process_burst = process_burst,
#endif
    .command = command, .exit = end, .counters = counters, .count = count };
