//! The cost of a card's program per packet, from the kernel's test runs; nothing is attached.
//!
//! Source: Documentation/bpf/bpf_prog_run.rst.

use crate::object::{Object, flood, refused};
use crate::plan::plan;
use crate::rules::Rules;
use crate::run::add_filters;
use crate::tables::Tables;
use aya::maps::{CpuMap, MapData, MapError};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use picnic_control::Launch;
use picnic_control::error::RunError;
use picnic_machine::error::MachineError;
use picnic_ports::interface::within;
use std::path::Path;

/// A card's loaded program for its first wire, with `handover = "cpumap"`.
pub struct Trial {
    object: Object,
    _tables: Tables,
    _rules: Rules,
}

impl Trial {
    /// Loads the programs as at the start of a card.
    ///
    /// # Errors
    /// As at the start of the card.
    pub fn load(launch: &Launch<'_>) -> Result<Self, RunError> {
        let (mut plan, placement) = plan(launch)?;
        plan.room = add_filters(launch, &launch.filters)?;
        plan.has_endless_rings = true;
        let mut object = Object::load(&plan, &placement.target_cores, false)?;
        let tables = object.tables(&plan)?;
        let rules = Rules::new(&launch.filters, object.filters()?, plan.room)?;
        object.wire(0)?;
        Ok(Trial { object, _tables: tables, _rules: rules })
    }

    /// Nanoseconds of the program for a frame, averaged over `runs` runs by the kernel: a whole
    /// number.
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

/// Frames that the kernel sends out of an interface as fast as it can.
pub struct Flood(Ebpf);

impl Flood {
    /// For the interface of this number.
    ///
    /// # Errors
    /// The program is refused.
    pub fn by(interface: u32) -> Result<Self, RunError> {
        Ok(Flood(flood(interface)?))
    }

    /// Sends a frame `times` times, on this core and in this thread's network namespace. Frames
    /// without room at the other end are lost.
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

/// A foreign program `xdp_dispatch` that hands packets over by its cpumap `CPUS`.
pub struct Peer {
    /// Dropped first.
    _link: FdLink,
    _object: Ebpf,
}

impl Peer {
    /// Attaches the program of an object file to the receive path of an interface in a network
    /// namespace: it hands all packets to one core, by a ring of this size.
    ///
    /// # Errors
    /// The file is no such object; the kernel refuses it.
    pub fn attach(
        file: &Path,
        (interface, namespace): (&str, &str),
        core: usize,
        ring_size: u32,
    ) -> Result<Self, RunError> {
        /// Entries of the program's table of cores.
        const ENTRIES: usize = 128;
        let loaded = |error: &(dyn std::error::Error + 'static)| refused("loaded", error);
        let cores = [core as u32; ENTRIES];
        let mut loader = EbpfLoader::new();
        let mut object = loader
            .override_global("CORES", &cores, true)
            .load_file(file)
            .map_err(|error| loaded(&error))?;
        let missing = |name| MachineError::Refused(format!("{} has no {name}", file.display()));
        let targets = object.map_mut("CPUS").ok_or_else(|| missing("map CPUS"))?;
        let mut targets: CpuMap<&mut MapData> =
            targets.try_into().map_err(|error: MapError| loaded(&error))?;
        targets.set(core as u32, ring_size, None, 0).map_err(|error| loaded(&error))?;
        let program = object.program_mut("xdp_dispatch");
        let program = program.ok_or_else(|| missing("program xdp_dispatch"))?;
        let program: &mut Xdp = program.try_into().map_err(|error: ProgramError| loaded(&error))?;
        program.load().map_err(|error| loaded(&error))?;
        let link = within(Some(namespace), || Object::attach(program, interface, XdpMode::Driver))?;
        let link = link.map_err(|error| refused("attached", &*error))?;
        Ok(Peer { _link: link, _object: object })
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").finish_non_exhaustive()
    }
}
