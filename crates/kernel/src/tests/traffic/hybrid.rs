//! Cards shared by the kernel and the poll engine: exact counts of both, with and without changes.

use super::ends::Victim;
use super::*;
use picnic_control::Launch;
use picnic_control::launch::ServedCard;
use picnic_control::report::{KernelReport, PollReport, Stamp};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;

/// Flows whose packets a filter sends to the poll engine, which echoes them.
const POLLED: u16 = FLOWS / 2;

/// The card's chain: a function without a kernel form, and one with.
const CHAIN: &str = "[[rx]]\nfunction = \"lro\"\n[[rx]]\nfunction = \"rss\"\n\
                     types = [\"ipv4\", \"udp-ipv4\"]\n";

/// The same after a filter that sends half of the flows to the poll engine.
pub(super) fn chain() -> String {
    let last = 9000 + POLLED - 1;
    format!(
        "{CHAIN}[[filter]]\nname = \"seen\"\n[[filter]]\nname = \"there\"\nprotocol = \"udp\"\n\
         source_ports = \"9000-{last}\"\naction = \"poll\"\n"
    )
}

/// Places where packets arrived.
#[derive(Debug, Default)]
struct Tally {
    /// At the card's network stack.
    by_stack: AtomicU64,
    /// Back at their senders.
    sent_back: AtomicU64,
}

impl Tally {
    fn all(&self) -> u64 {
        self.by_stack.load(Relaxed) + self.sent_back.load(Relaxed)
    }
}

/// Sends packets of all flows in turn, alternating between the engines, always with some in flight,
/// as long as `next` returns true. All packets arrive somewhere.
fn exchange(bed: &Bed, tally: &Tally, next: impl Fn() -> bool + Sync) -> u64 {
    let (server, flows) = bed.sockets();
    server.set_nonblocking(true).unwrap();
    flows.iter().for_each(|flow| flow.set_nonblocking(true).unwrap());
    let (stay, go) = flows.split_at(POLLED.into());
    let turns: Vec<_> = stay.iter().zip(go).flat_map(|(one, other)| [one, other]).collect();
    let (mut sent, mut buffer, before) = (0, [0; 64], tally.all());
    let mut turn = turns.iter().cycle();
    let take = |buffer: &mut [u8]| {
        while let Ok(length) = server.recv(buffer) {
            assert_eq!(&buffer[..length], b"picnic");
            tally.by_stack.fetch_add(1, Relaxed);
        }
        for flow in &flows {
            while let Ok((length, from)) = flow.recv_from(buffer) {
                assert_eq!((&buffer[..length], from), (&b"picnic"[..], SocketAddr::from(TO)));
                tally.sent_back.fetch_add(1, Relaxed);
            }
        }
    };
    while next() {
        for _ in 0..BATCH {
            turn.next().unwrap().send_to(b"picnic", SocketAddr::from(TO)).unwrap();
        }
        sent += BATCH as u64;
        wait_until("the batch has arrived", || {
            take(&mut buffer);
            tally.all() - before == sent
        });
    }
    sent
}

/// Sends a number of packets.
fn send(bed: &Bed, tally: &Tally, packets: usize) {
    let left = AtomicUsize::new(packets / BATCH);
    let next = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
    assert_eq!(exchange(bed, tally, next), packets as u64);
}

