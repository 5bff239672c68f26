//! The application against a generator's packets.

use super::*;
use crate::generator::{Generator, GeneratorConfig, Size};
use picnic_core::config::Section;
use picnic_core::ledger::Ledger;
use picnic_core::packet::pool::{Pool, PoolConfig, ReturnSender};
use picnic_core::packet::wire::{EtherType, Ethernet, IpProtocol, Ipv4, Ipv6, Tcp, Udp};
use picnic_core::port::{Receiver, WirePort};
use picnic_core::ring::spsc::{self, Consumer, Producer};
use picnic_core::stats::{TargetCounters, WireCounters};

struct Card {
    pool: Pool,
    returns: ReturnSender,
    tx: Producer<Descriptor>,
    sent: Consumer<Descriptor>,
    counters: TargetCounters,
    ledger: Ledger,
    wire: Generator,
    burst: Burst,
}

impl Card {
    fn new(config: &GeneratorConfig, tx_ring: usize) -> Self {
        let (pool, mut returns) = Pool::new(&PoolConfig::default(), 1).unwrap();
        let (tx, sent) = spsc::channel(tx_ring);
        Card {
            pool,
            returns: returns.remove(0),
            tx,
            sent,
            counters: TargetCounters::default(),
            ledger: Ledger::new(1),
            wire: Generator::new(config, &BuildContext::default()).unwrap(),
            burst: Burst::new(),
        }
    }

    fn receive(&mut self, count: usize) {
        let counters = WireCounters::default();
        let card = &self.ledger.card;
        let (pool, burst) = (&mut self.pool, &mut self.burst);
        let mut rx = Receiver::new(pool, burst, &counters, card, Time::ZERO, 2, count);
        self.wire.receive(Time::ZERO, &mut rx);
    }

    fn deliver(&mut self, queue: &mut dyn HostQueue) -> u64 {
        let ledger = &self.ledger.queues[0];
        let mut out = QueueOut::new(&mut self.returns, &mut self.tx, &self.counters, ledger);
        let work = queue.deliver(Time::ZERO, &mut self.burst, &mut out);
        assert!(self.burst.is_empty());
        work
    }

    fn take_sent(&mut self) -> Vec<Descriptor> {
        self.sent.refresh();
        let packets = std::iter::from_fn(|| self.sent.pop()).collect();
        self.sent.release();
        packets
    }
}

fn app(config: AppConfig) -> (Box<dyn HostQueue>, Arc<[AppCounters]>) {
    let mut app = App::new(config, &BuildContext::default()).unwrap();
    (app.open_queue(0).unwrap(), app.counters())
}

#[test]
fn sink_reads_and_delivers_all_and_reports_its_cost() {
    let mut card = Card::new(&GeneratorConfig::default(), 64);
    let (mut queue, counters) = app(AppConfig { cost_ns: 250, ..AppConfig::default() });
    card.receive(40);
    let expected = card.burst.as_slice().iter().fold(0_u64, |sum, packet| {
        let words = packet.data()[..40].chunks(8);
        words.fold(sum, |sum, word| sum.wrapping_add(u64::from_ne_bytes(word.try_into().unwrap())))
    });
    assert_eq!(card.deliver(&mut *queue), 40 * 250);
    assert_eq!(counters[0].digest.get(), expected);
    assert_eq!(queue.report(), [""; 0], "nothing was checked");
    assert_eq!(card.ledger.queues[0].delivered.get(), 40);
    assert_eq!(card.counters.bytes.get(), 40 * 60);
    assert_eq!(card.pool.outstanding(), 0);
}

