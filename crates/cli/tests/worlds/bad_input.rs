//! Every bad input that the command line can see: its exact message, exit code 2.

use crate::common::*;
use picnic_cli::registries;
use picnic_core::registry::Entry;

/// Both `check` and `run` must refuse the card, saying this and nothing else.
fn refused(files: &[(&str, &[u8])], expected: &str) {
    let folder = folder(files);
    for command in ["check", "run"] {
        let output = picnic_in(folder.path(), &[command, "card.toml"]);
        assert_eq!(stderr(&output), format!("{expected}\n"), "{command}");
        assert_eq!(stdout(&output), "", "{command}");
        assert_eq!(output.status.code(), Some(2), "{command}");
    }
}

fn refused_card(text: &str, expected: &str) {
    refused(&[("card.toml", text.as_bytes())], expected);
}

#[test]
fn engines_are_those_of_the_registry() {
    refused_card(
        "[card]\nengine = \"kernal\"\n",
        &format!(
            "card.toml:2: card.engine: found \"kernal\", allowed: {}; did you mean \"kernel\"?",
            registries()
                .executors
                .iter()
                .map(|engine| engine.name())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    );
}

#[test]
fn check_and_run_refuse_names_too_long_for_a_socket() {
    let folder =
        folder(&[("card.toml", format!("[card]\nname = \"{}\"\n", "n".repeat(200)).as_bytes())]);
    for command in ["check", "run"] {
        let output = picnic_in(folder.path(), &[command, "card.toml"]);
        let message = stderr(&output);
        assert!(message.starts_with("card.toml:2: card.name: found a path of "), "{message}");
        assert!(message.contains(" bytes for the socket, allowed: 107: "), "{message}");
        assert_eq!(output.status.code(), Some(2), "{command}");
    }
}

#[test]
fn check_and_run_refuse_unusable_metrics() {
    let metrics = |address: &str| format!("[control]\nmetrics = \"{address}\"\n");
    // An address kept for documents (RFC 5737) is no machine's.
    refused_card(
        &metrics("192.0.2.1:9100"),
        "card.toml:2: control.metrics: found 192.0.2.1:9100, which is not an address of this machine",
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused_card(
        &metrics(&address),
        &format!("card.toml:2: control.metrics: found {address}, which another program listens on"),
    );
}

#[test]
fn unknown_keys_and_sections() {
    refused_card(
        "[card]\nidle = \"spin\"\nidel = \"block\"\n",
        "card.toml:3: card.idel: found key \"idel\", allowed: name, engine, borrowed_core, idle, \
         burst, default_queue, wire_backlog, stamp, seed; did you mean \"idle\"?",
    );
    refused_card(
        "[card]\n\n[hots]\nqueues = 2\n",
        "card.toml:3: hots: found section \"hots\", allowed: card, pool, wire, rx, tx, host, \
         interrupt, isolation, net, control, trace, filter, os, task, sciron; \
         did you mean \"host\"?",
    );
    refused_card(
        "[[rx]]\nfunction = \"rss\"\n[[rx]]\nfunction = \"pass\"\nspeed = 1\n",
        "card.toml:5: rx[1].speed: found key \"speed\", allowed: function",
    );
}

#[test]
fn wrong_types_and_values() {
    refused_card(
        "[host]\nqueues = \"four\"\n",
        "card.toml:2: host.queues: found \"four\", allowed: a whole number, 0 to 65535",
    );
    refused_card("[host]\nqueues = 0\n", "card.toml:2: host.queues: found 0, allowed: 1 to 256");
    refused_card(
        "[card]\nidle = \"lazy\"\n",
        "card.toml:2: card.idle: found \"lazy\", allowed: spin, adaptive, block",
    );
    refused_card(
        "[host]\nring_size = 1000\n",
        "card.toml:2: host.ring_size: found 1000, allowed: a power of two, 64 to 65536",
    );
}

#[test]
fn text_that_is_not_toml() {
    let folder = folder(&[("card.toml", b"[card]\nname = \n")]);
    let output = picnic_in(folder.path(), &["check", "card.toml"]);
    assert!(stderr(&output).starts_with("card.toml:2: "), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
    assert_eq!(output.status.code(), Some(2));
}

/// The entries of a registry, as an error lists them.
fn names<P>(entries: &[Entry<P>]) -> String {
    entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

#[test]
fn unknown_functions_ports_and_attachments() {
    refused_card(
        "[[rx]]\nfunction = \"rsss\"\n",
        &format!(
            "card.toml:2: rx[0].function: found \"rsss\", allowed: {}; did you mean \"rss\"?",
            names(registries().functions)
        ),
    );
    refused_card(
        "[[wire]]\n[[wire]]\nport = \"pcpa\"\n",
        &format!(
            "card.toml:3: wire[1].port: found \"pcpa\", allowed: {}; did you mean \"pcap\"?",
            names(registries().wires)
        ),
    );
    refused_card(
        "[host]\nattachment = \"vdpa\"\n",
        &format!(
            "card.toml:2: host.attachment: found \"vdpa\", allowed: {}",
            names(registries().attachments)
        ),
    );
    refused_card("[[rx]]\n", "card.toml:1: rx[0]: missing function, expected: a name");
}

#[test]
fn table_entries_for_missing_queues() {
    refused_card(
        "[host]\nqueues = 2\n[[rx]]\nfunction = \"rss\"\ntable = [0, 1, 2, 1]\n",
        "card.toml:5: rx[0].table[2]: found queue 2, allowed: 0 to 1",
    );
    refused_card(
        "[card]\ndefault_queue = 4\n",
        "card.toml:2: card.default_queue: found 4, allowed: 0 to 3",
    );
}

const STAMPING: &str = "packet, xdp with stamps = true, pcap as it was recorded, generator with a \
                        rate, any with [wire.link]";

#[test]
fn wires_without_required_arrival_times() {
    for (wire, port) in [
        ("", "generator"),
        ("[[wire]]\nport = \"tap\"\ninterface = \"pcbad0\"\n", "tap"),
        ("[[wire]]\nport = \"xdp\"\ninterface = \"lo\"\nstamps = false\n", "xdp"),
    ] {
        refused_card(
            &format!("[card]\nidle = \"block\"\nstamp = \"arrival\"\n{wire}"),
            &format!(
                "card.toml:3: card.stamp: found \"arrival\" with wire0 ({port}), which knows only the time of reception, allowed: \"any\", or wires that know when they arrived \
                 ({STAMPING})"
            ),
        );
    }
    // The second of two; a link knows when packets come out of it.
    let paced = "[[wire]]\nport = \"generator\"\nrate_pps = 1000\n";
    let text = format!("{paced}[[wire]]\nport = \"generator\"\nname = \"fast\"\n");
    let demand = "[card]\nstamp = \"arrival\"\n";
    let folder = folder(&[
        ("card.toml", format!("{text}{demand}").as_bytes()),
        ("good.toml", format!("{text}[wire.link]\nrate_mbps = 1000\n{demand}").as_bytes()),
    ]);
    let output = picnic_in(folder.path(), &["check", "card.toml"]);
    let wanted = "card.toml:8: card.stamp: found \"arrival\" with fast (generator), which knows";
    assert!(stderr(&output).starts_with(wanted), "{}", stderr(&output));
    let output = picnic_in(folder.path(), &["check", "good.toml"]);
    assert_eq!((stderr(&output), output.status.code()), ("", Some(0)));
    refused_card(
        "[card]\nstamp = \"taken\"\n",
        "card.toml:2: card.stamp: found \"taken\", allowed: any, arrival",
    );
}

#[test]
fn wire_frames_on_uncountable_wires() {
    let interrupt = "[interrupt]\nwire_usecs = 50\nwire_frames = 8\n";
    for (wire, line) in [
        ("[[wire]]\nport = \"tap\"\ninterface = \"pcbad0\"\n", 6),
        (
            "[[wire]]\nport = \"generator\"\nrate_pps = 1000\n[wire.link]\n\
             rate_mbps = 1000\n",
            8,
        ),
    ] {
        refused_card(
            &format!("{wire}{interrupt}"),
            &format!(
                "card.toml:{line}: interrupt.wire_frames: found 8 with a wire that cannot tell how \
                 many frames wait (tap, any with a link), allowed: 0, or wires that can \
                 (generator, packet, pcap, xdp)"
            ),
        );
    }
}

#[test]
fn queues_on_no_core_and_cores_that_do_not_exist() {
    refused_card(
        "[host]\nqueues = 4\ntarget_cores = [0, 0]\n",
        "card.toml:3: host.target_cores: found 2 cores for 4 queues, allowed: one core for \
         each queue, or \"auto\"",
    );
    let cores: Vec<_> = picnic_machine::topology::cores().iter().map(usize::to_string).collect();
    let allowed = cores.join(", ");
    refused_card(
        "[card]\nborrowed_core = 4095\n",
        &format!(
            "card.toml:2: card.borrowed_core: found core 4095, but this process may run on \
             {allowed}"
        ),
    );
    refused_card(
        &format!("[host]\nqueues = 2\ntarget_cores = [\n  {},\n  4095,\n]\n", cores[0]),
        &format!(
            "card.toml:5: host.target_cores[1]: found core 4095, but this process may run on \
             {allowed}"
        ),
    );
}

const REPLAY: &str = "[[wire]]\nport = \"pcap\"\npath = \"in.pcap\"\n";

#[test]
fn captures_that_cannot_be_read() {
    refused_card(
        "[[wire]]\nport = \"pcap\"\n",
        "card.toml:1: wire[0].path: found none, allowed: the name of a pcap or pcapng file",
    );
    refused_card(
        REPLAY,
        "card.toml:3: wire[0].path: in.pcap: cannot be read: No such file or directory (os error 2)",
    );
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

/// `try` reads what `run` replays, whatever else is in the file.
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
fn card_files_that_cannot_be_read() {
    let output = picnic(&["run", "/nowhere/card.toml"]);
    let expected = "/nowhere/card.toml: cannot be read: No such file or directory (os error 2)\n";
    assert_eq!(stderr(&output), expected);
    assert_eq!(output.status.code(), Some(2));
    let folder = folder(&[("card.toml", b"[card]\nname = \"\xff\"\n")]);
    let output = picnic_in(folder.path(), &["check", "card.toml"]);
    let expected = "card.toml:2: found byte 0xff, allowed: UTF-8 text\n";
    assert_eq!(stderr(&output), expected);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn impossible_traces_and_faults() {
    refused_card(
        "[trace]\nstages = [\"wire\"]\n",
        "card.toml:1: trace.path: found none, allowed: the name of a file to write",
    );
    refused_card(
        "[trace]\npath = \"no/such/folder/trace.pcapng\"\nstages = [\"wires\"]\n",
        "card.toml:3: trace.stages[0]: found \"wires\", allowed: wire, rx, queue, tx; \
         did you mean \"wire\"?",
    );
    refused_card(
        "[[wire]]\n[wire.fault]\ndrop = 1.5\n",
        "card.toml:3: wire[0].fault.drop: found 1.5, allowed: 0 to 1",
    );
    refused_card(
        "[[wire]]\n[wire.link]\nrate_mbps = 0\n",
        "card.toml:3: wire[0].link.rate_mbps: found 0, allowed: 0.012304 (a frame of 1514 bytes a \
         second) to 1000000",
    );
}

#[test]
fn impossible_bonds_and_links() {
    const WIRES: &str = "[[wire]]\n[[wire]]\n";
    let bond = |chain: &str, keys: &str| {
        format!(
            "{WIRES}[[{chain}]]\nfunction = \"bond\"\n{keys}\n[[{chain}]]\nfunction = \"lro\"\n"
        )
    };
    let round_robin = "mode = \"round-robin\"";
    let before_lro = "found \"round-robin\" before \"lro\", which needs packets of a flow in order";
    for (card, expected) in [
        (
            bond("rx", round_robin),
            format!(
                "card.toml:5: rx[0].mode: {before_lro}, allowed: order_usecs above 0, or another mode, \
                 or \"lro\" before it"
            ),
        ),
        (
            bond("tx", round_robin),
            format!(
                "card.toml:5: tx[0].mode: {before_lro}, allowed: another mode, or \"lro\" before it"
            ),
        ),
        (bond("tx", "wire = 2"), "card.toml:5: tx[0].wire: found 2, allowed: 0 to 1".into()),
        (
            bond("tx", "mode = \"flow\"\nweights = [0, 0]"),
            "card.toml:6: tx[0].weights: found weights of zero alone, allowed: one or more above \
             zero"
                .into(),
        ),
        (
            "[[wire]]\n[wire.link]\nrate_mbps = 0.0123\n".into(),
            "card.toml:3: wire[0].link.rate_mbps: found 0.0123, allowed: 0.012304 (a frame of 1514 \
             bytes a second) to 1000000"
                .into(),
        ),
    ] {
        refused_card(&card, &expected);
    }
    let folder = folder(&[(
        "card.toml",
        bond("rx", &format!("{round_robin}\norder_usecs = 50")).as_bytes(),
    )]);
    let output = picnic_in(folder.path(), &["check", "card.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn command_line_changes_are_marked() {
    let folder = folder(&[("card.toml", b"\n[card]\ndefault_queue = 3\n")]);
    let unknown = format!(
        "--set: rx[0].function: found \"rsss\", allowed: {}; did you mean \"rss\"?",
        names(registries().functions)
    );
    let cases = [
        ("host.queues=0", "--set: host.queues: found 0, allowed: 1 to 256"),
        ("rx[0].function=rsss", &*unknown),
        ("rx[0].table=[0,9]", "--set: rx[0].table[1]: found queue 9, allowed: 0 to 3"),
        ("host.queues=2", "card.toml:3: card.default_queue: found 3, allowed: 0 to 1"),
    ];
    for (set, expected) in cases {
        let output = picnic_in(folder.path(), &["check", "card.toml", "--set", set]);
        assert_eq!(stderr(&output), format!("{expected}\n"));
        assert_eq!(output.status.code(), Some(2));
    }
    let output = picnic_in(folder.path(), &["check", "card.toml", "--set", "host.queues"]);
    assert!(stderr(&output).contains("found no `=`, allowed: KEY=VALUE"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn wrong_usage() {
    let cases: [&[&str]; 6] = [
        &[],
        &["rum"],
        &["run", "--durations", "1"],
        &["run", "--duration", "0"],
        &["run", "--idle", "lazy"],
        &["completions", "tcl"],
    ];
    for arguments in cases {
        let output = picnic(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
        assert_ne!(stderr(&output), "", "{arguments:?}");
    }
    let output = picnic(&["functions", "rsss"]);
    let expected = format!(
        "picnic: found function \"rsss\", allowed: {}; did you mean \"rss\"?\n",
        names(registries().functions)
    );
    assert_eq!(stderr(&output), expected);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn impossible_workloads() {
    let bad: &[u8] = b"workload = \"mine\"\n[[file]]\nbytes = 0\nweight = 1\n";
    let folder = folder(&[("mine.toml", bad)]);
    for (words, expected) in [
        (
            &["workload", "run", "suport"][..],
            "picnic: found workload \"suport\", allowed: support, banking, e-commerce, webstone, \
             sclient, closed-loop; did you mean \"support\"?",
        ),
        (
            &["workload", "run", "mine.toml"],
            "mine.toml:3: file[0].bytes: found 0, allowed: 1 to 1000000000",
        ),
        (
            &["workload", "run", "support", "--server", "nginx"],
            "picnic: file[0].php: found true, allowed with server = \"apache\"",
        ),
        (
            &["workload", "run", "sclient", "--rate=-1"],
            "picnic: requests_per_second: found -1, allowed: 0 to 1000000",
        ),
        (
            &["workload", "run", "sclient", "--client", "wrk"],
            "picnic: client: found \"wrk\", allowed with requests_per_second = 0: wrk has no rate",
        ),
        (
            &["workload", "run", "banking", "--client", "picnic"],
            "picnic: tls: found true, allowed with client = \"wrk\", and nginx or Apache",
        ),
    ] {
        let output = picnic_in(folder.path(), words);
        assert_eq!(stderr(&output), format!("{expected}\n"), "{words:?}");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn outputs_cannot_overwrite_inputs() {
    let capture = pcap(&[vec![0; 60]]);
    let card = b"[[wire]]\nport = \"pcap\"\npath = \"in.pcap\"\n";
    let files: [(&str, &[u8]); 2] = [("card.toml", card), ("in.pcap", &capture)];
    let folder = folder(&files);
    for (command, expected) in [
        (
            "run card.toml --world sim --trace in.pcap",
            "card.toml:3: wire[0].path: found \"in.pcap\", which is written as --trace; \
             allowed: another file",
        ),
        (
            "run card.toml --world sim --trace ./card.toml",
            "--trace: found \"./card.toml\", which is read as the card file; allowed: another file",
        ),
        (
            "try pass --in in.pcap --out in.pcap",
            "--out: found \"in.pcap\", which is read as --in; allowed: another file",
        ),
    ] {
        let words: Vec<_> = command.split(' ').collect();
        let output = picnic_in(folder.path(), &words);
        assert_eq!(stderr(&output).trim_start_matches("picnic: ").trim_end(), expected);
        assert_eq!(output.status.code(), Some(2), "{command}");
        for (name, bytes) in files {
            assert_eq!(std::fs::read(folder.path().join(name)).unwrap(), bytes, "{command}");
        }
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
        let output = picnic_in(folder.path(), &[command, "card.toml"]);
        assert_eq!((stdout(&output), output.status.code()), ("", Some(2)), "{command}");
        let place = |line: &str| line.splitn(4, ':').take(3).collect::<Vec<_>>().join(":");
        stderr(&output).lines().map(place).collect::<Vec<_>>()
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
    // The same as JSON.
    let output = picnic_in(folder.path(), &["check", "card.toml", "--json"]);
    assert_eq!((stderr(&output), output.status.code()), ("", Some(2)));
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
    let output = picnic_in(folder.path(), &["check", "card.toml"]);
    let lines: Vec<_> = stderr(&output).lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("card.toml:2: host.queues: ") && lines[1].contains("hahs"));
}

/// Whatever is written at length, an error repeats a part of it, says where it is, and ends as
/// ever.
#[test]
fn errors_repeat_no_text_at_length() {
    let long = "x".repeat(900_000);
    let spaced = "x y ".repeat(200_000);
    for text in [&long, &spaced] {
        for (card, line) in [
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
        ] {
            let folder = folder(&[("card.toml", card.as_bytes())]);
            for command in ["check", "run"] {
                let output = picnic_in(folder.path(), &[command, "card.toml"]);
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

/// What makes a card's interfaces stands behind what is wrong.
#[test]
fn hints_follow_their_error() {
    let card = "[net]\nnamespaces = [\"absent-1\"]\n[[wire]]\nport = \"packet\"\n\
                interface = \"absent-2\"\nnamespace = \"absent-1\"\n";
    let folder = folder(&[("card.toml", card.as_bytes())]);
    for command in ["check", "run"] {
        let output = picnic_in(folder.path(), &[command, "card.toml"]);
        let lines: Vec<_> = stderr(&output).lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("card.toml:"), "{lines:?}");
        assert_eq!(lines[1], "picnic: try: picnic net up card.toml", "{command}");
    }
}
