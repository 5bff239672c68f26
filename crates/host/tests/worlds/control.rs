//! The control socket of running cards: methods, changes under load, misbehaving clients.

use crate::openmetrics;

use crate::common::{Client, STEADY, Served};
use picnic_control::captures::Captures;
use picnic_control::protocol::{INVALID_REQUEST, LIMIT, LONGEST_LINE, PARSE_ERROR};
use picnic_control::socket::SocketError;
use picnic_control::{Doors, Launch, Limits, Server};
use picnic_core::stop::Stop;
use picnic_host::registries;
use picnic_testing::{PATIENCE, machine, skip, wait_for, wait_until};
use rustix::process::Uid;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const ORDERED: &str = "[host]\nqueues = 4\nverify_order = true\n";

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

#[test]
fn cards_report_their_state_and_figures() {
    let card = Served::start(&format!("[card]\nname = \"web\"\n{STEADY}"));
    let mut client = card.client();
    let info = client.good("card.info", json!({}));
    assert_eq!((&info["name"], &info["protocol"]), (&json!("web"), &json!(1)));
    assert_eq!(info["pid"], std::process::id());
    assert_eq!((&info["rx"], &info["tx"]), (&json!(["rss"]), &json!([])));
    // One burst in 256 is timed, so the first timing is a little later.
    let stats = wait_for("packets, one of them timed", || {
        let stats = client.good("card.stats", json!({}));
        let packets = count(&stats["wires"][0]["rx_packets"]);
        (packets > 1000 && !stats["latency_ns"]["p50"].is_null()).then_some(stats)
    });
    assert_eq!(stats["ledger"]["balanced"], true, "{stats}");
    assert!(count(&stats["latency_ns"]["p50"]) > 0, "{stats}");
    assert!(stats["borrowed_core"]["busy_fraction"].as_f64().unwrap() > 0.0);
    assert!(count(&stats["queues"][0]["ring_size"]) == 1024, "{stats}");
    assert_eq!(stats["about"]["card"], "web", "figures say what they are of: {stats}");
    assert!(stats["about"]["machine"]["processor"].is_string(), "{stats}");
    assert!(stats["borrowed_core"]["taken_away"]["total_ns"].is_u64(), "{stats}");
    assert!(stats["functions"][0]["ns_per_packet"].as_f64().unwrap() > 0.0, "{stats}");
    let chains = client.good("chain.list", json!({}));
    assert_eq!(chains["rx"][0]["function"], "rss");
    wait_until("more packets come", || {
        client.good("card.stats", json!({}))["ledger"]["in"] != stats["ledger"]["in"]
    });
    // The final report has the same fields, with all latencies.
    let stats = client.good("card.stats", json!({ "latencies": true }));
    let report = serde_json::to_value(card.stop()).unwrap();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&report), fields(&stats));
    assert_eq!(fields(&report["queues"][0]), fields(&stats["queues"][0]));
}

/// Folder and socket exclude other users; the card refuses those who can go anywhere.
#[test]
fn other_users_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return skip("another user is told that it is not his card", "only root can be another");
    }
    let card = Served::start(STEADY);
    let path = &card.path;
    let told = std::thread::scope(|scope| {
        let of_nobody = scope.spawn(|| {
            let nobody = Uid::from_raw(65534);
            rustix::thread::set_keep_capabilities(true).unwrap();
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective = CapabilitySet::DAC_OVERRIDE;
            rustix::thread::set_capabilities(None, sets).unwrap();
            Client::connect(path).line()
        });
        of_nobody.join().unwrap().unwrap()
    });
    let own = "found user 65534, allowed: user 0 or root";
    assert_eq!(told["error"]["message"], own, "{told}");
    card.stop();
}

/// A program that the process starts is not a client of its card.
#[test]
fn descriptors_of_a_card_are_not_inherited() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    client.good("card.info", json!({}));
    let mut sockets = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let number = entry.file_name().into_string().unwrap();
        // Other clients' sockets may be closed meanwhile.
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
        let Ok(info) = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else {
            continue;
        };
        if is_socket {
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            let flags = i32::from_str_radix(flags, 8).unwrap();
            assert_ne!(flags & rustix::fs::OFlags::CLOEXEC.bits() as i32, 0, "{number}: {info}");
            sockets += 1;
        }
    }
    assert!(sockets >= 3, "the card's door, and both ends of a connection");
    card.stop();
}

