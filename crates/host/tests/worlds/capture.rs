//! Captures of running cards: at every stage, to files and pipes, with readers of all kinds.

use crate::common::{Client, STEADY, Served};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapNGReader};
use picnic_testing::{PATIENCE, wait_until};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{PipeReader, Read};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// The contents of a pcapng file.
#[derive(Debug, Default)]
struct Pcapng {
    interfaces: Vec<String>,
    /// Interface, time, bytes kept, original length.
    packets: Vec<(u32, u64, usize, u32)>,
    /// For each interface: received, dropped.
    statistics: Vec<(u64, u64)>,
}

fn read(bytes: &[u8]) -> Pcapng {
    let mut file = Pcapng::default();
    let mut reader = PcapNGReader::new(1 << 20, bytes).unwrap();
    loop {
        match reader.next() {
            Ok((length, PcapBlockOwned::NG(block))) => {
                match block {
                    Block::InterfaceDescription(b) => {
                        file.interfaces.push(b.if_name().unwrap().unwrap().to_owned());
                    }
                    Block::EnhancedPacket(b) => {
                        let time = u64::from(b.ts_high) << 32 | u64::from(b.ts_low);
                        file.packets.push((b.if_id, time, b.packet_data().len(), b.origlen));
                    }
                    Block::InterfaceStatistics(b) => {
                        let count = |at: usize| b.options[at].as_u64_le().unwrap();
                        file.statistics.push((count(0), count(1)));
                    }
                    _ => {}
                }
                reader.consume(length);
            }
            Ok((length, _)) => reader.consume(length),
            Err(PcapError::Eof) => return file,
            Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn start(client: &mut Client, file: &File, params: Value) -> Value {
    client.call_with(file, "capture.start", params).unwrap()["capture"].clone()
}

/// Starts a capture without a reader, up to its first lost packet.
fn start_unread(client: &mut Client) -> (PipeReader, Value) {
    let (reader, writer) = std::io::pipe().unwrap();
    let writer = File::from(std::os::fd::OwnedFd::from(writer));
    let capture = start(client, &writer, json!({ "buffer_bytes": 262_144 }));
    drop(writer);
    wait_until("packets are lost", || {
        client.good("capture.list", json!({}))["captures"][0]["packets_lost"] != 0
    });
    (reader, capture)
}

/// Waits until the newest interface of the only capture has this many packets written.
fn wait_for(client: &mut Client, packets: u64) {
    wait_until("packets are written", || {
        let list = client.good("capture.list", json!({}));
        let last = list["captures"][0]["interfaces"].as_array().unwrap().last().unwrap().clone();
        last["written"].as_u64().unwrap() >= packets
    });
}

#[test]
fn every_stage_can_be_captured_to_the_packet() {
    let text = format!(
        "{STEADY}[host]\nqueues = 2\n[[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"rss\"\n"
    );
    let card = Served::start(&text);
    let mut client = card.client();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.pcapng");
    let params = json!({ "stages": ["wire", "rx", "queue", "tx"], "snap_bytes": 60, "buffer_bytes": 16 << 20 });
    let file = File::create(&path).unwrap();
    let started = client.call_with(&file, "capture.start", params.clone()).unwrap();
    // Of a card that is not shared with the kernel, all packets are there.
    assert!(started["note"].is_null(), "{started}");
    assert_eq!(
        started["interfaces"],
        json!(["wire0", "rx[0] pass", "rx[1] rss", "queue0", "queue1"])
    );
    // A preempted target core takes its packets later.
    wait_until("packets of every stage are written", || {
        let list = client.good("capture.list", json!({}));
        let interfaces = list["captures"][0]["interfaces"].as_array().unwrap();
        interfaces.iter().all(|interface| interface["written"].as_u64() > Some(1000))
    });
    let outcome = client.good("capture.stop", json!({ "capture": started["capture"] }));
    assert_eq!(outcome["ended_by"], "stop");
    let pcapng = read(&std::fs::read(&path).unwrap());
    assert_eq!(outcome["packets_written"], pcapng.packets.len());
    assert_eq!(json!(pcapng.interfaces), started["interfaces"]);
    assert!(pcapng.packets.iter().all(|packet| (packet.2, packet.3) == (60, 100)));
    for interface in 0..5 {
        let times: Vec<_> = pcapng
            .packets
            .iter()
            .filter(|packet| packet.0 == interface)
            .map(|packet| packet.1)
            .collect();
        assert!(times.is_sorted() && !times.is_empty(), "interface {interface}");
        let (seen, dropped) = pcapng.statistics[interface as usize];
        assert_eq!(seen, times.len() as u64 + dropped);
        // Now, and not in 1970.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let age = now.as_nanos() as i128 - i128::from(times[0]);
        assert!((0..2 * PATIENCE.as_nanos() as i128).contains(&age), "{age} ns ago");
    }

    // A limit is kept to the packet.
    let mut limited = params;
    limited["packets"] = json!(200_000);
    let capture = start(&mut client, &File::create(&path).unwrap(), limited);
    let outcome = client.good("capture.wait", json!({ "capture": capture }));
    assert_eq!(
        (&outcome["ended_by"], &outcome["packets_written"]),
        (&json!("limit"), &json!(200_000))
    );
    let pcapng = read(&std::fs::read(&path).unwrap());
    assert_eq!(pcapng.packets.len(), 200_000);
    for (interface, &statistics) in (0..).zip(&pcapng.statistics) {
        let packets = pcapng.packets.iter().filter(|packet| packet.0 == interface).count() as u64;
        let lost = outcome["interfaces"][interface as usize]["lost"].as_u64().unwrap();
        assert_eq!(statistics, (packets + lost, lost));
    }
    assert_eq!(client.good("capture.list", json!({}))["captures"], json!([]));
    card.stop();
}

#[test]
fn swapped_in_functions_are_captured_and_traced() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.pcapng");
    let section = format!(
        "[trace]\nstages = [\"rx\"]\nbuffer_bytes = 16777216\npath = \"{}\"\n",
        trace.display()
    );
    // Slow enough for the trace's buffer, however late its file is written.
    let steady = STEADY.replace("rate_pps = 200000", "rate_pps = 2000");
    let card = Served::start(&format!("{steady}{section}"));
    let mut client = card.client();
    let path = folder.path().join("capture.pcapng");
    let capture =
        start(&mut client, &File::create(&path).unwrap(), json!({ "stages": ["rx", "tx"] }));
    wait_for(&mut client, 200);
    let functions = json!([{ "function": "pass" }, { "function": "rss" }]);
    client.good("chain.swap", json!({ "chain": "rx", "functions": functions }));
    wait_for(&mut client, 200);
    let outcome = client.good("capture.stop", json!({ "capture": capture }));
    assert_eq!(outcome["ended_by"], "stop");
    let report = card.stop().trace.unwrap();
    assert_eq!(report.error, None);
    for path in [path, trace] {
        let pcapng = read(&std::fs::read(&path).unwrap());
        assert_eq!(pcapng.interfaces, ["rx[0] rss", "rx[0] pass", "rx[1] rss"], "{path:?}");
        for interface in 0..3 {
            let packets = pcapng.packets.iter().filter(|packet| packet.0 == interface).count();
            assert!(packets > 100, "{packets} at {interface} of {path:?}");
        }
    }
}

#[test]
fn captures_start_and_end_under_load_without_loss() {
    let card = Served::start(&format!("{STEADY}[host]\nqueues = 4\nverify_order = true\n"));
    let mut client = card.client();
    let folder = tempfile::tempdir().unwrap();
    let all = json!({ "stages": ["wire", "rx", "queue"], "buffer_bytes": 262_144 });
    for round in 0..20 {
        let path = folder.path().join(format!("{round}.pcapng"));
        let capture = start(&mut client, &File::create(&path).unwrap(), all.clone());
        wait_for(&mut client, 1);
        let outcome = client.good("capture.stop", json!({ "capture": capture }));
        let pcapng = read(&std::fs::read(&path).unwrap());
        assert_eq!(outcome["packets_written"], pcapng.packets.len(), "{outcome}");
        assert!(!pcapng.packets.is_empty(), "nothing in round {round}");
    }
    let report = card.stop();
    let order: Vec<_> = report.notes.iter().filter(|note| note.contains("in order")).collect();
    // On a busy machine a ring may overflow, which is counted.
    assert!(order.iter().all(|note| note.contains("in order, 0 reordered")), "{order:?}");
    let skips = order.iter().any(|note| !note.ends_with(" 0 skipped"));
    assert!(!skips || report.ledger.dropped != 0, "{order:?} {:?}", report.ledger);
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_card() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let capture = start(&mut client, &full, json!({}));
    let outcome = client.good("capture.wait", json!({ "capture": capture }));
    assert_eq!(outcome["ended_by"], "error");
    assert!(outcome["error"].as_str().unwrap().starts_with("No space left"), "{outcome}");
    let mut delivered = || client.good("card.stats", json!({}))["ledger"]["delivered"].as_u64();
    let before = delivered();
    wait_until("the card delivers more", || delivered() > before);
    card.stop();
}

#[test]
fn slow_capture_readers_harm_only_their_capture() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let (reader, capture) = start_unread(&mut client);
    // Another client is served while this one waits for the end of the capture.
    let mut other = card.client();
    let call = json!({ "jsonrpc": "2.0", "id": 77, "method": "capture.stop",
                       "params": { "capture": capture } });
    let asked = Instant::now();
    client.send(&format!("{call}\n"));
    other.good("card.stats", json!({}));
    let outcome = client.line().unwrap();
    // At least: a slow machine makes it longer.
    assert!(asked.elapsed() >= Duration::from_secs(1), "the reader had its second");
    assert_eq!(outcome["id"], 77);
    let error = outcome["result"]["error"].as_str().unwrap();
    assert_eq!(error, "no process reads it: unread data is lost");
    drop(reader);
    card.stop();
}

#[test]
fn waiting_calls_per_client_are_limited() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let (_reader, capture) = start_unread(&mut client);
    let call = |id: u32| {
        let wait = json!({ "jsonrpc": "2.0", "id": id, "method": "capture.wait",
                           "params": { "capture": capture } });
        format!("{wait}\n")
    };
    let calls: String = (0..65).map(call).collect();
    client.send(&calls);
    let answer = client.line().unwrap();
    assert_eq!(answer["id"], 64, "{answer}");
    let message = "64 calls wait for captures, which is the limit";
    assert_eq!(answer["error"]["message"], message);
    card.stop();
}

