/*
 * dns-steer: steers DNS to its own queue.
 *
 *     cc -O2 -shared -fPIC -I include -o dns-steer.so dns-steer.c
 *
 *     [[rx]]
 *     plugin = "dns-steer.so"
 *     queue = 3
 *
 * A resolver on that queue's core sees no other traffic. UDP and TCP, IPv4 and IPv6, by either
 * port; later fragments have no ports and go on with the rest. Source: RFC 1035, section 4.2.
 */
#include "picnic_function.h"
#include <stdio.h>

#define TCP 6
#define UDP 17

struct steer {
    int32_t queue;
    uint16_t port;
    uint64_t steered_packets;
};

static int init(const struct picnic_context *context, const char *config, void **state,
                char *error, size_t error_size)
{
    int64_t queue = picnic_config_integer(config, "queue", 0);
    if (queue >= context->queues) {
        snprintf(error, error_size, "queue: found %lld, allowed: 0 to %u", (long long)queue,
                 context->queues - 1);
        return -1;
    }
    struct steer *steer = calloc(1, sizeof *steer);
    if (!steer) {
        snprintf(error, error_size, "no memory");
        return -1;
    }
    steer->queue = (int32_t)queue;
    steer->port = (uint16_t)picnic_config_integer(config, "port", 53);
    *state = steer;
    return 0;
}

static int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *packet)
{
    struct steer *steer = state;
    (void)now_ns;
    if ((packet->protocol != TCP && packet->protocol != UDP) || !packet->l4_offset
        || packet->length < packet->l4_offset + 4u) {
        return PICNIC_NEXT;
    }
    const uint8_t *ports = packet->data + packet->l4_offset;
    if (picnic_be16(ports) != steer->port && picnic_be16(ports + 2) != steer->port) {
        return PICNIC_NEXT;
    }
    steer->steered_packets++;
    return steer->queue;
}

static const struct picnic_counter counters[] = {
    { "steered_packets", "DNS packets steered to the queue." },
    { NULL, NULL },
};

static void count(void *state, uint64_t *values)
{
    const struct steer *steer = state;
    values[0] = steer->steered_packets;
}

const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE,
    .name = "dns-steer",
    .help = "steer DNS to its own queue",
    .flags = PICNIC_WANTS_LAYERS,
    .config_schema =
        "{\"properties\":{"
        "\"queue\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":65535,\"default\":0,"
        "\"description\":\"The queue for DNS.\"},"
        "\"port\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":65535,\"default\":53,"
        "\"description\":\"The port of DNS.\"}}}",
    .init = init,
    .process_packet = process_packet,
    .exit = free,
    .counters = counters,
    .count = count,
};
