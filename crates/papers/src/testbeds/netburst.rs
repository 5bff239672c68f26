//! PICNIC figures 4 and 5: one e1000, one target core, one borrowed core.

use super::runs::{Passed, run};
use picnic_lab::compare::Line;
use picnic_lab::experiment::Effort;
use picnic_sim::machine::{Cost, Profile};

const PER_PACKET: &str = "per_packet = true\ngate = \"none\"";

/// UDP at `per_ms` packets per millisecond, with an interrupt for each.
fn udp(profile: &Profile, per_ms: u64, packets: u64) -> Result<Passed, String> {
    let gap_us = (profile.costs.get(Cost::NicGap) / 1000.0).round();
    let text = format!(
        "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nflows = 64\ntcp_share = 0.0\n\
         frames = \"reuse\"\narrivals = \"random\"\nbacklog = 256\nrate_pps = {}\n\
         [host]\nqueues = 1\n[interrupt]\n{PER_PACKET}\nwire_usecs = {gap_us}\n",
        per_ms * 1000
    );
    run(profile, &text, (2_000, packets * 1000 / per_ms), 1)
}

fn packets(effort: Effort) -> u64 {
    effort.of(10_000, 40_000, 100_000)
}

/// The rate that saturates the borrowed core, in packets per second: its throughput under a higher
/// load.
pub(crate) fn full_pps(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let passed = udp(profile, 600, packets(effort))?;
    Ok(passed.received as f64 / passed.seconds)
}

/// Extra latency at 80 packets/ms, in nanoseconds.
pub(crate) fn extra_ns(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(udp(profile, 80, packets(effort))?.extra_ns)
}

/// The formula: rho T / 2 + c + way.
pub(crate) fn extra_formula_ns(profile: &Profile) -> f64 {
    let cost = |cost| profile.costs.get(cost);
    let c = cost(Cost::CardPacket);
    80e-6 * c * cost(Cost::NicGap) / 2.0 + c + cost(Cost::InterruptWay)
}

/// R² of a straight line through the extra latency from 20 packets/ms to saturation.
pub(crate) fn latencies(profile: &Profile, effort: Effort) -> Result<Vec<(f64, f64)>, String> {
    let rates = [20, 80, 140, 200, 260, 300, 330];
    let latency =
        |&per_ms: &u64| Ok((per_ms as f64, udp(profile, per_ms, packets(effort))?.extra_ns));
    rates.iter().map(latency).collect()
}

/// R² of a straight line through the extra latency from 20 packets/ms to where the core is full.
pub(crate) fn linear(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let line = Line::of(&latencies(profile, effort)?);
    Ok(line.and_then(|line| line.r_squared).unwrap_or(1.0))
}

/// One connection that receives at a gigabit.
fn receive(profile: &Profile, interrupt: &str, effort: Effort) -> Result<Passed, String> {
    let text = format!(
        "[card]\nidle = \"spin\"\nborrowed_core = 1\n[[wire]]\nport = \"peers\"\n\
         workload = \"send\"\nconnections = 1\nwindow_bytes = 260640\nring = 256\ndelay_us = 50\n\
         [host]\nattachment = \"model\"\nqueues = 1\nio_bytes = 65536\n\
         receive_buffer = 524288\n[interrupt]\n{interrupt}\n"
    );
    run(profile, &text, effort.lasts(20_000, 60_000, 150_000, 400_000), 1)
}

/// The target core's load without the card, with it, and with its interrupts moderated.
pub(crate) fn loads(profile: &Profile, effort: Effort) -> Result<[f64; 3], String> {
    let gap_us = (profile.costs.get(Cost::NicGap) / 1000.0).round();
    let mut alone = profile.clone();
    // The NIC interrupts the target core itself.
    for cost in [Cost::CardPacket, Cost::CardSend, Cost::InterruptWay, Cost::InterruptSend] {
        alone.costs.set(cost, 0.0);
    }
    let mut behind = profile.clone();
    // target_intr() "does not deal with physical NIC registers or NIC accounting".
    for cost in [Cost::RegisterReads, Cost::RegisterWrite, Cost::DriverInterrupt, Cost::DriverDone]
    {
        behind.costs.set(cost, 0.0);
    }
    let moderated = format!("rx_usecs = {gap_us}\nrx_frames = 0");
    let wire = format!("wire_usecs = {gap_us}");
    let without = receive(&alone, &moderated, effort)?;
    let with = receive(&behind, &format!("{PER_PACKET}\n{wire}"), effort)?;
    let gated = receive(&behind, &format!("rx_usecs = 20\n{wire}"), effort)?;
    Ok([without.busy(), with.busy(), gated.busy()])
}

/// The target core's load with the card, relative to that without.
pub(crate) fn load_change(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let [without, with, _] = loads(profile, effort)?;
    Ok(with / without - 1.0)
}

/// The same in percentage points.
pub(crate) fn load_points(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let [without, with, _] = loads(profile, effort)?;
    Ok(with - without)
}

/// The load with moderated interrupts, relative to the paper's card.
pub(crate) fn moderated_change(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let [_, with, gated] = loads(profile, effort)?;
    Ok(gated / with - 1.0)
}
