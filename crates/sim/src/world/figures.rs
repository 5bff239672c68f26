//! The report of a modelled machine: its host's counts, and the use of its cores' time.

use super::Simulation;
use super::modelled::Modelled;
use crate::machine::{Component, Distance, LINE_BYTES, Moved};

/// Counts of a machine's host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostFigures {
    /// Requests answered.
    pub answers: u64,
    /// Bytes that processes have read.
    pub bytes_read: u64,
    /// Acknowledgements handled.
    pub acknowledgements: u64,
    /// Of these, those handled on the core of their process.
    pub colocated: u64,
    /// Context switches.
    pub switches: u64,
    /// Wake-ups of processes on other cores.
    pub remote_wakes: u64,
    /// Interrupts of the card.
    pub interrupts: u64,
    /// Lines of memory that moved to a core.
    pub moved: Moved,
    /// Nanoseconds of computation: work without waiting for registers and memory.
    pub computed_ns: u64,
}

impl Modelled {
    /// The host's counts.
    pub(super) fn figures(&self) -> HostFigures {
        let (switches, remote_wakes, interrupts) =
            (self.switches, self.remote_wakes, self.interrupts);
        let host = self.with_host(|host| HostFigures {
            answers: host.answers,
            bytes_read: host.bytes_read,
            acknowledgements: host.acknowledgements,
            colocated: host.colocated,
            moved: host.moved,
            ..HostFigures::default()
        });
        let computed_ns = self.pipelines.computed_ns();
        HostFigures { switches, remote_wakes, interrupts, computed_ns, ..host.unwrap_or_default() }
    }
}

impl Simulation {
    /// The report's notes on the machine: the use of each host core's time, by component.
    pub(super) fn modelled_notes(&mut self) -> Vec<String> {
        let now = self.now;
        let Some(modelled) = &mut self.modelled else { return Vec::new() };
        let mut notes = Vec::new();
        for core in 0..modelled.cores() {
            let Some(accounts) = modelled.accounts(core, now) else { continue };
            let total = accounts.total().max(1) as f64;
            let share = |component: Component| accounts[component] as f64 * 100.0 / total;
            let parts = Component::ALL.into_iter().filter(|component| share(*component) >= 0.05);
            let parts = parts.map(|part| format!("{} {:.1} %", part.name(), share(part)));
            let parts = parts.collect::<Vec<_>>().join(", ");
            notes.push(format!("core {core} (modelled): {parts}"));
        }
        let HostFigures { answers, bytes_read, switches, moved, .. } = modelled.figures();
        if answers + bytes_read != 0 {
            notes.push(format!(
                "host (modelled): {answers} requests answered, {bytes_read} bytes read, {switches} \
                 context switches"
            ));
        }
        if moved.misses() != 0.0 {
            let parts = Distance::ALL[1..].iter().filter(|distance| moved[**distance] != 0.0);
            let parts = parts.map(|of| format!("{}: {:.0}", of.name(), moved[*of]));
            let bytes = moved.misses() * f64::from(LINE_BYTES);
            let parts = parts.collect::<Vec<_>>().join(", ");
            notes.push(format!("lines of memory (modelled): {parts}; {bytes:.0} bytes moved"));
        }
        notes
    }

    /// Records the idle time of the target cores in the report.
    pub(super) fn note_idle(&mut self) {
        let now = self.now;
        let Some(modelled) = &mut self.modelled else { return };
        for (place, target) in self.targets.iter().enumerate() {
            if let Some(accounts) = modelled.accounts(target.core, now) {
                self.monitor.notes.targets[place].asleep_ns.set(accounts[Component::Idle]);
            }
        }
    }
}