#[test]
fn figures_restart_at_the_reset() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let error = client.error("card.stats", json!({ "since_reset": true }));
    assert!(error.contains("have not been reset"), "{error}");
    let received = |stats: &Value| count(&stats["wires"][0]["rx_packets"]);
    // A preempted target core may not have taken all that the card received.
    let filled = |client: &mut Client, params: Value| {
        wait_for("packets and a latency of each queue", || {
            let stats = client.good("card.stats", params.clone());
            let has_latency = |queue: usize| stats["queues"][queue]["latency_ns"]["p50"].is_u64();
            (received(&stats) > 1000 && (0..4).all(has_latency)).then_some(stats)
        })
    };
    let recorded = |stats: &Value, queue: usize| {
        let part = &stats["latencies"][queue];
        assert_eq!(part["queue"], queue, "{stats}");
        let counts = part["counts"].as_array().unwrap();
        counts.iter().map(|pair| count(&pair[1])).sum::<u64>()
    };
    filled(&mut client, json!({}));
    // One that is preempted at the reset gives its latencies too late: then some from before count.
    let window = wait_for("a window with the latencies of its own packets", || {
        client.good("card.reset", json!({}));
        let window = filled(&mut client, json!({ "since_reset": true, "latencies": true }));
        // One packet in 16, plus or minus those in flight.
        let most = |queue: usize| count(&window["queues"][queue]["packets"]) / 16 + 64;
        (0..4).all(|queue| recorded(&window, queue) <= most(queue)).then_some(window)
    });
    let mut stats = |params| client.good("card.stats", params);
    let all = stats(json!({ "latencies": true }));
    assert!(received(&window) + 1000 < received(&all), "{window}");
    assert_eq!(window["ledger"]["balanced"], true, "{window}");
    assert!(window["duration_s"].as_f64() < all["duration_s"].as_f64());
    assert!(window["duration_s"].as_f64() > Some(1e-6), "more than nothing: {window}");
    for queue in 0..4 {
        assert!(recorded(&window, queue) < recorded(&all, queue), "queue {queue}");
        assert!(count(&window["queues"][queue]["latency_ns"]["p50"]) > 0, "{window}");
    }
    assert!(count(&window["latency_ns"]["p99"]) > 0, "{window}");
    // Without a change they stay.
    assert!(stats(json!({}))["latencies"].is_null());
    card.stop();
}

#[test]
fn rss_is_read_back_as_it_was_set() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let rss = client.good("rss.get", json!({}));
    assert_eq!((&rss["chain"], &rss["position"]), (&json!("rx"), &json!(0)));
    assert_eq!(rss["table"].as_array().unwrap().len(), 128);
    assert_eq!((&rss["hash"], &rss["symmetric"]), (&json!("toeplitz"), &json!(false)));
    let set = client.good("rss.set", json!({ "table": [3, 3, 3], "key": "symmetric" }));
    // All entries but those of queue 3 move; then one queue for all.
    assert_eq!(count(&set["moved_entries"]), 96);
    let rss = client.good("rss.get", json!({ "chain": "rx", "position": 0 }));
    assert_eq!((&rss["table"], &rss["symmetric"]), (&json!([3, 3, 3]), &json!(true)));
    let packets = |stats: &Value| {
        let queues = stats["queues"].as_array().unwrap().iter();
        queues.map(|queue| count(&queue["packets"])).collect::<Vec<_>>()
    };
    let mut packets = || packets(&client.good("card.stats", json!({})));
    // Those steered before the change are delivered, then nothing more.
    let mut before = packets();
    wait_until("queue 3 alone has packets", || {
        let after = packets();
        let before = std::mem::replace(&mut before, after.clone());
        before[..3] == after[..3] && before[3] < after[3]
    });
    for (params, message) in [
        (json!({ "key": "00" }), "key: hash key has 1 bytes"),
        (json!({ "table": [4] }), "table: "),
        (json!({ "table": [] }), "table: "),
        (json!({ "table_size": 5000 }), "table_size: "),
        (json!({ "table_size": 8, "position": 1 }), "position: found 1, but no rss is there"),
        (json!({ "table_size": 8, "chain": "tx" }), "tx has no rss: found no function"),
    ] {
        let error = client.error("rss.set", params);
        assert!(error.starts_with(message), "{error}");
    }
    assert_eq!(client.good("rss.get", json!({}))["table"], json!([3, 3, 3]), "left as it was");
    client.good(
        "chain.swap",
        json!({ "chain": "rx", "toml": "[[rx]]\nfunction = \"rss\"\nhash = \"jhash\"\n" }),
    );
    let error = client.error("rss.set", json!({ "key": "symmetric", "table_size": 4 }));
    assert!(error.starts_with("key: found a key, allowed only with hash"), "{error}");
    assert_eq!(client.good("rss.get", json!({}))["table"].as_array().unwrap().len(), 128);
    card.stop();
}

