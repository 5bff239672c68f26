/*
 * picnic_function.h: a NIC function as a shared object for PICNIC.
 *
 *     #include "picnic_function.h"
 *
 *     static int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *packet)
 *     {
 *         return packet->length <= 60 ? 1 : PICNIC_NEXT;   // short packets to queue 1
 *     }
 *
 *     const struct picnic_function picnic_function = {
 *         PICNIC_HANDSHAKE, .name = "short", .help = "send short packets to queue 1",
 *         .process_packet = process_packet,
 *     };
 *
 *     cc -O2 -shared -fPIC -o short.so short.c
 *
 * In the card file: [[rx]] plugin = "short.so"
 *
 * A shared object is trusted code: it runs in the card's process with all the card's rights, and
 * an error in it can end the card; the message names object and function. `exit` and `_exit` end
 * the card with status 1.
 *
 * Calls: `init` and `exit` run on a thread that may allocate, open files and take its time (1.5 s
 * if the card runs already or is to stop); `init` comes first, `exit` exactly once, after the last
 * packet, on no core that packets wait for. All others run on the borrowed core: no allocation, no
 * lock, no system call, no waiting. One instance is used by one thread at a time, not always the
 * same. An object that stands in a card several times is loaded once for each, so static variables
 * are not shared.
 */
#ifndef PICNIC_FUNCTION_H
#define PICNIC_FUNCTION_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; objects for other versions are refused. An object compiled with
 * an earlier, shorter `struct picnic_function` is loaded; missing fields are unset. */
#define PICNIC_ABI_VERSION 1

/* The fate of a packet: a number from 0 up is a target queue, as in PICNIC 3.2.4. */
#define PICNIC_NEXT (-1)    /* on to the next function */
#define PICNIC_DROP (-2)    /* dropped, counted as filtered */
#define PICNIC_CONSUME (-3) /* kept for good, counted as consumed */
#define PICNIC_HOLD (-4)    /* held until `flush`; up to PICNIC_HOLD_MAX */
#define PICNIC_TRANSMIT(wire) (-256 - (int32_t)(uint8_t)(wire)) /* out by a wire, 0 to 255 */

/* Most packets that a function may hold back. */
#define PICNIC_HOLD_MAX 1024
/* Most packets in one burst. */
#define PICNIC_BURST_MAX 64
/* Most counters of a function. */
#define PICNIC_COUNTERS_MAX 64
/* No deadline; and, as `now_ns` of `flush`: release all packets. */
#define PICNIC_NEVER UINT64_MAX

/* Flags of a function. */
#define PICNIC_WANTS_LAYERS 1u /* headers are parsed before it sees the packets */

/*
 * A packet, lent for the length of one call. Bytes may be changed in place. To add bytes at the
 * start, lower `data` (by up to `headroom`) and raise `length` by the same number; to remove bytes,
 * do the reverse. Changing only `length` cuts the end or (by up to `tailroom`) extends it. A packet
 * that leaves its buffer is dropped, counted as invalid_target.
 */
struct picnic_packet {
    uint8_t *data;         /* its first byte */
    uint32_t length;       /* bytes from there in this buffer, all headers among them if it has room */
    uint32_t total_length; /* of the whole packet: more than `length` if it goes on elsewhere */
    uint64_t received_ns;  /* when the wire handed it over (48 bits) */
    uint32_t mark;         /* for later functions; may be changed */
    uint32_t rss_hash;     /* for later functions; may be changed */
    uint16_t headroom;     /* bytes that can be added before the data */
    uint16_t tailroom;     /* bytes that can be added after the data */
    uint16_t l3_offset;    /* with PICNIC_WANTS_LAYERS: of the IP header; 0: none found */
    uint16_t l4_offset;    /* of the TCP or UDP header, say; 0: none found */
    uint8_t protocol;      /* of IP: 6 TCP, 17 UDP; known if l3_offset is not 0 */
    uint8_t wire;          /* that it came in by, or is to leave by */
    uint8_t reserved[6];
};

/* The card of an instance. */
struct picnic_context {
    uint32_t queues;       /* target queues */
    uint32_t wires;        /* wires */
    uint32_t position;     /* its place in the chain, from 0 */
    uint32_t buffer_size;  /* the longest packet one buffer holds, in bytes */
    uint64_t seed;         /* of the run */
    const char *directory; /* relative paths in the config start here */
};

