//! `object`: a user's own XDP program in the chain, from an object file as clang writes it.
//!
//! ```toml
//! [[rx]]
//! object = "guard.bpf.o"       # relative to the card file
//! program = "guard"            # if the file has several
//! ```
//!
//! The chain tail-calls the program, which then returns to the chain (`bpf/objects.h`): `XDP_PASS`
//! continues with the next function, every other verdict ends the packet's way. Its maps are read
//! and written by commands.
//!
//! Guarantees: the file is examined before anything starts, so `picnic check` rejects invalid
//! objects. An error from the verifier names its cause.
//!
//! Source: docs/decisions/049-objects-in-the-chain.md.

mod commands;
mod elf;
mod wrap;

use crate::object::why;
use aya::EbpfLoader;
use aya::maps::{MapFd, MapInfo};
use aya::programs::{ProgramError, ProgramFd, Xdp};
use commands::{Delete, Dump, List, Lookup, Update};
use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::config::Section;
use picnic_core::error::ConfigError;
use picnic_core::files;
use picnic_core::function::Function;
use picnic_core::kernel::InKernel;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component, Entry};
use picnic_core::time::Time;
use picnic_forms::KernelForm;
use picnic_ports::bpf_map::BpfMap;
use schemars::JsonSchema;
use serde::Deserialize;
use std::error::Error;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use wrap::{Back, wrap};

/// Its entry in a registry of functions.
pub const ENTRY: Entry<Box<dyn Function>> = Entry::of::<XdpObject>();

/// Size limit of an object file, in bytes.
const LONGEST: u64 = 64 << 20;

/// The keys of `object`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The object file, relative to the card file; mandatory.
    pub(crate) object: Option<PathBuf>,
    /// The program in it, by its function's name; default: the only one.
    pub(crate) program: Option<String>,
    /// Whether eight bytes of metadata before a packet are its queue and its mark, as written with
    /// `bpf_xdp_adjust_meta`.
    pub(crate) metadata: bool,
}

/// A program of the chain as commands see it: its maps.
pub(crate) struct XdpObject {
    program: String,
    maps: Vec<BpfMap>,
    /// Network namespace of interfaces whose numbers are written into maps: the first wire's.
    namespace: Option<String>,
}

impl Component for XdpObject {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "object";
    const HELP: &'static str = "run your own XDP program, with engine = \"kernel\"";
    const COMMANDS: &'static [CommandEntry] = &[
        CommandEntry::of::<List>(),
        CommandEntry::of::<Dump>(),
        CommandEntry::of::<Lookup>(),
        CommandEntry::of::<Update>(),
        CommandEntry::of::<Delete>(),
    ];
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &["object", "program", "metadata"],
        beside: &[],
        commands: &["get", "dump", "lookup", "update", "delete"],
        form: |config, context| {
            let Some(path) = &config.object else {
                let message = "missing, expected the path of an object file";
                return Err(ConfigError::new("object", message));
            };
            let path = context.directory.join(path);
            let (program, metadata) = (config.program.clone(), config.metadata);
            Ok(KernelForm::Object { path, program, metadata }.into())
        },
    });

    fn example(_: &Path) -> Option<String> {
        // An object must be compiled first, and needs a particular engine.
        None
    }

    fn build(_: Config, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let message = "found an XDP program, which the kernel runs, allowed: only with card.engine = \
                       \"kernel\"; for this engine, write your own function as a shared object \
                       (plugin = \"my.so\")";
        Err(ConfigError::new("object", message))
    }
}