#[test]
fn waiting_clients_learn_of_the_cards_end() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let (_reader, capture) = start_unread(&mut client);
    let call = json!({ "jsonrpc": "2.0", "id": 77, "method": "capture.wait",
                       "params": { "capture": capture } });
    client.send(&format!("{call}\n"));
    // Once the next call is answered, this one has been read.
    client.good("card.stats", json!({}));
    card.stop();
    let outcome = client.line().unwrap();
    assert_eq!(outcome["id"], 77);
    let error = outcome["result"]["error"].as_str().unwrap();
    assert_eq!(error, "no process reads it: unread data is lost");
}

#[test]
fn capture_readers_get_all_and_end_it_by_leaving() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let writer = File::from(std::os::fd::OwnedFd::from(writer));
    let capture = start(&mut client, &writer, json!({ "packets": 3000 }));
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    let pcapng = read(&bytes);
    assert_eq!(pcapng.packets.len(), 3000);
    assert_eq!(pcapng.statistics.len(), 1);
    client.good("capture.wait", json!({ "capture": capture }));

    let (mut reader, writer) = std::io::pipe().unwrap();
    let writer = File::from(std::os::fd::OwnedFd::from(writer));
    let capture = start(&mut client, &writer, json!({}));
    drop(writer);
    reader.read_exact(&mut [0; 1000]).unwrap();
    drop(reader);
    let outcome = client.good("capture.wait", json!({ "capture": capture }));
    assert!(outcome["error"].as_str().unwrap().starts_with("Broken pipe"), "{outcome}");
    card.stop();
}