#[test]
fn poll_usecs_turns_interrupts_off_and_on() {
    let card =
        Served::start("[[wire]]\nport = \"generator\"\nrate_pps = 5000\n[host]\nqueues = 1\n");
    let mut client = card.client();
    assert_eq!(client.good("moderation.get", json!({}))["poll_usecs"], 0);
    let counts = |client: &mut Client| {
        let queue = &client.good("card.stats", json!({}))["queues"][0];
        (count(&queue["packets"]), count(&queue["interrupts"]))
    };
    let until = |client: &mut Client, look: &dyn Fn((u64, u64), (u64, u64)) -> bool| {
        let mut before = counts(client);
        wait_until("packets with interrupts, or without", || {
            // Enough packets to make an interrupt likely, if there are any.
            let after = wait_for("a hundred packets", || {
                Some(counts(client)).filter(|after| after.0 >= before.0 + 100)
            });
            look(std::mem::replace(&mut before, after), after)
        });
    };
    let interrupted =
        |before: (u64, u64), after: (u64, u64)| after.0 > before.0 && after.1 > before.1;
    let polled = |before: (u64, u64), after: (u64, u64)| after.0 > before.0 && after.1 == before.1;
    until(&mut client, &interrupted);
    let set = client.good("moderation.set", json!({ "poll_usecs": 1_000_000 }));
    assert_eq!(
        (&set["replaced"]["poll_usecs"], &set["moderation"]["rx_frames"]),
        (&json!(0), &json!(64))
    );
    until(&mut client, &polled);
    client.good("moderation.set", json!({ "rx_usecs": 0, "poll_usecs": 0 }));
    until(&mut client, &interrupted);
    let info = client.good("card.info", json!({}));
    assert_eq!(
        info["moderation"],
        json!({
            "rx_usecs": 0, "rx_frames": 64, "adaptive": false, "per_packet": false,
            "gate": "queue", "wire_usecs": 0, "wire_frames": 0, "tx_complete": "off",
            "poll_usecs": 0, "tx_usecs": 50,
        })
    );
    let set = client.good("moderation.set", json!({ "gate": "none", "per_packet": true }));
    assert_eq!(set["moderation"]["gate"], "none");
    until(&mut client, &interrupted);
    let set = client.good("moderation.set", json!({ "tx_complete": "interrupt" }));
    assert_eq!(set["moderation"]["tx_complete"], "interrupt");
    card.stop();
}

#[test]
fn stats_include_counters_of_functions() {
    let card = "[[wire]]\nport = \"generator\"\nrate_pps = 1000\n\
                [[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"rss\"\n";
    let card = Served::start(card);
    let mut client = card.client();
    let stats = client.good("card.stats", json!({}));
    assert!(stats["functions"][1].get("counters").is_none(), "{stats}");
    let functions = client.good("card.stats", json!({ "counters": true }))["functions"].clone();
    assert!(functions[0].get("counters").is_none(), "pass counts nothing: {functions}");
    // As in `rss.get`, where table and key are not counters.
    let rss = &functions[1];
    assert_eq!(
        (&rss["gauges"], &rss["counters"]["unhashed"]),
        (&json!({ "queues": 4 }), &json!(0))
    );
    let counters = rss["counters"].as_object().unwrap();
    assert!(counters.values().all(Value::is_u64), "{counters:?}");
    // They do not restart when the figures are reset, and the final report has them, too.
    client.good("card.reset", json!({}));
    let since = client.good("card.stats", json!({ "counters": true, "since_reset": true }));
    assert_eq!(since["functions"][1]["counters"], rss["counters"]);
    let end = serde_json::to_value(card.stop()).unwrap();
    for figures in ["counters", "gauges"] {
        assert_eq!(end["functions"][1][figures], rss[figures], "{end}");
    }
}

