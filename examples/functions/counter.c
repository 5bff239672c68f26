/*
 * counter: counts in the network, with a custom protocol.
 *
 *     cc -O2 -shared -fPIC -I include -o counter.so counter.c
 *
 *     [[rx]]
 *     plugin = "counter.so"
 *
 * A request is an Ethernet frame of type 0x88b5 (for experiments, IEEE 802) whose payload is an
 * operation (1 add, 2 read), a key of one byte, two bytes unused, and a number of four bytes, in
 * network order. The card answers in the host's place: the same frame, on the wire that it arrived
 * on, with the addresses swapped, the operation plus 0x80 and the count. The host sees none.
 */
#include "picnic_function.h"
#include <stdio.h>

#define TYPE 0x88b5
#define HEADER 14
#define ADD 1
#define READ 2

struct counters {
    uint32_t counts[256];
    uint64_t requests;
};

static int init(const struct picnic_context *context, const char *config, void **state,
                char *error, size_t error_size)
{
    (void)context, (void)config;
    *state = calloc(1, sizeof(struct counters));
    if (!*state) {
        snprintf(error, error_size, "no memory");
        return -1;
    }
    return 0;
}

static int32_t answer(struct counters *counters, struct picnic_packet *packet)
{
    uint8_t *frame = packet->data, *request = frame + HEADER, address[6];
    if (packet->length < HEADER + 8 || picnic_be16(frame + 12) != TYPE) {
        return PICNIC_NEXT;
    }
    uint32_t *count = &counters->counts[request[1]];
    switch (request[0]) {
    case ADD: *count += picnic_be32(request + 4); break;
    case READ: break;
    default: return PICNIC_DROP;
    }
    counters->requests++;
    request[0] |= 0x80;
    for (int byte = 0; byte < 4; byte++) {
        request[4 + byte] = (uint8_t)(*count >> (24 - 8 * byte));
    }
    memcpy(address, frame, 6);
    memcpy(frame, frame + 6, 6);
    memcpy(frame + 6, address, 6);
    return PICNIC_TRANSMIT(packet->wire);
}

static void process_burst(void *state, uint64_t now_ns, struct picnic_packet *packets,
                          uint32_t count, int32_t *targets)
{
    (void)now_ns;
    for (uint32_t index = 0; index < count; index++) {
        targets[index] = answer(state, &packets[index]);
    }
}

static int command(void *state, const char *command, const char *arguments, char *reply,
                   size_t reply_size)
{
    const struct counters *counters = state;
    uint8_t key = (uint8_t)picnic_config_integer(arguments, "key", 0);
    if (strcmp(command, "get")) {
        snprintf(reply, reply_size, "found command %.40s, allowed: get", command);
        return -1;
    }
    snprintf(reply, reply_size, "{\"key\":%u,\"count\":%u,\"requests\":%llu}", key,
             counters->counts[key], (unsigned long long)counters->requests);
    return 0;
}

const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE,
    .name = "counter",
    .help = "answer requests of a counting protocol in the host's place",
    .init = init,
    .process_burst = process_burst,
    .command = command,
    .exit = free,
};
