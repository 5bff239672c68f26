//! Runs a workload behind a card: namespaces, server, client, and counts of the wire.

use super::census::{Census, Counted};
use super::joined::Joined;
use picnic_control::Report;
use picnic_core::config::Setting;
use picnic_hash::{Toeplitz, V4Tuple, jhash_v4, randomness};
use picnic_lab::counters::Counters;
use picnic_lab::workloads::client::ClientResult;
use picnic_lab::workloads::group::{ClientGroup, give_addresses, lead_back};
use picnic_lab::workloads::hosts::{HOST_LINK, HOST_MAC, MOST_CLIENTS, SERVER, client_address};
use picnic_lab::workloads::kind::Workload;
use picnic_lab::workloads::servers::{WebServer, tools};
use serde::Serialize;

/// The least number of flows for testing a hash.
pub const FEWEST_FLOWS: usize = 1000;

/// Settings of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Duration of the load in seconds.
    pub seconds: f64,
    /// Changes to the card.
    pub set: Vec<String>,
    /// Seed of random choices.
    pub seed: u64,
    /// Clients, 1, 2 or 4, each with its own wire of the card; 0 means one.
    pub clients: u8,
}

/// The results.
#[derive(Debug, Serialize)]
pub struct WorkloadResult {
    /// The clients' results.
    pub client: ClientResult,
    /// The card's wire traffic.
    pub wire: Counted,
    /// Ratio of bytes out to bytes in.
    pub out_to_in: f64,
    /// Share of pure acknowledgements among packets in.
    pub acknowledgements_share: f64,
    /// Flows of requested connections.
    #[serde(skip)]
    pub flows: Vec<V4Tuple>,
    /// Number of cores of server and client.
    pub programs_cores: usize,
    /// Migrations of the server's threads; none if the kernel does not report them.
    pub migrations: Option<u64>,
    /// Wake-ups of the server's threads by a core other than their own; none without the kernel's
    /// `kernel.sched_schedstats`.
    pub remote_wakeups: Option<u64>,
    /// Cache misses on the cores of server and client; none if the machine has no hardware
    /// counters.
    pub cache_misses: Option<u64>,
    /// The card's report.
    pub card: Report,
}

/// Runs a workload behind the card of `picnic demo web`.
///
/// # Errors
/// Not root; a program is not installed; another failure.
pub fn run(workload: &Workload, run: &Run) -> anyhow::Result<WorkloadResult> {
    run_with(workload, run, |_, _| Ok(Vec::new()))
}

/// The same with changes of the card that depend on its target cores and on a key of its `rss`.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    workload: &Workload,
    run: &Run,
    changes: impl FnOnce(&[usize], &dyn Fn(&str) -> String) -> anyhow::Result<Vec<Setting>>,
) -> anyhow::Result<WorkloadResult> {
    let clients = run.clients.clamp(1, MOST_CLIENTS);
    let joined = Joined::build(clients, run.set.clone(), &tools(workload))?;
    let mut targets = joined.placement(Vec::new())?.target_cores;
    targets.dedup();
    let changes = changes(&targets, &|key| joined.rss_key(key))?;
    let workers = joined.programs_cores().max(2);
    let server = WebServer::start(&joined.hosts, workload, workers)?;
    give_addresses(&joined.hosts, workload, clients)?;
    let census = Census::default();
    let ((client, moved, cache_misses), card) =
        joined.observed_behind_card(changes, census.clone(), || {
            lead_back(&joined.hosts, workload, clients, client_address)?;
            joined.hosts.keep_neighbours(clients, HOST_LINK, HOST_MAC)?;
            let counters = Counters::start(joined.cores_of_programs());
            let before = server.moves();
            let cores = joined.programs_cores();
            let asking = ClientGroup { hosts: &joined.hosts, server: SERVER, cores, clients };
            let answered = asking.ask(workload, run.seconds, run.seed);
            let moved = server.moves().since(&before);
            let counted = counters.ok().and_then(|counters| counters.stop().ok());
            Ok((answered?, moved, counted.map(|counted| counted.cache_misses as u64)))
        })?;
    let wire = census.counted();
    Ok(WorkloadResult {
        out_to_in: wire.bytes_out as f64 / wire.bytes_in.max(1) as f64,
        acknowledgements_share: wire.share_of_acknowledgements(),
        flows: census.flows(),
        programs_cores: joined.programs_cores(),
        migrations: moved.migrations,
        remote_wakeups: moved.remote_wakeups,
        cache_misses,
        client,
        wire,
        card,
    })
}

