//! The three systems by the kernel's own stack: a web server behind card and tap, asked by wrk.
//!
//! ```text
//!  wrk ═══ veth ═══ w0 ── packet wire ─ card ─ tap h0 ── the kernel's stack ── webfs, or another
//! ```
//!
//! `knet`: the tap has a queue for each target core. `clas`: it has one, whose flows the kernel
//! spreads over the same cores by receive packet steering. `napi`: it has one, and the stack's work
//! for all is done by its core. Server and client have all cores but the borrowed one.
//!
//! Source: KNET, "In-kernel Classifier", "Webfs/Sclient (20K-file)"; Linux,
//! `Documentation/networking/scaling.rst`, "RPS: Receive Packet Steering".

use super::{SIDES, Settings};
use crate::gains::SHARED;
use crate::workloads::joined::{Joined, ask, packets_per_interrupt};
use anyhow::Context;
use picnic_core::config::Setting;
use picnic_lab::outcome::{Figure, Outcome};
use picnic_lab::workloads::hosts::Role;
use picnic_lab::workloads::servers::{self, WebServer};
use picnic_lab::workloads::web::{Load, WRK};

/// The kernel's steering mask of the tap's first queue.
const STEERING: &str = "/sys/class/net/h0/queues/rx-0/rps_cpus";
/// The kernel's receive counters of each core, a line each in hexadecimal numbers.
const SOFTNET: &str = "/proc/net/softnet_stat";
/// Index of the wake-ups by other cores.
const WAKEUPS: usize = 9;

/// Runs the load over this number of connections.
///
/// # Errors Not root, a program is not installed, or another failure.
pub(super) fn measure(
    settings: &Settings,
    side: &str,
    connections: u64,
    seconds: u64,
) -> anyhow::Result<Outcome> {
    let workload = settings.workload();
    let mut tools = servers::tools(&workload);
    tools.push(WRK);
    let joined = Joined::build(1, Vec::new(), &tools)?;
    let own = vec![Setting::number("host.queues", settings.cores.into())];
    let mut targets = joined.placement(own)?.target_cores;
    targets.dedup();
    let cores = joined.programs_cores();
    let _server = WebServer::start(&joined.hosts, &workload, cores.max(2))?;
    let connections = connections as usize;
    let load = Load { connections, threads: cores, seconds, path: "/0.bin" };
    let before = wakeups()?;
    let ((figures, steering), report) = joined.behind_card(keys(side, &targets)?, || {
        let steering = joined.hosts.within(Role::Server, &format!("cat {STEERING}"))?;
        Ok((ask(load, &joined)?, steering))
    })?;
    let wakeups = wakeups()?.saturating_sub(before);
    let mut outcome = Outcome::of(settings.world.source());
    outcome.add(Figure::one("requests_per_second", figures.requests_per_second));
    outcome.add(Figure::one("request_p50_ns", figures.request_latency_ns.p50 as f64));
    outcome.add(Figure::one("packets_per_interrupt", packets_per_interrupt(&report)));
    let delivered = report.ledger.delivered as f64;
    outcome.add(Figure::one("delivered_pps", delivered / report.duration_s));
    outcome.add(Figure::one("steering_wakeups_per_packet", wakeups as f64 / delivered.max(1.0)));
    outcome.add(Figure::count("errors", figures.errors.total()));
    let is_shared = cores <= targets.len();
    outcome.add(Figure::one(SHARED, f64::from(u8::from(is_shared))));
    outcome.tell("rps_cpus", steering.trim());
    Ok(outcome)
}

/// The keys that make the card one of the three.
pub(crate) fn keys(side: &str, targets: &[usize]) -> anyhow::Result<Vec<Setting>> {
    let first = targets.first().copied().context("the card has no target core")?;
    let list = |key: &str, cores: &[usize]| {
        Setting::parse(&format!("{key}={cores:?}")).map_err(anyhow::Error::msg)
    };
    let queues = if side == SIDES[0] { targets } else { &[first] };
    let mut keys = vec![
        Setting::number("host.queues", queues.len() as u32),
        list("host.target_cores", queues)?,
        Setting::number("interrupt.rx_usecs", 0),
    ];
    if side == SIDES[1] {
        keys.push(list("host.rps_cores", targets)?);
    }
    Ok(keys)
}

/// Wake-ups of cores since boot by others that had packets for them.
fn wakeups() -> anyhow::Result<u64> {
    let text =
        std::fs::read_to_string(SOFTNET).with_context(|| format!("cannot read {SOFTNET}"))?;
    let column = text.lines().filter_map(|line| line.split_whitespace().nth(WAKEUPS));
    Ok(column.filter_map(|word| u64::from_str_radix(word, 16).ok()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::experiment::{LabError, World};
    use picnic_lab::workloads::kind::ServerKind;

    #[test]
    fn the_kernel_steers_only_for_clas_and_each_system_answers() {
        let settings =
            |server| Settings { world: World::Host, cores: 1, server, ..Settings::default() };
        let nginx = settings(ServerKind::Nginx);
        let webfs = settings(ServerKind::Webfs);
        for (side, settings) in SIDES.iter().flat_map(|side| [(*side, &nginx), (*side, &webfs)]) {
            let outcome = match measure(settings, side, 4, 1).map_err(LabError::from) {
                Err(LabError::Unavailable(why)) => {
                    return picnic_testing::skip("knet-web with the kernel's stack", &why);
                }
                outcome => outcome.unwrap(),
            };
            let fields = outcome.fields();
            assert!(outcome.median("requests_per_second").unwrap() > 0.0, "{side}: {fields:#?}");
            assert!(outcome.median("packets_per_interrupt").unwrap() >= 1.0, "{side}: {fields:#?}");
            assert_eq!(fields["errors"], 0, "{side}: {fields:#?}");
            let steered = fields["rps_cpus"].as_str().unwrap();
            let is_steered = steered.contains(|digit| ('1'..='f').contains(&digit));
            assert_eq!(is_steered, side == "clas", "{side}: {steered}");
        }
    }

    #[test]
    fn one_queue_has_one_core_and_steering_has_all() {
        for (side, cores, steered) in
            [("knet", "[0,2]", None), ("clas", "[0]", Some("[0,2]")), ("napi", "[0]", None)]
        {
            let mut wanted = vec![
                Setting::number("host.queues", cores.split(',').count() as u32),
                Setting::parse(&format!("host.target_cores={cores}")).unwrap(),
                Setting::number("interrupt.rx_usecs", 0),
            ];
            let steered = steered.map(|cores| Setting::parse(&format!("host.rps_cores={cores}")));
            wanted.extend(steered.map(Result::unwrap));
            let found = keys(side, &[0, 2]).unwrap();
            assert_eq!(format!("{found:?}"), format!("{wanted:?}"), "{side}");
        }
        assert!(keys("knet", &[]).is_err());
    }
}
