//! Cards in the kernel on the command line: `check`, and the examples.

use crate::common::*;
use picnic_machine::testbed::Testbed;
use picnic_testing::skip;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A namespace with these interfaces, each a veth whose other end is elsewhere. None if this
/// machine cannot have one; prints the reason.
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

/// Runs `picnic` in the card's namespace.
fn picnic_there(bed: &Testbed, arguments: &[&str]) -> Output {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &bed.netns("card"), PICNIC]).args(arguments);
    command.env("PICNIC_RUNTIME_DIR", sockets()).output().unwrap()
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
fn check_shows_the_plan_of_the_kernel_engine() {
    let test = "check_shows_the_plan_of_the_kernel_engine";
    let Some(bed) = bed(test, &["k0"]) else { return };
    let netns = bed.netns("card");
    let namespace = format!("namespace = \"{netns}\"\n");
    let before = bed.within("card", "ethtool -k k0").unwrap();
    let stack = "attachment = \"stack\"\n";
    let xdp = "XDP program in the driver (native)";
    for (engine, host, handover, lines, attaches, poll) in [
        (
            "kernel",
            stack.into(),
            "skb",
            vec![
                "hand-over     skb: GRO merges packets on core 1; a ring of 1024 of them and a thread for each \
                 target core (the default: target cores handle fewer, longer packets)"
                    .into(),
                format!(
                    "program       w: tc program (tcx) at ingress of k0 in namespace {netns} (veth), run by \
                     its NAPI threads, pinned to core 1, or by the softirq of that core for \
                     super-frames from its peer"
                ),
                "function      rss: JHash (lookup3), table of 128 entries".into(),
                "change        k0: receive packet steering to core 1; cost: none: packets that no NAPI \
                 thread polls are handled there, too"
                    .into(),
            ],
            "tc program (tcx) at ingress",
            Value::Null,
        ),
        (
            "kernel",
            format!("{stack}handover = \"cpumap\"\nring_size = 512\n"),
            "cpumap",
            vec![
                "hand-over     cpumap: a ring of 512 frames and a thread for each target core \
                 (set by host.handover)"
                    .into(),
                format!(
                    "program       w: {xdp} of k0 in namespace {netns} (veth), run by its NAPI \
                     threads, pinned to core 1"
                ),
                "change        k0: super-frames from its peer cut up; cost: bulk TCP reaches 0.2 of a \
                 plain veth's rate on two cores (0.9 with skb)"
                    .into(),
                "change        k0: receive packet steering off; cost: none, as the card steers".into(),
            ],
            xdp,
            Value::Null,
        ),
        (
            "hybrid",
            "attachment = \"app\"\n".into(),
            "cpumap",
            vec![
                "function      lro: poll engine only".into(),
                "poll engine   packets matched by filter echo: lro -> rss -> app".into(),
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
        // Parts of the poll engine are shown if it takes part.
        let is_shown = text.lines().any(|line| line.starts_with("pool"));
        assert_eq!((is_shown, !plan["pool"].is_null()), (!poll.is_null(), !poll.is_null()), "{text}");
    }
    assert_eq!(bed.within("card", "ethtool -k k0").unwrap(), before, "nothing is changed");
    assert_eq!(good_json(&["check", "--json"])["engine_plan"], Value::Null, "of the poll engine");
}

/// Without privileges, `check` shows the plan and the missing privileges.
#[test]
fn check_works_without_privileges() {
    let test = "check_works_without_privileges";
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

/// The interfaces that a card file names.
fn interfaces(card: &toml::Table) -> Vec<&str> {
    let wires = card.get("wire").and_then(toml::Value::as_array).into_iter().flatten();
    wires.filter_map(|wire| wire.get("interface")?.as_str()).collect()
}

/// Whether a card is refused because of one of its own keys, with file, line and key, and not
/// because of the machine.
fn is_refused_by_key(said: &str, path: &Path, engine: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap();
    let start = format!("{}:", path.display());
    let mut lines = said.lines().map(|line| line.strip_prefix("picnic: ").unwrap_or(line));
    let Some(rest) = lines.find_map(|line| line.strip_prefix(&start)) else { return false };
    let mut parts = rest.splitn(3, ": ");
    let (Some(line), Some(key), Some(message)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let key = key.rsplit('.').next().unwrap().split('[').next().unwrap();
    // A key that the file does not give has its default, and the line of its section or none.
    let is_there = line.parse().is_ok_and(|line: usize| {
        let line = text.lines().nth(line.wrapping_sub(1)).unwrap_or_default().trim_start();
        line.starts_with(key) || line.starts_with('[')
    });
    is_there && message.contains(&format!("engine = \"{engine}\""))
}

/// Each runs, or a key of it says why it cannot: none fails for something else.
#[test]
fn every_example_runs_in_the_kernel_or_is_refused_by_key() {
    let test = "every_example_runs_in_the_kernel_or_is_refused_by_key";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cards");
    let mut ran = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let file: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        let own = file.get("card").and_then(|card| card.get("engine")?.as_str()).unwrap_or("poll");
        let Some(bed) = bed(test, &interfaces(&file)) else { return };
        for engine in ["kernel", "hybrid"] {
            let _machine = machine();
            let words = ["run", path.to_str().unwrap(), "--engine", engine, "--duration=0.3"];
            let mut output = picnic_there(&bed, &[&words[..], &["--json"]].concat());
            let name = path.file_stem().unwrap().to_str().unwrap();
            if output.status.success() {
                let report = json(&output);
                assert_eq!(report["engine"], engine);
                assert_eq!(report["ledger"]["balanced"], true, "{name}: {report}");
                ran.push(format!("{name} by {engine}"));
                continue;
            }
            // The words, not their JSON.
            output = picnic_there(&bed, &words);
            let said = stderr(&output);
            assert!(own != engine && is_refused_by_key(said, &path, engine), "{name}: {said}");
        }
    }
    for card in ["kernel by kernel", "hybrid by hybrid"] {
        assert!(ran.iter().any(|ran| ran == card), "{ran:?}");
    }
}

/// A whole TCP window fits into the target ring, and the client waits while the wire's ring is
/// full.
#[test]
fn the_shared_example_loses_nothing_of_a_fast_sender() {
    let test = "the_shared_example_loses_nothing_of_a_fast_sender";
    let is_there = Command::new("iperf3").arg("-v").output().is_ok();
    if !picnic_kernel::is_built() || !rustix::process::geteuid().is_root() || !is_there {
        return skip(test, "it needs root, clang at build time and iperf3");
    }
    let _machine = machine();
    let name = format!("pct{}", std::process::id());
    let [client, wire] = [format!("{name}-c"), format!("{name}-w")];
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cards/hybrid.toml");
    let text = std::fs::read_to_string(example).unwrap();
    let namespaces = format!("namespaces = [\"{client}\", \"{wire}\"]");
    let text = text
        .replace("name = \"hybrid\"", &format!("name = \"{name}\""))
        .replace("namespaces = [\"client\", \"card\"]", &namespaces)
        .replace(
            "[[net.link]]",
            &format!("[[net.link]]\nnamespace = \"{wire}\"\npeer_namespace = \"{client}\""),
        );
    let (_folder, path) = card(&text);
    let path = path.to_str().unwrap();
    let state = tempfile::tempdir().unwrap();
    let there = |namespace: &str, words: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).args(words);
        command.env("PICNIC_RUNTIME_DIR", sockets()).env("PICNIC_STATE_DIR", state.path());
        command
    };
    let net = |action: &str| {
        let mut command = command();
        command.env("PICNIC_STATE_DIR", state.path()).args(["net", action, path]).output().unwrap()
    };
    let up = net("up");
    assert!(up.status.success(), "{}", stderr(&up));
    let run = [PICNIC, "run", path, "--quiet", "--json", "--duration", "600"];
    let running = there(&wire, &run).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the card answers", || counts_of(&there, &wire, &name).is_some());
    // For more than one client: the first may give up.
    let mut server = there(&wire, &["iperf3", "-s"]).stdout(Stdio::null()).spawn().unwrap();
    let mut sent = None;
    wait_until("iperf3 has sent", || {
        let words = ["iperf3", "-c", "10.88.0.1", "-t", "2", "-J"];
        let output = there(&client, &words).output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        sent = told["end"]["sum_sent"]["bytes"].as_u64().filter(|&bytes| bytes > 0);
        sent.is_some()
    });
    let dropped = there(&client, &["cat", "/sys/class/net/client0/statistics/tx_dropped"]).output();
    let dropped = String::from_utf8(dropped.unwrap().stdout).unwrap();
    let stopped = there(&wire, &[PICNIC, "ctl", "--card", &name, "stop"]).output().unwrap();
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    let report = json(&running.wait_with_output().unwrap());
    server.kill().unwrap();
    let _ = server.wait();
    assert!(net("down").status.success());
    assert!(report["wires"][0]["rx_bytes"].as_u64() > sent, "{report}");
    assert_eq!(report["drops"], json!({}), "{report}");
    assert_eq!(dropped.trim(), "0", "packets that did not fit into the wire's ring");
}

/// The counts of a card in a namespace; none until it answers.
fn counts_of(there: &dyn Fn(&str, &[&str]) -> Command, wire: &str, name: &str) -> Option<Value> {
    let output = there(wire, &[PICNIC, "ctl", "--card", name, "stats", "--json"]).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}