/// Both ends of a frame, and whether its checksums are right.
fn ends(frame: &[u8]) -> ([Vec<u8>; 6], bool) {
    let ethernet = Ethernet::new_checked(frame).unwrap();
    let macs = [ethernet.source().0.to_vec(), ethernet.destination().0.to_vec()];
    let (ether_type, l3) = match ethernet.ether_type() {
        EtherType::VLAN => {
            (EtherType(u16::from_be_bytes([frame[16], frame[17]])), &ethernet.into_payload()[4..])
        }
        ether_type => (ether_type, ethernet.into_payload()),
    };
    let (ips, protocol, pseudo, ip_right, l4) = if ether_type == EtherType::IPV4 {
        let ip = Ipv4::new_checked(l3).unwrap();
        let ips = [ip.source().octets().to_vec(), ip.destination().octets().to_vec()];
        (ips, ip.protocol(), ip.pseudo_header(), ip.verify_checksum(), ip.into_payload())
    } else {
        let ip = Ipv6::new_checked(l3).unwrap();
        let ips = [ip.source().octets().to_vec(), ip.destination().octets().to_vec()];
        (ips, ip.next_header(), ip.pseudo_header(), true, ip.into_payload())
    };
    let (ports, right) = if protocol == IpProtocol::TCP {
        let tcp = Tcp::new_checked(l4).unwrap();
        ([tcp.source_port(), tcp.destination_port()], tcp.verify_checksum(pseudo))
    } else {
        let udp = Udp::new_checked(l4).unwrap();
        ([udp.source_port(), udp.destination_port()], udp.verify_checksum(pseudo))
    };
    let [source, destination] = macs;
    let [ip_source, ip_destination] = ips;
    let [port, other] = ports.map(|port| port.to_be_bytes().to_vec());
    ([source, ip_source, port, destination, ip_destination, other], ip_right && right)
}

#[test]
fn an_echo_swaps_both_ends_and_keeps_checksums() {
    for parsed in [false, true] {
        let config = GeneratorConfig {
            tcp_share: 0.5,
            ipv6_share: 0.5,
            vlan_share: 0.5,
            size: Size::Range(60, 1514),
            ..GeneratorConfig::default()
        };
        let mut card = Card::new(&config, 64);
        let (mut queue, _) = app(AppConfig { mode: Mode::Echo, ..AppConfig::default() });
        card.receive(64);
        if parsed {
            for packet in card.burst.as_mut_slice() {
                packet.parse();
            }
        }
        let before: Vec<_> = card.burst.as_slice().iter().map(|p| p.data().to_vec()).collect();
        card.deliver(&mut *queue);
        let sent = card.take_sent();
        assert_eq!(sent.len(), 64);
        for (packet, before) in sent.into_iter().zip(before) {
            let (mut swapped, right) = ends(packet.data());
            assert!(right);
            swapped.rotate_left(3);
            assert_eq!((swapped, true), ends(&before));
            card.pool.free(packet);
        }
        let ledger = &card.ledger.queues[0];
        assert_eq!(
            (ledger.delivered.get(), ledger.submitted.get(), ledger.made.get()),
            (64, 64, 64)
        );
        assert_eq!(card.pool.outstanding(), 0);
    }
}

#[test]
fn an_echo_without_room_is_a_counted_drop() {
    let mut card = Card::new(&GeneratorConfig::default(), 64);
    let (mut queue, _) = app(AppConfig { mode: Mode::Echo, ..AppConfig::default() });
    for _ in 0..2 {
        card.receive(64);
        card.deliver(&mut *queue);
    }
    let sent = card.take_sent();
    assert_eq!(sent.len(), 64);
    assert_eq!(card.ledger.queues[0].drops.total(), 64);
    sent.into_iter().for_each(|packet| card.pool.free(packet));
    assert_eq!(card.pool.outstanding(), 0);
}

#[test]
fn any_bytes_are_accepted() {
    let config = GeneratorConfig { vlan_share: 1.0, ..GeneratorConfig::default() };
    for mode in [Mode::Sink, Mode::Echo] {
        let mut card = Card::new(&config, 1024);
        let (mut queue, counters) =
            app(AppConfig { mode, verify_order: true, ..AppConfig::default() });
        card.receive(1);
        let frame = card.burst.as_slice()[0].data().to_vec();
        for length in 0..=frame.len() {
            if card.burst.room() == 0 {
                card.deliver(&mut *queue);
            }
            card.burst.push(card.pool.packet(&frame[..length]).unwrap()).unwrap();
        }
        card.deliver(&mut *queue);
        let unnumbered = frame.len() as u64 + 2;
        assert_eq!(counters[0].unnumbered.get(), unnumbered);
        let told = queue.report().concat();
        assert!(told.ends_with(&format!(", {unnumbered} without a sequence number")), "{told}");
        card.take_sent().into_iter().for_each(|packet| card.pool.free(packet));
        assert_eq!(card.pool.outstanding(), 0);
    }
}