#[test]
fn wires_hosts_and_schedulers_take_commands() {
    let wire = |rate: u32| format!("[[wire]]\nport = \"generator\"\nrate_pps = {rate}\n");
    let card = Served::start(&format!("{}{}[os]\n", wire(1000), wire(2000)));
    let mut client = card.client();
    let rate = |client: &mut Client, position: Value| {
        client.good("generator.get", json!({ "position": position }))["rate_pps"].clone()
    };
    let set = client.good("generator.set", json!({ "rate_pps": 5000, "position": 1 }));
    assert_eq!((&set["rate_pps"], &set["position"]), (&json!(2000), &json!(1)));
    assert_eq!(rate(&mut client, json!(null)), 1000);
    assert_eq!(rate(&mut client, json!(1)), 5000);
    let before = count(&client.good("card.stats", json!({}))["wires"][1]["rx_packets"]);
    wait_until("it goes on at the new rate", || {
        count(&client.good("card.stats", json!({}))["wires"][1]["rx_packets"]) > before + 100
    });
    assert_eq!(client.good("app.set", json!({ "cost_ns": 5 }))["cost_ns"], 0);
    assert_eq!(client.good("app.get", json!({}))["cost_ns"], 5);
    assert_eq!(client.good("edf-plus.set", json!({ "slack": "best-fit" }))["filled"], 0);
    for (method, params, message) in [
        ("generator.set", json!({ "rate_pps": 0 }), "rate_pps: found 0, allowed: 1 to"),
        ("generator.get", json!({ "position": 2 }), "position: found 2, but no generator is there"),
        ("pcap.get", json!({}), "the card has no pcap: found generator, generator"),
        ("cyclic-plus.get", json!({}), "the card has no cyclic-plus: found edf-plus"),
        ("edf-plus.set", json!({ "slack": "most" }), "slack: found \"most\", allowed: first-fit"),
        ("edf.get", json!({}), "found method \"edf.get\", allowed: "),
    ] {
        let error = client.error(method, params);
        assert!(error.starts_with(message), "{error}");
    }
    card.stop();
}

#[test]
fn swaps_are_checked_like_card_files() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let mut swap = |params: Value| client.call("chain.swap", params);
    let text = "# functions\n[[rx]]\nfunction = \"rss\"\ntable = [0, 9]\n";
    let error = swap(json!({ "chain": "rx", "toml": text, "file": "/x/a.toml" })).unwrap_err();
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("/x/a.toml:4: rx[0].table[1]: found queue 9"), "{message}");
    let data = &error["data"];
    assert_eq!((&data["line"], &data["key"]), (&json!(4), &json!("rx[0].table[1]")));
    for (params, part) in [
        (json!({ "chain": "tx", "toml": text }), "tx: found none, allowed: sections [[tx]]"),
        (
            json!({ "chain": "rx", "toml": "[[rx]]\nfunction = \"x\"\n" }),
            "card:2: rx[0].function: found \"x\", allowed: ",
        ),
        (json!({ "chain": "rx", "toml": "[[rx" }), "card:1: "),
        (
            json!({ "chain": "rx", "functions": [{ "function": "pass", "x": 1 }] }),
            "rx[0].x: found key \"x\", allowed: function",
        ),
        (json!({ "chain": "rx", "functions": [{}] }), "rx[0]: missing function, expected a name"),
        (json!({ "chain": "rx", "functions": [{ "function": null }] }), "functions[0]: "),
    ] {
        let error = swap(params).unwrap_err();
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(part), "{message}");
    }
    // A whole card file is accepted; its other sections belong to another card.
    let other =
        format!("[host]\nqueues = 2\n{STEADY}[[rx]]\nfunction = \"by-wire\"\nqueues = [3]\n");
    let done = swap(json!({ "chain": "rx", "toml": other })).unwrap();
    assert_eq!(done["functions"], json!(["by-wire"]));
    assert_eq!(done["replaced"][0]["name"], "rss");
    let done = swap(
        json!({ "chain": "rx", "functions": [{ "function": "pass" }, { "function": "rss" }] }),
    );
    assert_eq!(done.unwrap()["functions"], json!(["pass", "rss"]));
    assert_eq!(swap(json!({ "chain": "rx", "functions": [] })).unwrap()["functions"], json!([]));
    assert_eq!(client.good("chain.list", json!({}))["rx"], json!([]));
    let report = card.stop();
    assert_eq!(report.functions.len(), 0, "{:?}", report.functions);
}

