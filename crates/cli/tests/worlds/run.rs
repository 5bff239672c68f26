//! `picnic run`, as its users see it.

use crate::common::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

#[test]
fn the_demonstration_card_runs_and_its_ledger_balances() {
    // A number of packets, not a time: for a while its cores may belong to others.
    let packets = "--set=wire[0].packets=100000";
    let report = good_json(&["run", "--duration", "600", packets, "--json"]);
    assert_eq!(report["engine"], "poll");
    let duration = report["duration_s"].as_f64().unwrap();
    assert!(duration > 0.0 && duration < 600.0, "{duration}");
    assert_eq!(report["wires"].as_array().unwrap().len(), 1);
    for field in ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"] {
        assert!(report["wires"][0][field].is_u64(), "{field}");
    }
    assert_eq!(report["wires"][0]["name"], "wire0");
    let queues = report["queues"].as_array().unwrap();
    assert_eq!(queues.len(), 4);
    for (index, queue) in queues.iter().enumerate() {
        assert_eq!(queue["queue"], index);
        assert!(queue["core"].is_u64());
        assert!(queue["packets"].as_u64().unwrap() > 0, "{queue}");
        assert!(queue["bytes"].as_u64() > queue["packets"].as_u64(), "{queue}");
        assert!(queue["interrupts"].is_u64());
        let quotient = &queue["packets_per_interrupt"];
        assert_eq!(quotient.is_null(), queue["interrupts"] == 0, "{queue}");
    }
    assert_balanced(&report);
    let delivered: u64 = queues.iter().map(|queue| queue["packets"].as_u64().unwrap()).sum();
    assert_eq!(report["ledger"]["delivered"], delivered);
    let latency = ["p50", "p99", "p999"].map(|name| report["latency_ns"][name].as_u64().unwrap());
    assert!(latency[0] > 0 && latency.is_sorted(), "{latency:?}");
    assert!(report["borrowed_core"]["core"].is_u64());
    let busy = report["borrowed_core"]["busy_fraction"].as_f64().unwrap();
    assert!(busy > 0.0 && busy <= 1.0, "{busy}");
}

