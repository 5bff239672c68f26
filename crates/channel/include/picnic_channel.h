/* Channels between a host process and a task on a PICNIC card, in C11: this file alone.
 *
 *     struct picnic_channel *channel = picnic_channel_open("/run/picnic/picnic0.sock", "echo");
 *     picnic_channel_send(channel, "hello", 5);
 *     long bytes = picnic_channel_wait(channel, PICNIC_MESSAGE, -1)
 *                      ? -1 : picnic_channel_receive(channel, buffer, sizeof buffer);
 *
 * All functions that can fail return a negative errno; picnic_channel_open returns NULL and sets
 * errno, and picnic_channel_error() then has the card's words. A channel belongs to one thread at a
 * time. The layout of the memory is described in crates/channel/src/ring.rs.
 */
#ifndef PICNIC_CHANNEL_H
#define PICNIC_CHANNEL_H

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* What to wait for. */
enum { PICNIC_MESSAGE = 1, PICNIC_ROOM = 2 };

struct picnic_channel {
    _Atomic uint64_t *words;
    size_t bytes, message_bytes, messages, stride;
    /* Own indices, and the card's as last read. */
    uint64_t tail, head, card_tail, card_head, announced_tail, announced_head;
    int connection, bell, card_bell, readable;
};

enum {
    PICNIC_CARD_GATE_ = 16, PICNIC_HOST_GATE_ = 32,
    PICNIC_TO_CARD_TAIL_ = 48, PICNIC_TO_CARD_HEAD_ = 64,
    PICNIC_TO_HOST_TAIL_ = 80, PICNIC_TO_HOST_HEAD_ = 96,
    PICNIC_CARD_AWAITS_ = 112, PICNIC_HOST_AWAITS_ = 128, PICNIC_CLOSED_ = 144,
    PICNIC_SLOTS_ = 160,
    PICNIC_ARMED_ = 0, PICNIC_SCHEDULED_ = 1, PICNIC_POLLING_ = 2
};

static inline _Atomic uint32_t *picnic_gate_(struct picnic_channel *c, int word)
{
    return (_Atomic uint32_t *)(void *)&c->words[word];
}

/* Why the last picnic_channel_open failed. */
static inline char *picnic_channel_error(void)
{
    static _Thread_local char text[512];
    return text;
}

static inline void picnic_channel_close(struct picnic_channel *c);

/* Makes staged messages and taken slots visible, and wakes the card if it sleeps and waits. */
static inline void picnic_channel_flush(struct picnic_channel *c)
{
    int sent = c->tail != c->announced_tail, taken = c->head != c->announced_head;
    if (!sent && !taken)
        return;
    atomic_store_explicit(&c->words[PICNIC_TO_CARD_TAIL_], c->tail, memory_order_release);
    atomic_store_explicit(&c->words[PICNIC_TO_HOST_HEAD_], c->head, memory_order_release);
    c->announced_tail = c->tail;
    c->announced_head = c->head;
    /* Publish, then read the gate; the card does it in the opposite order. */
    atomic_thread_fence(memory_order_seq_cst);
    _Atomic uint32_t *gate = picnic_gate_(c, PICNIC_CARD_GATE_);
    uint32_t armed = PICNIC_ARMED_;
    if (atomic_load_explicit(gate, memory_order_relaxed) != armed)
        return;
    uint64_t awaits =
        atomic_load_explicit(&c->words[PICNIC_CARD_AWAITS_], memory_order_relaxed);
    if (!((sent && awaits & PICNIC_MESSAGE) || (taken && awaits & PICNIC_ROOM)))
        return;
    if (atomic_compare_exchange_strong(gate, &armed, PICNIC_SCHEDULED_)) {
        uint64_t one = 1;
        ssize_t rung = write(c->card_bell, &one, sizeof one);
        (void)rung; /* a full counter has been rung often enough */
    }
}

static inline int picnic_is_closed_(struct picnic_channel *c)
{
    return atomic_load_explicit(&c->words[PICNIC_CLOSED_], memory_order_acquire) != 0;
}

/* Free slots; negative if the card breaks the protocol. */
static inline long picnic_room_(struct picnic_channel *c)
{
    if (c->tail - c->card_head == c->messages) {
        c->card_head =
            atomic_load_explicit(&c->words[PICNIC_TO_CARD_HEAD_], memory_order_acquire);
        if (c->tail - c->card_head > c->messages)
            return -EPROTO;
    }
    return (long)(c->messages - (c->tail - c->card_head));
}

/* Messages to receive; negative if the card breaks the protocol. */
static inline long picnic_available_(struct picnic_channel *c)
{
    if (c->card_tail == c->head) {
        c->card_tail =
            atomic_load_explicit(&c->words[PICNIC_TO_HOST_TAIL_], memory_order_acquire);
        if (c->card_tail - c->head > c->messages)
            return -EPROTO;
    }
    return (long)(c->card_tail - c->head);
}