fn check_ledger(report: &Report, received: u64, by_poll: u64) {
    let ledger = &report.ledger;
    assert!(ledger.balanced(), "{ledger:?}");
    assert_eq!((ledger.in_flight, ledger.dropped), (0, 0), "{report:?}");
    // Echoed packets enter a second time, from the host.
    assert_eq!((ledger.r#in, ledger.delivered), (received + by_poll, received), "{report:?}");
    assert_eq!((ledger.transmitted, report.wires[0].tx_packets), (by_poll, by_poll));
    assert_eq!((report.wires[0].rx_packets, report.wires[0].rx_shed), (received, 0));
    let (packets, delivered, dropped) = (by_poll, by_poll, 0);
    let poll = PollReport { packets, taken: packets, lost: 0, delivered, dropped };
    assert_eq!((&report.poll, report.buffers_missing), (&Some(poll), 0));
    let packets = received - by_poll;
    assert_eq!(report.kernel, Some(KernelReport { packets, delivered: packets, dropped }));
    assert_eq!(report.engine, "hybrid");
    assert!(report.notes.iter().all(|note| !note.contains("bug")), "{:?}", report.notes);
}

#[test]
fn packets_go_where_their_filter_sends_them() {
    let Some(bed) = Bed::new("packets_go_where_their_filter_sends_them") else { return };
    let _machine = machine();
    let before = bed.state();
    let running = start(&bed.card("hybrid", &chain()));
    assert_eq!(bed.state(), at_work("cpumap"));
    let (tally, each) = (Tally::default(), 50_048);
    send(&bed, &tally, 2 * each);
    assert_eq!(tally.by_stack.into_inner(), each as u64);
    assert_eq!(tally.sent_back.into_inner(), each as u64);
    assert!(running.is_alive());
    let filters = running.filters().clone();
    let report = running.stop().unwrap();
    check_ledger(&report, 2 * each as u64, each as u64);
    // Both engines find the same queues.
    let config = Config { types: vec![HashType::Ipv4, HashType::UdpIpv4], ..Config::default() };
    let mut wanted = [0; CORES];
    let rounds = each as u64 / u64::from(POLLED);
    queues(&config).into_iter().for_each(|queue| wanted[queue] += rounds);
    assert_eq!(report.queues.iter().map(|queue| queue.packets).collect::<Vec<_>>(), wanted);
    let bytes: u64 = report.queues.iter().map(|queue| queue.bytes).sum();
    assert_eq!((bytes, report.wires[0].rx_bytes), (2 * each as u64 * 48, bytes));
    let functions: Vec<_> =
        report.functions.iter().map(|found| (&*found.name, found.packets)).collect();
    assert_eq!(functions, [("lro", each as u64), ("rss", 2 * each as u64)]);
    // Each filter has seen each packet once.
    let counts: Vec<_> = filters.list().iter().map(|listing| listing.packets).collect();
    assert_eq!(counts, [2 * each as u64, each as u64]);
    assert_eq!(bed.state(), before, "{:?}", report.notes);
}

#[test]
fn flows_change_sides_while_packets_flow() {
    let Some(bed) = Bed::new("flows_change_sides_while_packets_flow") else { return };
    let _machine = machine();
    let running = start(&bed.card("hybrid", CHAIN));
    let note = "no filter has action = \"poll\"";
    let told = running.placement().warnings.iter().any(|warning| warning.contains(note));
    assert!(told, "{:?}", running.placement().warnings);
    let filters = running.filters().clone();
    let (tally, is_done) = (Tally::default(), AtomicBool::new(false));
    let udp = FiveTuple { protocol: Some(Protocol::UDP), ..FiveTuple::default() };
    let sent = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| exchange(&bed, &tally, || !is_done.load(Relaxed)));
        // On any failure, it ends.
        let ends = Ends([&is_done, &is_done]);
        let more = |what, count: &AtomicU64| {
            let wanted = count.load(Relaxed) + 200;
            wait_until(what, || count.load(Relaxed) >= wanted);
        };
        more("they go by the stack", &tally.by_stack);
        for _ in 0..5 {
            let id = filters.add(Filter::new("there", udp, Action::Poll)).unwrap();
            more("they come back", &tally.sent_back);
            let stay = Filter::new("there", udp, Action::Accept);
            filters.set(id, stay).unwrap();
            more("they go by the stack again", &tally.by_stack);
            filters.remove(id).unwrap();
        }
        drop(ends);
        traffic.join().unwrap()
    });
    let report = running.stop().unwrap();
    let sent_back = tally.sent_back.into_inner();
    assert_eq!(sent, tally.by_stack.into_inner() + sent_back);
    check_ledger(&report, sent, sent_back);
}

