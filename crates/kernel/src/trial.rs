//! What a card's program costs a packet, by the kernel's own test runs; nothing is attached.
//!
//! Source: Documentation/bpf/bpf_prog_run.rst.

use crate::object::{Object, Tables, refused};
use crate::plan::plan;
use crate::rules::Rules;
use crate::run::add_filters;
use aya::programs::{TestRun, TestRunOptions};
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

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").finish_non_exhaustive()
    }
}