static inline _Atomic uint64_t *picnic_slot_(struct picnic_channel *c, int to_host, uint64_t index)
{
    size_t number = (size_t)to_host * c->messages + (index & (c->messages - 1));
    return &c->words[PICNIC_SLOTS_ + number * c->stride];
}

/* Writes a message that picnic_channel_flush sends. -EAGAIN: full, -EMSGSIZE: too long, -EPIPE:
 * the card has closed the channel. */
static inline int picnic_channel_stage(struct picnic_channel *c, const void *message, size_t bytes)
{
    if (bytes > c->message_bytes)
        return -EMSGSIZE;
    long room = picnic_room_(c);
    if (room < 0)
        return (int)room;
    if (room == 0)
        return picnic_is_closed_(c) ? -EPIPE : -EAGAIN;
    _Atomic uint64_t *slot = picnic_slot_(c, 0, c->tail++);
    atomic_store_explicit(slot, bytes, memory_order_relaxed);
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)message + at, bytes - at < 8 ? bytes - at : 8);
        atomic_store_explicit(++slot, word, memory_order_relaxed);
    }
    return 0;
}

/* Sends a message; errors as picnic_channel_stage. */
static inline int picnic_channel_send(struct picnic_channel *c, const void *message, size_t bytes)
{
    int error = picnic_channel_stage(c, message, bytes);
    picnic_channel_flush(c);
    return error;
}

/* Copies the oldest message, up to `room` bytes; returns the number of bytes copied. -EAGAIN: there
 * is none, -EPIPE: nor will there be, since the card has closed the channel. */
