//! Every bad input that the command line can see: its exact message, exit code 2.

use crate::common::*;
use picnic_cli::registries;
use picnic_core::registry::Entry;
use std::path::Path;
use std::process::Output;

/// Runs a command that must be refused before it touches the machine, so it does not take the
/// machine's lock.
fn command_in(folder: &Path, words: &[&str]) -> Output {
    command().args(words).current_dir(folder).output().unwrap()
}

/// The message of a command that is refused for its input.
fn refused_in(folder: &Path, words: &[&str]) -> String {
    let output = command_in(folder, words);
    assert_eq!(stdout(&output), "", "{words:?}");
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
    stderr(&output).to_owned()
}

/// Both `check` and `run` must refuse the card, saying this and nothing else.
fn refused(files: &[(&str, &[u8])], expected: &str) {
    let folder = folder(files);
    for command in ["check", "run"] {
        assert_eq!(refused_in(folder.path(), &[command, "card.toml"]), format!("{expected}\n"));
    }
}

/// The entries of a registry, as an error lists them.
fn names<P>(entries: &[Entry<P>]) -> String {
    entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

#[test]
fn bad_input_is_refused_in_the_words_of_its_file() {
    let all = registries();
    let engines: Vec<_> = all.executors.iter().map(|engine| engine.name()).collect();
    let cores: Vec<_> = picnic_machine::topology::cores().iter().map(usize::to_string).collect();
    let mut cases = include_str!("bad_input.txt").to_owned();
    for (name, names) in [
        ("{functions}", names(all.functions)),
        ("{wires}", names(all.wires)),
        ("{attachments}", names(all.attachments)),
        ("{engines}", engines.join(", ")),
        ("{cores}", cores.join(", ")),
        ("{core}", cores[0].clone()),
    ] {
        cases = cases.replace(name, &names);
    }
    let mut wrong = Vec::new();
    for case in cases.split("\n== ").skip(1) {
        let (title, case) = case.split_once('\n').unwrap();
        let (mut card, mut commands, mut expected) = (String::new(), Vec::new(), String::new());
        for line in case.lines() {
            match line.split_once(' ') {
                Some(("$", words)) => commands.push(words),
                Some(("!", error)) => expected += &format!("{error}\n"),
                _ => card += &format!("{line}\n"),
            }
        }
        if commands.is_empty() {
            commands = vec!["check card.toml", "run card.toml"];
        }
        let folder = folder(&[("card.toml", card.as_bytes())]);
        for command in commands {
            let said = refused_in(folder.path(), &command.split(' ').collect::<Vec<_>>());
            if said != expected {
                wrong.push(format!("{title}: {command}:\n{said}and not\n{expected}"));
            }
        }
        // Input files are never written.
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        let unchanged = std::fs::read_to_string(folder.path().join("card.toml")).unwrap() == card;
        assert!(left == 1 && unchanged, "{title}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn check_and_run_refuse_names_too_long_for_a_socket() {
    let text = format!("[card]\nname = \"{}\"\n", "n".repeat(200));
    let folder = folder(&[("card.toml", text.as_bytes())]);
    for command in ["check", "run"] {
        let message = refused_in(folder.path(), &[command, "card.toml"]);
        assert!(message.starts_with("card.toml:2: card.name: found a path of "), "{message}");
        assert!(message.contains(" bytes for the socket, allowed: 107: "), "{message}");
    }
}

#[test]
fn metrics_at_a_taken_address_are_found_by_check_as_by_run() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(
        &[("card.toml", format!("[control]\nmetrics = \"{address}\"\n").as_bytes())],
        &format!("card.toml:2: control.metrics: found {address}, which another program listens on"),
    );
}

#[test]
fn errors_in_toml_and_binary_files_name_the_line() {
    for (text, wanted) in [
        (&b"[card]\nname = \n"[..], "card.toml:2: "),
        (b"[card]\nname = \"\xff\"\n", "card.toml:2: found byte 0xff, allowed: UTF-8 text\n"),
    ] {
        let said = refused_in(folder(&[("card.toml", text)]).path(), &["check", "card.toml"]);
        assert!(said.starts_with(wanted) && said.lines().count() == 1, "{said}");
    }
}

/// Cards that differ in a key from those that are refused.
#[test]
fn repaired_cards_are_accepted() {
    for text in [
        "[[wire]]\nport = \"generator\"\nrate_pps = 1000\n[[wire]]\nport = \"generator\"\n\
         [wire.link]\nrate_mbps = 1000\n[card]\nstamp = \"arrival\"\n",
        "[[wire]]\n[[wire]]\n[[rx]]\nfunction = \"bond\"\nmode = \"round-robin\"\norder_usecs = 50\n\
         [[rx]]\nfunction = \"lro\"\n",
    ] {
        let folder = folder(&[("card.toml", text.as_bytes())]);
        let output = picnic_in(folder.path(), &["check", "card.toml"]);
        assert_eq!((stderr(&output), output.status.code()), ("", Some(0)));
    }
}

const REPLAY: &str = "[[wire]]\nport = \"pcap\"\npath = \"in.pcap\"\n";

#[test]
fn captures_that_cannot_be_read() {
    const ALLOWED: &str = "allowed: a pcap or pcapng capture of Ethernet";
    let one = pcap(&[tcp_frame(1)]);
    let mut wifi = one.clone();
    wifi[20] = 105;
    let cases: [(&[u8], String); 5] = [
        (b"a letter", format!("found a file starting 61 20 6c 65, {ALLOWED}")),
        (b"", format!("found an empty file, {ALLOWED}")),
        (&one[..20], format!("found a pcap header truncated after 20 of 24 bytes, {ALLOWED}")),
        (
            &one[..30],
            "found no complete packet: at byte 24, a packet is truncated: 6 bytes are left".into(),
        ),
        (&wifi, "found link type 105 (IEEE802_11), allowed: 1 (ETHERNET)".into()),
    ];
    for (capture, expected) in cases {
        let files = [("card.toml", REPLAY.as_bytes()), ("in.pcap", capture)];
        refused(&files, &format!("card.toml:3: wire[0].path: in.pcap: {expected}"));
    }
}

#[test]
fn truncated_captures_are_used_up_to_the_error() {
    let whole = pcap(&[tcp_frame(1), tcp_frame(2), tcp_frame(3)]);
    let folder =
        folder(&[("card.toml", REPLAY.as_bytes()), ("in.pcap", &whole[..whole.len() - 10])]);
    let output = picnic_in(folder.path(), &["run", "card.toml", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["ledger"]["delivered"], 2);
    assert_balanced(&report);
    let notes = report["notes"].to_string();
    assert!(notes.contains("in.pcap") && notes.contains("truncated"), "{notes}");
}

#[test]
fn long_gaps_are_reported_and_can_be_cut() {
    let mut capture = pcap(&[tcp_frame(1), tcp_frame(2), tcp_frame(3), tcp_frame(4)]);
    let third = 24 + 2 * (16 + tcp_frame(1).len());
    capture[third..third + 4].copy_from_slice(&(1_700_000_000_u32 + 65_536).to_le_bytes());
    let card = format!("{REPLAY}pace = \"recorded\"\n");
    let folder = folder(&[("card.toml", card.as_bytes()), ("in.pcap", &capture)]);
    let output = picnic_in(folder.path(), &["check", "card.toml"]);
    let told = "wire0: in.pcap: a pass takes 65536.000 s; its largest gap is 65536.000 s, before \
                packet 3\n";
    assert!(String::from_utf8_lossy(&output.stdout).contains(told), "{output:?}");
    let output = picnic_in(folder.path(), &["run", "card.toml", "--duration", "0.1"]);
    let told = "picnic: warning: wire0: in.pcap: no packet for 65536.000 s before packet 3 of 4; \
                max_gap_ms bounds such gaps\n";
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
    let bounded = ["run", "card.toml", "--json", "--set", "wire[0].max_gap_ms=20"];
    let output = picnic_in(folder.path(), &bounded);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(json(&output)["ledger"]["delivered"], 4);
    assert!(!stderr(&output).contains("no packet for"), "{}", stderr(&output));
}

/// `try` reads the packets that `run` replays, for any other content of the file.
#[test]
fn single_interfaces_of_a_capture_can_be_tried() {
    let block = |kind: u32, body: &[u8]| {
        let length = 12 + body.len() as u32;
        [&kind.to_le_bytes()[..], &length.to_le_bytes(), body, &length.to_le_bytes()].concat()
    };
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    for (link, name) in [(1, *b"eth0"), (113, *b"any0")] {
        file.extend(block(1, &[&words(&[link, 0, 4 << 16 | 2])[..], &name, &[0; 4]].concat()));
    }
    for (interface, flow) in [(1, 1), (0, 2), (1, 3)] {
        let frame = tcp_frame(flow);
        let length = frame.len() as u32;
        let mut body = words(&[interface, 0, flow.into(), length, length]);
        body.extend(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        file.extend(block(6, &body));
    }
    let folder = folder(&[("in.pcapng", &file)]);
    let tried = |more: &[&str]| {
        let arguments = [&["try", "pass", "--in", "in.pcapng", "--json"], more].concat();
        picnic_in(folder.path(), &arguments)
    };
    let output = tried(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("try: interface = \"eth0\""), "{}", stderr(&output));
    let output = tried(&["--interface", "eth0"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(json(&output)["packets"].as_array().map(Vec::len), Some(1));
}

#[test]
fn wrong_usage() {
    let cases: [&[&str]; 7] = [
        &[],
        &["check", "--set", "host.queues"],
        &["rum"],
        &["run", "--durations", "1"],
        &["run", "--duration", "0"],
        &["run", "--idle", "lazy"],
        &["completions", "tcl"],
    ];
    for arguments in cases {
        assert_ne!(refused_in(Path::new("/"), arguments), "", "{arguments:?}");
    }
}

#[test]
fn all_errors_are_reported_in_line_order() {
    let text = "[card]\nidel = \"block\"\n[host]\nring_size = 65\nqueues = 2\n\
                [[wire]]\nport = \"generator\"\nflows = 0\ntcp_share = 2.0\n\
                [[rx]]\nfunction = \"rss\"\nhash = \"md5\"\ntables = 3\n\
                [[tx]]\nfunction = \"nothing\"\n[[filter]]\naction = \"queue\"\nqueue = 9\n\
                [sector]\n";
    let folder = folder(&[("card.toml", text.as_bytes())]);
    let lines = |command: &str| {
        let said = refused_in(folder.path(), &[command, "card.toml"]);
        let place = |line: &str| line.splitn(4, ':').take(3).collect::<Vec<_>>().join(":");
        said.lines().map(place).collect::<Vec<_>>()
    };
    let places = [
        "card.toml:2: card.idel",
        "card.toml:4: host.ring_size",
        "card.toml:8: wire[0].flows",
        "card.toml:9: wire[0].tcp_share",
        "card.toml:12: rx[0].hash",
        "card.toml:13: rx[0].tables",
        "card.toml:15: tx[0].function",
        "card.toml:19: sector",
    ];
    let shown = lines("check");
    for place in places {
        assert!(shown.iter().any(|line| line == place), "no {place}: {shown:#?}");
    }
    assert_eq!(lines("run"), shown);
    // The same as JSON, for programs; people read them where they are without.
    let output = picnic_in(folder.path(), &["check", "card.toml", "--json"]);
    assert_eq!((stderr(&output).lines().count(), output.status.code()), (shown.len(), Some(2)));
    let report = json(&output);
    let errors = report["errors"].as_array().unwrap();
    assert_eq!(errors.len(), shown.len(), "{report}");
    let wanted = serde_json::json!({
        "file": "card.toml", "line": 8, "key": "wire[0].flows", "found": "0",
        "allowed": "1 to 1048576", "message": "found 0, allowed: 1 to 1048576",
    });
    assert!(errors.contains(&wanted), "{report}");
}

#[test]
fn consequential_errors_are_not_reported() {
    // With two queues in place of eight, queue 6 would be wrong as well.
    let text = "[host]\nqueues = \"8\"\n[[rx]]\nfunction = \"flow-director\"\nhahs = 3\n";
    let folder = folder(&[("card.toml", text.as_bytes())]);
    let said = refused_in(folder.path(), &["check", "card.toml"]);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("card.toml:2: host.queues: ") && lines[1].contains("hahs"));
}

/// For any long text, an error repeats a part of it, says where it is, and ends as usual.
#[test]
fn errors_repeat_no_text_at_length() {
    // The longest one, which takes its time to be read, where a few keys are.
    for (text, cards, commands) in [
        ("x".repeat(30_000), usize::MAX, &["check", "run"][..]),
        ("x y ".repeat(8_000), usize::MAX, &["check", "run"]),
        ("x".repeat(900_000), 6, &["check"]),
    ] {
        let all = [
            (format!("[card]\nname = \"{text}\"\n"), 2),
            (format!("[card]\nengine = \"{text}\"\n"), 2),
            (format!("[card]\nborrowed_core = \"{text}\"\n"), 2),
            (format!("[card]\n\"{text}\" = 1\n"), 2),
            (format!("[\"{text}\"]\nx = 1\n"), 1),
            (format!("[card]\nname = \"a\"\n\"{text}\" = 1\n\"{text}\" = 1\n"), 4),
            (format!("[[wire]]\nport = \"{text}\"\n"), 2),
            (format!("[[wire]]\nport = \"pcap\"\npath = \"{text}\"\n"), 3),
            (format!("[[wire]]\nport = \"packet\"\ninterface = \"{text}\"\n"), 3),
            (format!("[[rx]]\nfunction = \"{text}\"\n"), 2),
            (format!("[[rx]]\nplugin = \"{text}\"\n"), 2),
            (format!("[[rx]]\nfunction = \"rss\"\nkey = \"{text}\"\n"), 3),
            (format!("[[rx]]\nfunction = \"rss\"\ntypes = [\"{text}\"]\n"), 3),
            (format!("[host]\nattachment = \"{text}\"\n"), 2),
            (format!("[host]\nattachment = \"tap\"\naddresses = [\"{text}\"]\n"), 3),
            (format!("[[filter]]\nname = \"{text}\"\naction = \"drop\"\n"), 2),
            (format!("[[filter]]\nsource = \"{text}\"\naction = \"drop\"\n"), 2),
            (format!("[control]\nsocket = \"{text}\"\n"), 2),
            (format!("[control]\nmetrics = \"{text}\"\n"), 2),
            (format!("[trace]\npath = \"{text}\"\n"), 2),
            (format!("[sciron]\nrules = \"{text}\"\n"), 2),
            (format!("[os]\nscheduler = \"{text}\"\n"), 2),
            (format!("[[task]]\ntask = \"{text}\"\n"), 2),
        ];
        for (card, line) in all.into_iter().take(cards) {
            let folder = folder(&[("card.toml", card.as_bytes())]);
            for command in commands {
                let output = command_in(folder.path(), &[command, "card.toml"]);
                let said = stderr(&output);
                let key = &card[..60];
                assert!(said.len() < 4000, "{command}: {} bytes: {key}", said.len());
                assert!(
                    said.starts_with(&format!("card.toml:{line}: ")),
                    "{command}: {key}: {said}"
                );
                assert_ne!(output.status.code(), Some(0), "{command}: {key}");
            }
        }
    }
    let word = "x".repeat(100_000);
    let folder = folder(&[("a.rules", format!("{word} any any any any drop\n").as_bytes())]);
    for arguments in [
        vec![word.as_str()],
        vec!["run", &word],
        vec!["run", "--duration", &word],
        vec!["run", "--set", &word],
        vec!["run", "--set", &format!("card.name={word}")],
        vec!["functions", &word],
        vec!["ctl", "--card", &word, "info"],
        vec!["lab", "run", &word],
        vec!["sciron", "check", "a.rules"],
    ] {
        let output = picnic_in(folder.path(), &arguments);
        let (said, shown) = (stderr(&output), &arguments[..arguments.len() - 1]);
        assert!(said.len() < 4000, "{} bytes: {shown:?}", said.len());
        assert!(!said.is_empty(), "{shown:?}");
        assert_ne!(output.status.code(), Some(0), "{shown:?}");
    }
}

/// Missing interfaces are reported after errors in the card file.
#[test]
fn hints_follow_their_error() {
    let card = "[net]\nnamespaces = [\"absent-1\"]\n[[wire]]\nport = \"packet\"\n\
                interface = \"absent-2\"\nnamespace = \"absent-1\"\n";
    let folder = folder(&[("card.toml", card.as_bytes())]);
    for command in ["check", "run"] {
        let said = refused_in(folder.path(), &[command, "card.toml"]);
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("card.toml:"), "{lines:?}");
        assert_eq!(lines[1], "picnic: try: picnic net up card.toml", "{command}");
    }
}
