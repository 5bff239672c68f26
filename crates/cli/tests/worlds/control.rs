//! `picnic ctl`, `picnic top` and `picnic capture`, with a card that runs.

use crate::common::*;
use picnic_machine::testbed::Testbed;
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::{Arc, Mutex};

const STEADY: &str = "[[wire]]\nport = \"generator\"\nrate_pps = 20000\nsize = 100\nflows = 64\n";

/// A card with a unique name.
fn start_card(name: &str, text: &str) -> Running {
    let text = format!("{text}\n[card]\nname = \"{name}\"\n");
    Running::start(name, folder(&[("card.toml", text.as_bytes())]))
}

fn refused(output: &Output, code: i32, message: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    assert!(stderr(output).contains(message), "no {message:?} in {}", stderr(output));
    assert_eq!(stdout(output), "");
}

#[test]
fn cards_are_queried_changed_and_stopped() {
    let _machine = machine();
    let card = start_card("asked", STEADY);
    let text = card.good(&["info"]);
    assert!(text.starts_with("card          asked, pid "), "{text}");
    let stats = card.json(&["stats"]);
    assert_eq!(stats["queues"].as_array().unwrap().len(), 4);
    assert!(card.good(&["stats"]).contains("ledger   in "), "as `picnic run` tells it");

    // For a window, and since a reset.
    let all = stats["wires"][0]["rx_packets"].as_u64().unwrap();
    // The borrowed core may have no time in one window, but not in all.
    wait_until("a window with packets", || {
        let window = card.json(&["stats", "--over", "0.3"]);
        assert_eq!(window["about"]["card"], "asked", "{window}");
        let seconds = window["duration_s"].as_f64().unwrap();
        assert!(seconds >= 0.3, "{window}");
        window["ledger"]["in"].as_u64().unwrap() > 0
    });
    refused(&card.ctl(&["stats", "--since-reset"]), 1, "have not been reset");
    assert!(card.good(&["stats", "--reset"]).starts_with("figures reset"));
    let since = card.json(&["stats", "--since-reset"]);
    let now = card.json(&["stats"])["wires"][0]["rx_packets"].as_u64().unwrap();
    assert!(since["wires"][0]["rx_packets"].as_u64().unwrap() + all < now, "{since}");
    assert!(card.good(&["stats", "--since-reset"]).starts_with("asked, since its figures were"));
    let text = card.good(&["latency"]);
    for row in ["0 ", "1 ", "2 ", "3 ", "all "] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(row)), "{row}:\n{text}");
    }
    let text = card.good(&["latency", "--queue", "2", "--hgrm", "--over", "0.2"]);
    assert!(text.contains("1/(1-Percentile)") && text.contains("#[Mean    ="), "{text}");
    refused(&card.ctl(&["latency", "--queue", "4"]), 1, "--queue: found 4, allowed: 0 to 3");
    assert_eq!(card.json(&["latency"])["latencies"].as_array().unwrap().len(), 4);

    assert!(card.good(&["rss"]).contains("table of 128 entries, 4 queues"));
    assert_eq!(card.good(&["rss", "table", "0,1,0,3"]), "32 entries of the table moved\n");
    let text = card.good(&["rss", "show"]);
    assert!(text.contains("table of 4 entries, 4 queues\n    0: 0 1 0 3\n"), "{text}");
    assert!(text.ends_with("\n32 entries moved, 0 by rebalancing\n"), "{text}");
    card.good(&["rss", "key", "symmetric"]);
    assert!(card.good(&["rss"]).contains("(symmetric)"));
    card.good(&["rss", "table", "--uniform", "8"]);
    refused(&card.ctl(&["rss", "table", "9"]), 2, "table: ");
    refused(&card.ctl(&["rss", "key", "12"]), 2, "key: hash key has 1 bytes");

    let text = card.good(&["moderation", "adaptive", "--rx-usecs", "50"]);
    let wanted = "moderation adaptive, after 50 µs at most, tx after 50 µs, \
         was after 20 µs or 64 packets, tx after 50 µs\n";
    assert_eq!(text, wanted);
    assert_eq!(card.json(&["moderation"])["adaptive"], true);
    // Other keys stay.
    let text = card.good(&["moderation", "static", "--rx-usecs", "70"]);
    assert!(
        text.starts_with("moderation after 70 µs or 64 packets, tx after 50 µs, was "),
        "{text}"
    );
    card.good(&["moderation", "adaptive", "--rx-usecs", "50"]);
    let text = card.good(&["moderation", "--poll-usecs", "30", "--tx-usecs", "0"]);
    let wanted = "moderation adaptive, after 50 µs at most, polling for 30 µs, \
                  was adaptive, after 50 µs at most, tx after 50 µs\n";
    assert_eq!(text, wanted);
    assert_eq!(card.json(&["moderation"])["poll_usecs"], 30);
    let text = card.good(&["moderation", "--tx-complete", "moderated"]);
    assert!(text.contains(", moderated when there is room to send, was adaptive"), "{text}");
    assert_eq!(card.json(&["moderation"])["tx_complete"], "moderated");
    card.good(&["moderation", "--tx-complete", "off"]);
    refused(
        &card.ctl(&["moderation", "static", "--per-packet", "true", "--rx-frames", "8"]),
        2,
        "rx_frames: found 8 with per_packet = true",
    );
    card.good(&["moderation", "none", "--poll-usecs", "0"]);
    assert_eq!(card.good(&["moderation"]), "moderation at each packet\n");
    refused(&card.ctl(&["moderation", "static"]), 2, "rx_usecs: found 0");
    refused(&card.ctl(&["moderation", "none", "--rx-usecs", "5"]), 2, "rx_usecs: found with");
    refused(&card.ctl(&["moderation", "--poll-usecs", "1000001"]), 2, "poll_usecs: found 1000001");

    assert_eq!(card.good(&["stop"]), "asked has stopped\n");
    let (report, _) = card.ended();
    assert!(report["ledger"]["in"].as_u64() > stats["ledger"]["in"].as_u64());
}

