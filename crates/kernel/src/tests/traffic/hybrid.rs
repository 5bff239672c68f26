//! Cards that the kernel shares with the poll engine: exact counts of both, while nothing and while
//! everything changes.

use super::*;
use picnic_control::Launch;
use picnic_control::report::PollReport;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;

/// Flows whose packets a filter sends to the poll engine, which sends them back.
const POLLED: u16 = FLOWS / 2;

/// What the card's chain has: a function without a kernel form, and one with.
const CHAIN: &str = "[[rx]]\nfunction = \"lro\"\n[[rx]]\nfunction = \"rss\"\n\
                     types = [\"ipv4\", \"udp-ipv4\"]\n";

/// The same behind a filter that sends half of the flows to the poll engine.
pub(super) fn chain() -> String {
    let last = 9000 + POLLED - 1;
    format!(
        "{CHAIN}[[filter]]\nname = \"seen\"\n[[filter]]\nname = \"there\"\nprotocol = \"udp\"\n\
         source_ports = \"9000-{last}\"\naction = \"poll\"\n"
    )
}

/// Where packets have arrived.
#[derive(Debug, Default)]
struct Tally {
    /// At the card's network stack.
    by_stack: AtomicU64,
    /// Back at those who have sent them.
    sent_back: AtomicU64,
}

impl Tally {
    fn all(&self) -> u64 {
        self.by_stack.load(Relaxed) + self.sent_back.load(Relaxed)
    }
}

/// Sends packets of all flows in turns, those of both engines by turns, some always under way, as
/// long as `next` says so. All that was sent arrives somewhere.
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

/// Sends so many packets.
fn send(bed: &Bed, tally: &Tally, packets: usize) {
    let left = AtomicUsize::new(packets / BATCH);
    let next = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
    assert_eq!(exchange(bed, tally, next), packets as u64);
}

fn check_ledger(report: &Report, received: u64, by_poll: u64) {
    let ledger = &report.ledger;
    assert!(ledger.balanced(), "{ledger:?}");
    assert_eq!((ledger.in_flight, ledger.dropped), (0, 0), "{report:?}");
    // What is sent back comes in a second time, from the host.
    assert_eq!((ledger.r#in, ledger.delivered), (received + by_poll, received), "{report:?}");
    assert_eq!((ledger.transmitted, report.wires[0].tx_packets), (by_poll, by_poll));
    assert_eq!((report.wires[0].rx_packets, report.wires[0].rx_shed), (received, 0));
    let poll = PollReport { packets: by_poll, taken: by_poll, lost: 0, delivered: by_poll };
    assert_eq!((report.poll, report.buffers_missing), (Some(poll), 0));
    assert_eq!(report.engine, "hybrid");
    assert!(report.notes.iter().all(|note| !note.contains("bug")), "{:?}", report.notes);
}

#[test]
fn each_packet_is_where_its_filter_says() {
    let Some(bed) = Bed::new("each_packet_is_where_its_filter_says") else { return };
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
        // Whatever fails, it ends.
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
fn nothing_is_lost_when_both_end_under_load() {
    let Some(bed) = Bed::new("nothing_is_lost_when_both_end_under_load") else { return };
    let _machine = machine();
    // Another way of polling loses what a veth holds: it is what the card wants from the start.
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
            let poll = report.poll.unwrap();
            assert!(poll.packets >= 500, "there was no load: {poll:?}");
            check_ledger(&report, report.wires[0].rx_packets, poll.packets);
        }
        drop(ends);
        traffic.join().unwrap();
    });
}

/// One call of the control socket.
fn call(socket: &Path, method: &str, params: &Value) -> Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    writeln!(stream, "{call}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

/// Commands are for the whole card: a table is another in both engines at once.
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
    // What the poll engine has alone, and what is of its host.
    assert_eq!(call(&socket, "lro.get", &json!({}))["position"], json!(0));
    call(&socket, "app.set", &json!({ "cost_ns": 5 }));
    assert_eq!(call(&socket, "moderation.get", &json!({}))["rx_usecs"], json!(20));
    let poll = stats()["poll"].clone();
    let half = packets;
    let told = json!({ "packets": half, "taken": half, "lost": 0, "delivered": half });
    assert_eq!(poll, told);
    check_ledger(&running.stop().unwrap(), 2 * packets, packets);
}

#[test]
fn a_killed_card_of_both_leaves_the_machine_as_it_was() {
    let Some(bed) = Bed::new("a_killed_card_of_both_leaves_the_machine_as_it_was") else { return };
    let _machine = machine();
    let (before, state) = (bed.state(), bed.0.folder().join("state"));
    let mut victim = Victim::start(&bed, "hybrid", &state);
    assert_eq!(bed.state(), at_work("cpumap"));
    send(&bed, &Tally::default(), 20 * BATCH);
    victim.kill();
    wait_until("XDP has gone", || bed.state().program.is_empty());
    let machine = Machine { state: state.clone(), ..Machine::this() };
    let restored = restore_all(&machine, Which::Stale).unwrap();
    assert!(restored.iter().all(|journal| journal.is_whole()), "{restored:?}");
    assert_eq!(bed.state(), before);
    // And the wire can be had again.
    let running = start(&bed.card("hybrid", &chain()));
    send(&bed, &Tally::default(), 2 * BATCH);
    check_ledger(&running.stop().unwrap(), 2 * BATCH as u64, BATCH as u64);
}

/// Packets that a socket has no room for are lost there, and in the ledger.
#[test]
fn what_a_socket_has_no_room_for_is_counted() {
    let Some(bed) = Bed::new("what_a_socket_has_no_room_for_is_counted") else { return };
    let _machine = machine();
    // Few buffers, of which each is kept for as long as its packet is worked on.
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
    let (poll, ledger) = (report.poll.unwrap(), &report.ledger);
    assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger:?}");
    assert_eq!((poll.packets, poll.taken + poll.lost), (sent, sent));
    assert_eq!(ledger.r#in, sent);
    assert_eq!(report.wires[0].rx_shed, poll.lost, "{report:?}");
    assert!(report.drops["wire_overrun"] >= poll.lost, "{:?}", report.drops);
}
