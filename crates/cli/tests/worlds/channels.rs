//! Channels by the command line: the examples in Rust and C talk to a confined card.

#[path = "../../../../examples/channel/ping.rs"]
#[allow(unreachable_pub)]
mod ping;

use crate::common::*;
use std::path::Path;
use std::process::Command;

const ECHO: &str = "[card]\nname = \"echoes\"\n[host]\nqueues = 1\n\
    [[wire]]\nport = \"generator\"\nrate_pps = 1000\n[[task]]\ntask = \"echo\"\n";

/// The C example's program; none without a compiler.
fn compiled(folder: &Path) -> Option<Command> {
    if Command::new("cc").arg("--version").output().is_err() {
        skip("examples_talk_to_a_confined_card", "there is no C compiler");
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = folder.join("ping");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    compiler.arg(root.join("examples/channel/ping.c")).arg("-o").arg(&program);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(Command::new(program))
}

#[test]
fn examples_talk_to_a_confined_card() {
    let _machine = machine();
    let card = Running::start("echoes", folder(&[("card.toml", ECHO.as_bytes())]));
    let socket = sockets().join("echoes.sock");
    let listed = || card.json(&["channels"])["channels"][0].clone();
    wait_until("the channel is there", || listed()["channel"] == "echo");
    assert!(card.good(&["channels"]).contains("not open"));

    assert_eq!(ping::ping(&socket).unwrap(), "hello, card");
    wait_until("it has gone", || listed()["pid"].is_null());
    assert_eq!(listed()["openings"], 1);
    if let Some(mut program) = compiled(card.folder()) {
        let output = program.arg(&socket).output().unwrap();
        assert_eq!((stdout(&output), stderr(&output)), ("hello, card\n", ""));
        assert_eq!(listed()["openings"], 2);
        // Refusals in the card's words.
        let channel = picnic_channel::Channel::open(&socket, "echo").unwrap();
        assert!(card.good(&["channels"]).contains("open, pid "));
        let output = program.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let own = std::process::id();
        let message = format!(
            "cannot open the channel: name: found \"echo\", which process {own} has open\n"
        );
        assert_eq!(stderr(&output), message);
        drop(channel);
    }
    card.good(&["stop"]);
    let (report, told) = card.ended();
    assert!(!format!("{}{told}", report["notes"]).contains("system calls refused"), "{report}");
    assert_eq!(report["os"]["channels"][0]["lost_messages"], 0);
}

/// The how-to page shows the examples as they are.
#[test]
fn page_shows_the_examples() {
    let page = include_str!("../../../../docs/how-to/host-channel.md");
    assert!(page.contains(include_str!("../../../../examples/channel/ping.rs")));
    assert!(page.contains(include_str!("../../../../examples/channel/ping.c")));
}