/* A counter of the function, shown by `picnic ctl stats`, `top`, `picnic ctl
 * plugin`, the metrics and the final report. It only grows. */
struct picnic_counter {
    const char *name; /* lower case, digits and `_`, up to 48 characters: "short_packets" */
    const char *help; /* one line: the counted events */
};

/* The symbol `picnic_function` of a shared object. Fields may be left out (NULL)
 * except the handshake, `name`, and one of `process_packet` and `process_burst`. */
struct picnic_function {
    uint32_t abi_version;  /* PICNIC_HANDSHAKE fills these three */
    uint32_t size;
    uint32_t packet_size;
    uint32_t flags;
    const char *name;      /* lower case, digits and dashes, up to 32 characters */
    const char *help;      /* one line: its effect */
    /* JSON schema of its keys in the card file: {"properties": {"rate": {"type": "integer",
     * "minimum": 1, "maximum": 100, "default": 10, "description": "..."}}, "required": [...]}.
     * Types: integer, number, boolean, string, array (of "items"); "enum" too. */
    const char *config_schema;
    /* Makes an instance. `config` is a JSON object with all keys, defaults filled in; both
     * arguments are valid during the call. Not 0: refused; write the reason to `error`. */
    int (*init)(const struct picnic_context *context, const char *config, void **state,
                char *error, size_t error_size);
    /* Returns the fate of one packet. */
    int32_t (*process_packet)(void *state, uint64_t now_ns, struct picnic_packet *packet);
    /* Instead of process_packet: for `count` packets at once. `targets` are PICNIC_NEXT before the call. */
    void (*process_burst)(void *state, uint64_t now_ns, struct picnic_packet *packets,
                          uint32_t count, int32_t *targets);
    /* When held packets need `flush`, or PICNIC_NEVER. Called only while packets are held. */
    uint64_t (*next_deadline)(void *state);
    /* Like process_burst for held packets, oldest first; PICNIC_HOLD keeps holding a packet.
     * With `now_ns` PICNIC_NEVER (a swap, or the end) release all. */
    void (*flush)(void *state, uint64_t now_ns, struct picnic_packet *packets, uint32_t count,
                  int32_t *targets);
    /* Obeys `picnic ctl plugin call --command NAME --arguments JSON` between two bursts. The
     * answer is a JSON object written to `reply`; not 0: refused, with the reason in `reply`. */
    int (*command)(void *state, const char *command, const char *arguments, char *reply,
                   size_t reply_size);
    /* Ends the instance and frees its memory. Called once if `init` returned 0. */
    void (*exit)(void *state);
    /* Its own counters; the last entry has no name. Each instance starts from zero. */
    const struct picnic_counter *counters;
    /* Writes the value of each to `values`, in that order. Called between two bursts, and after the
     * last packet. */
    void (*count)(void *state, uint64_t *values);
    /* Called once when the object is loaded, with picnic's copy of this table, to fill in name, help,
     * schema and counters that are known only at run time. */
    void (*describe)(struct picnic_function *table);
};

extern const struct picnic_function picnic_function;

#define PICNIC_HANDSHAKE                                                                  \
    .abi_version = PICNIC_ABI_VERSION, .size = (uint32_t)sizeof(struct picnic_function),  \
    .packet_size = (uint32_t)sizeof(struct picnic_packet)

/* ---- Reading: bytes of a packet, keys of a config. ---- */

static inline uint16_t picnic_be16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t picnic_be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* The value of a key of a JSON object such as `config`, or NULL. */
static inline const char *picnic_config(const char *config, const char *key)
{
    size_t length = strlen(key);
    int depth = 0;
    for (const char *at = config; *at; at++) {
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else if (*at == '"') {
            const char *text = ++at;
            while (*at && *at != '"') {
                at += *at == '\\' && at[1] ? 2 : 1;
            }
            if (!*at) {
                return NULL;
            }
            if (depth == 1 && at[1] == ':' && (size_t)(at - text) == length
                && !memcmp(text, key, length)) {
                return at + 2;
            }
        }
    }
    return NULL;
}

/* An integer of the config, or `otherwise` if the key is missing. */
static inline int64_t picnic_config_integer(const char *config, const char *key, int64_t otherwise)
{
    const char *value = picnic_config(config, key);
    return value ? strtoll(value, NULL, 10) : otherwise;
}

#ifdef __cplusplus
}
#endif

#endif
