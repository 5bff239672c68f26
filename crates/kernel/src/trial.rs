//! What a card's program costs a packet, by the kernel's own test runs; nothing is attached.
//!
//! Source: Documentation/bpf/bpf_prog_run.rst.

use crate::object::{Object, Tables, flood, refused};
use crate::plan::plan;
use crate::rules::Rules;
use crate::run::add_filters;
use aya::Ebpf;
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use picnic_control::Launch;
use picnic_control::error::RunError;

/// A card's program for its first wire, with `handover = "cpumap"`, loaded.
pub struct Trial {
    object: Object,
    _tables: Tables,
    _rules: Rules,
}

impl Trial {
    /// Loads what a card would start with.
    ///
    /// # Errors
    /// As at the start of the card.
    pub fn load(launch: &Launch<'_>) -> Result<Self, RunError> {
        let (mut plan, placement) = plan(launch)?;
        plan.room = add_filters(launch, &launch.filters)?;
        let mut object = Object::load(&plan, &placement.target_cores, false)?;
        let tables = object.tables(&plan)?;
        let rules = Rules::new(&launch.filters, object.filters()?, plan.room)?;
        object.wire(0)?;
        Ok(Trial { object, _tables: tables, _rules: rules })
    }

    /// Nanoseconds that the program takes for a frame, over so many runs, as the kernel has them:
    /// without fractions.
    ///
    /// # Errors
    /// The kernel refuses the run.
    pub fn time(&mut self, frame: &[u8], runs: u32) -> Result<f64, RunError> {
        let program = self.object.wire(0)?;
        let mut options = TestRunOptions::new();
        (options.data_in, options.repeat) = (Some(frame), runs);
        let result = program.test_run(options).map_err(|error| refused("run", &error))?;
        Ok(result.duration.as_nanos() as f64)
    }
}

/// Frames that the kernel sends by an interface, as fast as it can.
pub struct Flood(Ebpf);

impl Flood {
    /// By the interface of this number.
    ///
    /// # Errors
    /// The program is refused.
    pub fn by(interface: u32) -> Result<Self, RunError> {
        Ok(Flood(flood(interface)?))
    }

    /// Sends a frame so many times, on this core and in this thread's network namespace. What the
    /// other end has no room for is lost.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn send(&mut self, frame: &[u8], times: u32) -> Result<(), RunError> {
        const BATCH: u32 = 64;
        let program = self.0.program_mut("flood").and_then(|program| program.try_into().ok());
        let Some(program): Option<&mut Xdp> = program else { return Ok(()) };
        let mut options = TestRunOptions::new();
        (options.data_in, options.repeat) = (Some(frame), times);
        options.attrs = TestRunAttrs::new().xdp_live_frames(BATCH);
        program.test_run(options).map(drop).map_err(|error| refused("run", &error))
    }
}

impl std::fmt::Debug for Flood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flood").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").finish_non_exhaustive()
    }
}