#[test]
fn swap_errors_name_the_line() {
    let _machine = machine();
    let card = start_card("swapped", STEADY);
    let files = [
        ("bad.toml", &b"# one\n[[rx]]\nfunction = \"rss\"\ntable_size = 0\n"[..]),
        ("good.toml", b"[[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"rss\"\n"),
    ];
    let folder = folder(&files);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let output = card.ctl(&["swap", "rx", &path("bad.toml")]);
    let place = format!("{}:4: rx[0].table_size: found 0, allowed: 1 to", path("bad.toml"));
    refused(&output, 2, &place);
    refused(&card.ctl(&["swap", "tx", &path("good.toml")]), 2, "tx: found none, allowed: sections");
    refused(
        &card.ctl(&["swap", "rx", &path("none.toml")]),
        2,
        "none.toml: cannot be read: No such",
    );
    let text = card.good(&["swap", "rx", &path("good.toml")]);
    assert_eq!(text, "rx chain: pass -> rss, was rss\n");
    let chains = card.json(&["chain"]);
    assert_eq!(chains["rx"][1]["function"], "rss");
    assert!(card.good(&["chain"]).contains("rx[0]  pass"));
    let result = card.json(&["call", "chain.swap", "{\"chain\":\"rx\",\"functions\":[]}"]);
    assert_eq!(result["functions"], Value::Array(Vec::new()));
    refused(
        &card.ctl(&["call", "card.reboot"]),
        2,
        "found method \"card.reboot\", allowed: card.info",
    );
    refused(&card.ctl(&["call", "card.info", "[1]"]), 2, "PARAMS: allowed: a JSON object");
    card.stop();
}