#[test]
fn swaps_under_load_keep_the_ledger_and_the_order_of_flows() {
    let card = Served::start(&format!(
        "[[wire]]\nport = \"generator\"\nflows = 64\nsize = 100\nsequence_numbers = true\n{ORDERED}"
    ));
    let mut client = card.client();
    let mut swaps = 0;
    let delivered = |client: &mut Client| {
        client.good("card.stats", json!({}))["ledger"]["delivered"].as_u64().unwrap()
    };
    wait_until("100 swaps, with 100,000 packets", || {
        // Each steers every flow like the others.
        for functions in [
            json!([{ "function": "pass" }, { "function": "rss" }]),
            json!([{ "function": "rss" }]),
            json!([{ "function": "rss" }, { "function": "drop" }]),
        ] {
            client.good("chain.swap", json!({ "chain": "rx", "functions": functions }));
            client.good("chain.swap", json!({ "chain": "tx", "functions": functions_tx(swaps) }));
            swaps += 1;
        }
        swaps >= 100 && delivered(&mut client) > 100_000
    });
    let report = card.stop();
    let checks: Vec<_> = report.notes.iter().filter(|note| note.contains("in order")).collect();
    assert_eq!(checks.len(), 4, "{:?}", report.notes);
    for check in checks {
        assert!(check.ends_with("in order, 0 reordered, 0 skipped"), "{check}");
    }
}

fn functions_tx(number: usize) -> Value {
    if number.is_multiple_of(2) { json!([{ "function": "pass" }]) } else { json!([]) }
}

#[test]
fn a_thousand_commands_in_any_order_while_packets_flow() {
    let card = Served::start(&format!("{STEADY}[host]\nqueues = 4\n"));
    let mut client = card.client();
    // Our own generator: the same commands every time.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut refused = 0;
    for _ in 0..1000 {
        let (method, params) = match draw(12) {
            0 => ("card.info", json!({})),
            1 => ("card.stats", json!({})),
            2 => ("rss.get", json!({})),
            3 => ("rss.set", json!({ "table_size": draw(5000) })),
            4 => ("rss.set", json!({ "table": [draw(5), draw(5)] })),
            5 => ("rss.set", json!({ "key": format!("{:02x}", draw(256)).repeat(40) })),
            6 => (
                "moderation.set",
                json!({ "adaptive": false, "rx_usecs": draw(200), "rx_frames": draw(99) }),
            ),
            7 => ("moderation.set", json!({ "adaptive": true, "rx_usecs": draw(200) })),
            8 => ("moderation.set", json!({ "poll_usecs": draw(200), "tx_usecs": draw(200) })),
            9 => (
                "chain.swap",
                json!({ "chain": "tx", "functions": functions_tx(draw(2) as usize) }),
            ),
            10 => {
                let every = draw(9);
                let rx = json!([
                    { "function": "sample", "every": every, "queue": draw(5) },
                    { "function": "rss" },
                ]);
                ("chain.swap", json!({ "chain": "rx", "functions": rx }))
            }
            _ => ("chain.list", json!({})),
        };
        refused += usize::from(client.call(method, params).is_err());
    }
    assert!(refused > 50 && refused < 500, "{refused} commands were refused");
    let report = card.stop();
    assert!(report.ledger.r#in > 1000);
}

#[test]
fn stop_works_as_call_and_notification() {
    for line in [
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"card.stop\"}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"card.stop\"}\n",
    ] {
        let card = Served::start(STEADY);
        let mut client = card.client();
        assert!(!card.running.stop_is_asked());
        client.send(line);
        wait_until("somebody was told", || card.running.stop_is_asked());
        if line.contains("id") {
            assert_eq!(client.line().unwrap()["result"]["stopping"], true);
        }
        card.running.refuse_changes();
        let error = client.error("chain.swap", json!({ "chain": "rx", "functions": [] }));
        assert_eq!(error, "the card is stopping");
        client.good("card.stats", json!({}));
        card.stop();
        assert_eq!(client.line(), None);
    }
}

#[test]
fn batches_blank_lines_and_a_last_line_without_end() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    client.send(
        "\n  \r\n[{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"chain.list\"},3,\
                 {\"jsonrpc\":\"2.0\",\"method\":\"chain.list\"}]\r\n",
    );
    let answers = client.line().unwrap();
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 2, "the notification is not answered");
    assert_eq!(answers[0]["id"], "a");
    assert_eq!(answers[1]["error"]["code"], INVALID_REQUEST);
    // Notifications only: no answer; the next answer is to the next call.
    client.send("[{\"jsonrpc\":\"2.0\",\"method\":\"chain.list\"}]\n");
    client.send("{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"moderation.get\"}");
    client.stream.get_mut().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.line().unwrap()["id"], 9);
    assert_eq!(client.line(), None);
    card.stop();
}

