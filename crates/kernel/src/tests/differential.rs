//! The same packets through the poll engine's functions and the loaded programs: verdict, queue,
//! hash, hashed fields and bytes are equal.

use super::frames::{captured, frames};
use super::functions::{Card, Door, Packet, Seen, build};
use super::{can_load, launch, parse};
use crate::object::Object;
use crate::plan::plan;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions, Xdp};
use picnic_core::packet::desc::RssType;
use picnic_core::registry::BuildContext;
use picnic_forms::Handover;
use picnic_functions::registry::FUNCTIONS;
use picnic_machine::relay::Relay;
use std::cmp::Reverse;
use std::collections::BTreeMap;

pub(super) const QUEUES: u16 = 2;
/// Metadata that an XDP program writes before a packet: hash, queue, hashed fields.
const EXPLANATION: usize = 8;
/// Size of a tc program's context; below, the position of its result.
const CONTEXT: usize = 192;
const CB: usize = 48;

/// The fate of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    /// `None`: dropped.
    pub(super) queue: Option<u16>,
    /// Hash, IP version, and whether ports were hashed; all zero without a hash.
    pub(super) hash: (u32, u8, u8),
    pub(super) data: Vec<u8>,
}

/// The fates of frames in the poll engine's function.
fn polled(section: &str, frames: &[Vec<u8>]) -> Vec<Fate> {
    let context = BuildContext { queues: QUEUES, wires: 1, ..BuildContext::default() };
    let mut function = build(section, &context).unwrap();
    let mut card = Card::new(&context);
    let mut fates = vec![DROPPED; frames.len()];
    for (turn, frames) in frames.chunks(32).enumerate() {
        let packets: Vec<_> = frames.iter().map(|data| Packet((0, data.clone()))).collect();
        for seen in card.run(&mut *function, &packets) {
            assert_eq!(seen.number / 32, turn);
            let number = seen.number;
            fates[number] = fate(section, seen);
        }
    }
    fates
}

fn fate(section: &str, seen: Seen) -> Fate {
    let Seen { door, hash, over, data, .. } = seen;
    // Continuing packets go to the default queue; here the first.
    let queue = match door {
        Door::Queue(queue) => queue,
        _ => 0,
    };
    let over = match over {
        RssType::None => None,
        RssType::Ipv4 => Some((1, 1)),
        RssType::Ipv4Tcp | RssType::Ipv4Udp => Some((1, 2)),
        RssType::Ipv6 => Some((2, 1)),
        RssType::Ipv6Tcp | RssType::Ipv6Udp => Some((2, 2)),
    };
    // Continuing packets keep their values.
    let is_steered = matches!(door, Door::Queue(_));
    let hashes = section.contains("\"rss\"") || section.contains("\"vmdq\"");
    let hash = over
        .filter(|_| hashes && is_steered)
        .map_or((0, 0, 0), |(family, over)| (hash, family, over));
    Fate { queue: Some(queue), hash, data }
}

/// The fates of frames in the loaded program.
fn in_kernel(section: &str, handover: &str, frames: &[Vec<u8>]) -> Vec<Fate> {
    let card = parse(&format!(
        "[card]\nengine = \"kernel\"\n[[wire]]\nport = \"xdp\"\ninterface = \"k0\"\n\
         [[rx]]\n{section}\n[host]\nattachment = \"stack\"\nqueues = {QUEUES}\n\
         target_cores = [0, 1]\nhandover = \"{handover}\"\n"
    ));
    let (plan, placement) = plan(&launch(&card)).unwrap();
    let mut object = Object::load(&plan, &placement.target_cores, true).unwrap();
    let _tables = object.tables(&plan).unwrap();
    match plan.handover {
        Handover::Cpumap => {
            let program = object.wire(0).unwrap();
            frames.iter().map(|frame| of_frame(program, frame)).collect()
        }
        Handover::Skb => {
            let mut switch =
                object.ways(&[Relay { name: "k1".into(), index: 1, of: 1, network: 0 }]).unwrap();
            switch.set(true).unwrap();
            let program = object.tc("steer_0").unwrap();
            frames.iter().map(|frame| of_skb(program, frame)).collect()
        }
    }
}

fn told(hash: u32, queue: u16, kind: u16, data: &[u8]) -> Fate {
    let (family, over) = ((kind >> 8) as u8, kind as u8);
    let hash = if over == 0 { (0, 0, 0) } else { (hash, family, over) };
    Fate { queue: Some(queue), hash, data: data.to_vec() }
}

pub(super) const DROPPED: Fate = Fate { queue: None, hash: (0, 0, 0), data: Vec::new() };

/// Marks packets for the poll engine.
pub(super) const POLLED: u16 = u16::MAX;

