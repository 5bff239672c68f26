//! Functions of one's own: tried on a capture, run, asked, replaced while packets flow.

use crate::common::*;
use crate::openmetrics::{self, Sample};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with shared objects, and a card file.
pub(crate) struct Bench(tempfile::TempDir);

impl Bench {
    /// One, if there is a C compiler.
    pub(crate) fn open(test: &str) -> Option<Self> {
        if Command::new("cc").arg("--version").output().is_err() {
            picnic_testing::skip(test, "there is no C compiler");
            return None;
        }
        Some(Bench(tempfile::tempdir().unwrap()))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// Compiles a source to `NAME.so`, put in its place at once.
    pub(crate) fn compile(&self, source: &Path, name: &str, options: &[&str]) -> String {
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin/include");
        let made = self.path(&format!("{name}.new"));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"]);
        let output = compiler.arg(include).arg("-o").arg(&made).arg(source).args(options).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let path = self.path(&format!("{name}.so"));
        std::fs::rename(made, &path).unwrap();
        path
    }

    /// An object that steers every packet to one queue.
    fn to_queue(&self, object: &str, name: &str, queue: u16) -> String {
        let text = format!(
            "#include \"picnic_function.h\"\n\
             static int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *p)\n\
             {{ (void)state, (void)now_ns, (void)p; return {queue}; }}\n\
             const struct picnic_function picnic_function = {{ PICNIC_HANDSHAKE,\n\
             .name = \"{name}\", .process_packet = process_packet }};\n"
        );
        let source = self.write(&format!("{object}.c"), text);
        self.compile(Path::new(&source), object, &[])
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/functions").join(name)
}

fn refused(arguments: &[&str], code: i32, part: &str) {
    let output = picnic(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
    assert!(stderr(&output).contains(part), "no {part:?} in {}", stderr(&output));
}

/// A frame of IPv4 and UDP between these ports.
fn udp_frame(from: u16, to: u16) -> Vec<u8> {
    let mut frame = tcp_frame(1);
    frame[23] = 17;
    frame[34..36].copy_from_slice(&from.to_be_bytes());
    frame[36..38].copy_from_slice(&to.to_be_bytes());
    frame[38..42].copy_from_slice(&[0, 26, 0, 0]);
    frame
}

/// Whole protocols and policies fit on a page or two; an example that does not teaches less.
#[test]
fn every_worked_example_has_less_than_100_lines() {
    let mut examples = 0;
    for entry in std::fs::read_dir(example("")).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 100, "{} has {lines} lines", path.display());
        examples += 1;
    }
    assert!(examples >= 4, "{examples} examples");
}

#[test]
fn a_function_is_tried_on_a_capture() {
    let Some(bench) = Bench::open("a_function_is_tried_on_a_capture") else { return };
    let steer = bench.compile(&example("dns-steer.c"), "dns-steer", &[]);
    let frames = [udp_frame(5000, 53), tcp_frame(7), udp_frame(53, 5000), udp_frame(1, 2)];
    let input = bench.write("in.pcap", pcap(&frames));
    let out = bench.path("out.pcapng");
    let try_it = ["try", &steer, "--in", &input, "--set", "queue=3"];
    let text = good(&[&try_it[..], &["--out", &out]].concat());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].ends_with("queue 3") && lines[1].ends_with("next"), "{text}");
    assert_eq!(lines[4], "dns-steer: 2 next, 2 queue 3; 0 changed");
    let tried = good_json(&[&try_it[..], &["--json", "--expect", &out]].concat());
    assert_eq!(tried["function"], "dns-steer");
    assert_eq!(
        (&tried["packets"][2]["number"], &tried["packets"][2]["fate"]),
        (&2.into(), &"queue 3".into())
    );
    assert_eq!(tried["unexpected"], Value::Array(vec![]));
    // Another capture is not as expected, and a script learns of it.
    let other = bench.write("other.pcap", pcap(&frames[..3]));
    refused(&[&try_it[..], &["--expect", &other]].concat(), 1, "4 packets leave, 3 are expected");
    let mut changed = frames.clone();
    changed[1][20] ^= 1;
    let changed = bench.write("changed.pcap", pcap(&changed));
    refused(&[&try_it[..], &["--expect", &changed]].concat(), 1, "1 bytes changed, at 20");
    // Built-in functions are tried the same way, also on tx; errors name the key.
    let text = good(&["try", "drop", "--in", &input, "--quiet", "--chain", "tx"]);
    assert_eq!(text, "drop: 4 dropped: filtered; 0 changed\n");
    refused(&["try", "rss", "--in", &input, "--set", "hash=x"], 2, "rx[0].hash: found \"x\"");
    refused(
        &["try", &steer, "--in", &input, "--set", "queue=9"],
        2,
        "queue: found 9, allowed: 0 to 3",
    );
    refused(&["try", &steer, "--in", &input, "--set", "queue=-1"], 2, "rx[0].queue: found -1");
    refused(&["try", "nothing", "--in", &input], 2, "found \"nothing\", allowed: rss");
    refused(&["try", "rss", "--in", &steer], 2, "allowed: a pcap or pcapng capture");
    refused(&["try", "./missing.so", "--in", &input], 2, "./missing.so: cannot be read");
}

