//! Card files: any text gives an error with a place in it, or a working card.
//!
//! A card that is small enough is built and polled for some time; its ledger must balance and its
//! buffers return.

use picnic_control::Launch;
use picnic_core::config::DEMONSTRATION;
use picnic_core::doorbell::{Doorbell, NoDoorbell};
use picnic_core::error::ConfigError;
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::build::BuildError;
use picnic_engine::target::Target;
use picnic_machine::topology::{Available, place};
use picnic_sim::registries;
use std::path::Path;
use std::sync::Arc;

/// Relative paths of a card start in a folder that does not exist.
const FILE: &str = "/nonexistent/card.toml";

/// Reads the bytes as a card file, builds the card, runs it.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let file = match picnic_host::sections().parse(text, Some(Path::new(FILE))) {
        Ok(file) => file,
        Err(error) => return check(&error, text),
    };
    if let Err(error) = place(&file, &Available::of(0..4)) {
        check(&error, text);
    }
    // Nothing outside may be touched: paths stay within the folder that does not exist.
    if text.contains('/') || text.contains('\\') {
        return;
    }
    let parts = match Launch::new(&file, registries()).build() {
        Ok(built) => built.parts,
        Err(error) => return check(&error, text),
    };
    let is_small = file.pool.buffers <= 1024
        && file.pool.buffer_size <= 4096
        && file.host.queues <= 8
        && file.host.ring_size.max(file.host.tx_ring_size) <= 1024
        && file.wires.len() <= 8;
    if !is_small {
        return;
    }
    let doorbells: Vec<_> =
        (0..file.host.queues).map(|_| Arc::new(NoDoorbell) as Arc<dyn Doorbell>).collect();
    match assemble(&file, parts, &doorbells, Arc::new(NoDoorbell)) {
        Ok(assembled) => turn(assembled),
        Err(BuildError::Config(error)) => check(&error, text),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// An error has a place and a subject, on one line.
fn check(error: &ConfigError, text: &str) {
    let lines = text.split('\n').count();
    assert!(error.line <= lines, "line {} of {lines}: {error}", error.line);
    assert!(!error.message.is_empty(), "an error without a message: {error:?}");
    assert!(!error.message.contains('\n'), "an error of several lines: {error}");
}

/// Polls a card in virtual time, then stops it.
fn turn(assembled: Assembled) {
    let Assembled { mut card, queues, view, .. } = assembled;
    let mut target = Target::new(0, queues);
    let mut now = Time::ZERO;
    for _ in 0..16 {
        card.poll(now);
        target.poll(now);
        now = now + 10_000;
    }
    card.stop_receiving(now);
    while target.poll(now).packets != 0 || !target.is_empty() {
        card.poll(now);
    }
    // Unused buffers of sending hosts return.
    target.stop_transmitting();
    let missing = card.finish(now);
    let totals = view.ledger.read();
    assert!(totals.balanced(), "the ledger does not balance: {totals:?}");
    assert_eq!((missing, totals.in_flight), (0, 0), "packets are left over: {totals:?}");
}

/// Cards of every kind, small enough to run.
pub fn seeds() -> Vec<Vec<u8>> {
    const SMALL: &str = "[pool]\nbuffers = 256\n[host]\nqueues = 3\nring_size = 64\n";
    let cards = [
        DEMONSTRATION.to_owned(),
        SMALL.to_owned(),
        format!(
            "[card]\nname = \"x\"\nengine = \"poll\"\nborrowed_core = 3\nidle = \"spin\"\n{SMALL}"
        ),
        format!("{SMALL}attachment = \"app\"\ntarget_cores = [0, 2, 0]\ntx_ring_size = 128\n"),
        format!(
            "[interrupt]\nrx_usecs = 50\nrx_frames = 8\nadaptive = true\npoll_usecs = 5\n{SMALL}"
        ),
        format!("[[wire]]\nport = \"generator\"\n[[wire]]\nname = \"b\"\n[wire.fault]\n{SMALL}"),
        "[[wire]]\nport = \"pcap\"\npath = \"web.pcap\"\n[trace]\n".to_owned(),
        format!(
            "[[rx]]\nfunction = \"sample\"\nevery = 3\nrandom = true\nqueue = 1\n\
             [[rx]]\nfunction = \"rss\"\nhash = \"jhash\"\ntable = [0, 1, 2]\n\
             types = [\"ipv4\", \"tcp-ipv4\"]\ndefault_queue = 2\n\
             [[tx]]\nfunction = \"pass\"\n{SMALL}"
        ),
        format!(
            "[[rx]]\nfunction = \"by-wire\"\nqueues = [2]\n[[tx]]\nfunction = \"drop\"\n{SMALL}"
        ),
        "[[rx]]\nfunction = \"rss\"\nkey = \"6d5a56da\"\nsymmetric = true\n".to_owned(),
        "[host]\nqueues = \"two\"\n".to_owned(),
        "[card\nrx = [1, 2]\nwire.fault = 3".to_owned(),
    ];
    cards.map(String::into_bytes).into()
}
