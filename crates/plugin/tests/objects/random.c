/* Returns random fates and changes packets at random. */
#include "picnic_function.h"

struct chance { uint64_t number; };

static uint64_t draw(struct chance *chance)
{
    uint64_t mixed = chance->number += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

static int init(const struct picnic_context *context, const char *config, void **state,
                char *error, size_t error_size)
{
    (void)config, (void)error, (void)error_size;
    struct chance *chance = malloc(sizeof *chance);
    chance->number = context->seed;
    *state = chance;
    return 0;
}

static int32_t target(struct chance *chance)
{
    uint64_t number = draw(chance);
    switch (number % 8) {
    case 0: case 1: return PICNIC_NEXT;
    case 2: return (int32_t)(number >> 8) % 6;
    case 3: return PICNIC_HOLD;
    case 4: return -(int32_t)((number >> 8) % 600);
    case 5: return PICNIC_TRANSMIT(number >> 8);
    case 6: return PICNIC_CONSUME;
    }
    return (int32_t)(number >> 16);
}

static void process_burst(void *state, uint64_t now_ns, struct picnic_packet *packets,
                          uint32_t count, int32_t *targets)
{
    struct chance *chance = state;
    (void)now_ns;
    for (uint32_t index = 0; index < count; index++) {
        struct picnic_packet *packet = &packets[index];
        uint64_t number = draw(chance);
        switch (number % 6) {
        case 0: packet->length = (uint32_t)(number >> 8); break;
        case 1: packet->length += (uint32_t)(number >> 8) % 64; break;
        case 2: packet->data += (int64_t)(number >> 8) % 512 - 256; break;
        case 3: packet->data = (uint8_t *)(uintptr_t)draw(chance); break;
        }
        packet->mark = (uint32_t)number;
        packet->rss_hash = (uint32_t)(number >> 32);
        targets[index] = target(chance);
    }
}

static uint64_t next_deadline(void *state)
{
    return draw(state);
}

static void end(void *state)
{
    free(state);
}

const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE,
    .name = "random",
    .flags = PICNIC_WANTS_LAYERS,
    .init = init,
    .process_burst = process_burst,
    .next_deadline = next_deadline,
    .flush = process_burst,
    .exit = end,
};