#[test]
fn ending_both_engines_under_load_loses_nothing() {
    let Some(bed) = Bed::new("ending_both_engines_under_load_loses_nothing") else { return };
    let _machine = machine();
    // A change of polling loses a veth's packets: it starts in the card's mode.
    bed.0.within("card", "ethtool -K k0 gro on").unwrap();
    let netns = bed.0.netns("card");
    let set = "echo 1 > /sys/class/net/k0/threaded";
    picnic_machine::command::run(&["ip", "netns", "exec", &netns, "sh", "-c", set]).unwrap();
    let card = bed.card("hybrid", &chain());
    let (tally, is_done) = (Tally::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| exchange(&bed, &tally, || !is_done.load(Relaxed)));
        let ends = Ends([&is_done, &is_done]);
        for _ in 0..5 {
            let running = start(&card);
            let wanted = tally.sent_back.load(Relaxed) + 500;
            wait_until("more has come back", || tally.sent_back.load(Relaxed) >= wanted);
            let report = running.stop().unwrap();
            let poll = report.poll.as_ref().unwrap();
            // Some that came back were the previous card's.
            assert!(poll.packets >= 500 - BATCH as u64, "there was no load: {poll:?}");
            check_ledger(&report, report.wires[0].rx_packets, poll.packets);
        }
        drop(ends);
        traffic.join().unwrap();
    });
}

/// A veth must not lose the packet that its program is handling when it is detached.
#[test]
fn ending_under_a_flood_loses_no_packet_of_the_poll_engine() {
    let test = "ending_under_a_flood_loses_no_packet_of_the_poll_engine";
    let Some(bed) = Bed::new(test) else { return };
    let _machine = machine();
    let netns = bed.0.netns("card");
    bed.0.within("card", "ethtool -K k0 gro on").unwrap();
    let set = "echo 1 > /sys/class/net/k0/threaded";
    picnic_machine::command::run(&["ip", "netns", "exec", &netns, "sh", "-c", set]).unwrap();
    let card = bed.card("hybrid", &chain()).replace("mode = \"echo\"", "mode = \"sink\"");
    let (_server, flows) = bed.sockets();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                for flow in &flows[..POLLED.into()] {
                    flow.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
                }
            }
        });
        let _ends = Ends([&is_done, &is_done]);
        for _ in 0..6 {
            let running = start(&card);
            let polled = || running.monitor().report().poll.unwrap().packets;
            wait_until("packets flow", || polled() >= 1000);
            let report = running.stop().unwrap();
            let ledger = &report.ledger;
            assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger:?}");
            // There may be no room for all, but each has reached its socket.
            let on_the_way = report.drops.get("wire_down").copied().unwrap_or(0);
            assert_eq!(on_the_way, 0, "{report:?}");
            assert!(report.notes.iter().all(|note| !note.contains("bug")), "{report:?}");
        }
    });
}

/// A lost wire ends both runs, with all packets accounted for.
#[test]
fn lost_wires_end_both_engines() {
    let Some(bed) = Bed::new("lost_wires_end_both_engines") else { return };
    let _machine = machine();
    let running = start(&bed.card("hybrid", &chain()));
    send(&bed, &Tally::default(), 2 * BATCH);
    wait_until("all have been counted", || {
        let ledger = running.monitor().report().ledger;
        (ledger.transmitted, ledger.in_flight) == (BATCH as u64, 0)
    });
    bed.0.ip("card", "link del k0").unwrap();
    wait_until("the card has noticed", || !running.is_alive());
    let report = running.stop().unwrap();
    check_ledger(&report, 2 * BATCH as u64, BATCH as u64);
    assert!(report.notes.iter().any(|note| note.contains("was missing")), "{:?}", report.notes);
    let left = bed.0.ip("card", "link show").unwrap();
    assert!(!left.contains("picnic") && !left.contains("k0"), "{left}");
}

