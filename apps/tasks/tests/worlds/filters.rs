//! Filters in virtual time, at the card and at the driver, both directions: every packet is
//! counted.

use picnic_control::{Launch, Registries, Running};
use picnic_core::ledger::LedgerTotals;
use picnic_core::time::Time;
use picnic_filter::{Action, Filter, Listing, Match, Place};
use picnic_sim::{CostModel, Simulation};
use std::path::Path;

/// Packets of the capture, ten microseconds apart.
const PACKETS: u64 = 700;
/// After the last packet was handled, and before the capture repeats.
const END: Time = Time::from_nanos(20_000_000);

fn protocol(number: u64) -> u8 {
    match number % 7 {
        0 => 1,
        1..=3 => 17,
        _ => 6,
    }
}

/// One packet in five is longer than the rest.
fn is_long(number: u64) -> bool {
    number.is_multiple_of(5)
}

fn count(of: impl Fn(u64) -> bool) -> u64 {
    (0..PACKETS).filter(|&number| of(number)).count() as u64
}

fn capture(path: &Path) {
    let mut capture = Vec::from(0xa1b2_c3d4u32.to_le_bytes());
    capture.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
    for number in 0..PACKETS {
        let length: u16 = if is_long(number) { 200 } else { 60 };
        let mut frame = vec![0x02; 12];
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((length - 14).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, protocol(number), 0, 0]);
        frame.extend([10, 0, 0, number as u8, 10, 0, 0, 2]);
        frame.resize(usize::from(length), 0);
        capture.extend([0; 4].into_iter().chain((number as u32 * 10).to_le_bytes()));
        let length = u32::from(length).to_le_bytes();
        capture.extend(length.into_iter().chain(length));
        capture.extend(frame);
    }
    std::fs::write(path, capture).unwrap();
}

fn simulation(folder: &Path, filters: &str, seed: u64) -> Simulation {
    let text = format!(
        "[[wire]]\nport = \"pcap\"\npath = \"in.pcap\"\npace = \"recorded\"\n[[rx]]\n\
         function = \"rss\"\n[host]\nmode = \"echo\"\nqueues = 2\n{filters}"
    );
    let file = picnic_host::sections().parse(&text, Some(&folder.join("card.toml"))).unwrap();
    let registries =
        Registries { tasks: picnic_tasks::registry::TASKS, ..picnic_sim::registries() };
    Simulation::new(Launch::new(&file, registries), seed, CostModel::default())
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Ends the simulation; returns the ledger, the filters, and the trace's hash.
#[track_caller]
fn end(simulation: Simulation) -> (LedgerTotals, Vec<Listing>, u64) {
    let filters = simulation.filters().clone();
    let hash = simulation.trace().hash();
    let (outcome, _) = simulation.finish();
    assert!(outcome.ledger.balanced(), "{:?}", outcome.ledger);
    assert_eq!((outcome.buffers_missing, outcome.ledger.in_flight), (0, 0));
    (outcome.ledger, filters.list(), hash)
}

#[track_caller]
fn named<'l>(list: &'l [Listing], name: &str) -> &'l Listing {
    list.iter().find(|listing| listing.filter.name == name).unwrap()
}