#[test]
fn garbage_is_answered_and_long_lines_disconnect() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let garbage = (0..=255u8).cycle().take(20_000).filter(|&byte| byte != b'\n');
    let garbage: Vec<u8> = garbage.chain([b'\n']).collect();
    client.stream.get_mut().write_all(&garbage).unwrap();
    assert_eq!(client.line().unwrap()["error"]["code"], PARSE_ERROR);
    client.good("card.info", json!({}));
    // A line without an end.
    let mut stream = client.stream.get_ref().try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let _ = stream.write_all(&vec![b'x'; LONGEST_LINE + (4 << 20)]);
    });
    let answer = client.line().unwrap();
    assert_eq!(answer["error"]["code"], LIMIT, "{answer}");
    assert_eq!(client.line(), None);
    writer.join().unwrap();
    card.client().good("card.info", json!({}));
    card.stop();
}

/// Asks and asks, and reads nothing.
fn is_deaf(client: &Client) {
    let mut stream = client.stream.get_ref();
    stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let call = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"card.stats\"}\n".repeat(100);
    let full = (0..1000).find(|_| stream.write_all(call.as_bytes()).is_err());
    assert!(full.is_some(), "100000 calls were taken from a client that reads nothing");
}

/// Longer than any test: nobody is disconnected, however slow the machine.
const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn hanging_clients_delay_no_others() {
    let card = Served::with_limits(STEADY, Limits { clients: 4, idle: NEVER, stalled: NEVER });
    let mut half = card.client();
    half.send("{\"jsonrpc\":");
    let _silent = card.client();
    let deaf = card.client();
    is_deaf(&deaf);
    let mut good = card.client();
    good.good("card.info", json!({}));
    // One too many, which may only read the card's state and stop it; and one more.
    let mut extra = card.client();
    extra.good("card.info", json!({}));
    let mut beyond = card.client();
    let answer = beyond.line().unwrap();
    assert_eq!(answer["error"]["code"], LIMIT, "{answer}");
    assert_eq!(beyond.line(), None);
    good.good("card.stats", json!({}));
    card.stop();
}

/// Their places are free again, and they get the reason.
#[test]
fn hanging_clients_are_disconnected() {
    let told = |client: &mut Client, message: &str| {
        let answer = client.line().unwrap();
        assert_eq!(answer["error"]["code"], LIMIT, "{answer}");
        assert_eq!(answer["error"]["message"], message);
        assert_eq!(client.line(), None);
    };
    let stalled = Duration::from_secs(2);
    let card = Served::with_limits(STEADY, Limits { clients: 3, idle: NEVER, stalled });
    let mut half = card.client();
    half.send("{\"jsonrpc\":");
    let deaf = card.client();
    is_deaf(&deaf);
    let mut good = card.client();
    // A client without a place cannot list the chains.
    let is_served = |client: &mut Client| {
        // A refused client may be disconnected before it has spoken.
        let call = b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"chain.list\"}\n";
        let _ = client.stream.get_mut().write_all(call);
        client.line().is_some_and(|answer| answer["result"].is_object())
    };
    wait_until("the places are free", || {
        good.good("card.info", json!({}));
        // Both at a time: one that leaves would give its place to the other.
        let mut clients = [card.client(), card.client()];
        clients.each_mut().map(is_served) == [true; 2]
    });
    told(&mut half, "found a line without an end for 2 s, which is the limit");
    let mut rest = Vec::new();
    let _ = deaf.stream.get_ref().read_to_end(&mut rest);
    card.stop();

    let idle = Duration::from_secs(3);
    let card = Served::with_limits(STEADY, Limits { clients: 1, idle, stalled: NEVER });
    let mut silent = card.client();
    told(&mut silent, "found no word for 3 s, which is the limit");
    wait_until("its place is free", || is_served(&mut card.client()));
    card.stop();
}