#[test]
fn a_capture_can_belong_to_its_connection() {
    let card = Served::start(STEADY);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pcapng");
    let mut client = card.client();
    start(&mut client, &File::create(&path).unwrap(), json!({ "attached": true }));
    let mut other = card.client();
    let capture = start(&mut other, &File::create(folder.path().join("y")).unwrap(), json!({}));
    assert_eq!(other.good("capture.list", json!({}))["captures"].as_array().unwrap().len(), 2);
    drop(client);
    wait_until("the capture has ended with its client", || {
        let list = other.good("capture.list", json!({}));
        let left = list["captures"].as_array().unwrap();
        left.len() == 1 && left[0]["capture"] == capture
    });
    assert_eq!(read(&std::fs::read(&path).unwrap()).statistics.len(), 1, "the file is whole");
    wait_for(&mut other, 1);
    // The end of the card ends the other capture, whose file is complete too.
    card.stop();
    let pcapng = read(&std::fs::read(folder.path().join("y")).unwrap());
    assert!(pcapng.statistics.len() == 1 && !pcapng.packets.is_empty());
}

/// A client that waits silently can only be noticed to have left by its connection.
#[test]
fn leaving_clients_end_their_capture() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let file = tempfile::tempfile().unwrap();
    let capture = start(&mut client, &file, json!({ "attached": true }));
    let call = json!({ "jsonrpc": "2.0", "id": 77, "method": "capture.wait",
                       "params": { "capture": capture } });
    client.send(&format!("{call}\n"));
    client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut other = card.client();
    let mut captures = || other.good("capture.list", json!({}))["captures"].clone();
    assert_eq!(captures().as_array().unwrap().len(), 1, "it still waits");
    drop(client);
    wait_until("its capture has ended", || captures() == json!([]));
    card.stop();
}

