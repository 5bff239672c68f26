//! Every function of the registry with any packets: one fate each, and all buffers return.
//!
//! The bytes choose a function, its keys by their types, and packets with metadata: checksums,
//! segmentation, a stripped tag. A new function is covered once its line is in the list. Buffers
//! are small, so headers continue in a second one.

use crate::components::put;
use arbitrary::{Result, Unstructured};
use picnic_core::config::{KeyHelp, Section};
use picnic_core::direction::Direction;
use picnic_core::function::Function;
use picnic_core::registry::BuildContext;
use picnic_engine::trial::conformance;
use picnic_functions::registry::FUNCTIONS;
use std::cell::OnceCell;

/// State shared by all inputs.
struct Known {
    context: BuildContext,
    /// For each function: its mandatory keys, and all its keys.
    keys: Vec<(String, Vec<KeyHelp>)>,
    // Folder for files that examples name.
    _folder: tempfile::TempDir,
}

thread_local! {
    static KNOWN: OnceCell<Known> = const { OnceCell::new() };
}

impl Known {
    fn new() -> Known {
        let folder = tempfile::tempdir().expect("a folder for what examples name");
        let keys = FUNCTIONS
            .iter()
            .map(|entry| (entry.example(folder.path()).unwrap_or_default(), entry.keys()))
            .collect();
        let context = BuildContext {
            wires: 3,
            buffer_size: 128,
            buffers: 4096,
            directory: folder.path().into(),
            ..BuildContext::default()
        };
        Known { context, keys, _folder: folder }
    }

    /// A function with keys from the bytes; with only the mandatory keys if those do not fit.
    fn build(&self, u: &mut Unstructured<'_>) -> Result<Box<dyn Function>> {
        let index = usize::from(u.arbitrary::<u8>()?) % FUNCTIONS.len();
        let (entry, (example, keys)) = (&FUNCTIONS[index], &self.keys[index]);
        let begin = format!("function = \"{}\"\n", entry.name);
        let build = |keys: &str| {
            let section = Section::from_text("function", &format!("{begin}{keys}")).ok()?;
            entry.build(&section, &self.context).ok()
        };
        let mut chosen = String::new();
        if u.arbitrary()? {
            put(&mut chosen, u, keys)?;
        }
        let chosen = build(&format!("{example}\n{chosen}")).or_else(|| build(&chosen));
        Ok(chosen.or_else(|| build(example)).expect("an example builds"))
    }
}

/// Settings from the first bytes, packets from the others.
pub fn run(data: &[u8]) {
    KNOWN.with(|known| {
        let known = known.get_or_init(Known::new);
        let _ = play(known, &mut Unstructured::new(data));
    });
}

fn play(known: &Known, u: &mut Unstructured<'_>) -> Result<()> {
    let direction = Direction::ALL[usize::from(u.arbitrary::<bool>()?)];
    let function = known.build(u)?;
    let packets = u.bytes(u.len())?;
    conformance::of_bytes_in(function, &known.context, direction, packets)
        .expect("it keeps what every function keeps");
    Ok(())
}

/// All kinds of frames for each function, as received and as a host may send them.
pub fn seeds() -> Vec<Vec<u8>> {
    (0..FUNCTIONS.len() as u8)
        .flat_map(|function| {
            [(0, 0), (1, 7)].map(|(direction, about)| {
                [&[direction, function, 0], conformance::bytes_of_frames(about).as_slice()].concat()
            })
        })
        .collect()
}