impl Function for XdpObject {
    // It sees no packets: its program does.
    fn process(&mut self, _: Time, _: &mut Burst, _: &mut Out<'_>) {}

    fn name(&self) -> Option<&str> {
        Some(&self.program)
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

/// A card's object file, read and checked.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    section: Section,
    path: PathBuf,
    bytes: Vec<u8>,
    /// The name of its program.
    pub(crate) program: String,
    /// Whether its metadata is used.
    pub(crate) metadata: bool,
}

impl ObjectFile {
    /// Reads the file that a section names.
    pub(crate) fn read(
        section: &Section,
        path: PathBuf,
        program: Option<&str>,
        metadata: bool,
    ) -> Result<Self, ConfigError> {
        let refused = |(key, message): (&str, String)| {
            let message = format!("{}: {message}", path.display());
            section.locate(ConfigError::new(key, message))
        };
        section.files().read("object", &path).map_err(|error| section.locate(error))?;
        let bytes =
            read(&path).map_err(|error| refused(("object", format!("cannot be read: {error}"))))?;
        let program = elf::program_of(&bytes, program).map_err(refused)?;
        Ok(ObjectFile { section: section.clone(), path, bytes, program, metadata })
    }

    /// Loads its program, which continues through the card's maps of packet state and of programs,
    /// at this index; also returns its own maps, for commands.
    pub(crate) fn load(
        &self,
        [state, programs]: [&MapFd; 2],
        of_card: [u32; 2],
        resume: u32,
        namespace: Option<String>,
    ) -> Result<(ProgramFd, XdpObject), ConfigError> {
        let descriptor = |map: &MapFd| map.as_fd().as_raw_fd();
        let (state, programs) = (descriptor(state), descriptor(programs));
        let wrapped = wrap(&self.bytes, &self.program, Back { state, programs, resume });
        let (bytes, name) = wrapped.ok_or_else(|| self.refused("found a truncated object"))?;
        let object = elf::not_panicking(|| EbpfLoader::new().load(&bytes));
        let object = object.ok_or_else(|| self.refused(elf::OUTSIDE))?;
        let mut object = object.map_err(|error| {
            self.refused(&format!("{} cannot be loaded: {}", self.program, why(&error)))
        })?;
        let program = object.program_mut(&name).ok_or_else(|| self.refused("found no program"))?;
        let program: Result<&mut Xdp, _> = program.try_into();
        let loaded = program.and_then(|program| {
            program.load()?;
            Ok((program.fd()?.try_clone()?, program.info()?.map_ids()?.unwrap_or_default()))
        });
        let (program, maps) = loaded.map_err(|error| self.refused_by(&error))?;
        let open = |id| -> Result<BpfMap, Box<dyn Error>> {
            let map = MapInfo::from_id(id)?.fd()?;
            Ok(BpfMap::new(map.as_fd().try_clone_to_owned()?)?)
        };
        let own = maps.into_iter().filter(|id| !of_card.contains(id)).map(|id| {
            open(id).map_err(|error| self.refused(&format!("map {id} cannot be read: {error}")))
        });
        let maps = own.collect::<Result<_, _>>()?;
        Ok((program, XdpObject { program: self.program.clone(), maps, namespace }))
    }

    fn refused(&self, message: &str) -> ConfigError {
        let message = format!("{}: {message}", self.path.display());
        self.section.locate(ConfigError::new("object", message))
    }

    /// The error for the kernel's refusal of its program.
    fn refused_by(&self, error: &ProgramError) -> ConfigError {
        let program = &self.program;
        let cause = match error {
            ProgramError::LoadError { verifier_log, .. } => cause_of(&verifier_log.to_string()),
            _ => None,
        };
        self.refused(&match cause {
            Some(cause) => format!("the verifier refuses {program}: {cause}"),
            None => format!("{program} cannot be loaded: {}", why(error)),
        })
    }
}

/// The object to load instead of these bytes, and its entry program; none for truncated bytes or a
/// missing program.
pub fn wrapped(bytes: &[u8], program: &str) -> Option<(Vec<u8>, String)> {
    wrap(bytes, program, Back::default())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The cause at the end of a verifier's log, with its source line and instruction; none if there
/// are only statistics.
fn cause_of(log: &str) -> Option<String> {
    let is_told = |line: &&str| {
        let figures = ["processed ", "verification time", "stack depth", "max_states"];
        !line.is_empty() && !figures.iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<_> = log.lines().map(str::trim).filter(is_told).collect();
    let (last, before) = lines.split_last()?;
    // Some errors lack a newline.
    let last = last.split("verification time").next().unwrap_or_default();
    let find = |is_it: &dyn Fn(&str) -> bool| before.iter().rev().find(|line| is_it(line)).copied();
    // As `; int x = *data; @ guard.c:9` and `7: (71) r1 = *(u8 *)(r1 +0)   ; R1_w=...`.
    let source = find(&|line| line.starts_with("; "));
    let is_instruction = |line: &str| {
        line.split_once(": (").is_some_and(|(at, _)| at.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let instruction = find(&is_instruction).and_then(|line| line.split(" ; ").next());
    let place: Vec<_> =
        [instruction, source.map(|source| &source[2..])].into_iter().flatten().collect();
    Some(match place.is_empty() {
        true => last.to_owned(),
        false => format!("{last} (at {})", place.join("; ").trim()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_shortened_to_its_cause() {
        let log = "func#0 @0\n0: R1=ctx() R10=fp0\n; u8 *data = (void *)(long)context->data; @ bad.c:5\n\
                   0: (61) r1 = *(u32 *)(r1 +0)          ; R1_w=pkt(r=0)\n\
                   ; return data[0]; @ bad.c:6\n\
                   1: (71) r0 = *(u8 *)(r1 +0)\n\
                   invalid access to packet, off=0 size=1, R1(id=0,off=0,r=0)\n\
                   R1 offset is outside of the packet\n\
                   processed 2 insns (limit 1000000) max_states_per_insn 0\n";
        assert_eq!(
            cause_of(log).unwrap(),
            "R1 offset is outside of the packet (at 1: (71) r0 = *(u8 *)(r1 +0); return data[0]; \
             @ bad.c:6)"
        );
        assert_eq!(
            cause_of("Program extension requires BTF\n").unwrap(),
            "Program extension requires BTF"
        );
        assert_eq!(cause_of("processed 0 insns\n"), None);
    }
}
