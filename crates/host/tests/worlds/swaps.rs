//! Functions from shared objects, replaced many times under load without loss.

use crate::common::Served;
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// An object that holds every packet for 20 µs, so that each swap finds some in it.
const HOLDING: &str = r#"
#include "picnic_function.h"

struct hold { uint64_t due; uint32_t held; };

static int init(const struct picnic_context *context, const char *config, void **state,
                char *error, size_t error_size)
{
    (void)context, (void)config, (void)error, (void)error_size;
    *state = calloc(1, sizeof(struct hold));
    return *state ? 0 : -1;
}

static void process_burst(void *state, uint64_t now_ns, struct picnic_packet *packets,
                          uint32_t count, int32_t *targets)
{
    struct hold *hold = state;
    (void)packets;
    if (hold->held == 0)
        hold->due = now_ns + 20000;
    for (uint32_t index = 0; index < count; index++)
        targets[index] = PICNIC_HOLD;
    hold->held += count;
}

static uint64_t next_deadline(void *state)
{
    /* With little room left, at once. */
    struct hold *hold = state;
    return hold->held > PICNIC_HOLD_MAX / 2 ? 0 : hold->due;
}

static void flush(void *state, uint64_t now_ns, struct picnic_packet *packets, uint32_t count,
                  int32_t *targets)
{
    (void)now_ns, (void)packets, (void)targets; /* on to the next function */
    ((struct hold *)state)->held -= count;
}

const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE, .name = NAME, .init = init, .process_burst = process_burst,
    .next_deadline = next_deadline, .flush = flush, .exit = free,
};
"#;

fn compile(folder: &Path, name: &str) {
    let source = folder.join("holding.c");
    std::fs::write(&source, HOLDING).unwrap();
    let output = Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
        .args(["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/../plugin/include")])
        .arg(format!("-DNAME=\"{name}\""))
        .arg("-o")
        .arg(folder.join(format!("{name}.so")))
        .arg(&source)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn thousand_plugin_swaps_keep_every_packet_in_order() {
    const SWAPS: usize = 1000;
    if Command::new("cc").arg("--version").output().is_err() {
        return picnic_testing::skip("a_thousand_swaps_of_plugins", "there is no C compiler");
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["one", "other"] {
        compile(folder.path(), name);
    }
    let path = |name: &str| folder.path().join(format!("{name}.so")).display().to_string();
    // As fast as this machine makes them, up to a million per second.
    let card = Served::start(&format!(
        "[[wire]]\nport = \"generator\"\nrate_pps = 1000000\nflows = 64\nsize = 100\n\
         sequence_numbers = true\n[host]\nqueues = 2\nverify_order = true\n\
         [[rx]]\nplugin = \"{}\"\n[[rx]]\nfunction = \"rss\"\n",
        path("one")
    ));
    let mut client = card.client();
    for number in 1..=SWAPS {
        let name = if number % 2 == 0 { "one" } else { "other" };
        let functions = json!([{ "plugin": path(name) }, { "function": "rss" }]);
        let swapped = client.good("chain.swap", json!({ "chain": "rx", "functions": functions }));
        let now = [format!("plugin:{name}"), "rss".into()];
        assert_eq!(swapped["functions"], json!(now), "{number}");
    }
    let report = card.stop();
    let (seconds, ledger) = (report.duration_s, &report.ledger);
    println!(
        "{SWAPS} swaps in {seconds:.1} s: {} packets, {} delivered",
        ledger.r#in, ledger.delivered
    );
    // Packets shed on a busy machine are counted by reasons that no function has.
    let of_machine = ["ring_full", "backlog_full", "pool_exhausted"];
    let functions: Vec<_> =
        report.drops.iter().filter(|(reason, _)| !of_machine.contains(&&***reason)).collect();
    assert!(functions.is_empty(), "{functions:?}");
    assert!(report.ledger.delivered > 0);
    let orders: Vec<_> = report.notes.iter().filter(|note| note.contains("in order")).collect();
    assert_eq!(orders.len(), 2, "{:?}", report.notes);
    assert!(orders.iter().all(|note| note.contains(" in order, 0 reordered, ")), "{orders:?}");
}