#[test]
fn functions_are_tried_with_a_cards_keys() {
    let Some(bench) = Bench::open("functions_are_tried_with_a_cards_keys") else { return };
    bench.compile(&example("dns-steer.c"), "dns-steer", &[]);
    let rx = "[[rx]]\nfunction = \"pass\"\n[[rx]]\nplugin = \"dns-steer.so\"\nqueue = 5\n\
              [[tx]]\nfunction = \"drop\"\n[host]\nqueues = 8\n";
    let card = bench.write("card.toml", rx);
    let frames = [udp_frame(5000, 53), tcp_frame(7), vec![0; 60]];
    let input = bench.write("in.pcap", pcap(&frames));
    let steer = bench.path("dns-steer.so");
    let text = good(&["try", &steer, "--in", &input, "--card", &card]);
    let lines: Vec<_> = text.lines().collect();
    // As `run` has them: its queue, and the flows that decide.
    assert!(lines[0].contains("10.0.0.1:5000 > 10.9.9.9:53 udp"), "{text}");
    assert!(lines[0].ends_with("queue 5") && lines[1].contains(" tcp "), "{text}");
    assert!(lines[2].contains("not IP"), "{text}");
    let tried = good_json(&["try", &steer, "--in", &input, "--card", &card, "--json"]);
    let flow = json!({
        "source": "10.0.0.1", "destination": "10.9.9.9", "protocol": "udp",
        "source_port": 5000, "destination_port": 53,
    });
    assert_eq!(tried["packets"][0]["flow"], flow);
    assert_eq!(tried["packets"][2]["flow"], Value::Null);
    // Given options have priority; without a name it is the first of the chain.
    let set = ["try", &steer, "--in", &input, "--card", &card, "--set", "queue=7", "--quiet"];
    assert!(good(&set).contains("1 queue 7"));
    assert!(good(&["try", "--in", &input, "--card", &card, "--quiet"]).starts_with("pass: 3 next"));
    let tx = ["try", "--in", &input, "--card", &card, "--quiet", "--chain", "tx"];
    assert!(good(&tx).starts_with("drop: 3 dropped"));
    refused(
        &["try", "rss", "--in", &input, "--card", &card],
        2,
        "found no \"rss\", allowed: pass, ",
    );
}

#[test]
fn the_counter_answers_in_the_hosts_place() {
    let Some(bench) = Bench::open("the_counter_answers_in_the_hosts_place") else { return };
    let counter = bench.compile(&example("counter.c"), "counter", &[]);
    let request = |operation: u8, key: u8, number: u32| {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, operation, key, 0, 0];
        frame.extend(number.to_be_bytes());
        frame.resize(60, 0);
        frame
    };
    let answer = |operation: u8, key: u8, number: u32| {
        let mut frame = request(operation | 0x80, key, number);
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        frame
    };
    let asked = [
        request(1, 7, 40),
        request(1, 7, 2),
        request(2, 7, 0),
        request(2, 8, 0),
        request(9, 0, 0),
        tcp_frame(1),
    ];
    let input = bench.write("in.pcap", pcap(&asked));
    let answers =
        [answer(1, 7, 40), answer(1, 7, 42), answer(2, 7, 42), answer(2, 8, 0), tcp_frame(1)];
    let expect = bench.write("expect.pcap", pcap(&answers));
    let text = good(&["try", &counter, "--in", &input, "--expect", &expect, "--quiet"]);
    assert_eq!(text, "counter: 1 dropped: filtered, 1 next, 4 wire 0; 4 changed\n");
}