#[test]
fn order_is_judged_within_each_flow() {
    let config = GeneratorConfig {
        flows: 8,
        tcp_share: 0.5,
        size: Size::Fixed(100),
        sequence_numbers: true,
        ..GeneratorConfig::default()
    };
    let mut card = Card::new(&config, 64);
    let (mut queue, counters) = app(AppConfig { verify_order: true, ..AppConfig::default() });
    let counts = || {
        let c = &counters[0];
        [&c.numbered, &c.unnumbered, &c.reordered, &c.skipped].map(Counter::get)
    };
    for _ in 0..10 {
        card.receive(64);
        card.deliver(&mut *queue);
    }
    assert_eq!(counts(), [640, 0, 0, 0]);
    assert_eq!(queue.report(), ["queue 0: 640 packets in order, 0 reordered, 0 skipped"]);
    // Each flow's packets in reverse: all except the first arrive after a later one, and each flow
    // skips as many as arrive late.
    card.receive(64);
    let mut flows = std::collections::BTreeSet::new();
    for packet in card.burst.as_slice() {
        let frame = packet.data();
        flows.insert(frame[26..38].to_vec());
    }
    card.burst.as_mut_slice().reverse();
    card.deliver(&mut *queue);
    let late = 64 - flows.len() as u64;
    assert_eq!(counts(), [704, 0, late, late]);
    let told = format!("{} packets in order, {late} reordered, {late} skipped", 704 - late);
    assert_eq!(queue.report(), [format!("queue 0: {told}")]);
    // A packet lost.
    card.receive(64);
    let lost = card.burst.as_mut_slice().len() / 2;
    card.burst.as_mut_slice()[lost..].rotate_left(1);
    card.pool.free(card.burst.pop().unwrap());
    card.deliver(&mut *queue);
    assert_eq!(counts()[2], late);
    assert!(counts()[3] <= late + 1);
}

#[test]
fn bad_values_are_refused() {
    let build = |keys: &str| {
        let text = format!("attachment = \"app\"\n{keys}");
        let section = Section::from_text("attachment", &text)?;
        let entry = picnic_core::registry::find(crate::registry::ATTACHMENTS, &section)?;
        entry.build(&section, &BuildContext::default()).map(drop)
    };
    for (keys, key, text) in [
        ("cost_ns = 1000000001", "cost_ns", "found 1000000001, allowed: 0 to 1000000000"),
        ("cost_ns = -1", "cost_ns", "-1"),
        ("mode = \"source\"", "mode", "allowed: sink, echo"),
        ("verify_order = 1", "verify_order", "true or false"),
        ("cost = 1", "cost", "found key \"cost\""),
    ] {
        let error = build(keys).unwrap_err();
        assert_eq!((error.key.as_str(), error.line), (key, 2), "{keys}: {error}");
        assert!(error.message.contains(text), "{keys}: {error}");
    }
    assert!(build("mode = \"echo\"\ncost_ns = 5\nverify_order = true").is_ok());
    let mut app = App::new(AppConfig::default(), &BuildContext::default()).unwrap();
    assert!(app.open_queue(4).is_err_and(|error| error.message.contains("queue 4 of 4")));
}

#[test]
fn damaged_sequence_numbers_are_ignored() {
    for (ipv6_share, tcp_share) in [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] {
        let config = GeneratorConfig {
            flows: 1,
            ipv6_share,
            tcp_share,
            size: Size::Fixed(100),
            sequence_numbers: true,
            ..GeneratorConfig::default()
        };
        let mut card = Card::new(&config, 64);
        let (mut queue, counters) = app(AppConfig { verify_order: true, ..AppConfig::default() });
        card.receive(64);
        let data = card.burst.as_mut_slice()[10].data_mut();
        let stamp = data.windows(4).skip(12).position(|bytes| bytes == b"PICN").unwrap() + 12;
        // The highest bit of the number.
        data[stamp + 8] ^= 0x80;
        card.deliver(&mut *queue);
        let told = "queue 0: 63 packets in order, 0 reordered, 1 skipped, 1 with a wrong checksum";
        assert_eq!(queue.report(), [told]);
        assert_eq!(counters[0].damaged.get(), 1);
    }
}