#[test]
fn full_cards_can_be_stopped() {
    // The extra client may be silent for `stalled` only.
    let limits = Limits { clients: 2, stalled: NEVER, ..Limits::default() };
    let card = Served::with_limits(STEADY, limits);
    let mut taken = [card.client(), card.client()];
    for client in &mut taken {
        client.good("card.info", json!({}));
    }
    let mut extra = card.client();
    let error = extra.error("card.stats", json!({}));
    let wanted = "2 clients are connected, which is the limit: \
                  this one may call card.info and card.stop only";
    assert_eq!(error, wanted);
    let mut beyond = card.client();
    let answer = beyond.line().unwrap();
    assert_eq!(answer["error"]["message"], "2 clients are connected, which is the limit");
    assert_eq!(beyond.line(), None);
    // It gets the next free place.
    let [first, mut second] = taken;
    drop(first);
    wait_until("the place is free", || extra.call("card.stats", json!({})).is_ok());
    let mut last = card.client();
    last.good("card.stop", json!({}));
    assert!(card.running.stop_is_asked());
    second.good("card.stats", json!({}));
    card.stop();
}

#[test]
fn second_card_of_a_name_is_refused() {
    let card = Served::start(STEADY);
    let text = format!("[control]\nsocket = \"{}\"\n", card.path.display());
    let file = picnic_host::sections().parse(&text, None).unwrap();
    match Doors::open(&file).unwrap_err() {
        error @ SocketError::Taken { .. } => {
            let pid = std::process::id();
            let start = format!("card picnic0 is already running (pid {pid}): ");
            assert!(error.to_string().starts_with(&start), "{error}");
        }
        other => panic!("{other}"),
    }
    card.client().good("card.info", json!({}));
    card.stop();
    // Its socket is gone, so its place is free.
    drop(Doors::open(&file));
}

#[test]
fn ended_borrowed_core_does_not_hang_the_socket() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.sock");
    let text = format!("{STEADY}[control]\nsocket = \"{}\"\n", path.display());
    let card = picnic_host::sections().parse(&text, None).unwrap();
    let doors = Doors::open(&card).unwrap();
    let launch = Launch::new(&card, registries());
    let about = launch.about();
    let mut running = launch.start_alone().unwrap();
    let access = running.control().unwrap();
    assert!(running.control().is_none(), "changes come from one place only");
    let server =
        Server::start(doors, access, &card, about, Captures::default(), None, Stop::default())
            .unwrap();
    let mut client = Client::connect(&path);
    // Without a word to the server, as if the core had panicked.
    running.stop().unwrap();
    let error = client.error("moderation.set", json!({ "rx_usecs": 0 }));
    assert_eq!(error, "the borrowed core has not answered for 10 s");
    client.good("card.stats", json!({}));
    drop(server);
}

// ---------------------------------------------------------------- metrics

fn get(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
    (head.to_owned(), body.to_owned())
}