#[test]
fn captures_are_complete_for_any_output() {
    let _machine = machine();
    let card = start_card("captured", STEADY);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.pcapng").display().to_string();
    let choice = ["--card", "captured"];
    let capture = |arguments: &[&str]| {
        picnic_in(Path::new("/"), &[&["capture"], &choice[..], arguments].concat())
    };
    let output = capture(&["-s", "wire", "-s", "queue", "-c", "500", "-w", &file, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(json(&output)["packets_written"], 500);
    // Live, through a pipe, to a reader that ends it by going away.
    let mut child = piped(command().args(["capture", "--card", "captured", "-w", "-"]));
    let mut pipe = child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut pipe, &mut [0; 5000]).unwrap();
    drop(pipe);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // Ctrl-C ends it well.
    let path = folder.path().join("y.pcapng");
    let child =
        piped(command().args(["capture", "--card", "captured", "-w", path.to_str().unwrap()]));
    wait_until("packets are captured", || {
        std::fs::metadata(&path).map_or(0, |file| file.len()) >= 10_000
    });
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("packets captured"), "{}", stderr(&output));
    tshark(&file, 500);
    tshark(path.to_str().unwrap(), 1);

    let output = capture(&["-w", "/dev/full"]);
    refused(&output, 1, "the capture ended early: No space left on device");
    let output = capture(&["-w", "/nonexistent/x"]);
    refused(&output, 1, "/nonexistent/x: cannot be created");
    refused(&capture(&["-s", "tx", "-w", &file]), 1, "nothing can be captured at tx");
    refused(&capture(&["--json"]), 2, "the capture goes to standard output");
    // One that continues on its own.
    let long = folder.path().join("long.pcapng").display().to_string();
    assert_eq!(card.good(&["capture", "list"]), "no capture runs\n");
    assert!(card.good(&["capture", "start", "-w", &long]).contains("of wire0"));
    assert_eq!(card.json(&["capture", "list"])["captures"].as_array().unwrap().len(), 1);
    assert!(card.good(&["capture", "stop"]).contains("packets captured"));
    refused(&card.ctl(&["capture", "stop"]), 1, "no capture runs");
    card.stop();
}

/// Wireshark's reading of a capture.
fn tshark(file: &str, at_least: usize) {
    let output = std::process::Command::new("tshark").args(["-r", file]).output();
    let Ok(output) = output else {
        return skip("captures read by tshark", "tshark is not installed");
    };
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let packets = String::from_utf8_lossy(&output.stdout).lines().count();
    assert!(packets >= at_least, "{packets} packets in {file}");
}

