//! Cards in the kernel, by the command line: what `check` says of them.

use crate::common::*;
use picnic_machine::testbed::Testbed;
use picnic_testing::skip;
use serde_json::{Value, json};
use std::process::Command;

/// A namespace with these interfaces, each a veth whose other end is elsewhere. None if this machine
/// cannot have one; says so.
fn bed(test: &str, interfaces: &[&str]) -> Option<Testbed> {
    if !picnic_kernel::is_built() {
        skip(test, "it needs clang at build time");
        return None;
    }
    let Ok(bed) = Testbed::build("cli-kernel") else {
        skip(test, "it needs root");
        return None;
    };
    for namespace in ["card", "far"] {
        bed.add_namespace(namespace).unwrap();
    }
    for (number, interface) in interfaces.iter().enumerate() {
        let far = format!("f{number}");
        bed.add_veth(("card", interface), ("far", &far), "").unwrap();
        bed.ip("card", &format!("link set {interface} up")).unwrap();
        bed.ip("far", &format!("link set {far} up")).unwrap();
        bed.within("far", &format!("ethtool -K {far} tx off")).unwrap();
        bed.wait_for_carrier("card", interface).unwrap();
    }
    Some(bed)
}

fn card_file(engine: &str, host: &str, namespace: &str) -> String {
    let poll = "[[filter]]\nname = \"echo\"\nprotocol = \"udp\"\naction = \"poll\"\n";
    let (lro, poll) = match engine {
        "hybrid" => ("[[rx]]\nfunction = \"lro\"\n", poll),
        _ => ("", ""),
    };
    format!(
        "[card]\nengine = \"{engine}\"\nborrowed_core = 1\n[[wire]]\nname = \"w\"\nport = \"xdp\"\n\
         interface = \"k0\"\n{namespace}{poll}{lro}[[rx]]\nfunction = \"rss\"\nhash = \"jhash\"\n\
         [host]\n{host}\nqueues = 1\ntarget_cores = [0]\n"
    )
}

#[test]
fn check_says_what_the_kernel_engine_will_do() {
    let test = "check_says_what_the_kernel_engine_will_do";
    let Some(bed) = bed(test, &["k0"]) else { return };
    let netns = bed.netns("card");
    let namespace = format!("namespace = \"{netns}\"\n");
    let before = bed.within("card", "ethtool -k k0").unwrap();
    let stack = "attachment = \"stack\"\n";
    let xdp = "an XDP program in the driver (native)";
    for (engine, host, handover, lines, attaches, poll) in [
        (
            "kernel",
            stack.into(),
            "skb",
            vec![
                "hand-over     skb: GRO merges packets on core 1; receive packet steering takes them on \
                 (the default: the target cores handle few, long packets)"
                    .into(),
                format!(
                    "program       w: a tc program (tcx) on what it receives of k0 in namespace {netns} \
                     (veth), run by its polling threads, pinned to core 1, or by that core's softirq for \
                     super-frames of its other end"
                ),
                "function      rss: JHash (lookup3), table of 128 entries".into(),
                "change        k0: receive packet steering to core 1: nothing; what no thread polls is \
                 handled there, too"
                    .into(),
            ],
            "a tc program (tcx) on what it receives",
            Value::Null,
        ),
        (
            "kernel",
            format!("{stack}handover = \"cpumap\"\nring_size = 512\n"),
            "cpumap",
            vec![
                "hand-over     cpumap: a ring of 512 packets and a thread for each target core \
                 (host.handover says so)"
                    .into(),
                format!(
                    "program       w: {xdp} of k0 in namespace {netns} (veth), run by its polling \
                     threads, pinned to core 1"
                ),
                "change        k0: its other end cuts super-frames while the program is there: TCP flat \
                 out reaches 0.2 of a plain veth's rate on two cores, 0.7 with skb"
                    .into(),
                "change        k0: receive packet steering off: nothing; the card does it".into(),
            ],
            xdp,
            Value::Null,
        ),
        (
            "hybrid",
            "attachment = \"app\"\n".into(),
            "cpumap",
            vec![
                "function      lro: in the poll engine alone, for its packets".into(),
                "poll engine   what filter echo matches: through lro -> rss to app".into(),
            ],
            xdp,
            json!({ "filters": ["echo"], "functions": ["lro", "rss"], "attachment": "app" }),
        ),
    ] {
        let (_folder, path) = card(&card_file(engine, &host, &namespace));
        let path = path.to_str().unwrap();
        let text = good(&["check", path]);
        for line in lines {
            assert!(text.lines().any(|found| found == line), "no {line:?} in:\n{text}");
        }
        let plan = good_json(&["check", path, "--json"]);
        let engine_plan = &plan["engine_plan"];
        assert_eq!(engine_plan["handover"], handover, "{engine_plan}");
        let wire = &engine_plan["wires"][0];
        assert_eq!((&wire["driver"], &wire["attaches"]), (&json!("veth"), &json!(attaches)));
        assert_eq!(engine_plan["poll"], poll);
        // What the poll engine has is shown where it takes part.
        let is_shown = text.lines().any(|line| line.starts_with("pool"));
        assert_eq!((is_shown, !plan["pool"].is_null()), (!poll.is_null(), !poll.is_null()), "{text}");
    }
    assert_eq!(bed.within("card", "ethtool -k k0").unwrap(), before, "nothing is changed");
    assert_eq!(good_json(&["check", "--json"])["engine_plan"], Value::Null, "of the poll engine");
}

/// Who has no privileges sees what it would be, and which they are.
#[test]
fn check_says_without_privileges_what_it_would_be() {
    let test = "check_says_without_privileges_what_it_would_be";
    if !picnic_kernel::is_built() {
        return skip(test, "it needs clang at build time");
    }
    let stack = "attachment = \"stack\"\nhandover = \"cpumap\"";
    let (_folder, path) = card(&card_file("kernel", stack, "").replace("k0", "lo"));
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--bounding-set=-all,+dac_override", "--inh-caps=-all"]);
    if !rustix::process::geteuid().is_root() {
        command = Command::new("env");
    }
    let output = command.args([PICNIC, "check"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("CAP_BPF"), "{}", stderr(&output));
    let told = stdout(&output);
    assert!(told.contains("hand-over     cpumap: a ring of"), "{told}");
    assert!(told.contains("function      rss: JHash (lookup3)"), "{told}");
}