pub(super) fn of_frame(program: &Xdp, frame: &[u8]) -> Fate {
    const XDP_DROP: u32 = 1;
    const XDP_PASS: u32 = 2;
    const XDP_REDIRECT: u32 = 4;
    let mut out = vec![0; frame.len() + EXPLANATION];
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.data_out = Some(&mut out);
    let result = program.test_run(options).unwrap();
    match result.return_value {
        XDP_DROP => DROPPED,
        XDP_PASS => Fate { queue: Some(POLLED), ..told(0, 0, 0, &out[..frame.len()]) },
        XDP_REDIRECT => {
            assert_eq!(result.data_size_out as usize, frame.len() + EXPLANATION);
            let [a, b, c, d, e, f, g, h] = *out.first_chunk().unwrap();
            let [queue, kind] = [[e, f], [g, h]].map(u16::from_ne_bytes);
            told(u32::from_ne_bytes([a, b, c, d]), queue, kind, &out[EXPLANATION..])
        }
        other => panic!("verdict {other} on {frame:02x?}"),
    }
}

/// Whether a test can make a socket buffer of a frame: it needs an IP header.
pub(super) fn can_be_skb(frame: &[u8]) -> bool {
    let header = match frame[12..14] {
        [0x08, 0x00] => 20,
        [0x86, 0xdd] => 40,
        _ => 1,
    };
    frame.len() >= 14 + header
}

pub(super) fn of_skb(program: &SchedClassifier, frame: &[u8]) -> Fate {
    const DROP: u32 = 2;
    const REDIRECT: u32 = 7;
    let (mut out, mut context) = (vec![0; frame.len()], [0; CONTEXT]);
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.data_out = Some(&mut out);
    options.ctx_out = Some(&mut context);
    let result = program.test_run(options).unwrap();
    match result.return_value {
        DROP => DROPPED,
        REDIRECT => {
            assert_eq!(result.data_size_out as usize, frame.len());
            let (words, _) = context[CB..].as_chunks::<4>();
            let word = |place: usize| u32::from_ne_bytes(words[place]);
            told(word(0), word(1) as u16, word(2) as u16, &out)
        }
        other => panic!("verdict {other} on {frame:02x?}"),
    }
}

/// Pools of stations and VLANs that the frames have, and of groups.
fn pools(frames: &[Vec<u8>]) -> Vec<String> {
    let mut count: BTreeMap<[u8; 6], usize> = BTreeMap::new();
    for frame in frames {
        *count.entry(*frame.first_chunk().unwrap()).or_default() += 1;
    }
    count.retain(|station, _| station[0] & 1 == 0 && *station != [0; 6]);
    let mut stations: Vec<_> = count.keys().collect();
    // Most frequent first.
    stations.sort_by_key(|&station| Reverse(count[station]));
    let text = |station: &[u8; 6]| {
        let bytes: Vec<_> = station.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:?}", bytes.join(":"))
    };
    let macs = |from: usize| {
        let own: Vec<_> =
            stations.iter().skip(from).step_by(3).map(|station| text(station)).collect();
        own.join(", ")
    };
    let [one, other] = [macs(0), macs(1)];
    let pools = [
        format!(
            "{{ macs = [{one}], queues = [1] }}, {{ macs = [{other}], broadcast = false, queues = [0] }}"
        ),
        format!("{{ macs = [{one}, {other}], broadcast = false, queues = [1, 0] }}"),
        format!(
            "{{ macs = [{one}], vlans = [0, 5], queues = [0] }}, {{ macs = [{one}], vlans = [1, 7, 100], queues = [1] }}"
        ),
        "{ queues = [0, 1] }".into(),
    ];
    let pools = pools.map(|pools| format!("function = \"vmdq\"\npools = [{pools}]"));
    let last = format!("{}\ndefault_pool = 0", pools[2]);
    pools.into_iter().chain([last]).collect()
}

/// Credit regained over time is less than the difference of any two lengths.
#[test]
fn both_engines_hold_packets_to_the_same_bursts() {
    if !can_load("both_engines_hold_packets_to_the_same_bursts") {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return picnic_testing::skip("both_engines_hold_packets_to_the_same_bursts", "two cores");
    }
    const UNIT: usize = 256;
    let mut frames = frames();
    frames.truncate(200);
    frames.extend(captured());
    frames.iter_mut().for_each(|frame| frame.resize(frame.len().next_multiple_of(UNIT), 0));
    for (keys, passes) in [
        ("bytes_per_second = 1\nburst_bytes = 10240", true),
        ("bytes_per_second = 1\nburst_bytes = 256\nper = \"wire\"", true),
        ("bytes_per_second = 1\nburst_bytes = 255", false),
        ("packets_per_second = 1000000000000\nburst_packets = 4294967296", true),
    ] {
        let section = format!("function = \"rate-limit\"\n{keys}");
        let polled = polled(&section, &frames);
        assert_eq!(polled.iter().any(|fate| *fate != DROPPED), passes, "{keys}");
        for handover in ["cpumap", "skb"] {
            assert_eq!(polled, in_kernel(&section, handover, &frames), "{handover}, {keys}");
        }
    }
}