static inline long picnic_channel_receive(struct picnic_channel *c, void *into, size_t room)
{
    long available = picnic_available_(c);
    if (available == 0) {
        picnic_channel_flush(c);
        if (!picnic_is_closed_(c))
            return -EAGAIN;
        /* Its last messages were published before it closed. */
        available = picnic_available_(c);
        if (available == 0)
            return -EPIPE;
    }
    if (available < 0)
        return available;
    _Atomic uint64_t *slot = picnic_slot_(c, 1, c->head);
    uint64_t length = atomic_load_explicit(slot, memory_order_relaxed);
    if (length > c->message_bytes)
        return -EPROTO;
    size_t bytes = length < room ? (size_t)length : room;
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = atomic_load_explicit(++slot, memory_order_relaxed);
        memcpy((char *)into + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
    c->head++;
    /* At the end of a batch, and before it in a long one: the card may wait for room. */
    if (c->head == c->card_tail)
        atomic_store_explicit(&c->words[PICNIC_TO_HOST_HEAD_], c->head, memory_order_release);
    if ((c->head - c->announced_head) * 4 > c->messages)
        picnic_channel_flush(c);
    return (long)bytes;
}

/* Prepares to poll picnic_channel_descriptor for POLLIN in a loop of one's own; returns 0 if there
 * already is something to do. picnic_channel_wake ends the wait. */
static inline int picnic_channel_rest(struct picnic_channel *c, int awaits)
{
    picnic_channel_flush(c);
    atomic_store_explicit(&c->words[PICNIC_HOST_AWAITS_], (uint64_t)awaits, memory_order_relaxed);
    atomic_store_explicit(picnic_gate_(c, PICNIC_HOST_GATE_), PICNIC_ARMED_, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    int news = (awaits & PICNIC_MESSAGE && picnic_available_(c) != 0)
               || (awaits & PICNIC_ROOM && picnic_room_(c) != 0) || picnic_is_closed_(c);
    if (news)
        atomic_store(picnic_gate_(c, PICNIC_HOST_GATE_), PICNIC_POLLING_);
    return !news;
}

/* Ends a wait. */
static inline void picnic_channel_wake(struct picnic_channel *c)
{
    atomic_store(picnic_gate_(c, PICNIC_HOST_GATE_), PICNIC_POLLING_);
    uint64_t count;
    ssize_t rung = read(c->bell, &count, sizeof count);
    (void)rung; /* it need not have been rung */
}

/* Readable when there may be something to do, after picnic_channel_rest. */
static inline int picnic_channel_descriptor(const struct picnic_channel *c)
{
    return c->readable;
}

/* Waits for a message or room, up to `milliseconds`, -1 for ever. 0: look again, -ETIMEDOUT, or
 * -EPIPE: the card has closed the channel, and nothing is left. */
static inline int picnic_channel_wait(struct picnic_channel *c, int awaits, int milliseconds)
{
    if (!picnic_channel_rest(c, awaits))
        return 0;
    struct pollfd source = { .fd = c->readable, .events = POLLIN };
    int found = poll(&source, 1, milliseconds);
    picnic_channel_wake(c);
    struct pollfd lost = { .fd = c->connection, .events = POLLIN };
    if (awaits & PICNIC_MESSAGE && picnic_available_(c) != 0)
        return 0;
    if (awaits & PICNIC_ROOM && picnic_room_(c) != 0)
        return 0;
    if (picnic_is_closed_(c) || poll(&lost, 1, 0) > 0)
        return -EPIPE;
    return found == 0 ? -ETIMEDOUT : 0;
}

/* The card's answer: a line, with three descriptors. 0, or a negative errno. */
static inline int picnic_answer_(int connection, int files[3])
{
    char line[4096], *error = picnic_channel_error();
    union { char bytes[CMSG_SPACE(3 * sizeof(int))]; struct cmsghdr align; } control;
    size_t length = 0;
    int count = 0;
    do {
        struct iovec part = { line + length, sizeof line - 1 - length };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1,
                                  .msg_control = &control, .msg_controllen = sizeof control };
        ssize_t got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got == 0 ? -ECONNRESET : -errno;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        if (rights && rights->cmsg_type == SCM_RIGHTS && count == 0) {
            count = (int)((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(files, CMSG_DATA(rights), (size_t)count * sizeof(int));
        }
        length += (size_t)got;
    } while (length == 0 || (line[length - 1] != '\n' && length < sizeof line - 1));
    line[length] = 0;
    char *words = strstr(line, "\"message\":\"");
    if (count == 3)
        return 0;
    while (count > 0)
        close(files[--count]);
    if (!words)
        return snprintf(error, 512, "the card sent no channel"), -EPROTO;
    char *end = error + 511;
    for (words += 11; *words && *words != '"' && error < end; words++)
        if (*words != '\\' || *++words)
            *error++ = *words;
    *error = 0;
    return -ENOENT;
}

static inline int picnic_map_(struct picnic_channel *c, int memory)
{
    struct stat stat;
    if (fstat(memory, &stat) != 0)
        return -errno;
    c->bytes = (size_t)stat.st_size;
    void *start = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (start == MAP_FAILED)
        return -errno;
    c->words = (_Atomic uint64_t *)start;
    const char magic[8] = "PICNCH\1";
    uint64_t expected, found = atomic_load(&c->words[0]);
    memcpy(&expected, magic, sizeof expected);
    c->message_bytes = (size_t)atomic_load(&c->words[1]);
    c->messages = (size_t)atomic_load(&c->words[2]);
    c->stride = 1 + (c->message_bytes + 7) / 8;
    size_t needed = (PICNIC_SLOTS_ + 2 * c->messages * c->stride) * 8;
    return found == expected && needed <= c->bytes ? 0 : -EPROTO;
}

/* Opens a channel by the name that its task gave it. NULL: errno and picnic_channel_error say why;
 * ENOENT means that the card refused it. */
static inline struct picnic_channel *picnic_channel_open(const char *socket_path, const char *name)
{
    struct picnic_channel *c = calloc(1, sizeof *c);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char call[256];
    int files[3] = { -1, -1, -1 }, error = -ENAMETOOLONG;
    picnic_channel_error()[0] = 0;
    if (!c)
        return NULL;
    c->connection = c->bell = c->card_bell = c->readable = -1;
    int length = snprintf(call, sizeof call,
                          "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"channel.open\","
                          "\"params\":{\"name\":\"%s\"}}\n", name);
    if (strlen(socket_path) < sizeof address.sun_path && length < (int)sizeof call) {
        strcpy(address.sun_path, socket_path);
        c->connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        errno = EIO;
        error = 0;
        if (c->connection < 0
            || connect(c->connection, (struct sockaddr *)&address, sizeof address) != 0
            || send(c->connection, call, (size_t)length, MSG_NOSIGNAL) != length)
            error = -errno;
        else
            error = picnic_answer_(c->connection, files);
    }
    if (error == 0) {
        c->bell = files[1];
        c->card_bell = files[2];
        error = picnic_map_(c, files[0]);
        close(files[0]);
    }
    if (error == 0) {
        struct epoll_event wanted = { .events = EPOLLIN | EPOLLRDHUP };
        c->readable = epoll_create1(EPOLL_CLOEXEC);
        if (c->readable < 0 || epoll_ctl(c->readable, EPOLL_CTL_ADD, c->bell, &wanted) != 0
            || epoll_ctl(c->readable, EPOLL_CTL_ADD, c->connection, &wanted) != 0)
            error = -errno;
    }
    if (error != 0) {
        picnic_channel_close(c);
        errno = -error;
        return NULL;
    }
    atomic_store(picnic_gate_(c, PICNIC_HOST_GATE_), PICNIC_POLLING_);
    return c;
}

/* Closes it; messages sent before are still received. */
static inline void picnic_channel_close(struct picnic_channel *c)
{
    int files[] = { c->readable, c->card_bell, c->bell, c->connection };
    if (c->words) {
        if (c->message_bytes)
            picnic_channel_flush(c);
        munmap((void *)c->words, c->bytes);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] >= 0)
            close(files[i]);
    free(c);
}

#endif