#[test]
fn impossible_captures_are_refused_with_a_reason() {
    let card = Served::start(STEADY);
    let mut client = card.client();
    let error = client.error("capture.start", json!({}));
    assert_eq!(error, "missing, expected an open file, sent with the call (SCM_RIGHTS)");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let mut refused = |file: &File, params: Value| {
        let error = client.call_with(file, "capture.start", params).unwrap_err();
        error["message"].as_str().unwrap().to_owned()
    };
    let file = File::create(&path).unwrap();
    let message = refused(&file, json!({ "stages": ["tx"] }));
    assert_eq!(message, "nothing can be captured at tx: the chain has no functions");
    let message = refused(&File::open(&path).unwrap(), json!({}));
    assert_eq!(message, "the file sent with the call is open for reading only");
    for _ in 0..4 {
        start(&mut client, &file, json!({}));
    }
    let error = client.call_with(&file, "capture.start", json!({})).unwrap_err();
    assert_eq!(error["message"], "4 captures run, which is the limit");
    let error = client.error("capture.stop", json!({ "capture": 99 }));
    assert_eq!(error, "capture: found 99, running: 1, 2, 3, 4");
    let batch = "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"capture.stop\",\
                 \"params\":{\"capture\":1}}]\n";
    client.send(batch);
    let answer = client.line().unwrap();
    assert_eq!(answer[0]["error"]["message"], "this method is answered later: not in a batch");
    card.stop();
}
