//! The cards in `examples/cards`: each is valid, apart from requirements that this machine lacks.

use crate::common::*;
use std::path::{Path, PathBuf};

fn cards() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cards");
    let mut cards: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cards.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    cards.sort();
    cards
}

/// Requirements that this machine may lack: an interface, a namespace, a privilege, a capture.
const ABSENT: [&str; 8] = [
    "interface: found \"",
    "has no such interface",
    "does not exist",
    "(root)",
    "(root, or CAP_BPF",
    "root is needed",
    "No such file",
    "cannot be opened",
];

#[test]
fn every_example_is_valid_except_for_missing_resources() {
    let cards = cards();
    assert!(cards.len() >= 9, "{cards:?}");
    for path in cards {
        let output = picnic(&["check", path.to_str().unwrap()]);
        let said = stderr(&output);
        let is_absent = || ABSENT.iter().any(|part| said.contains(part));
        assert!(output.status.code() == Some(0) || is_absent(), "{}: {said}", path.display());
    }
}

#[test]
fn the_examples_without_a_network_run() {
    // Numbers of packets, not times: for a while a card's cores may belong to others.
    for (name, packets) in [("demo", 50_000), ("interrupt-per-packet", 5_000)] {
        let path = cards().into_iter().find(|path| path.file_stem().unwrap() == name).unwrap();
        let packets = format!("--set=wire[0].packets={packets}");
        let report = good_json(&["run", path.to_str().unwrap(), &packets, "--json"]);
        assert_balanced(&report);
        assert!(report["ledger"]["delivered"].as_u64().unwrap() > 1000, "{report}");
    }
    let path = cards().into_iter().find(|path| path.file_stem().unwrap() == "firewall").unwrap();
    let packets = "--set=wire[0].packets=100000";
    let report = good_json(&["run", path.to_str().unwrap(), packets, "--json"]);
    assert_balanced(&report);
    assert!(report["ledger"]["delivered"].as_u64().unwrap() > 1000, "{report}");
    assert!(report["drops"]["filtered"].as_u64().unwrap() > 1000, "the rules drop: {report}");
    let text = std::fs::read(cards().into_iter().find(|path| path.ends_with("pcap.toml")).unwrap());
    let packets: Vec<_> = (0..100).map(tcp_frame).collect();
    let folder = folder(&[("pcap.toml", &text.unwrap()), ("web.pcap", &pcap(&packets))]);
    let path = folder.path().join("pcap.toml");
    let report = good_json(&["run", path.to_str().unwrap(), "--json"]);
    assert_balanced(&report);
    assert_eq!(report["ledger"]["delivered"], 100);
    assert!(folder.path().join("queues.pcapng").exists());
}
