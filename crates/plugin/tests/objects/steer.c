/* Obeys the first byte of a packet; logs init and exit. */
#include "picnic_function.h"
#include <stdio.h>

#ifndef NAME
#define NAME "steer"
#endif

struct steer {
    char log[512];
    int64_t label;
    uint64_t packets, due;
};

static int packets_of_all; /* static: each instance has its own */

static void note(const struct steer *steer, const char *what)
{
    FILE *file = fopen(steer->log, "a");
    if (file) {
        fprintf(file, "%s %d\n", what, (int)steer->label);
        fclose(file);
    }
}

static int init(const struct picnic_context *context, const char *config, void **state,
                char *error, size_t error_size)
{
    struct steer *steer = calloc(1, sizeof *steer);
    snprintf(steer->log, sizeof steer->log, "%s/log", context->directory);
    steer->label = picnic_config_integer(config, "label", -1);
    if (steer->label == 13) {
        snprintf(error, error_size, "13 is unlucky in a card of %u queues", context->queues);
        free(steer);
        return -1;
    }
    note(steer, "init");
    *state = steer;
    return 0;
}

static int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *packet)
{
    struct steer *steer = state;
    steer->packets++;
    packets_of_all++;
    packet->mark = (uint32_t)steer->label;
    switch (packet->length ? packet->data[0] : 'n') {
    case 'n': return PICNIC_NEXT;
    case 'd': return PICNIC_DROP;
    case 'c': return PICNIC_CONSUME;
    case 'q': return packet->data[1];            /* a queue, there or not */
    case 'w': return PICNIC_TRANSMIT(packet->data[1]);
    case 'm': return 1 << 20;
    case 'x': return -77;
    case 'h':
        steer->due = now_ns + 1000;
        return PICNIC_HOLD;
    case '<': /* two bytes in front */
        packet->data -= 2;
        packet->length += 2;
        memcpy(packet->data, "ab", 2);
        return PICNIC_NEXT;
    case '>': /* two bytes behind */
        memcpy(packet->data + packet->length, "yz", 2);
        packet->length += 2;
        return PICNIC_NEXT;
    case '-': /* one byte less at both ends */
        packet->data++;
        packet->length -= 2;
        return PICNIC_NEXT;
    case 'l': packet->length = 1u << 20; return PICNIC_NEXT;
    case 'L': packet->length = (uint32_t)packet->length + packet->tailroom + 1; return PICNIC_NEXT;
    case 'p': packet->data -= 40000; return PICNIC_NEXT;
    case 'N': packet->data = NULL; return PICNIC_NEXT;
    case '0': packet->length = 0; return PICNIC_NEXT;
    }
    return PICNIC_NEXT;
}

static uint64_t next_deadline(void *state)
{
    return ((struct steer *)state)->due;
}

static void flush(void *state, uint64_t now_ns, struct picnic_packet *packets, uint32_t count,
                  int32_t *targets)
{
    struct steer *steer = state;
    for (uint32_t index = 0; index < count; index++) {
        /* The second byte is the number of times it is held again. */
        if (packets[index].data[1] > '0') {
            packets[index].data[1]--;
            targets[index] = PICNIC_HOLD;
        } else {
            targets[index] = 2;
        }
    }
    steer->due = now_ns + 1000;
}

static int command(void *state, const char *command, const char *arguments, char *reply,
                   size_t reply_size)
{
    struct steer *steer = state;
    if (!strcmp(command, "get")) {
        snprintf(reply, reply_size, "{\"packets\":%d,\"all\":%d}", (int)steer->packets,
                 packets_of_all);
        return 0;
    }
    if (!strcmp(command, "label")) {
        steer->label = picnic_config_integer(arguments, "to", 0);
        return 0;
    }
    if (!strcmp(command, "babble")) {
        snprintf(reply, reply_size, "not JSON");
        return 0;
    }
    snprintf(reply, reply_size, "no command %s", command);
    return 1;
}

static const struct picnic_counter counters[] = {
    { "seen_packets", "Packets that it was shown." },
    { "label", "The mark that they get." },
    { NULL, NULL },
};

static void count(void *state, uint64_t *values)
{
    const struct steer *steer = state;
    values[0] = steer->packets;
    values[1] = (uint64_t)steer->label;
}

static void end(void *state)
{
    note(state, "exit");
    free(state);
}

const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE,
    .name = NAME,
    .help = "do what the first byte says",
    .config_schema = "{\"properties\":{\"label\":{\"type\":\"integer\",\"minimum\":0,"
                     "\"maximum\":100,\"default\":7,\"description\":\"The mark of packets.\"}}}",
    .init = init,
    .process_packet = process_packet,
    .next_deadline = next_deadline,
    .flush = flush,
    .command = command,
    .exit = end,
    .counters = counters,
    .count = count,
};
