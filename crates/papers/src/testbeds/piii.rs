//! KNET: four processors, a NIC that classifies, and two systems without it.

use super::runs::{Passed, run};
use picnic_lab::experiment::Effort;
use picnic_sim::machine::{Component, Cost, Profile, Routine};

/// Who puts packets on processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    /// The NIC.
    Knet,
    /// The processor that is interrupted.
    Clas,
    /// Nobody: one processor polls.
    Napi,
}

/// A web server with files of 20 KB; a connection for each request.
fn web(profile: &Profile, system: System, effort: Effort) -> Result<Passed, String> {
    let mut profile = profile.clone();
    let (queues, keys) = match system {
        System::Knet => (4, ""),
        System::Clas => (4, "system = \"clas\"\n"),
        System::Napi => (1, ""),
    };
    if system == System::Napi {
        profile.routine = Routine::Softirq;
    }
    let cores: Vec<_> = (0..queues).collect();
    let text = format!(
        "[card]\nborrowed_core = 4\nidle = \"spin\"\n[pool]\nbuffers = 32768\n[[wire]]\n\
         port = \"peers\"\nconnections = 24\nfile_bytes = 20272\ncontrol_frames = 4\n\
         rate_mbps = 2000\ndelay_us = 100\n[[rx]]\nfunction = \"rss\"\n[host]\n{keys}\
         attachment = \"model\"\nqueues = {queues}\ntarget_cores = {cores:?}\ncores = 4\n\
         file_bytes = 20272\nfirst_window = 2\nsend_window = 14\nsend_buffer = 44\n\
         ring_size = 8192\n[interrupt]\nrx_usecs = 0\n"
    );
    run(&profile, &text, 60_000, effort.of(240_000, 600_000, 2_000_000), 1)
}

fn rps(profile: &Profile, system: System, effort: Effort) -> Result<f64, String> {
    let passed = web(profile, system, effort)?;
    Ok(passed.host.answers as f64 / passed.seconds)
}

fn gain(profile: &Profile, of: System, over: System, effort: Effort) -> Result<f64, String> {
    Ok(rps(profile, of, effort)? / rps(profile, over, effort)? - 1.0)
}

/// The same machine with sendfile: no copy by the processor.
fn sendfile(profile: &Profile) -> Profile {
    let mut profile = profile.clone();
    profile.costs.set(Cost::CopyByte, 0.5);
    profile
}

/// Apache: 2.5 times the work of webfs for a request.
fn apache(profile: &Profile) -> Profile {
    let mut profile = profile.clone();
    profile.costs.set(Cost::Application, 2.5 * profile.costs.get(Cost::Application));
    profile
}

macro_rules! gains {
    ($($name:ident $machine:expr, $of:ident $over:ident;)*) => {
        $(pub(super) fn $name(profile: &Profile, effort: Effort) -> Result<f64, String> {
            let machine: fn(&Profile) -> Profile = $machine;
            gain(&machine(profile), System::$of, System::$over, effort)
        })*
    };
}

gains! {
    webfs_over_clas Profile::clone, Knet Clas;
    webfs_over_napi Profile::clone, Knet Napi;
    sendfile_over_clas sendfile, Knet Clas;
    sendfile_over_napi sendfile, Knet Napi;
    apache_over_clas apache, Knet Clas;
    apache_over_napi apache, Knet Napi;
}

/// Packets for each interrupt of the NIC.
fn per_interrupt(profile: &Profile, system: System, effort: Effort) -> Result<f64, String> {
    let passed = web(profile, system, effort)?;
    let nic = if system == System::Clas { 1 } else { passed.queues.len() };
    let interrupts: u64 = passed.queues[..nic].iter().map(|(_, interrupts)| interrupts).sum();
    Ok(passed.received as f64 / interrupts.max(1) as f64)
}

pub(super) fn knet_per_interrupt(profile: &Profile, effort: Effort) -> Result<f64, String> {
    per_interrupt(profile, System::Knet, effort)
}

pub(super) fn clas_per_interrupt(profile: &Profile, effort: Effort) -> Result<f64, String> {
    per_interrupt(profile, System::Clas, effort)
}

pub(super) fn napi_per_interrupt(profile: &Profile, effort: Effort) -> Result<f64, String> {
    per_interrupt(profile, System::Napi, effort)
}

pub(super) fn knet_driver(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(web(profile, System::Knet, effort)?.driver_receive_share(profile))
}

pub(super) fn clas_driver(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(web(profile, System::Clas, effort)?.driver_receive_share(profile))
}

pub(super) fn clas_locks(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(web(profile, System::Clas, effort)?.share(Component::Lock))
}

/// The lowest rate delivered, of the peak, when more is offered than one processor can take: 118
/// packets/ms.
fn least_of_peak(profile: &Profile, gate: &str, effort: Effort) -> Result<f64, String> {
    let delivered = [150, 200, 400, 700, 1000].map(|per_ms| {
        let text = format!(
            "[card]\nborrowed_core = 4\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\n\
             flows = 64\nrate_pps = {}\n[host]\nattachment = \"app\"\nqueues = 1\n\
             cost_ns = 6000\n[interrupt]\nrx_usecs = 0\ngate = \"{gate}\"\n",
            per_ms * 1000
        );
        let passed = run(profile, &text, 20_000, effort.of(40_000, 100_000, 400_000), 1)?;
        Ok(passed.queues.iter().map(|(packets, _)| *packets).sum::<u64>() as f64)
    });
    let delivered = delivered.into_iter().collect::<Result<Vec<f64>, String>>()?;
    let peak = delivered.iter().copied().fold(0.0, f64::max);
    Ok(delivered.iter().copied().fold(peak, f64::min) / peak.max(1.0))
}

pub(super) fn livelock_with_gate(profile: &Profile, effort: Effort) -> Result<f64, String> {
    least_of_peak(profile, "queue", effort)
}

pub(super) fn livelock_without(profile: &Profile, effort: Effort) -> Result<f64, String> {
    least_of_peak(profile, "none", effort)
}