/// One call to the control socket, with an optional file; returns all answers.
fn ask(socket: &Path, method: &str, params: &Value, file: Option<&File>) -> Value {
    let stream = UnixStream::connect(socket).unwrap();
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let call = format!("{call}\n");
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
    if !files.is_empty() {
        assert!(along.push(SendAncillaryMessage::ScmRights(&files)));
    }
    let sent = sendmsg(&stream, &[IoSlice::new(call.as_bytes())], &mut along, SendFlags::empty());
    assert_eq!(sent, Ok(call.len()));
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

/// The result of a call.
fn call(socket: &Path, method: &str, params: &Value) -> Value {
    let answer = ask(socket, method, params, None);
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

/// Commands are for the whole card: both engines get a new table at once.
#[test]
fn commands_are_obeyed_by_both() {
    let Some(bed) = Bed::new("commands_are_obeyed_by_both") else { return };
    let _machine = machine();
    let socket = bed.0.folder().join("control");
    let control = format!("[control]\nsocket = \"{}\"\n", socket.display());
    let text = bed.card("hybrid", &chain()) + &control;
    let file = parse(&text);
    let running = Launch::new(&file, super::super::registries()).start().unwrap();
    let (tally, packets) = (Tally::default(), 4 * u64::from(FLOWS));
    let stats = || call(&socket, "card.stats", &json!({}));
    let mut wanted = [0; CORES];
    for queue in [1, 0] {
        call(&socket, "rss.set", &json!({ "table": [queue] }));
        assert_eq!(call(&socket, "rss.get", &json!({}))["table"], json!([queue]));
        send(&bed, &tally, packets as usize);
        wanted[queue] += packets;
        wait_until("all have been counted", || {
            let stats = stats();
            let of = |queue: usize| stats["queues"][queue]["packets"].as_u64().unwrap();
            [of(0), of(1)] == wanted
        });
    }
    // Functions that only the poll engine has, and its host.
    assert_eq!(call(&socket, "lro.get", &json!({}))["position"], json!(0));
    call(&socket, "app.set", &json!({ "cost_ns": 5 }));
    assert_eq!(call(&socket, "moderation.get", &json!({}))["rx_usecs"], json!(20));
    let half = packets;
    let told = json!({
        "packets": half,
        "taken": half,
        "lost": 0,
        "delivered": half,
        "dropped": 0,
    });
    wait_until("both parts have been counted", || stats()["poll"] == told);
    check_ledger(&running.stop().unwrap(), 2 * packets, packets);
}

/// A function's own counters are the sums of both engines', while running and at the end; if only
/// one has it, they are that one's.
#[test]
fn functions_count_in_both() {
    let Some(bed) = Bed::new("functions_count_in_both") else { return };
    let _machine = machine();
    let chain = chain().replace("\"ipv4\", \"udp-ipv4\"", "\"tcp-ipv4\"");
    let (running, call) = serve(&bed, &bed.card("hybrid", &chain));
    let (tally, packets) = (Tally::default(), 4 * u64::from(FLOWS));
    send(&bed, &tally, 2 * packets as usize);
    let is_told = |functions: &Value| {
        let [lro, rss] = functions.as_array().unwrap().as_slice() else { panic!("{functions}") };
        (&lro["counters"]["single"], &rss["counters"]["unhashed"], &rss["gauges"]["queues"])
            == (&json!(packets), &json!(2 * packets), &json!(CORES))
    };
    wait_until("all is told", || {
        is_told(&call("card.stats", json!({ "counters": true }))["functions"])
    });
    let report = running.stop().unwrap();
    check_ledger(&report, 2 * packets, packets);
    let functions = serde_json::to_value(&report.functions).unwrap();
    assert!(is_told(&functions), "{functions}");
}

/// A shared card with a control socket, and a function that calls it.
fn serve(bed: &Bed, text: &str) -> (ServedCard, impl Fn(&str, Value) -> Value + Sync + use<>) {
    let socket = bed.0.folder().join("control");
    let text = format!("{text}[control]\nsocket = \"{}\"\n", socket.display());
    let served = Launch::new(&parse(&text), super::super::registries()).start().unwrap();
    (served, move |method: &str, params: Value| call(&socket, method, &params))
}

/// Chains to swap in, with the names of their functions.
const CHAINS: [(&str, &[&str]); 3] = [
    (
        "[[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"by-wire\"\nqueues = [1]\n",
        &["pass", "by-wire"],
    ),
    ("[[rx]]\nfunction = \"by-wire\"\nqueues = [0]\n", &["by-wire"]),
    (CHAIN, &["lro", "rss"]),
];

/// Both engines switch to the new chain from one packet to the next, without loss.
#[test]
fn chains_of_both_are_swapped_while_packets_flow() {
    let Some(bed) = Bed::new("chains_of_both_are_swapped_while_packets_flow") else { return };
    let _machine = machine();
    let (running, call) = serve(&bed, &bed.card("hybrid", &chain()));
    let swap =
        |chain: &str, toml: &str| call("chain.swap", json!({ "chain": chain, "toml": toml }));
    let (tally, is_done) = (Tally::default(), AtomicBool::new(false));
    let mut sent = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| exchange(&bed, &tally, || !is_done.load(Relaxed)));
        let ends = Ends([&is_done, &is_done]);
        let more = || {
            for count in [&tally.by_stack, &tally.sent_back] {
                let wanted = count.load(Relaxed) + 200;
                wait_until("more has arrived", || count.load(Relaxed) >= wanted);
            }
        };
        more();
        for _ in 0..3 {
            for (toml, names) in CHAINS {
                assert_eq!(swap("rx", toml)["functions"], json!(names));
                more();
            }
            // Only the poll engine has it.
            assert_eq!(swap("tx", "[[tx]]\nfunction = \"pass\"\n")["functions"], json!(["pass"]));
            more();
            assert_eq!(swap("tx", "tx = []\n")["functions"], json!([]));
        }
        drop(ends);
        traffic.join().unwrap()
    });
    // Both use the last chain, and its functions count from zero.
    let packets = 4 * u64::from(FLOWS);
    let stats = || call("card.stats", json!({}));
    for (queue, (toml, names)) in [1, 0].into_iter().zip(CHAINS) {
        wait_until("all have been counted", || {
            let stats = stats();
            let received = &stats["wires"][0]["rx_packets"];
            (received, &stats["ledger"]["in_flight"]) == (&json!(sent), &json!(0))
        });
        swap("rx", toml);
        let before = stats();
        send(&bed, &tally, packets as usize);
        sent += packets;
        let of = |stats: &Value| stats["queues"][queue]["packets"].as_u64().unwrap();
        wait_until("all are in its queue", || of(&stats()) == of(&before) + packets);
        let told: Vec<_> = names.iter().map(|name| json!([name, packets])).collect();
        wait_until("all have been counted", || {
            let functions = stats()["functions"].take();
            let functions = functions.as_array().unwrap().iter();
            told == functions.map(|one| json!([one["name"], one["packets"]])).collect::<Vec<_>>()
        });
    }
    // Commands find the current functions.
    swap("rx", CHAIN);
    call("rss.set", json!({ "table": [1] }));
    assert_eq!(call("lro.get", json!({}))["position"], json!(0));
    let before = stats()["queues"][1]["packets"].as_u64().unwrap();
    send(&bed, &tally, packets as usize);
    sent += packets;
    wait_until("all are in its queue", || {
        stats()["queues"][1]["packets"] == json!(before + packets)
    });
    let report = running.stop().unwrap();
    check_ledger(&report, sent, tally.sent_back.into_inner());
}