#[test]
fn the_summary_has_every_queue_and_the_ledger() {
    let text = good(&["run", "--duration", "0.3", "--quiet"]);
    let ledger = text.lines().find(|line| line.starts_with("ledger")).unwrap();
    assert!(ledger.contains(" = delivered ") && ledger.ends_with(": balanced"), "{text}");
    let queues = text.lines().skip_while(|line| !line.trim_start().starts_with("queue"));
    let first: Vec<_> = queues.skip(1).take(4).map(|line| line.trim_start()).collect();
    for (index, line) in first.iter().enumerate() {
        assert!(line.starts_with(&format!("{index} ")), "{text}");
    }
    let seconds = text.strip_prefix("picnic0: ").and_then(|rest| rest.split_once(" s, "));
    let seconds = seconds.and_then(|(seconds, _)| seconds.parse::<f64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds >= 0.3), "{text}");
    for part in ["wire0", "rss", "latency", "borrowed core"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn capture_with_a_limit_ends_on_its_own() {
    let packets: Vec<_> = (0..1000).map(|index| tcp_frame(index % 64)).collect();
    let text = "[[wire]]\nport = \"pcap\"\npath = \"web.pcap\"\nloops = 3\n";
    let folder = folder(&[("card.toml", text.as_bytes()), ("web.pcap", &pcap(&packets))]);
    let path = folder.path().join("card.toml");
    let report = good_json(&["run", path.to_str().unwrap(), "--json"]);
    assert_eq!(report["wires"][0]["rx_packets"], 3000);
    assert_eq!(report["ledger"]["in"], 3000);
    assert_eq!(report["ledger"]["delivered"], 3000);
    let packets = |queue: &Value| queue["packets"].as_u64().unwrap();
    assert!(report["queues"].as_array().unwrap().iter().all(|queue| packets(queue) > 0));
    assert_balanced(&report);
}

/// The report is made at the end, and has the final counts of functions.
#[test]
fn own_counters_are_reported_in_each_world() {
    let (_folder, path) = card(
        "[[wire]]\nport = \"generator\"\npackets = 1000\n[host]\nqueues = 2\nmode = \"echo\"\n\
         [[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"rss\"\ntypes = [\"udp-ipv4\"]\n\
         [[tx]]\nfunction = \"rate-limit\"\nbytes_per_second = 1000000000000\n",
    );
    let run = ["run", path.to_str().unwrap()];
    for world in [&[][..], &["--world", "sim"]] {
        let report = good_json(&[&run, world, &["--json"]].concat());
        assert_balanced(&report);
        let [pass, rss] = report["functions"].as_array().unwrap().as_slice() else {
            panic!("{report}")
        };
        assert!(pass.get("counters").is_none() && pass.get("gauges").is_none(), "{pass}");
        let counters = json!({ "unhashed": 1000, "moved_entries": 0, "rebalanced_entries": 0 });
        assert_eq!((&rss["counters"], &rss["gauges"]), (&counters, &json!({ "queues": 2 })));
        let limit = &report["tx_functions"][0];
        assert_eq!(limit["counters"]["passed_packets"], 1000, "{report}");
        assert_eq!(limit["gauges"]["bytes_per_second"], 1_000_000_000_000_u64, "{report}");
        let text = good(&[&run, world, &["--quiet"]].concat());
        let own: Vec<_> = text.lines().filter(|line| line.contains("unhashed")).collect();
        assert_eq!(own.len(), 1, "{text}");
        assert_eq!(own[0].trim(), "rx[1] rss         unhashed 1000, queues 2");
    }
}

#[test]
fn odd_packets_are_counted_and_never_end_a_run() {
    let whole = tcp_frame(7);
    let mut packets: Vec<_> = (0..=whole.len()).map(|length| whole[..length].to_vec()).collect();
    packets.push(vec![0x45; 65_535]);
    packets.push([&whole[..], &[0; 65_480]].concat());
    packets.push(vec![0xff; 200_000]);
    let text = "[[wire]]\nport = \"pcap\"\npath = \"odd.pcap\"\n";
    let folder = folder(&[("card.toml", text.as_bytes()), ("odd.pcap", &pcap(&packets))]);
    let path = folder.path().join("card.toml");
    let report = good_json(&["run", path.to_str().unwrap(), "--json"]);
    assert_eq!(report["ledger"]["in"], packets.len());
    assert_eq!(report["drops"]["malformed"], 1, "the packet without bytes: {report}");
    assert_eq!(report["drops"]["oversize"], 1, "{report}");
    assert_eq!(report["ledger"]["delivered"], packets.len() - 2);
    assert_balanced(&report);
}

#[test]
fn keys_can_be_changed_on_the_command_line() {
    let report = good_json(&[
        "run",
        "--duration=0.2",
        "--json",
        "--idle=block",
        "--set=host.queues=2",
        "--set=wire[0].rate_pps=20000",
        "--set=rx[0].table_size=2",
    ]);
    assert_eq!(report["queues"].as_array().unwrap().len(), 2);
    assert!(report["ledger"]["in"].as_u64().unwrap() < 200_000, "{report}");
    assert_balanced(&report);
}

#[test]
fn echoes_return_on_their_wire() {
    let (_folder, path) = card(
        "[[wire]]\nname = \"a\"\npackets = 1000\n[[wire]]\nname = \"b\"\npackets = 1000\n\
         [host]\nqueues = 2\nmode = \"echo\"\n[[rx]]\nfunction = \"by-wire\"\n",
    );
    let report = good_json(&["run", path.to_str().unwrap(), "--json"]);
    for wire in report["wires"].as_array().unwrap() {
        assert!(wire["tx_packets"].as_u64().unwrap() > 0, "{wire}");
    }
    assert!(report["ledger"]["transmitted"].as_u64().unwrap() > 0);
    assert_balanced(&report);
}

#[test]
fn ctrl_c_stops_cleanly_with_a_report() {
    let (_folder, path) = card("[card]\nname = \"ends\"\n[host]\nqueues = 3\n");
    let machine = machine();
    let child = start(&machine, &["run", path.to_str().unwrap(), "--json"]);
    wait_until("packets are in", || counted("ends", "in") > 0);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["queues"].as_array().unwrap().len(), 3);
    assert!(report["ledger"]["in"].as_u64().unwrap() > 0);
    assert_balanced(&report);
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_second_ctrl_c_kills() {
    let machine = machine();
    // The first is looked for twenty times a second, so the second mostly comes before.
    for _ in 0..100 {
        let child = start(&machine, &["run", "--duration=600", "--json"]);
        interrupt(&child);
        let_pass(2);
        interrupt(&child);
        let output = child.wait_with_output().unwrap();
        if output.status.signal() == Some(2) {
            return;
        }
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    panic!("never killed");
}

#[test]
fn lost_readers_cause_no_panic() {
    let _machine = machine();
    for arguments in [&["run", "--duration=0.3", "--json"][..], &["card"], &["functions", "rss"]] {
        let mut command = command();
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(stderr(&output), "", "{arguments:?}");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn injected_faults_are_reported_and_the_ledger_balances() {
    let (_folder, path) = card(
        "[[wire]]\nrate_pps = 100000\npackets = 50000\n[wire.fault]\ndrop = 0.1\nduplicate = 0.1\n\
         reorder = 0.1\ncorrupt = 0.1\ntruncate = 0.1\n",
    );
    let report = good_json(&["run", path.to_str().unwrap(), "--json"]);
    assert!(report["drops"]["fault"].as_u64().unwrap() > 100, "{report}");
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().starts_with("fault: ")), "{notes:?}");
    assert_balanced(&report);
}

#[test]
fn a_trace_has_the_packets_of_the_run() {
    let packets: Vec<_> = (0..500).map(|index| tcp_frame(index % 16)).collect();
    let text = "[[wire]]\nport = \"pcap\"\npath = \"in.pcap\"\n\
                [trace]\npath = \"out.pcapng\"\nstages = [\"wire\", \"rx\", \"queue\"]\n";
    let folder = folder(&[("card.toml", text.as_bytes()), ("in.pcap", &pcap(&packets))]);
    let path = folder.path().join("card.toml");
    let report = good_json(&["run", path.to_str().unwrap(), "--json"]);
    assert_balanced(&report);
    let trace = &report["trace"];
    assert_eq!(trace["packets_written"], 1500, "{report}");
    assert_eq!(trace["packets_lost"], 0);
    let names: Vec<_> =
        trace["interfaces"].as_array().unwrap().iter().map(|point| &point["name"]).collect();
    assert_eq!(names, ["wire0", "rx[0] rss", "queue0", "queue1", "queue2", "queue3"]);
    // The written file can be replayed: each packet once, not once for each stage that saw it.
    let replay = "[[wire]]\nport = \"pcap\"\npath = \"out.pcapng\"\n";
    std::fs::write(&path, replay).unwrap();
    let report = good_json(&["run", path.to_str().unwrap(), "--json"]);
    assert_eq!(report["ledger"]["in"], 500);
}

#[test]
fn terminals_get_a_temporary_live_table() {
    if Command::new("script").arg("--version").output().is_err() {
        return skip("live table on a terminal", "`script` of util-linux is not installed");
    }
    let _machine = machine();
    let command = format!("{PICNIC} run --duration 3 --interval 0.2");
    let output =
        Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output();
    let output = output.unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("Ctrl-C stops"), "{text}");
    // Once for each further drawing, and once at the end.
    assert!(text.matches("\x1b[J").count() >= 2, "{text}");
    let summary = text.rsplit("\x1b[J").next().unwrap();
    assert!(!summary.contains("Ctrl-C stops") && summary.contains("balanced"), "{text}");
}

/// The same card in virtual time: the same report except `times`, the same in each run, and the
/// events as text.
#[test]
fn tables_of_the_summary_fit_the_terminal() {
    let text = "[card]\nseed = 7\n[[wire]]\nport = \"generator\"\nrate_pps = 5_000_000\n\
                [[rx]]\nfunction = \"rss\"\n[host]\nqueues = 2\ncost_ns = 30\n\
                [[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n";
    let (folder, _path) = card(text);
    for columns in [60, 80, 120] {
        let output = command()
            .args(["run", "card.toml", "--world", "sim", "--duration", "0.02"])
            .env("COLUMNS", columns.to_string())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        // Tables are indented; lines of text, which may be broken anywhere, have commas.
        let is_row = |line: &&str| line.starts_with(' ') && !line.contains(", ");
        let rows: Vec<_> = stdout(&output).lines().filter(is_row).collect();
        let is_long = |row: &&&str| row.chars().count() > columns;
        assert_eq!(rows.iter().find(is_long), None, "{columns} columns");
        for part in [" wire0 ", " ring full ", " rx[0] rss ", " heartbeat "] {
            assert!(rows.iter().any(|row| row.contains(part)), "{part}: {rows:#?}");
        }
    }
}

#[test]
fn a_card_runs_in_virtual_time_and_each_run_is_the_same() {
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 1000000\nflows = 64\n\
                [[rx]]\nfunction = \"rss\"\n[host]\nqueues = 2\ncost_ns = 3000\n\
                [[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n\
                [[filter]]\nname = \"f\"\nprotocol = \"udp\"\naction = \"drop\"\n";
    let (folder, _path) = card(text);
    let run = |seed: &str, events: &str| {
        let arguments = [
            "run",
            "card.toml",
            "--world",
            "sim",
            "--seed",
            seed,
            "--duration",
            "0.002",
            "--trace",
            events,
            "--json",
        ];
        let output = picnic_in(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report = json(&output);
        assert_balanced(&report);
        assert_eq!(report["about"]["card"], "picnic0", "{report}");
        (report, std::fs::read_to_string(folder.path().join(events)).unwrap())
    };
    let (report, events) = run("7", "a.txt");
    assert_eq!(report["times"], "modelled");
    assert!((0.002..0.003).contains(&report["duration_s"].as_f64().unwrap()), "{report}");
    assert!(report["borrowed_core"]["taken_away"].is_null(), "{report}");
    assert!(report["ledger"]["delivered"].as_u64().unwrap() > 1000, "{report}");
    assert!(report["latency_ns"]["p50"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["os"]["tasks"][0]["name"], "heartbeat", "{report}");
    assert!(events.lines().any(|line| line.contains(" card: ")), "{events}");
    let last = events.lines().last().unwrap();
    assert!(last.contains(" events, 0x"), "{last}");
    assert_eq!(
        events.lines().count() - 1,
        last.split(' ').next().unwrap().parse::<usize>().unwrap()
    );
    assert_eq!(run("7", "b.txt"), (report, events.clone()));
    assert_ne!(run("8", "c.txt").1, events);
    // The text output says that the times are not measurements.
    let arguments = ["run", "card.toml", "--world", "sim", "--duration", "0.001", "--quiet"];
    let output = picnic_in(folder.path(), &arguments);
    assert!(stdout(&output).contains("(times modelled)"), "{}", stdout(&output));
}

#[test]
fn components_missing_in_a_world_are_refused_by_name() {
    let (folder, _path) = card("[[wire]]\nport = \"packet\"\ninterface = \"lo\"\n");
    let refused = |arguments: &[&str], message: &str| {
        let output = picnic_in(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
    };
    for command in ["run", "check"] {
        refused(
            &[command, "card.toml", "--world", "sim"],
            "found \"packet\", allowed: generator, pcap",
        );
    }
    refused(&["run", "--world", "moon"], "moon");
    std::fs::write(folder.path().join("plain.toml"), "[[wire]]\nport = \"generator\"\n").unwrap();
    refused(
        &["run", "plain.toml", "--world", "sim", "--watch"],
        "--watch: not supported with --world sim",
    );
    refused(&["run", "plain.toml", "--trace", "-"], "--trace: not supported with --world host");
}

/// A card whose wires finish and whose task never does.
const ENDLESS: &str = "[[wire]]\nport = \"generator\"\npackets = 1000\n[host]\nqueues = 1\n\
                       [[task]]\ntask = \"busy\"\nname = \"load\"\npause_us = 0\n";

#[test]
fn a_task_that_keeps_a_card_running_is_named() {
    let (_folder, path) = card(ENDLESS);
    let machine = machine();
    let mut child = start(&machine, &["run", path.to_str().unwrap(), "--json"]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let about = |line: &String| line.contains("the wires have finished");
    let named = "picnic: the wires have finished, but task \"load\" continues to run: Ctrl-C stops \
                 the card; next time: --until wires";
    assert_eq!(lines.find(about).as_deref(), Some(named));
    interrupt(&child);
    assert_eq!(lines.find(about), None, "it is named once");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_balanced(&json(&output));
}

#[test]
fn a_run_until_the_wires_finish_stops_its_tasks() {
    let (_folder, path) = card(ENDLESS);
    for world in [&[][..], &["--world", "sim"]] {
        let run = ["run", path.to_str().unwrap(), "--until", "wires", "--duration", "60"];
        let report = good_json(&[&run, world, &["--json"]].concat());
        assert_balanced(&report);
        assert_eq!(report["ledger"]["delivered"], 1000);
        assert!(report["duration_s"].as_f64().unwrap() < 50.0, "{report}");
        assert_eq!(report["os"]["tasks"][0]["state"], "stopped");
    }
}