#[test]
fn metrics_have_names_with_units_help_and_type() {
    let text = format!("[control]\nsocket = \"off\"\nmetrics = \"127.0.0.1:0\"\n{STEADY}");
    let _machine = machine();
    let card = picnic_host::sections().parse(&text, None).unwrap();
    let running = Launch::new(&card, registries()).start().unwrap();
    let address = running.metrics().unwrap().to_string();
    // A silent client, and many partial requests, delay no other client.
    let silent: Vec<_> = (0..4).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let body = wait_for("a page with all figures", || {
        let (head, body) = get(&address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"));
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        // A preempted core may answer too late for the page.
        (body.contains("quantile") && body.contains("counter=\"unhashed\"")).then_some(body)
    });
    for part in [
        "# HELP picnic_wire_received_packets Packets taken into buffers\n",
        "# TYPE picnic_wire_received_packets counter\n",
        "# UNIT picnic_wire_received_bytes bytes\n",
        "picnic_wire_received_packets_total{card=\"picnic0\",wire=\"wire0\"} ",
        "picnic_queue_delivered_bytes_total{card=\"picnic0\",queue=\"3\",core=\"",
        "picnic_function_received_packets_total{card=\"picnic0\",chain=\"rx\",position=\"0\",function=\"rss\"} ",
        "picnic_function_counter_total{card=\"picnic0\",chain=\"rx\",position=\"0\",function=\"rss\",counter=\"unhashed\"} ",
        "picnic_function_gauge{card=\"picnic0\",chain=\"rx\",position=\"0\",function=\"rss\",gauge=\"queues\"} 4.0\n",
        "# TYPE picnic_dropped_packets counter\n",
        "# TYPE picnic_in_flight_packets gauge\n",
        "picnic_latency_seconds{card=\"picnic0\",quantile=\"0.99\"} ",
        "picnic_borrowed_core_busy_seconds_total{",
    ] {
        assert!(body.contains(part), "no {part:?} in:\n{body}");
    }
    assert!(body.ends_with("# EOF\n"));
    let samples = openmetrics::parse(&body).unwrap();
    as_prometheus_reads("the_metrics_page_by_prometheus", &body, &samples);
    assert!(samples.iter().all(|sample| sample.value >= 0.0), "{body}");
    for sample in &samples {
        let family = sample.name.strip_suffix("_total").unwrap_or(&sample.name);
        assert!(body.contains(&format!("# HELP {family} ")), "no HELP for {}", sample.name);
    }
    let (head, body) = get(&address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body.is_empty());
    let (head, _) = get(&address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    drop(silent);
    running.stop().unwrap();
    assert!(TcpStream::connect(&address).is_err(), "nobody listens any more");
}

/// Prometheus's own reader finds the same samples in a page.
fn as_prometheus_reads(test: &str, page: &str, samples: &[openmetrics::Sample]) {
    match openmetrics::parsed_by_prometheus(page) {
        Some(read) => assert_eq!(read, samples, "{page}"),
        None => skip(test, "python3-prometheus-client is not installed"),
    }
}

#[test]
fn metrics_support_any_card_name() {
    let (name, wire) = ("a\"b\\c\nd\u{1b}[2J,{}=# EOF", "w\\\"\\n\n\\");
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let text = format!(
        "[control]\nsocket = \"off\"\nmetrics = \"127.0.0.1:0\"\n[card]\nname = {}\n{STEADY}\
         name = {}\n",
        quoted(name),
        quoted(wire)
    );
    let _machine = machine();
    let card = picnic_host::sections().parse(&text, None).unwrap();
    let running = Launch::new(&card, registries()).start().unwrap();
    let address = running.metrics().unwrap().to_string();
    let (_, body) = get(&address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let samples = openmetrics::parse(&body).unwrap();
    as_prometheus_reads("metrics_of_any_name_by_prometheus", &body, &samples);
    assert!(samples.iter().all(|sample| sample.labels["card"] == name), "{body}");
    assert!(samples.iter().any(|s| s.labels.get("wire").is_some_and(|found| found == wire)));
    running.stop().unwrap();
}

#[test]
fn used_port_is_refused_before_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let open = |address: &str| {
        let text = format!("[control]\nsocket = \"off\"\nmetrics = \"{address}\"\n");
        Doors::open(&picnic_host::sections().parse(&text, None).unwrap()).unwrap_err().to_string()
    };
    let error = open(&address.to_string());
    let wanted = "card:3: control.metrics: found {}, which another program listens on";
    assert_eq!(error, wanted.replace("{}", &address.to_string()));
    let error = open("192.0.2.1:9464");
    assert_eq!(
        error,
        "card:3: control.metrics: found 192.0.2.1:9464, which is not an address of this machine"
    );
}