#[test]
fn every_packet_is_counted_where_it_is_filtered_and_the_ledger_has_it() {
    let folder = tempfile::tempdir().unwrap();
    capture(&folder.path().join("in.pcap"));
    let icmp = count(|number| protocol(number) == 1);
    let udp = count(|number| protocol(number) == 17);
    let long = count(is_long);
    for (direction, place, stage) in [
        ("rx", "nic", "filtered@rx"),
        ("rx", "driver", "filtered@target"),
        ("tx", "nic", "filtered@tx"),
        ("tx", "driver", "filtered@target"),
    ] {
        let at = format!("direction = \"{direction}\"\nplace = \"{place}\"\n");
        let filters = format!(
            "[[filter]]\nname = \"all\"\n{at}\
             [[filter]]\nname = \"past\"\nstart = 100\nvalues = [\"00\"]\n{at}\
             [[filter]]\nname = \"icmp\"\nprotocol = \"icmp\"\naction = \"drop\"\n{at}\
             [[filter]]\nname = \"byte\"\nstart = 23\nvalues = [\"11\"]\naction = \"drop\"\n{at}\
             [[filter]]\nname = \"rest\"\n{at}"
        );
        let run = |seed| {
            let mut simulation = simulation(folder.path(), &filters, seed);
            simulation.run_until(END);
            end(simulation)
        };
        let (ledger, list, hash) = run(3);
        let packets = |name: &str| named(&list, name).packets;
        assert_eq!(packets("all"), PACKETS, "{direction} {place}");
        // Packets that end before the filter's byte do not match, and are counted separately.
        assert_eq!(packets("past"), long);
        assert_eq!(named(&list, "past").short_packets, PACKETS - long);
        assert_eq!((packets("icmp"), packets("byte")), (icmp, udp));
        assert_eq!(packets("rest"), PACKETS - icmp - udp);
        let bytes = 60 * PACKETS + 140 * long;
        assert_eq!(named(&list, "all").bytes, bytes);
        assert_eq!(ledger.drops_by_stage.get(stage), Some(&(icmp + udp)), "{ledger:?}");
        assert_eq!(ledger.dropped, icmp + udp);
        let delivered = if direction == "rx" { PACKETS - icmp - udp } else { PACKETS };
        assert_eq!(ledger.delivered, delivered, "{direction} {place}: {ledger:?}");
        // The same seed gives the same packets.
        let (again, list_again, hash_again) = run(3);
        assert_eq!((hash, &ledger, &list), (hash_again, &again, &list_again));
    }
}

#[test]
fn packets_steered_and_marked_at_the_card_arrive() {
    let folder = tempfile::tempdir().unwrap();
    capture(&folder.path().join("in.pcap"));
    let filters = "[[filter]]\nname = \"udp\"\nprotocol = \"udp\"\naction = \"steer\"\nqueue = 1\n\
                   [[filter]]\nname = \"rest\"\naction = \"steer\"\nqueue = 0\n";
    let mut simulation = simulation(folder.path(), filters, 1);
    simulation.run_until(END);
    let queues: Vec<_> =
        simulation.view().queues.iter().map(|queue| queue.target.packets.get()).collect();
    let udp = count(|number| protocol(number) == 17);
    assert_eq!(queues, [PACKETS - udp, udp]);
    let (ledger, list, _) = end(simulation);
    assert_eq!((named(&list, "udp").packets, ledger.dropped), (udp, 0));
}

#[test]
fn filters_change_while_packets_pass() {
    let folder = tempfile::tempdir().unwrap();
    capture(&folder.path().join("in.pcap"));
    for place in [Place::Nic, Place::Driver] {
        let run = || {
            let mut simulation = simulation(folder.path(), "", 2);
            let filters = simulation.filters().clone();
            let all = |name: &str, action| Filter::new(name, Match::Any, action).at(place);
            simulation.run_until(Time::from_nanos(1_000_000));
            let wall = filters.add(all("wall", Action::Drop)).unwrap();
            simulation.run_until(Time::from_nanos(3_000_000));
            let removed = filters.remove(wall).unwrap();
            let behind = filters.add(all("behind", Action::Count)).unwrap();
            simulation.run_until(END);
            let behind = filters.get(behind).unwrap().packets;
            let (ledger, _, hash) = end(simulation);
            (removed.packets, behind, ledger, hash)
        };
        let (dropped, behind, ledger, hash) = run();
        // From one to three milliseconds, a packet every ten microseconds, give or take those in
        // flight at either moment; none falls between two lists.
        assert!((195..=205).contains(&dropped), "{place:?}: {dropped}");
        assert!((395..=405).contains(&behind), "{place:?}: {behind}");
        assert_eq!((ledger.dropped, ledger.delivered), (dropped, PACKETS - dropped));
        assert_eq!(run(), (dropped, behind, ledger, hash));
    }
}
