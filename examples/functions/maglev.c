/*
 * maglev: a stateless load balancer; each flow goes to the same queue on every card.
 *
 *     cc -O2 -shared -fPIC -I include -o maglev.so maglev.c
 *
 *     [[rx]]
 *     plugin = "maglev.so"
 *     backends = 3
 *
 * Queues 0 to backends - 1 are the back ends. With one more or fewer, few flows move. Source:
 * Eisenbud et al., "Maglev", NSDI 2016, section 3.4 (permutations by offset and skip).
 */
#include "picnic_function.h"
#include <stdio.h>

#define SLOTS 65537 /* a prime, far above the back ends: within 1 % even */

struct maglev {
    uint16_t slots[SLOTS];
};

static uint64_t hash(const uint8_t *bytes, size_t length, uint64_t seed)
{
    uint64_t hash = 0xcbf29ce484222325u ^ seed * 0x9e3779b97f4a7c15u;
    while (length--) {
        hash = (hash ^ *bytes++) * 0x100000001b3u;
    }
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdu;
    return hash ^ hash >> 33;
}

/* Each back end in turn takes the next free slot of its own permutation. */
static void populate(struct maglev *maglev, uint32_t backends)
{
    uint64_t next[256] = { 0 }, skip[256];
    memset(maglev->slots, 0xff, sizeof maglev->slots);
    for (uint32_t backend = 0; backend < backends; backend++) {
        uint8_t name = (uint8_t)backend;
        next[backend] = hash(&name, 1, 1) % SLOTS;
        skip[backend] = hash(&name, 1, 2) % (SLOTS - 1) + 1;
    }
    for (uint32_t taken = 0; taken < SLOTS; taken++) {
        uint32_t backend = taken % backends;
        while (maglev->slots[next[backend]] != 0xffff) {
            next[backend] = (next[backend] + skip[backend]) % SLOTS;
        }
        maglev->slots[next[backend]] = (uint16_t)backend;
    }
}

static int init(const struct picnic_context *context, const char *config, void **state,
                char *error, size_t error_size)
{
    int64_t backends = picnic_config_integer(config, "backends", context->queues);
    if (backends > context->queues) {
        snprintf(error, error_size, "backends: found %lld, allowed: 1 to %u",
                 (long long)backends, context->queues);
        return -1;
    }
    struct maglev *maglev = malloc(sizeof *maglev);
    if (!maglev) {
        snprintf(error, error_size, "no memory");
        return -1;
    }
    populate(maglev, (uint32_t)backends);
    *state = maglev;
    return 0;
}

static int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *packet)
{
    const struct maglev *maglev = state;
    (void)now_ns;
    if (!packet->l3_offset || packet->length < packet->l3_offset + 20u) {
        return PICNIC_NEXT;
    }
    /* Source and destination address and, after the header, the ports. */
    int is_ipv6 = packet->data[packet->l3_offset] >> 4 == 6;
    size_t start = packet->l3_offset + (is_ipv6 ? 8u : 12u);
    size_t end = packet->l3_offset + (is_ipv6 ? 40u : 20u);
    if (packet->length < end) {
        return PICNIC_NEXT;
    }
    uint64_t flow = hash(packet->data + start, end - start, 3);
    if (packet->l4_offset && packet->length >= packet->l4_offset + 4u) {
        flow ^= hash(packet->data + packet->l4_offset, 4, packet->protocol);
    }
    return maglev->slots[flow % SLOTS];
}

const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE, .name = "maglev", .help = "spread flows over queues by consistent hashing",
    .flags = PICNIC_WANTS_LAYERS, .init = init, .process_packet = process_packet, .exit = free,
    .config_schema = "{\"properties\":{\"backends\":{\"type\":\"integer\",\"minimum\":1,"
                     "\"maximum\":256,\"description\":\"Queues 0 to this less one; all if left out.\"}}}",
};