/// If one part cannot have the new chain, neither gets it, and both keep theirs.
#[test]
fn swaps_refused_by_one_engine_are_undone_in_the_other() {
    let Some(bed) = Bed::new("swaps_refused_by_one_engine_are_undone_in_the_other") else { return };
    let _machine = machine();
    let wire = bed.second_wire();
    let (running, call) = serve(&bed, &bed.card("hybrid", &(wire + &chain())));
    let socket = bed.0.folder().join("control");
    let refused = |toml: &str| {
        let answer = ask(&socket, "chain.swap", &json!({ "chain": "rx", "toml": toml }), None);
        answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let tally = Tally::default();
    let (packets, all) = (2 * u64::from(FLOWS), AtomicU64::new(0));
    let functions_are = |names: &[&str]| {
        all.fetch_add(packets, Relaxed);
        send(&bed, &tally, packets as usize);
        let chains = call("chain.list", json!({}));
        let found: Vec<_> =
            chains["rx"].as_array().unwrap().iter().map(|one| one["function"].clone()).collect();
        assert_eq!(found, names);
        // With their previous counts.
        wait_until("all have been counted", || {
            let stats = call("card.stats", json!({}));
            let last = &stats["functions"].as_array().unwrap()[names.len() - 1];
            last["packets"] == json!(all.load(Relaxed))
        });
    };
    functions_are(&["lro", "rss"]);
    // Before any change: no form in either part, and no such function.
    let found = refused("[[rx]]\nfunction = \"rate-limit\"\npackets_per_second = 5\n");
    let message = "rx[0].function: found \"rate-limit\", allowed with engine = \"hybrid\": one without a rate";
    assert!(found.contains(message), "{found}");
    let found = refused("[[rx]]\nfunction = \"by-wire\"\nqueues = [7, 0]\n");
    assert!(found.contains("rx[0].queues[0]: found queue 7, allowed: 0 to 1"), "{found}");
    functions_are(&["lro", "rss"]);
    // After the poll engine and one wire of the kernel: the other has lost its interface.
    bed.0.ip("card", "link del k1").unwrap();
    let found = refused("[[rx]]\nfunction = \"drop\"\n");
    assert!(found.contains("programs cannot be replaced"), "{found}");
    functions_are(&["lro", "rss"]);
    call("lro.get", json!({}));
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced() && report.ledger.in_flight == 0, "{:?}", report.ledger);
    assert_eq!((report.ledger.dropped, report.wires[0].rx_packets), (0, all.into_inner()));
}