#[test]
fn top_prints_a_frame_and_needs_a_terminal_otherwise() {
    let _machine = machine();
    let card = start_card("watched", STEADY);
    let top = |arguments: &[&str]| {
        picnic_in(Path::new("/"), &[&["top", "--card", "watched"], arguments].concat())
    };
    let output = top(&["--once", "--interval", "0.5"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for part in ["watched: ", "wire0 ", "rx[0] rss", "packets/int", "q quit"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    wait_until("an interval with packets", || {
        let rates = json(&top(&["--once", "--interval", "0.5", "--json"]));
        rates["wires"][0]["rx_pps"].as_f64().unwrap() > 0.0
    });
    refused(&top(&[]), 2, "standard output is not a terminal; --once prints one frame as text");
    refused(&top(&["--json"]), 2, "--json needs --once");
    card.stop();
}

#[test]
fn card_is_found_or_must_be_chosen() {
    let _machine = machine();
    let first = start_card("one", STEADY);
    assert!(stdout(&picnic(&["ctl"])).starts_with("card          one, "), "the only one");
    refused(
        &picnic(&["ctl", "--card", "two"]),
        1,
        "card two is not running; running cards: one (pid ",
    );
    // A second one beside it.
    let (_folder, path) = card(&format!("{STEADY}[card]\nname = \"two\"\n"));
    let arguments = ["run", path.to_str().unwrap(), "--quiet", "--duration", "600"];
    let mut second = command().args(arguments).stdout(Stdio::null()).spawn().unwrap();
    wait_until("the second card answers", || {
        picnic(&["ctl", "--card", "two"]).status.code() == Some(0)
    });
    refused(&picnic(&["ctl"]), 2, "several cards are running, choose one: one (pid ");
    // A third one of the second's name is refused before anything is touched.
    let output = command().args(arguments).output().unwrap();
    let pid = second.id();
    refused(&output, 1, &format!("picnic: card two is already running (pid {pid})"));
    // As after SIGKILL: the socket is stale, and replaced.
    second.kill().unwrap();
    second.wait().unwrap();
    assert!(stdout(&picnic(&["ctl"])).starts_with("card          one, "), "the only one again");
    let short = ["run", path.to_str().unwrap(), "--quiet", "--duration", "0.2", "--json"];
    let output = command().args(short).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Or removed: only a kill leaves a socket without a listener.
    let mut third = command().args(arguments).stdout(Stdio::null()).spawn().unwrap();
    wait_until("the third card answers", || {
        picnic(&["ctl", "--card", "two"]).status.code() == Some(0)
    });
    third.kill().unwrap();
    third.wait().unwrap();
    let removed = good_json(&["cleanup", "--json"])["sockets"].clone();
    let removed: Vec<_> = removed.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(removed.len() == 1 && removed[0].ends_with("/two.sock"), "{removed:?}");
    assert!(!Path::new(removed[0]).exists());
    first.stop();
    refused(&picnic(&["ctl"]), 1, "no card is running (looked in ");
    let output = picnic(&["ctl", "--socket", "/nonexistent/x.sock"]);
    refused(&output, 1, "/nonexistent/x.sock: no card is running there");
}

#[test]
fn card_with_socket_off_has_no_socket() {
    let _machine = machine();
    let (_folder, path) = card(&format!("{STEADY}[control]\nsocket = \"off\"\n"));
    let arguments = ["run", path.to_str().unwrap(), "--quiet", "--duration", "600", "--json"];
    let child = start(&_machine, &arguments);
    refused(&picnic(&["ctl"]), 1, "no card is running");
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_balanced(&json(&output));
}

/// Whether each thread of a process has no capability in force. That none gets new ones holds from
/// the start.
fn has_no_privileges(pid: u32) -> bool {
    let all = |field, wanted| statuses(pid, field).iter().all(|(_, number)| *number == wanted);
    assert!(all("NoNewPrivs:", 1), "{:?}", statuses(pid, "NoNewPrivs:"));
    all("CapPrm:", 0)
}

#[test]
fn a_running_card_has_no_privileges_left() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.pcapng");
    let text = format!("{STEADY}[trace]\npath = \"{}\"\n", trace.display());
    let _machine = machine();
    let card = start_card("plain", &text);
    let file = folder.path().join("x.pcapng").display().to_string();
    card.good(&["capture", "start", "-w", &file]);
    let pid = card.child().id();
    // Its threads may still be starting: a new thread takes its name a moment later.
    wait_until("each thread is there, and none has privileges", || {
        let modes = statuses(pid, "Seccomp:");
        let is_there = |wanted| modes.iter().any(|(name, _)| name == wanted);
        ["picnic", "borrowed", "control", "picnic-capture"].into_iter().all(is_there)
            && modes.iter().all(|(_, mode)| *mode == 2)
            && has_no_privileges(pid)
    });
    if !rustix::process::geteuid().is_root() {
        skip("a running card has no privileges left", "there were none to give up: not root");
    }
    // It can still do its own work.
    card.good(&["capture", "stop"]);
    card.good(&["stop"]);
    let (report, _) = card.ended();
    let notes = report["notes"].to_string();
    assert!(!notes.contains("privileges"), "{notes}");
}

/// Two ends of a cable in a namespace, `outside` with an address.
fn cable(bed: &Testbed) {
    bed.add_veth(("card", "outside"), ("card", "inside"), "").unwrap();
    for rest in
        ["address add 198.18.0.1/24 dev outside", "link set outside up", "link set inside up"]
    {
        bed.ip("card", rest).unwrap();
    }
}

#[test]
fn returning_interfaces_are_reopened_without_privileges() {
    const NAME: &str = "an interface that returns is reattached without privileges";
    let Some(bed) = bed::testbed(NAME, &["card"], &["ip", "ping"]) else { return };
    cable(&bed);
    let text = format!(
        "[[wire]]\nport = \"packet\"\ninterface = \"inside\"\nnamespace = \"{}\"\n",
        bed.netns("card")
    );
    let _machine = machine();
    let card = start_card("returning", &text);
    let received = || card.json(&["stats"])["wires"][0]["rx_packets"].as_u64().unwrap();
    let more_comes = |before: u64| {
        wait_until("something is received", || {
            // A request for an unused address.
            let _ = bed.within("card", "ping -c 1 -W 1 198.18.0.2");
            received() > before
        });
    };
    more_comes(0);
    let pid = card.child().id();
    wait_until("no thread has privileges", || has_no_privileges(pid));
    bed.ip("card", "link del inside").unwrap();
    let_pass(100);
    let before = received();
    cable(&bed);
    more_comes(before);
    card.good(&["stop"]);
    let (report, _) = card.ended();
    let notes = report["notes"].to_string();
    assert!(notes.contains("inside: reappeared and was reattached 1 times"), "{notes}");
}

/// Anybody may take up a TAP device that its maker has left to all; to set it is the maker's part.
#[test]
fn returning_taps_are_reopened_without_privileges() {
    const NAME: &str = "taps that return are reattached without privileges";
    let Some(bed) = bed::testbed(NAME, &["outside", "host"], &["ip", "ping", "/dev/net/tun"])
    else {
        return;
    };
    let ends = [
        ("outside", "wire", "02:00:00:00:18:01", "198.18.0.1/24"),
        ("host", "nic", "02:00:00:00:18:02", "198.18.0.2/24"),
    ];
    let keys = ends.map(|(place, _, mac, address)| {
        let namespace = bed.netns(place);
        format!("namespace = \"{namespace}\"\nmac = \"{mac}\"\naddresses = [\"{address}\"]\n")
    });
    let text = format!(
        "[[wire]]\nport = \"tap\"\ninterface = \"wire\"\n{}\
         [host]\nattachment = \"tap\"\nqueues = 2\nname = \"nic\"\n{}",
        keys[0], keys[1]
    );
    let _machine = machine();
    let card = start_card("returning", &text);
    let is_answered = || bed.within("outside", "ping -c 1 -W 1 198.18.0.2").is_ok();
    wait_until("the host answers", is_answered);
    wait_until("no thread has privileges", || has_no_privileges(card.child().id()));
    for (place, name, mac, address) in ends {
        bed.ip(place, &format!("link delete {name}")).unwrap();
        let_pass(100);
        for rest in [
            format!("tuntap add {name} mode tap multi_queue"),
            format!("address add {address} dev {name}"),
            format!("link set {name} address {mac} up"),
        ] {
            bed.ip(place, &rest).unwrap();
        }
        wait_until(&format!("{name} is reattached"), is_answered);
    }
    card.good(&["stop"]);
    let (report, _) = card.ended();
    let notes = report["notes"].to_string();
    for (_, name, ..) in ends {
        for part in ["reappeared and was reattached 1 times", "after it reappeared, mac: "] {
            assert!(notes.contains(&format!("{name}: {part}")), "{notes}");
        }
    }
    assert!(!notes.contains("refused to"), "{notes}");
}

/// `picnic top` on a terminal made by `script`; returns its output.
struct OnTerminal {
    script: Child,
    drawn: Arc<Mutex<Vec<u8>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl OnTerminal {
    fn start(card: &str) -> Self {
        let top = format!("stty rows 24 cols 80; exec {PICNIC} top --card {card} --interval 0.2");
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &top, "/dev/null"]).env("TERM", "xterm");
        // As all commands of these tests, it looks for cards where no other process does.
        for (name, value) in command().get_envs() {
            script.env(name, value.unwrap());
        }
        let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.stderr(Stdio::piped()).spawn().unwrap();
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let (mut output, theirs) = (script.stdout.take().unwrap(), drawn.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                theirs.lock().unwrap().extend(&bytes[..count]);
            }
        });
        let top = OnTerminal { script, drawn, reader: Some(reader) };
        top.until("packets/int");
        top
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned()
    }

    fn until(&self, words: &str) {
        wait_until(words, || self.text().contains(words));
    }

    fn press(&mut self, key: &[u8]) {
        self.script.stdin.as_mut().unwrap().write_all(key).unwrap();
    }

    /// It ends well, and the terminal is as it was; all that was drawn.
    fn ended(mut self) -> String {
        let status = wait_for("it has ended", || self.script.try_wait().unwrap());
        self.reader.take().unwrap().join().unwrap();
        let text = self.text();
        assert_eq!(status.code(), Some(0), "{text}");
        // The screen that was there before.
        assert!(text.contains("\x1b[?1049l"), "{text}");
        text
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn top_restores_the_terminal_at_any_end() {
    const NAME: &str = "top on a terminal";
    if std::process::Command::new("script").arg("--version").output().is_err() {
        return skip(NAME, "`script` of util-linux is not installed");
    }
    let _machine = machine();
    let card = start_card("screen", STEADY);
    for key in [&b"q"[..], b"\x03"] {
        let mut top = OnTerminal::start("screen");
        top.press(b"p");
        top.until("PAUSED");
        top.press(key);
        top.ended();
    }
    let top = OnTerminal::start("screen");
    let id = top.script.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    if let Some(id) = children.ok().and_then(|text| text.trim().parse().ok()) {
        let id = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        top.ended();
    }
    // A card that is silent: told, and the keys are obeyed.
    let mut top = OnTerminal::start("screen");
    let id = rustix::process::Pid::from_child(card.child());
    rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    top.until("NO ANSWER");
    top.press(b"q");
    top.ended();
    rustix::process::kill_process(id, rustix::process::Signal::CONT).unwrap();
    let top = OnTerminal::start("screen");
    card.good(&["stop"]);
    let text = top.ended();
    assert!(text.contains("screen has ended"), "{text}");
    card.ended();
}

#[test]
fn shared_borrowed_cores_cause_a_warning() {
    let _machine = machine();
    let first = start_card("first", STEADY);
    let core = first.json(&["info"])["borrowed_core"].to_string();
    let (_folder, path) = card(&format!("{STEADY}[card]\nname = \"second\"\n"));
    let path = path.to_str().unwrap();
    let named = format!("core {core} is also the borrowed core of running card first (pid ");
    let text = good(&["check", path]);
    let notes: Vec<_> = text.lines().filter(|line| line.starts_with("note ")).collect();
    assert!(notes.iter().any(|note| note.contains(&named)), "no {named:?} in {text}");
    let mut run = command();
    run.args(["run", path, "--duration", "0.3", "--quiet", "--json"]);
    let output = run.output().unwrap();
    assert!(stderr(&output).contains(&format!("picnic: warning: {named}")), "{}", stderr(&output));
    let report = json(&output);
    let notes = report["notes"].as_array().unwrap().iter().filter_map(Value::as_str);
    assert_eq!(notes.filter(|note| note.starts_with(&named)).count(), 1, "{report}");
    // The card that runs may be the file's own, and cards of virtual cores share none.
    for arguments in [&["--set", "card.name=first"][..], &["--world", "sim"]] {
        let text = good(&[&["check", path], arguments].concat());
        assert!(!text.contains("running card first"), "{text}");
    }
}
