//! What-if runs: target cores wait as the driver of the device of `[device]` would.
//!
//! The core waits for the time of register accesses. The delay of a bus is not imposed, and packets
//! are not moved out of their caches. The report of such a run says so.

use picnic_core::config::CardFile;
use picnic_core::device::{Device, DeviceSection, Dma, Work};
use picnic_core::error::ConfigError;
use picnic_engine::target::{Polled, Target};
use picnic_machine::topology::{Placement, Topology};

/// The device of a card file, with a warning for the report; none if it is ideal.
///
/// # Errors
/// Packets would be in a cache that a target core does not share with the borrowed core.
pub(crate) fn of(
    file: &CardFile,
    placement: &mut Placement,
    topology: &Topology,
) -> Result<Option<Device>, ConfigError> {
    let section = file.section::<DeviceSection>();
    let Some(device) = section.keys.device() else { return Ok(None) };
    if device.dma == Dma::Cache {
        let borrowed = placement.borrowed_core;
        let shares = |core: &usize| {
            (2..=4).any(|level| {
                topology.sharing(borrowed, level).is_some_and(|cores| cores.contains(*core))
            })
        };
        if let Some(core) = placement.target_cores.iter().find(|core| !shares(core)) {
            let message = format!(
                "found \"cache\", but cores {borrowed} (borrowed) and {core} (target) are not known \
                 to share a cache, allowed: \"memory\""
            );
            let key = if section.keys.dma.is_some() { "device.dma" } else { "device.kind" };
            return Err(file.locate(ConfigError::new(key, message)));
        }
    }
    let mut left_out = Vec::new();
    if device.bus_ns != 0 {
        left_out.push(format!("the bus's {} ns are not imposed", device.bus_ns));
    }
    if device.dma == Dma::Memory {
        left_out.push("packets stay in the caches that they are in".into());
    }
    let mut note = format!(
        "what if: target cores wait for the registers of a device ({}): reads of {} ns, writes of \
         {} ns",
        section.keys.name(),
        device.register_read_ns,
        device.register_write_ns
    );
    if !left_out.is_empty() {
        note += &format!("; {}", left_out.join(", "));
    }
    placement.warnings.push(note);
    Ok(Some(device))
}

/// The driver's waits for registers of its device.
pub(crate) trait Driver {
    fn waits_ns(&mut self, target: &Target, polled: &Polled) -> u64;
}

/// There is no such device: this compiles to nothing.
pub(crate) struct Ideal;

impl Driver for Ideal {
    #[inline(always)]
    fn waits_ns(&mut self, _: &Target, _: &Polled) -> u64 {
        0
    }
}

/// There is one: its accesses are waited for.
pub(crate) struct Paying {
    device: Device,
    /// Packets that hosts had sent at the last look.
    sent: u64,
}

impl Driver for Paying {
    fn waits_ns(&mut self, target: &Target, polled: &Polled) -> u64 {
        let sent = target.sent();
        let newly = sent - std::mem::replace(&mut self.sent, sent);
        self.device.cost(&Work::of_look(polled.interrupts, polled.moved, newly))
    }
}

impl Paying {
    pub(crate) fn at(device: Device) -> Self {
        Paying { device, sent: 0 }
    }
}
