//! Filters of a running card: at the card and at the driver, both directions, changed while it
//! runs.

use picnic_control::{Launch, Report, Running};
use picnic_core::config::CardFile;
use picnic_filter::{
    Action, Direction, Filter, Filters, FiveTuple, Match, Place, PortRange, Protocol,
};
use picnic_host::registries;
use picnic_testing::{machine, wait_until};

fn start(card: &CardFile) -> Box<dyn Running> {
    Launch::new(card, registries()).start_alone().unwrap()
}

fn card(text: &str) -> CardFile {
    picnic_host::sections().parse(text, None).unwrap()
}

fn run_to_end(running: Box<dyn Running>) -> Report {
    wait_until("all packets are through", || running.is_finished());
    stop(running)
}

fn stop(running: Box<dyn Running>) -> Report {
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced(), "{:?}", report.ledger);
    assert_eq!(report.buffers_missing, 0);
    report
}

const FINITE: &str = "[[wire]]\nport = \"generator\"\npackets = 20000\nflows = 64\ntcp_share = 0.5\n\
                      [host]\nattachment = \"app\"\nmode = \"echo\"\nqueues = 2\n";

#[test]
fn card_file_filters_apply_from_the_first_packet() {
    let _machine = machine();
    for (place, stage) in [("nic", "rx"), ("driver", "target")] {
        let text = format!(
            "{FINITE}[[filter]]\nname = \"all\"\nplace = \"{place}\"\naction = \"count\"\n\
             [[filter]]\nname = \"wall\"\nplace = \"{place}\"\naction = \"drop\"\n"
        );
        let running = start(&card(&text));
        let filters = running.filters().clone();
        let report = run_to_end(running);
        assert_eq!(report.ledger.delivered, 0);
        assert_eq!(report.ledger.drops_by_stage[&format!("filtered@{stage}")], 20_000);
        let counts: Vec<_> = filters.list().iter().map(|listing| listing.packets).collect();
        assert_eq!(counts, [20_000; 2]);
    }
}

#[test]
fn packets_from_the_host_are_filtered_at_both_places() {
    let _machine = machine();
    for (place, stage) in [("nic", "tx"), ("driver", "target")] {
        let text = format!(
            "{FINITE}[[filter]]\nname = \"wall\"\nplace = \"{place}\"\ndirection = \"tx\"\n\
             action = \"drop\"\nprotocol = \"udp\"\n[[filter]]\nname = \"rest\"\n\
             place = \"{place}\"\ndirection = \"tx\"\n"
        );
        let running = start(&card(&text));
        let filters = running.filters().clone();
        let report = run_to_end(running);
        let [wall, rest] = &filters.list()[..] else { panic!() };
        assert_eq!(report.ledger.delivered, 20_000);
        // At the card, packets without room on the tx ring were dropped before.
        let full = if place == "nic" { report.ledger.drops.get("tx_ring_full") } else { None };
        let seen = 20_000 - full.copied().unwrap_or(0);
        assert_eq!(wall.packets + rest.packets, seen, "{place}");
        assert!(wall.packets > 0 && rest.packets > 0);
        let drops = report.ledger.drops_by_stage.get(&format!("filtered@{stage}"));
        assert_eq!(drops.copied().unwrap_or(0), wall.packets, "{place}");
    }
}

/// Two halves of all packets, each dropped by its own filter, which is replaced by an equal one: no
/// packet passes at any moment.
#[test]
fn a_reload_has_no_gap() {
    let _machine = machine();
    for place in [Place::Nic, Place::Driver] {
        let wall = |count: u16| {
            let rule = |number: u16| {
                let tuple = FiveTuple {
                    protocol: Some(Protocol::TCP),
                    destination_ports: PortRange::one(number),
                    ..FiveTuple::default()
                };
                let filter = Filter::new(format!("rule-{number}"), tuple, Action::Drop);
                filter.in_group("wall").at(place)
            };
            let end = Filter::new(format!("end-{count}"), Match::Any, Action::Drop);
            let end = end.in_group("wall").at(place).with_priority(200);
            (0..count).map(rule).chain([end]).collect::<Vec<_>>()
        };
        let mut text = "[[wire]]\nport = \"generator\"\n[host]\nqueues = 2\n".to_owned();
        text += "[[filter]]\nname = \"end\"\ngroup = \"wall\"\naction = \"drop\"\n";
        text += if place == Place::Nic { "place = \"nic\"\n" } else { "place = \"driver\"\n" };
        let running = start(&card(&text));
        let filters = running.filters().clone();
        let mut reloads = 0;
        // Enough reloads under enough packets, even on a slow machine.
        wait_until("100 reloads, with 100,000 packets", || {
            filters.replace(&["wall"], wall([3, 60, 17, 1][reloads % 4])).unwrap();
            reloads += 1;
            reloads >= 100 && running.view().ledger.read().dropped >= 100_000
        });
        let report = stop(running);
        assert_eq!(report.ledger.delivered, 0, "{place:?}");
    }
}

