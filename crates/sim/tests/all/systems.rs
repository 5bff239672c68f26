//! KNET's three systems as hosts of the same card.

use crate::common::{end, end_traced, simulation};
use picnic_control::Report;
use picnic_core::time::Time;
use picnic_sim::CostModel;

/// A doorbell that is an inter-processor interrupt.
fn costs() -> CostModel {
    CostModel { doorbell_send_ns: 500, doorbell_arrive_ns: 1_000..=1_000, ..CostModel::default() }
}

/// A card of four cores whose hosts need 2 µs per packet, a tenth of it in the stack.
fn card(system: &str, wire: &str) -> String {
    format!(
        "[[wire]]\nport = \"generator\"\nflows = 512\nsize = 100\nsequence_numbers = true\n{wire}\n\
         [[rx]]\nfunction = \"rss\"\n[host]\nsystem = \"{system}\"\nqueues = 4\nstack_ns = 200\n\
         cost_ns = 1800\nverify_order = true\n[interrupt]\nrx_usecs = 0\n"
    )
}

fn run(text: &str) -> Report {
    let (mut simulation, _) = simulation(text, 1, costs());
    simulation.run_to_end();
    end(simulation)
}

fn random(system: &str, rate_pps: u64) -> Report {
    let packets = 40_000;
    run(&card(
        system,
        &format!("arrivals = \"random\"\nrate_pps = {rate_pps}\npackets = {packets}"),
    ))
}

/// Packets per interrupt of the card.
fn packets_per_interrupt(report: &Report, system: &str) -> f64 {
    // Wake-ups by the receiving core are not counted.
    let queues = report.queues.iter().take(if system == "knet" { 4 } else { 1 });
    report.ledger.delivered as f64 / queues.map(|queue| queue.interrupts).sum::<u64>() as f64
}

#[track_caller]
fn in_order(report: &Report) {
    for queue in &report.queues {
        let (index, packets) = (queue.queue, queue.packets);
        let wanted = format!("queue {index}: {packets} packets in order, 0 reordered, 0 skipped");
        assert!(report.notes.contains(&wanted), "{wanted}: {:?}", report.notes);
    }
}

#[test]
fn each_system_delivers_in_order_on_all_cores() {
    for system in ["knet", "clas", "napi"] {
        let report = random(system, 300_000);
        assert_eq!(report.ledger.delivered, 40_000, "{system}: {report:#?}");
        assert!(report.queues.iter().all(|queue| queue.packets > 5_000), "{:#?}", report.queues);
        in_order(&report);
    }
}

#[test]
fn single_packets_interrupt_and_wake_once() {
    for system in ["clas", "napi"] {
        let wire = "rate_pps = 20000\npackets = 1000";
        let report = run(&card(system, wire));
        assert_eq!(report.ledger.delivered, 1_000);
        let [first, others @ ..] = &report.queues[..] else { panic!("{report:#?}") };
        // The first packet arrives before any core rests.
        assert!((999..=1_000).contains(&first.interrupts), "{system}: {first:#?}");
        for queue in others {
            assert!((queue.packets - 1..=queue.packets).contains(&queue.interrupts), "{queue:#?}");
        }
    }
}

#[test]
fn clas_has_few_packets_per_interrupt() {
    // Nearly the capacity of four cores.
    let of = |system| packets_per_interrupt(&random(system, 1_800_000), system);
    let (knet, clas, napi) = (of("knet"), of("clas"), of("napi"));
    assert!(clas < knet / 2.0 && clas < napi / 2.0, "{knet} {clas} {napi}");
}

#[test]
fn receiving_for_others_has_less_capacity_than_the_card() {
    let of = |system| random(system, 2_500_000).ledger.delivered;
    let (knet, clas, napi) = (of("knet"), of("clas"), of("napi"));
    assert!(knet > clas && knet > napi, "{knet} {clas} {napi}");
}

#[test]
fn full_queues_drop_and_the_ledger_balances() {
    for end_us in [1_u64, 7, 50, 400, 3_000] {
        for system in ["clas", "napi"] {
            let (mut simulation, _) = simulation(&card(system, "rate_pps = 9000000"), 1, costs());
            simulation.run_until(Time::from_nanos(end_us * 1000));
            let report = end(simulation);
            let dropped = report.ledger.drops.contains_key("host_refused");
            assert_eq!(dropped, end_us == 3_000 && system == "clas", "{system}: {report:#?}");
        }
    }
}

#[test]
fn offline_cards_lose_nothing_between_cores() {
    for system in ["clas", "napi"] {
        for mode in ["sink", "echo"] {
            let text =
                card(system, "packets = 20000").replace("[host]", "[host]\nmode = \"{mode}\"");
            let report = run(&text.replace("{mode}", mode));
            assert_eq!(
                (report.ledger.delivered, report.ledger.dropped),
                (20_000, 0),
                "{report:#?}"
            );
            in_order(&report);
        }
    }
}

#[test]
fn unmasked_interrupts_reach_a_working_core() {
    let of = |gate: &str| {
        let text = card("clas", "arrivals = \"random\"\nrate_pps = 1500000\npackets = 40000");
        let (mut simulation, _) = simulation(&format!("{text}gate = \"{gate}\"\n"), 1, costs());
        simulation.run_to_end();
        let (report, _) = end_traced(simulation);
        assert_eq!(report.ledger.in_flight, 0);
        report.queues[0].interrupts
    };
    assert!(of("none") > of("queue"));
}
