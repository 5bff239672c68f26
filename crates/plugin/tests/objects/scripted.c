/* Follows the first bytes of each packet, whether they make sense or not:
 * target (32 bits) | length (32 bits) |  offset for `data` (16 bits) | which of these apply. */
#include "picnic_function.h"

static int32_t le32(const uint8_t *at)
{
    return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                     (uint32_t)at[3] << 24);
}

static void process_burst(void *state, uint64_t now_ns, struct picnic_packet *packets,
                          uint32_t count, int32_t *targets)
{
    (void)state, (void)now_ns;
    for (uint32_t index = 0; index < count; index++) {
        struct picnic_packet *packet = &packets[index];
        const uint8_t *script = packet->data;
        if (packet->length < 11)
            continue;
        targets[index] = le32(script);
        if (script[10] & 1)
            packet->length = (uint32_t)le32(script + 4);
        if (script[10] & 2)
            packet->data += (int16_t)(script[8] | script[9] << 8);
        if (script[10] & 4)
            packet->data = (uint8_t *)(uintptr_t)(uint32_t)le32(script + 4);
        packet->mark = script[0];
        packet->rss_hash = script[1];
    }
}

static uint64_t next_deadline(void *state)
{
    (void)state;
    return 0;
}

/* Answers with the command itself; done if its arguments are empty. */
static int command(void *state, const char *command, const char *arguments, char *reply,
                   size_t reply_size)
{
    (void)state;
    strncpy(reply, command, reply_size); /* not ended, if it is long enough */
    return strcmp(arguments, "{}");
}

const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE,
    .name = "scripted",
    .process_burst = process_burst,
    .next_deadline = next_deadline,
    .flush = process_burst,
    .command = command,
};