/// Captures have the poll engine's packets, and say so; swapped-in functions are captured.
#[test]
fn captures_see_packets_of_the_poll_engine() {
    let Some(bed) = Bed::new("captures_see_packets_of_the_poll_engine") else { return };
    let _machine = machine();
    let folder = bed.0.folder().to_owned();
    let trace = folder.join("trace.pcapng");
    let keys = format!("[trace]\npath = \"{}\"\nstages = [\"queue\"]\n", trace.display());
    let (running, call) = serve(&bed, &bed.card("hybrid", &(chain() + &keys)));
    let told = running.placement().warnings.iter().any(|warning| warning.contains("[trace] has"));
    assert!(told, "{:?}", running.placement().warnings);
    let tally = Tally::default();
    let packets = 4 * u64::from(FLOWS);
    let start = |stages: Value| {
        let file = File::create(folder.join("captured.pcapng")).unwrap();
        let socket = folder.join("control");
        ask(&socket, "capture.start", &json!({ "stages": stages }), Some(&file))["result"].take()
    };
    let started = start(json!(["wire", "rx"]));
    assert!(
        started["note"].as_str().unwrap().contains("only packets of the poll engine"),
        "{started}"
    );
    assert_eq!(started["interfaces"], json!(["wire0", "rx[0] lro", "rx[1] rss"]));
    send(&bed, &tally, packets as usize);
    call("chain.swap", json!({ "chain": "rx", "toml": CHAINS[1].0 }));
    send(&bed, &tally, packets as usize);
    // The last burst may not have ended yet: a chain is swapped between two of them.
    call("chain.swap", json!({ "chain": "tx", "toml": "tx = []\n" }));
    let ended = call("capture.stop", json!({ "capture": started["capture"] }));
    let seen: Vec<_> = ended["interfaces"].as_array().unwrap().iter().collect();
    let seen = |name: &str| {
        let of_name = seen.iter().filter(|one| one["name"].as_str().unwrap().contains(name));
        of_name.map(|one| one["written"].as_u64().unwrap()).sum::<u64>()
    };
    // Half of each, and also at the wire on the way back.
    let half = packets / 2;
    assert_eq!(
        [seen("wire0"), seen("lro"), seen("rss"), seen("by-wire")],
        [4 * half, half, half, half]
    );
    let report = running.stop().unwrap();
    assert_eq!(report.trace.as_ref().unwrap().packets_written, packets);
    check_ledger(&report, 2 * packets, packets);
}

