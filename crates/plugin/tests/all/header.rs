//! Compares the C header with `picnic_plugin::abi`, using the C compiler.

use crate::common::Workshop;
use picnic_plugin::abi;
use std::fmt::Write;
use std::mem::offset_of;

/// One line of C per field: it exists, at Rust's offset and size, without a gap known to only one
/// side.
macro_rules! compare {
    ($text:ident, $type:ty, $name:literal, $($field:ident),+ $(,)?) => {{
        let fields = [$((stringify!($field), offset_of!($type, $field), {
            fn size<T, F>(_: fn(&T) -> &F) -> usize {
                size_of::<F>()
            }
            size::<$type, _>(|value| &value.$field)
        })),+];
        let mut bytes = 0;
        for (field, offset, size) in fields {
            writeln!(
                $text,
                "_Static_assert(offsetof(struct {0}, {field}) == {offset} && \
                 sizeof(((struct {0} *)0)->{field}) == {size}, \"{0}.{field}\");",
                $name
            )
            .unwrap();
            bytes += size;
        }
        assert_eq!(bytes, size_of::<$type>(), "a field of {} is not compared", $name);
        writeln!($text, "_Static_assert(sizeof(struct {}) == {bytes}, \"size\");", $name).unwrap();
    }};
}

#[test]
fn the_header_and_the_types_are_the_same() {
    let Some(workshop) = Workshop::open("the_header_and_the_types_are_the_same") else { return };
    let mut text = String::from("#include \"picnic_function.h\"\n");
    compare!(
        text,
        abi::Packet,
        "picnic_packet",
        data,
        length,
        total_length,
        received_ns,
        mark,
        rss_hash,
        headroom,
        tailroom,
        l3_offset,
        l4_offset,
        protocol,
        wire,
        reserved
    );
    compare!(
        text,
        abi::Context,
        "picnic_context",
        queues,
        wires,
        position,
        buffer_size,
        seed,
        directory
    );
    compare!(
        text,
        abi::Function,
        "picnic_function",
        abi_version,
        size,
        packet_size,
        flags,
        name,
        help,
        config_schema,
        init,
        process_packet,
        process_burst,
        next_deadline,
        flush,
        command,
        exit,
        counters,
        count,
        describe
    );
    compare!(text, abi::Counter, "picnic_counter", name, help);
    for (name, value) in [
        ("PICNIC_ABI_VERSION", i64::from(abi::ABI_VERSION)),
        ("PICNIC_NEXT", abi::NEXT.into()),
        ("PICNIC_DROP", abi::DROP.into()),
        ("PICNIC_CONSUME", abi::CONSUME.into()),
        ("PICNIC_HOLD", abi::HOLD.into()),
        ("PICNIC_TRANSMIT(0)", abi::TRANSMIT.into()),
        ("PICNIC_TRANSMIT(255)", i64::from(abi::TRANSMIT) - 255),
        ("PICNIC_HOLD_MAX", abi::HOLD_MAX as i64),
        ("PICNIC_BURST_MAX", picnic_core::packet::burst::BURST as i64),
        ("PICNIC_COUNTERS_MAX", abi::COUNTERS_MAX as i64),
        ("PICNIC_WANTS_LAYERS", abi::WANTS_LAYERS.into()),
        ("(int64_t)PICNIC_NEVER", abi::NEVER as i64),
    ] {
        writeln!(text, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    workshop.compile("header", &text, &[]);
}

#[test]
fn keys_of_a_config_are_read_in_c() {
    let Some(workshop) = Workshop::open("keys_of_a_config_are_read_in_c") else { return };
    let text = r#"
#include "picnic_function.h"
int main(void)
{
    const char *config = "{\"a\":\"b\\\":7,{\",\"inner\":{\"b\":1},\"list\":[\"b\",2],\"b\":-42,\"c\":true}";
    if (picnic_config_integer(config, "b", 0) != -42) return 1;
    if (picnic_config_integer(config, "d", 5) != 5) return 2;
    if (!picnic_config(config, "c") || picnic_config(config, "c")[0] != 't') return 3;
    if (picnic_config("", "a") || picnic_config("{}", "a") || picnic_config("{\"a", "a")) return 4;
    const uint8_t bytes[] = { 0x12, 0x34, 0x56, 0x78 };
    if (picnic_be16(bytes) != 0x1234 || picnic_be32(bytes) != 0x12345678) return 5;
    return 0;
}
"#;
    std::fs::write(workshop.path("keys.c"), text).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let program = workshop.path("keys");
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-I", include, "-o"]).arg(&program);
    assert!(compiler.arg(workshop.path("keys.c")).status().unwrap().success());
    assert_eq!(std::process::Command::new(program).status().unwrap().code(), Some(0));
}