/// Results of Ent's tests for the low bytes of a hash over flows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tested {
    /// Deficit of the entropy, in percent.
    pub entropy_percent: f64,
    /// Error of the mean, in percent.
    pub mean_percent: f64,
    /// Error of pi by Monte Carlo, in percent.
    pub pi_percent: f64,
    /// Serial correlation, in percent.
    pub serial_percent: f64,
    /// How often random bytes exceed this chi-square, in percent.
    pub chi_square_percent: f64,
}

/// Tests the hashes of flows: Toeplitz and JHash. None if there are too few.
pub fn test_flows(flows: &[V4Tuple]) -> Option<[(&'static str, Tested); 2]> {
    if flows.len() < FEWEST_FLOWS {
        return None;
    }
    let test = |hash: fn(&[V4Tuple], &mut [u32])| {
        let mut hashes = vec![0; flows.len()];
        hash(flows, &mut hashes);
        let bytes: Vec<u8> = hashes.into_iter().map(|hash| hash as u8).collect();
        let found = randomness(&bytes);
        Tested {
            entropy_percent: found.entropy_error_percent(),
            mean_percent: found.mean_error_percent(),
            pi_percent: found.pi_error_percent(),
            serial_percent: found.serial_correlation_error_percent(),
            chi_square_percent: found.chi_square_exceed_probability * 100.0,
        }
    };
    Some([
        (
            "toeplitz",
            test(|flows, out| Toeplitz::new(&picnic_hash::Key::MICROSOFT).hash_v4(flows, out)),
        ),
        ("jhash", test(|flows, out| jhash_v4(flows, 0, out))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::experiment::LabError;

    #[test]
    fn workloads_are_run_and_counted() {
        for name in ["support", "banking", "sclient", "closed-loop"] {
            let mut workload = Workload::find(name).unwrap();
            workload.connections = 8;
            // Longer than a busy machine keeps a program from its core.
            workload.patience_ms = 60_000;
            if name == "sclient" {
                workload.requests_per_second = 200.0;
            }
            let clients = if matches!(name, "sclient" | "closed-loop") { 4 } else { 1 };
            let for_seconds =
                |seconds| run(&workload, &Run { seconds, seed: 1, clients, set: Vec::new() });
            // A wire may have had no time in a second: then again, for longer.
            let is_used = |ran: &WorkloadResult| {
                let mut wires = ran.card.wires.iter();
                ran.client.answered > 0
                    && wires.all(|wire| wire.rx_packets > 20 && wire.tx_packets > 20)
            };
            let mut ran = for_seconds(1.0);
            for seconds in [5.0, 30.0] {
                if ran.as_ref().is_ok_and(|ran| !is_used(ran)) {
                    ran = for_seconds(seconds);
                }
            }
            let ran = match ran {
                Err(error) => match LabError::from(error) {
                    LabError::Unavailable(why) => {
                        picnic_testing::skip(&format!("the workload {name}"), &why);
                        continue;
                    }
                    error => panic!("{name}: {error}"),
                },
                Ok(ran) => ran,
            };
            assert!(
                ran.client.answered > 0 && ran.client.errors() == 0,
                "{name}: {:?}",
                ran.client
            );
            assert!(ran.card.ledger.balanced());
            assert!(ran.wire.connections >= ran.client.answered, "{name}: {:?}", ran.wire);
            assert_eq!(ran.flows.len() as u64, ran.wire.connections);
            // Each client is answered on its own wire.
            let wires = &ran.card.wires;
            assert_eq!(wires.len(), usize::from(clients));
            assert!(is_used(&ran), "{wires:?}");
            let (rx, tx) = wires
                .iter()
                .fold((0, 0), |(rx, tx), wire| (rx + wire.rx_packets, tx + wire.tx_packets));
            let each = wires.iter().map(|wire| wire.tx_packets as f64 / wire.rx_packets as f64);
            let all = tx as f64 / rx as f64;
            assert!(each.clone().all(|each| (0.5..2.0).contains(&(each / all))), "{wires:?}");
            if name == "support" {
                assert!(ran.out_to_in > 10.0, "{:?}", ran.wire);
                assert!((0.1..1.0).contains(&ran.acknowledgements_share), "{:?}", ran.wire);
            }
        }
    }

    #[test]
    fn few_flows_have_no_test() {
        let flow = |number: u32| {
            let [_, _, a, b] = number.to_be_bytes();
            V4Tuple::new([10, 90, a, b], [10, 88, 0, 1], 40_000, 80)
        };
        let flows: Vec<_> = (0..1000).map(flow).collect();
        assert!(test_flows(&flows[..999]).is_none());
        assert!(test_flows(&flows).is_some());
    }
}