/// Packets for the poll engine carry the time of the kernel's program.
#[test]
fn packets_of_the_poll_engine_are_stamped_as_they_arrive() {
    let Some(bed) = Bed::new("packets_of_the_poll_engine_are_stamped_as_they_arrive") else {
        return;
    };
    let _machine = machine();
    for stamps in [true, false] {
        let text = bed.card("hybrid", &chain());
        let text = text.replace("port = \"xdp\"", &format!("port = \"xdp\"\nstamps = {stamps}"));
        let running = start(&text);
        send(&bed, &Tally::default(), 20 * BATCH);
        let report = running.stop().unwrap();
        check_ledger(&report, 20 * BATCH as u64, 10 * BATCH as u64);
        let stamp = if stamps { Stamp::Arrival } else { Stamp::Taken };
        assert_eq!(report.wires[0].stamp, stamp);
        let unstamped = report.notes.iter().find(|note| note.contains("had no arrival time"));
        assert_eq!(unstamped, None);
        // Each waited until the poll engine was woken; by the time of reception, none did.
        let at_wire = report.latency_ns.at_wire;
        assert_eq!(at_wire.is_some_and(|ns| ns > 0), stamps, "{:?}", report.latency_ns);
    }
}

#[test]
fn killed_shared_cards_leave_the_machine_restored() {
    let Some(bed) = Bed::new("killed_shared_cards_leave_the_machine_restored") else { return };
    let _machine = machine();
    let (before, state) = (bed.state(), bed.0.folder().join("state"));
    let mut victim = Victim::start(&bed, "hybrid", &state);
    assert_eq!(bed.state(), at_work("cpumap"));
    send(&bed, &Tally::default(), 20 * BATCH);
    victim.kill();
    wait_until("XDP has gone", || bed.state().program.is_empty());
    let machine = Machine { state: state.clone(), ..Machine::this() };
    let restored = restore_all(&machine, JournalSelection::Stale).unwrap();
    assert!(restored.iter().all(|journal| journal.is_whole()), "{restored:?}");
    assert_eq!(bed.state(), before);
    // And the wire can be used again.
    let running = start(&bed.card("hybrid", &chain()));
    send(&bed, &Tally::default(), 2 * BATCH);
    check_ledger(&running.stop().unwrap(), 2 * BATCH as u64, BATCH as u64);
}

/// Packets that do not fit in a socket are lost there, and in the ledger.
#[test]
fn packets_without_socket_room_are_counted() {
    let Some(bed) = Bed::new("packets_without_socket_room_are_counted") else { return };
    let _machine = machine();
    // Few buffers, each in use while its packet is processed.
    let text = bed
        .card("hybrid", &(chain() + "[pool]\nbuffers = 512\n"))
        .replace("port = \"xdp\"", "port = \"xdp\"\nrx_ring = 64");
    let text = text.replace("mode = \"echo\"", "mode = \"sink\"\ncost_ns = 20000000");
    let running = start(&text);
    let (server, flows) = bed.sockets();
    let polled = &flows[..POLLED.into()];
    let told = || running.monitor().report().poll.unwrap();
    let mut sent = 0;
    wait_until("some are lost", || {
        for flow in polled {
            flow.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
        }
        sent += u64::from(POLLED);
        // The wire itself loses none.
        wait_until("all are there", || told().packets == sent);
        told().lost != 0
    });
    let report = running.stop().unwrap();
    drop((server, flows));
    let (poll, ledger) = (report.poll.as_ref().unwrap(), &report.ledger);
    assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger:?}");
    assert_eq!((poll.packets, poll.taken + poll.lost), (sent, sent));
    assert_eq!(ledger.r#in, sent);
    assert_eq!(report.wires[0].rx_shed, poll.lost, "{report:?}");
    assert!(report.drops["wire_overrun"] >= poll.lost, "{:?}", report.drops);
    let kernel = KernelReport { packets: 0, delivered: 0, dropped: 0 };
    assert_eq!((&report.kernel, poll.dropped), (&Some(kernel), ledger.dropped));
}
