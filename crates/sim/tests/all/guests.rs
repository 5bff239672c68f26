//! Cards with virtual machines, in virtual time.

use picnic_control::Launch;
use picnic_control::report::GuestReport;
use picnic_core::config::CardFile;
use picnic_core::time::Time;
use picnic_sim::{CostModel, Simulation, registries};

const TWO: &str = "[[wire]]\nport = \"generator\"\nrate_pps = 1000000\npackets = 4000\nsize = 1500\n\
                   flows = 64\n[[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"vhost-user\"\n\
                   queues = 4\n[[host.guest]]\nsocket = \"vm0.sock\"\n\
                   [[host.guest]]\nsocket = \"vm1.sock\"\n";

fn start(text: &str) -> Result<Simulation, String> {
    let file = CardFile::parse(text, None).unwrap();
    let launch = Launch::new(&file, registries());
    Simulation::new(launch, 1, CostModel::default()).map_err(|error| error.to_string())
}

#[test]
fn a_card_of_two_guests_runs_without_sockets() {
    let run = || {
        let mut simulation = start(TWO).unwrap();
        simulation.run_until(Time::from_nanos(10_000_000));
        simulation.finish()
    };
    let ((report, trace), (_, again)) = (run(), run());
    assert_eq!(trace, again);
    assert!(report.ledger.balanced(), "{:?}", report.ledger);
    assert_eq!((report.ledger.delivered, report.buffers_missing), (4000, 0));
    assert!(report.queues.iter().all(|queue| queue.packets > 0), "{:?}", report.queues);
    let owners: Vec<_> = report.queues.iter().map(|queue| queue.guest.as_deref()).collect();
    assert_eq!(owners, [Some("vm0"), Some("vm0"), Some("vm1"), Some("vm1")]);
    for (guest, queues) in report.guests.iter().zip(report.queues.chunks(2)) {
        assert_eq!((guest.ready_queues, guest.queues, guest.mtu_bytes), (2, 2, 1500));
        assert_eq!(guest.packets, queues.iter().map(|queue| queue.packets).sum::<u64>());
        assert_eq!(guest.in_packets, guest.packets + guest.dropped + guest.in_flight);
    }
    let sum = |count: fn(&GuestReport) -> u64| report.guests.iter().map(count).sum::<u64>();
    assert_eq!((sum(|guest| guest.packets), sum(|guest| guest.bytes)), (4000, 4000 * 1500));
}

#[test]
fn the_cost_of_a_copy_follows_the_length() {
    // 180 ns for a long packet, 36 ns for a short one: two queues hold back the former.
    let slow = TWO.replace("queues = 4", "queues = 2").replace("1000000", "9000000");
    let mut simulation = start(&slow).unwrap();
    simulation.run_until(Time::from_nanos(400_000));
    let late = simulation.ledger().delivered;
    let mut simulation = start(&slow.replace("1500", "60")).unwrap();
    simulation.run_until(Time::from_nanos(400_000));
    let early = simulation.ledger().delivered;
    assert!(early > late, "{early} of short packets, {late} of long ones");
}

#[test]
fn queues_that_cannot_be_divided_are_refused_here_too() {
    let message = start(&TWO.replace("queues = 4", "queues = 3")).err().unwrap();
    assert!(message.contains("found 3, allowed: a multiple of the 2 guests"), "{message}");
}