/// A filter that stays counts every packet while others are added and removed around it.
#[test]
fn counters_are_exact_while_filters_change() {
    let _machine = machine();
    let running = start(&card(FINITE));
    let filters = running.filters().clone();
    let count = |filters: &Filters, direction, place| {
        let all = Filter::new("all", Match::Any, Action::Count).on(direction).at(place);
        filters.add(all.with_priority(i32::MIN)).unwrap()
    };
    drop(stop(running));

    let text = FINITE.replace("20000", "300000");
    let text = text
        + "[[filter]]\nname = \"all\"\npriority = -5\n[[filter]]\nname = \"all\"\npriority = -5\n\
           place = \"driver\"\n";
    let running = start(&card(&text));
    let filters_now = running.filters().clone();
    let mut added = Vec::new();
    let mut round = 0_u16;
    while !running.is_finished() {
        round = round.wrapping_add(1);
        let tuple = FiveTuple { source_ports: PortRange::one(round), ..FiveTuple::default() };
        let place = if round.is_multiple_of(2) { Place::Nic } else { Place::Driver };
        let filter = Filter::new("passing", tuple, Action::Count).at(place);
        added.push(filters_now.add(filter).unwrap());
        if added.len() > 40 {
            filters_now.remove(added.swap_remove(usize::from(round) % 40)).unwrap();
        }
    }
    let report = stop(running);
    assert_eq!(report.ledger.delivered, 300_000);
    for listing in filters_now.list().iter().filter(|listing| listing.filter.name == "all") {
        assert_eq!(listing.packets, 300_000, "{:?}", listing.filter.place);
    }
    // A stopped card accepts changes without effect.
    count(&filters, Direction::Tx, Place::Driver);
}

#[test]
fn wrong_filters_are_reported_with_their_line() {
    let _machine = machine();
    let error = |filter: &str| {
        let text = format!("[host]\nqueues = 2\n[[filter]]\n{filter}");
        match picnic_host::sections().parse(&text, None) {
            Ok(file) => Launch::new(&file, registries()).check().map(drop).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    let cases = [
        ("action = \"steer\"\nqueue = 2\n", "card:5: filter[0].queue: found 2, allowed: 0 to 1"),
        (
            "name = \"a\"\nsource = \"10.0.0.1/8\"\n",
            "card:5: filter[0].source: found 10.0.0.1/8, allowed: 10.0.0.0/8: the bits after the prefix must be zero",
        ),
        (
            "destination_ports = \"90-80\"\n",
            "card:4: filter[0].destination_ports: found 90-80, allowed: any, a port, or a range \
             such as 1024-2047, from 0 to 65535, low first",
        ),
        (
            "start = 3\n",
            "card:3: filter[0].values: found none, allowed: a value, as this is a pattern",
        ),
        (
            "start = 3\nvalues = [\"0g\"]\n",
            "card:5: filter[0].values: found \"0g\", allowed: hexadecimal digits, two per byte",
        ),
        (
            "start = 3\nvalues = [\"00\", \"0000\"]\n",
            "card:5: filter[0].values: found 2 bytes, allowed: 1, like the mask",
        ),
        (
            "start = 3\nvalues = [\"00\"]\nprotocol = \"tcp\"\n",
            "card:4: filter[0].start: found keys of two kinds, allowed: keys of a five-tuple, of a pattern, or neither",
        ),
        (
            "action = \"drop\"\nmark = 1\n",
            "card:5: filter[0].mark: found one, allowed: only with action = \"mark\"",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(error(text), message);
    }
    assert!(
        error("action = \"dorp\"\n")
            .contains("card:4: filter[0].action: found \"dorp\", allowed: drop")
    );
    assert!(error("protocoll = \"tcp\"\n").contains("found key \"protocoll\", allowed: name"));
}