#[test]
fn maglev_is_even_and_moves_few_flows() {
    let Some(bench) = Bench::open("maglev_is_even_and_moves_few_flows") else { return };
    let maglev = bench.compile(&example("maglev.c"), "maglev", &[]);
    let frames: Vec<_> = (0..2000).map(tcp_frame).collect();
    let input = bench.write("in.pcap", pcap(&frames));
    let queues = |backends: &str| {
        let backends = format!("backends={backends}");
        let tried = good_json(&["try", &maglev, "--in", &input, "--set", &backends, "--json"]);
        let mut by_packet = vec![String::new(); 2000];
        for packet in tried["packets"].as_array().unwrap() {
            let number = packet["number"].as_u64().unwrap() as usize;
            by_packet[number] = packet["fate"].as_str().unwrap().to_owned();
        }
        by_packet
    };
    let (four, three) = (queues("4"), queues("3"));
    for queue in 0..4 {
        let share = four.iter().filter(|fate| **fate == format!("queue {queue}")).count();
        assert!((350..=650).contains(&share), "queue {queue} has {share} of 2000");
    }
    // Those of the back end that has gone, and few others.
    let moved = four.iter().zip(&three).filter(|(four, three)| four != three).count();
    assert!((350..=700).contains(&moved), "{moved} of 2000 flows moved");
}