#[test]
fn both_engines_find_the_same() {
    if !can_load("both_engines_find_the_same") {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return picnic_testing::skip("both_engines_find_the_same", "it needs two cores");
    }
    let frames = frames();
    let fit: Vec<_> = frames.iter().filter(|frame| can_be_skb(frame)).cloned().collect();
    assert!(fit.len() > frames.len() / 2);
    let rss = |keys: &str| format!("function = \"rss\"\n{keys}");
    let all = "[\"ipv4\", \"tcp-ipv4\", \"udp-ipv4\", \"ipv6\", \"tcp-ipv6\", \"udp-ipv6\"]";
    let sections = [
        rss(""),
        rss(&format!("types = {all}\ntable_size = 100")),
        rss("symmetric = true\nweights = [3, 1]"),
        rss(
            "key = \"8f3a9c5512e7d0446bb1f02c7793ce0a41d86e2f95bb3c1d6a7788e4930f12c5d4e6b7a8091b2c3d\"\ntable = [1, 0, 0, 1, 1]",
        ),
        rss("types = [\"tcp-ipv4\", \"ipv6\"]\ndefault_queue = 1"),
        rss(&format!("hash = \"jhash\"\njhash_init = 77\ntable_size = 4096\ntypes = {all}")),
        rss("hash = \"jhash\"\ntable_size = 4095"),
        rss(&format!("hash = \"lookup2\"\njhash_init = 5\ntypes = {all}")),
        rss("types = []"),
        "function = \"pass\"".into(),
        "function = \"drop\"".into(),
        "function = \"by-wire\"\nqueues = [1]".into(),
        "function = \"sample\"\nevery = 3\nqueue = 1".into(),
        "function = \"sample\"\nevery = 7\ndrop_rest = true".into(),
        "function = \"sample\"\nevery = 1\nqueue = 1\ndrop_rest = true".into(),
    ];
    let rules = "function = \"flow-director\"\nrules = [\n\
                 { protocol = \"tcp\", queue = 1 },\n\
                 { protocol = \"udp\", destination_port = 80, priority = 2, drop = true },\n\
                 { source = \"10.0.0.0/8\", priority = 1, queue = 0 },\n\
                 { source = \"10.0.0.0/30\", destination_port = 0, destination_port_mask = 1, queue = 1 },\n\
                 { destination = \"2001:db8::/32\", queue = 1 },\n\
                 { source = \"fe80::/10\", protocol = \"icmpv6\", drop = true },\n\
                 { vlan = 7, queue = 1 },\n{ vlan = 0, queue = 1 },\n\
                 { protocol = \"icmp\", wire = 0, queue = 1 },\n]";
    let sections = sections.into_iter().chain([
        rules.into(),
        "function = \"flow-director\"\nrules = [{ wire = 0, queue = 1 }]".into(),
        "function = \"vlan\"\nallow = [1, 5, 7, 100]".into(),
        "function = \"vlan\"\nuntagged = false".into(),
        "function = \"vlan\"\nallow = [4095]\nuntagged = false".into(),
    ]);
    let sections = sections.chain(pools(&frames));
    let sections: Vec<String> = sections.collect();
    for function in FUNCTIONS.iter().filter(|entry| entry.has_kernel_form()) {
        let is_tried = |section: &String| section.contains(&format!("\"{}\"", function.name));
        // Its rate has a separate test.
        let is_tried = function.name == "rate-limit" || sections.iter().any(is_tried);
        assert!(is_tried, "{} has no section here", function.name);
    }
    let mut steered = [0; QUEUES as usize];
    for section in &sections {
        for (handover, frames) in [("cpumap", &frames), ("skb", &fit)] {
            let (polled, kernel) = (polled(section, frames), in_kernel(section, handover, frames));
            // Rules that match no frame would prove nothing.
            if section.contains("2001") || section.contains("allow = [1, 5") {
                let met = |queue| polled.iter().any(|fate| fate.queue == queue);
                let steers = section.contains("rules");
                assert!(met(None) && met(Some(0)) && met(Some(1)) == steers, "{section}");
            }
            if section.contains("vmdq") {
                let met = |queue| polled.iter().any(|fate| fate.queue == Some(queue));
                assert!(met(0) && met(1), "{section}");
            }
            for ((frame, polled), kernel) in frames.iter().zip(&polled).zip(&kernel) {
                assert_eq!(polled, kernel, "{handover}, {section}: {frame:02x?}");
                polled.queue.into_iter().for_each(|queue| steered[usize::from(queue)] += 1);
            }
        }
    }
    assert!(steered.iter().all(|&count| count > frames.len()), "{steered:?} say little");
}
