//! KNET: four processors, a NIC that classifies, and two systems without it.

use super::runs::{Passed, run};
use picnic_lab::experiment::Effort;
use picnic_sim::machine::{Component, Cost, Profile, Routine};

/// What assigns packets to processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// The NIC.
    Knet,
    /// The interrupted processor.
    Clas,
    /// Nothing: one processor polls.
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
         first_window = 2\nsend_window = 14\nsend_buffer = 44\n\
         ring_size = 8192\n[interrupt]\nrx_usecs = 0\n"
    );
    run(&profile, &text, effort.lasts(60_000, 240_000, 600_000, 2_000_000), 1)
}

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    Webfs,
    /// The same with sendfile: no copy by the processor.
    Sendfile,
    /// 2.5 times the work of webfs for a request.
    Apache,
}

impl Site {
    fn on(self, profile: &Profile) -> Profile {
        let mut profile = profile.clone();
        let (cost, value) = match self {
            Site::Webfs => return profile,
            Site::Sendfile => (Cost::CopyByte, 0.5),
            Site::Apache => (Cost::Application, 2.5 * profile.costs.get(Cost::Application)),
        };
        profile.costs.set(cost, value);
        profile
    }
}

/// Requests answered.
pub(crate) fn requests_per_second(
    profile: &Profile,
    site: Site,
    system: System,
    effort: Effort,
) -> Result<f64, String> {
    let passed = web(&site.on(profile), system, effort)?;
    Ok(passed.host.answers as f64 / passed.seconds)
}

macro_rules! gains {
    ($($name:ident $site:ident, $of:ident $over:ident;)*) => {
        $(pub(crate) fn $name(profile: &Profile, effort: Effort) -> Result<f64, String> {
            let of = |system| requests_per_second(profile, Site::$site, system, effort);
            Ok(of(System::$of)? / of(System::$over)? - 1.0)
        })*
    };
}

gains! {
    webfs_over_clas Webfs, Knet Clas;
    webfs_over_napi Webfs, Knet Napi;
    sendfile_over_clas Sendfile, Knet Clas;
    sendfile_over_napi Sendfile, Knet Napi;
    apache_over_clas Apache, Knet Clas;
    apache_over_napi Apache, Knet Napi;
}

/// Packets per interrupt of the NIC.
fn per_interrupt(profile: &Profile, system: System, effort: Effort) -> Result<f64, String> {
    let passed = web(profile, system, effort)?;
    let nic = if system == System::Clas { 1 } else { passed.queues.len() };
    let interrupts: u64 = passed.queues[..nic].iter().map(|(_, interrupts)| interrupts).sum();
    Ok(passed.received as f64 / interrupts.max(1) as f64)
}

pub(crate) fn knet_per_interrupt(profile: &Profile, effort: Effort) -> Result<f64, String> {
    per_interrupt(profile, System::Knet, effort)
}

pub(crate) fn clas_per_interrupt(profile: &Profile, effort: Effort) -> Result<f64, String> {
    per_interrupt(profile, System::Clas, effort)
}

pub(crate) fn napi_per_interrupt(profile: &Profile, effort: Effort) -> Result<f64, String> {
    per_interrupt(profile, System::Napi, effort)
}

pub(crate) fn knet_driver(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(web(profile, System::Knet, effort)?.driver_receive_share(profile))
}

pub(crate) fn clas_driver(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(web(profile, System::Clas, effort)?.driver_receive_share(profile))
}

pub(crate) fn clas_locks(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(web(profile, System::Clas, effort)?.share(Component::Lock))
}

/// The lowest delivered rate as a share of the peak, when more is offered than one processor can
/// handle: 118 packets/ms.
pub(crate) fn delivered(
    profile: &Profile,
    gate: &str,
    effort: Effort,
) -> Result<Vec<(f64, f64)>, String> {
    let delivered = |per_ms: u64| {
        let text = format!(
            "[card]\nborrowed_core = 4\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\n\
             flows = 64\nrate_pps = {}\n[host]\nattachment = \"app\"\nqueues = 1\n\
             cost_ns = 6000\n[interrupt]\nrx_usecs = 0\ngate = \"{gate}\"\n",
            per_ms * 1000
        );
        let passed = run(profile, &text, effort.lasts(20_000, 40_000, 100_000, 400_000), 1)?;
        let packets: u64 = passed.queues.iter().map(|(packets, _)| *packets).sum();
        Ok((per_ms as f64 * 1e3, packets as f64 / passed.seconds))
    };
    [150, 200, 400, 700, 1000].into_iter().map(delivered).collect()
}

/// The lowest rate delivered, of the peak.
fn least_of_peak(profile: &Profile, gate: &str, effort: Effort) -> Result<f64, String> {
    let delivered = delivered(profile, gate, effort)?;
    let rates = delivered.iter().map(|(_, delivered)| *delivered);
    let peak = rates.clone().fold(0.0, f64::max);
    Ok(rates.fold(peak, f64::min) / peak.max(1.0))
}

pub(crate) fn livelock_with_gate(profile: &Profile, effort: Effort) -> Result<f64, String> {
    least_of_peak(profile, "queue", effort)
}

pub(crate) fn livelock_without(profile: &Profile, effort: Effort) -> Result<f64, String> {
    least_of_peak(profile, "none", effort)
}