#[test]
fn programs_with_own_functions_have_the_whole_command_line() {
    let policer = Path::new(PICNIC).parent().unwrap().join("examples/policer");
    if !policer.exists() {
        // Of one test alone, cargo builds no examples.
        let build = ["build", "--locked", "--offline", "-p", "picnic-cli", "--example", "policer"];
        assert!(Command::new(env!("CARGO")).args(build).status().unwrap().success());
    }
    let program = |arguments: &[&str]| {
        let output = Command::new(&policer).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    let keys = program(&["functions", "policer"]);
    assert!(keys.contains("rate_pps") && keys.contains("1 to 1000000000"), "{keys}");
    assert!(program(&["functions"]).contains("rss"), "ours are there too");
    // 100 packets of one flow within 100 µs, with a burst of 10.
    let frames: Vec<_> = (0..100).map(|_| tcp_frame(1)).collect();
    let files = folder(&[("in.pcap", &pcap(&frames))]);
    let path = files.path().join("in.pcap");
    let path = path.to_str().unwrap();
    let text = program(&["try", "policer", "--in", path, "--set", "burst=10", "--quiet"]);
    assert_eq!(text, "policer: 90 dropped: filtered, 10 next; 0 changed\n");
    let text = program(&[
        "run",
        "--set",
        "rx[0].function=policer",
        "--set",
        "rx[0].rate_pps=1",
        "--set",
        "wire[0].flows=1",
        "--set",
        "wire[0].packets=10000",
        "--json",
    ]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_balanced(&report);
    assert!(report["drops"]["filtered"].as_u64().is_some_and(|drops| drops > 9000), "{report}");
}

/// Names in the rx chain.
fn rx_chain(card: &Running) -> Vec<String> {
    let chain = card.json(&["chain"]);
    let names = chain["rx"].as_array().unwrap().iter();
    names.map(|function| function["function"].as_str().unwrap().to_owned()).collect()
}

const ORDERED: &str = "[[wire]]\nport = \"generator\"\nrate_pps = 20000\nsize = 100\nflows = 64\n\
                       sequence_numbers = true\n[host]\nqueues = 4\nverify_order = true\n";

/// All in order, and missing packets are those that a busy machine made the card drop: each
/// counted, and for lack of a core, not because of a function.
fn assert_ordered(report: &Value) {
    let notes = report["notes"].as_array().unwrap().iter().filter_map(Value::as_str);
    let checks: Vec<_> = notes.filter(|note| note.contains("in order")).collect();
    assert!(!checks.is_empty(), "{report}");
    let skipped: u64 = checks
        .iter()
        .map(|check| {
            let (start, end) = check.split_once(" in order, 0 reordered, ").expect(check);
            assert!(start.ends_with("packets"), "{check}");
            end.strip_suffix(" skipped").expect(check).parse::<u64>().unwrap()
        })
        .sum();
    let dropped = |reason: &&str| report["drops"][reason].as_u64().unwrap_or(0);
    let busy: u64 = ["ring_full", "backlog_full", "pool_exhausted"].iter().map(dropped).sum();
    assert_eq!(report["ledger"]["dropped"], busy, "{report}");
    assert!(skipped <= busy, "{skipped} skipped: {report}");
}

#[test]
fn plugins_run_confined_and_are_queried_and_swapped() {
    let Some(bench) = Bench::open("plugins_run_confined_and_are_queried_and_swapped") else {
        return;
    };
    let _machine = machine();
    bench.compile(&example("dns-steer.c"), "dns-steer", &[]);
    bench.compile(&example("maglev.c"), "maglev", &[]);
    let name = format!("plugin-{}", std::process::id());
    let rx = "[[rx]]\nplugin = \"dns-steer.so\"\nqueue = 1\n[[rx]]\nplugin = \"dns-steer.so\"\n\
              port = 80\n[[rx]]\nplugin = \"maglev.so\"\n[[tx]]\nplugin = \"dns-steer.so\"\n";
    let card = bench.write("card.toml", format!("[card]\nname = \"{name}\"\n{ORDERED}{rx}"));
    let keys = good(&["functions", &bench.path("maglev.so")]);
    assert!(keys.contains("backends") && keys.contains("spread flows"), "{keys}");
    assert!(good(&["check", &card]).contains("plugin -> plugin -> plugin"));
    let running = Running::start_in(&name, bench.folder(), &[]);
    let names = ["plugin:dns-steer", "plugin:dns-steer", "plugin:maglev"];
    assert_eq!(rx_chain(&running), names);
    let own = running.json(&["plugin", "get", "--position", "1"]);
    assert_eq!((&own["steered_packets"], &own["position"]), (&0.into(), &1.into()));
    wait_until("packets come", || {
        running.json(&["stats"])["ledger"]["delivered"].as_u64() > Some(100)
    });
    let call = ["plugin", "call", "--command", "get", "--position", "2"];
    assert!(running.bad(&call).1.contains("the plugin has no commands"));
    // Others in its place, and back, while packets flow: maglev decides each time.
    let other = bench.write("other.toml", "[[rx]]\nplugin = \"maglev.so\"\n");
    for _ in 0..10 {
        assert_eq!(running.ctl(&["swap", "rx", &other]).status.code(), Some(0));
        assert_eq!(rx_chain(&running), ["plugin:maglev"]);
        assert_eq!(running.ctl(&["swap", "rx", &card]).status.code(), Some(0));
        assert_eq!(rx_chain(&running), names);
    }
    let wrong = bench.write("wrong.toml", "\n[[rx]]\nplugin = \"maglev.so\"\nbackends = 77\n");
    let output = running.ctl(&["swap", "rx", &wrong]);
    let said = stderr(&output);
    assert!(said.contains("wrong.toml:4: rx[0].backends: ") && said.contains("allowed: 1 to 4"));
    assert_eq!(rx_chain(&running), names);
    assert_ordered(&running.stop().0);
}

/// Drops one packet in `every`, and counts the drops.
const GATE: &str = r#"
#include "picnic_function.h"
#include <stdio.h>
#include <stdlib.h>
struct gate { uint64_t every, seen, dropped; };
static int init(const struct picnic_context *context, const char *config, void **state,
                char *error, size_t error_size)
{
    (void)context, (void)error, (void)error_size;
    struct gate *gate = calloc(1, sizeof *gate);
    if (!gate)
        return -1;
    gate->every = (uint64_t)picnic_config_integer(config, "every", 1);
    *state = gate;
    return 0;
}
static int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *packet)
{
    struct gate *gate = state;
    (void)now_ns, (void)packet;
    if (++gate->seen % gate->every)
        return PICNIC_NEXT;
    gate->dropped++;
    return PICNIC_DROP;
}
static int command(void *state, const char *name, const char *arguments, char *reply, size_t size)
{
    (void)name, (void)arguments;
    unsigned long long dropped = ((struct gate *)state)->dropped;
    snprintf(reply, size, "{\"dropped\":%llu}", dropped);
    return 0;
}
static const struct picnic_counter counters[] = {
    { "seen_packets", "Packets that it was shown." }, { "every", "One packet in this many is dropped." },
    { NULL, NULL } };
static void count(void *state, uint64_t *values)
{
    const struct gate *gate = state;
    values[0] = gate->seen;
    values[1] = gate->every;
}
const struct picnic_function picnic_function = {
    PICNIC_HANDSHAKE, .name = "gate", .init = init, .process_packet = process_packet,
    .command = command, .exit = free, .counters = counters, .count = count,
    .config_schema = "{\"properties\":{\"every\":{\"type\":\"integer\",\"minimum\":1}}}" };
"#;

/// A card's answers to requests for metrics, headers and page.
fn metrics(card: &Running) -> String {
    let address = card.json(&["info"])["metrics"].as_str().unwrap().to_owned();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Of the first page that has some, what functions count themselves: by place and name.
fn counters(card: &Running) -> BTreeMap<(String, String), f64> {
    // A machine at work may have a core answer late, and the page goes without then.
    wait_for("figures of functions", || {
        let answer = metrics(card);
        let (_, page) = answer.split_once("\r\n\r\n")?;
        let own = |sample: &Sample| sample.name == "picnic_function_counter_total";
        let samples = openmetrics::parse(page).unwrap().into_iter().filter(own);
        let place = |sample: Sample| {
            let label = |name: &str| sample.labels[name].clone();
            let place = format!("{}[{}] {}", label("chain"), label("position"), label("function"));
            ((place, label("counter")), sample.value)
        };
        Some(samples.map(place).collect()).filter(|found: &BTreeMap<_, _>| !found.is_empty())
    })
}

/// Those of picnic's own functions and of an object stand beside each other in the metrics. They
/// never fall while the function stays, and its replacement counts from zero.
#[test]
fn metrics_include_functions_own_counters() {
    let Some(bench) = Bench::open("metrics_include_functions_own_counters") else { return };
    let _machine = machine();
    let source = bench.write("gate.c", GATE);
    bench.compile(Path::new(&source), "gate", &[]);
    let name = format!("own-{}", std::process::id());
    let chain = "[[rx]]\nplugin = \"gate.so\"\nevery = 2\n[[rx]]\nfunction = \"rss\"\n\
                 types = [\"udp-ipv4\"]\n[[tx]]\nfunction = \"rate-limit\"\n";
    let wire = "[[wire]]\nport = \"generator\"\nrate_pps = 20000\n[host]\nqueues = 2\n\
                mode = \"echo\"\n";
    let control = "[control]\nmetrics = \"127.0.0.1:0\"\n";
    bench.write("card.toml", format!("[card]\nname = \"{name}\"\n{wire}{control}{chain}"));
    let running = Running::start_in(&name, bench.folder(), &[]);
    let key = |place: &str, counter: &str| (place.to_owned(), counter.to_owned());
    let seen = key("rx[0] plugin:gate", "seen_packets");
    let mut before = BTreeMap::new();
    wait_until("each has counted", || {
        let now = counters(&running);
        for (place, was) in &before {
            assert!(now[place] >= *was, "{place:?} fell: {before:?}, {now:?}");
        }
        before = now;
        let all =
            [&seen, &key("rx[1] rss", "unhashed"), &key("tx[0] rate-limit", "passed_packets")];
        all.into_iter().all(|place| before[place] > 1000.0)
    });
    let answer = metrics(&running);
    let (_, page) = answer.split_once("\r\n\r\n").unwrap();
    let read = openmetrics::parsed_by_prometheus(page);
    if let Some(read) = read {
        assert_eq!(read, openmetrics::parse(page).unwrap());
    }
    let labels = "chain=\"rx\",position=\"1\",function=\"rss\"";
    wait_for("a gauge", || {
        let gauge =
            format!("picnic_function_gauge{{card=\"{name}\",{labels},gauge=\"queues\"}} 2.0\n");
        metrics(&running).contains(&gauge).then_some(())
    });
    let entered = |running: &Running| running.json(&["stats"])["ledger"]["in"].as_u64().unwrap();
    let earlier = entered(&running);
    running.good(&["swap", "rx", &bench.path("card.toml")]);
    let swapped = counters(&running);
    // Counted from zero: no more than have come since.
    let since = (entered(&running) - earlier) as f64;
    assert!(earlier > 1000 && swapped[&seen] <= since, "{earlier}, {since}: {swapped:?}");
    let passed = key("tx[0] rate-limit", "passed_packets");
    assert!(swapped[&passed] >= before[&passed], "it has stayed: {before:?}, {swapped:?}");
    let (report, _) = running.stop();
    let function = &report["functions"][0];
    assert_eq!(function["counters"]["seen_packets"], function["packets"], "{report}");
    let rss = &report["functions"][1];
    assert_eq!(rss["counters"]["unhashed"], rss["packets"], "{report}");
}

/// One object twice, with other settings, and another object that has the same name.
#[test]
fn plugins_of_one_name_are_counted_each_by_its_place() {
    let Some(bench) = Bench::open("plugins_of_one_name_are_counted_each_by_its_place") else {
        return;
    };
    let _machine = machine();
    let source = bench.write("gate.c", GATE);
    bench.compile(Path::new(&source), "gate", &[]);
    bench.to_queue("twin", "gate", 1);
    let name = format!("twins-{}", std::process::id());
    let chain = "[[rx]]\nplugin = \"gate.so\"\nevery = 2\n[[rx]]\nplugin = \"gate.so\"\nevery = 4\n\
                 [[rx]]\nplugin = \"twin.so\"\n";
    let wire = "[[wire]]\nport = \"generator\"\nrate_pps = 20000\n[host]\nqueues = 2\n";
    let control = "[control]\nmetrics = \"127.0.0.1:0\"\n";
    bench.write("card.toml", format!("[card]\nname = \"{name}\"\n{wire}{control}{chain}"));
    let running = Running::start_in(&name, bench.folder(), &[]);
    let count = |value: &Value| value.as_u64().unwrap();
    let dropped = |report: &Value, place: usize| count(&report["functions"][place]["dropped"]);
    wait_until("each has dropped some", || dropped(&running.json(&["stats"]), 1) > 100);

    // In the order of the chain, with the place in text and in labels.
    let stats = running.json(&["stats"]);
    let names = stats["functions"].as_array().unwrap().iter().map(|function| &function["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["plugin:gate"; 3]);
    assert!(dropped(&stats, 0) > dropped(&stats, 1) && dropped(&stats, 2) == 0, "{stats}");
    let text = running.good(&["stats"]);
    let (text, _) = text.split_once("its own figures").expect("the gates have some");
    let metrics = metrics(&running);
    for place in 0..3 {
        assert_eq!(text.matches(&format!("rx[{place}] plugin:gate")).count(), 1, "{text}");
        let labels = format!("chain=\"rx\",position=\"{place}\",function=\"plugin:gate\"");
        for family in ["received", "dropped"] {
            let series =
                format!("picnic_function_{family}_packets_total{{card=\"{name}\",{labels}}} ");
            assert_eq!(metrics.matches(&series).count(), 1, "{series} in {metrics}");
        }
    }
    // Each is asked for its own.
    let call = ["plugin", "call", "--command", "get", "--position"];
    let own =
        |place: &str| count(&running.json(&[&call[..], &[place]].concat())["answer"]["dropped"]);
    let (second, first) = (own("1"), own("0"));
    assert!(first > second && second > 100, "{first}, {second}");
    assert!(running.bad(&[&call[..], &["2"]].concat()).1.contains("has no commands"));

    // So are its counters, which appear beside the card's counters for it.
    let keys = good(&["functions", &bench.path("gate.so")]);
    assert!(keys.contains("seen_packets") && keys.contains("Packets that it was shown."), "{keys}");
    let stats = running.json(&["stats"]);
    let functions = &stats["functions"];
    for (place, every) in [2, 4].into_iter().enumerate() {
        let counters = &functions[place]["counters"];
        assert_eq!(counters["every"], every, "{stats}");
        // They are read a moment after the packets are.
        assert!(count(&counters["seen_packets"]) >= count(&functions[place]["packets"]), "{stats}");
    }
    assert_eq!(functions[2]["counters"], Value::Null, "it has none");
    let text = running.good(&["stats"]);
    assert!(text.contains("rx[1] plugin:gate  every 4, seen_packets "), "{text}");
    let top = good_json(&["top", "--card", &name, "--once", "--interval", "0.5", "--json"]);
    assert_eq!(top["functions"][0]["counters"]["every"], 2, "{top}");
    let own = running.json(&["plugin", "get", "--position", "1"]);
    assert_eq!((&own["every"], &own["position"]), (&4.into(), &1.into()));
    let none = running.bad(&["plugin", "get", "--position", "2"]).1;
    assert!(none.contains("the plugin has no counters"), "{none}");
    // A swap puts new instances there, which count from nothing, as the card does of their places.
    let before = count(&running.json(&["plugin", "get"])["seen_packets"]);
    bench.write("swapped.toml", "[[rx]]\nplugin = \"gate.so\"\nevery = 3\n");
    running.good(&["swap", "rx", &bench.path("swapped.toml")]);
    let own = running.json(&["plugin", "get"]);
    assert_eq!(own["every"], 3);
    let stats = running.json(&["stats"]);
    let given = count(&stats["functions"][0]["packets"]);
    assert!(count(&own["seen_packets"]) <= given, "{own}, {stats}");
    assert!(given <= count(&stats["ledger"]["in"]) - before, "{stats}");
    running.good(&["swap", "rx", &bench.path("card.toml")]);

    let (report, _) = running.stop();
    let packets = |place: usize| count(&report["functions"][place]["packets"]);
    for (place, every) in [2, 4].into_iter().enumerate() {
        assert_eq!(dropped(&report, place), packets(place) / every, "{report}");
        assert_eq!(packets(place + 1), packets(place) - dropped(&report, place), "{report}");
        // Its own counts are also reported at the end, when no more packets arrive.
        let counters = &report["functions"][place]["counters"];
        assert_eq!(*counters, json!({ "every": every, "seen_packets": packets(place) }));
    }
    assert_eq!(dropped(&report, 2), 0);
}

#[test]
fn a_card_without_plugins_loads_none() {
    let Some(bench) = Bench::open("a_card_without_plugins_loads_none") else { return };
    let _machine = machine();
    bench.to_queue("one", "one", 1);
    let name = format!("plain-{}", std::process::id());
    bench.write("card.toml", format!("[card]\nname = \"{name}\"\n{ORDERED}"));
    let running = Running::start_in(&name, bench.folder(), &[]);
    let swap = bench.write("swap.toml", "[[rx]]\nplugin = \"one.so\"\n");
    let output = running.ctl(&["swap", "rx", &swap]);
    assert!(
        stderr(&output).contains("started without a plugin cannot load one"),
        "{}",
        stderr(&output)
    );
    running.stop();
}

#[test]
fn recompiled_objects_are_reloaded_under_load() {
    let Some(bench) = Bench::open("what_is_compiled_anew_is_taken_up") else { return };
    let _machine = machine();
    bench.to_queue("own", "version-0", 0);
    let name = format!("watched-{}", std::process::id());
    let text = |rx: &str| format!("[card]\nname = \"{name}\"\n{ORDERED}[[rx]]\n{rx}\n");
    bench.write("card.toml", text("plugin = \"own.so\""));
    let running = Running::start_in(&name, bench.folder(), &["--watch"]);
    for version in 1..4 {
        bench.to_queue("own", &format!("version-{version}"), 0);
        let wanted = [format!("plugin:version-{version}")];
        wait_until("the new one is in its place", || rx_chain(&running) == wanted);
    }
    // Meaningless values change nothing, and are reported once.
    bench.write("own.so", "other than an ELF");
    picnic_testing::let_pass(500);
    assert_eq!(rx_chain(&running), ["plugin:version-3"]);
    bench.to_queue("own", "version-4", 0);
    bench.write("card.toml", text("plugin = \"own.so\"\n[[rx]]\nfunction = \"pass\""));
    wait_until("the chain is another", || rx_chain(&running) == ["plugin:version-4", "pass"]);
    let (report, said) = running.stop();
    assert!(said.contains("picnic: rx chain swapped, now: plugin:version-4, pass\n"), "{said}");
    assert_ordered(&report);
}

#[test]
fn errors_name_file_line_and_key() {
    let Some(bench) = Bench::open("errors_name_file_line_and_key") else { return };
    bench.compile(&example("dns-steer.c"), "dns-steer", &[]);
    for (rx, part) in [
        ("plugin = \"missing.so\"", "card.toml:2: rx[0].plugin: "),
        ("plugin = \"dns-steer.so\"\nqueue = 70000", "card.toml:3: rx[0].queue: found 70000"),
        ("plugin = \"dns-steer.so\"\nqeue = 1", "card.toml:3: rx[0].qeue: found key \"qeue\""),
        ("plugin = \"dns-steer.so\"\nqueue = 8", "card.toml:3: rx[0].queue: found 8, allowed: "),
        (
            "plugin = \"card.toml\"",
            "found something other than an ELF file, allowed: a shared object",
        ),
    ] {
        let card = bench.write("card.toml", format!("[[rx]]\n{rx}\n"));
        refused(&["check", &card], 2, part);
    }
}

#[test]
fn a_new_function_in_c_builds_tests_runs_and_is_tried() {
    let Some(bench) = Bench::open("a_new_function_in_c_builds_tests_and_runs") else { return };
    let folder = bench.path("short");
    let text = good(&["new", "function", "short", "--lang", "c", "--path", &folder]);
    assert!(text.contains("picnic_function.h") && text.contains("make test"), "{text}");
    let output = Command::new("make").arg("test").current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("short: good"));
    let header = std::fs::read_to_string(format!("{folder}/picnic_function.h")).unwrap();
    assert_eq!(header, picnic_plugin::HEADER);
    let card = format!("{folder}/card.toml");
    let report =
        good_json(&["run", &card, "--duration=0.3", "--json", "--set", "control.socket=off"]);
    assert_balanced(&report);
    let queues = report["queues"].as_array().unwrap();
    assert_eq!(queues[1]["packets"], report["ledger"]["delivered"], "60 bytes are short: {report}");
    let input = bench.write("in.pcap", pcap(&[tcp_frame(1), vec![2; 200]]));
    let object = format!("{folder}/short.so");
    let text = good(&["try", &object, "--in", &input, "--set", "queue=3", "--quiet"]);
    assert_eq!(text, "short: 1 next, 1 queue 3; 0 changed\n");
    refused(&["new", "function", "short", "--lang", "c", "--path", &folder], 2, "already exists");
    refused(&["new", "function", "rss", "--lang", "c"], 2, "which is reserved");
    refused(
        &["new", "function", "a", "--lang", "rust", "--picnic", "/proc"],
        2,
        "allowed: picnic's",
    );
}

/// That they build and pass their own tests, `templates` says.
#[test]
fn new_rust_components_build_against_the_source_tree() {
    let lock = include_str!("../../../../Cargo.lock");
    let folder = tempfile::tempdir().unwrap();
    for (kind, more, files) in [
        ("function", &["--lang", "rust"][..], 8),
        ("function", &["--lang", "rust-program"], 9),
        ("task", &[], 6),
        ("scheduler", &[], 6),
        ("experiment", &[], 5),
    ] {
        let name = format!("own-{kind}-{files}");
        let path = folder.path().join(&name);
        let path = path.to_str().unwrap();
        let made = good_json(&[&["new", kind, &name, "--path", path, "--json"], more].concat());
        assert_eq!(made[kind], *name);
        assert_eq!(made["files"].as_array().unwrap().len(), files, "{made}");
        // That it is a whole package, whose dependencies are there, cargo says.
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--offline", "--format-version", "1"])
            .current_dir(path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let metadata: Value = serde_json::from_str(stdout(&output)).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let has = |name: &str| packages.iter().any(|package| package["name"] == *name);
        assert!(has(&name), "{name}");
        // Only those that picnic was tested with.
        for package in packages.iter().filter(|package| package["source"].is_string()) {
            let (name, version) = (&package["name"], &package["version"]);
            assert!(lock.contains(&format!("name = {name}\nversion = {version}\n")), "{package}");
        }
        assert_eq!(has(&format!("{name}-fuzz")), kind == "function");
    }
    refused(&["new", "task", "heartbeat"], 2, "which is reserved");
    refused(&["new", "scheduler", "edf"], 2, "which is reserved");
    refused(&["new", "experiment", "knet-livelock"], 2, "which is reserved");
}

/// The blocks of a document that are commands, as one script.
fn commands_of(document: &str) -> String {
    let (mut script, mut is_inside) = (String::from("set -ex\n"), false);
    for line in document.lines() {
        match line {
            "```sh" => is_inside = true,
            "```" => is_inside = false,
            line if is_inside => script += &format!("{line}\n"),
            _ => {}
        }
    }
    script
}

#[test]
fn documented_plugin_commands_work() {
    let Some(bench) = Bench::open("the_commands_of_the_page") else { return };
    let _machine = machine();
    let document = include_str!("../../../../docs/plugins.md");
    let script = commands_of(document);
    assert!(script.lines().count() > 15, "{script}");
    let programs = Path::new(PICNIC).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let sockets = bench.path("sockets");
    let mut shell = Command::new("timeout");
    shell.args(["600", "sh", "-c", &script]).current_dir(bench.0.path());
    let output = shell.env("PATH", path).env("PICNIC_RUNTIME_DIR", sockets).output().unwrap();
    let (said, errors) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    assert!(said.contains("picnic: rx chain swapped, now: plugin:steer-2, rss"), "{said}{errors}");
    assert!(said.contains("steer: 50 queue 3; 0 changed"), "{said}{errors}");
    let report = std::fs::read_to_string(bench.path("steer/report.txt")).unwrap();
    assert!(report.contains("balanced"), "{report}");
}
