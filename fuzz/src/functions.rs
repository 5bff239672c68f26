//! Every function of the registry over any packets: one fate each, and all buffers home.
//!
//! The bytes choose a function, its keys by their types, and packets with what may be known of
//! them: checksums, segmentation, a tag aside. A new function is tried from the day its line is in
//! the list. Buffers are small, so that headers go on in a second one.

use crate::components::put;
use crate::frames;
use arbitrary::{Result, Unstructured};
use picnic_core::config::{KeyHelp, Section};
use picnic_core::direction::Direction;
use picnic_core::function::Function;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType, VlanTag};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_engine::trial::Trial;
use picnic_functions::registry::FUNCTIONS;
use std::cell::OnceCell;

/// What does not change from input to input.
struct Known {
    context: BuildContext,
    /// Of each function: the keys that it must be given, and all it has.
    keys: Vec<(String, Vec<KeyHelp>)>,
    // What examples name is in it.
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

    /// A function with keys as the bytes say; with those that it needs, if they do not fit.
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
    let mut function = known.build(u)?;
    let mut trial = Trial::new(&known.context, direction).expect("a small pool");
    let (mut now, mut given, mut ended) = (Time::ZERO, 0, 0);
    while !u.is_empty() && given < 64 {
        now = now + u64::from(u.arbitrary::<u8>()?) * 1000;
        let (wire, about) = (u.int_in_range(0..=2)?, u.arbitrary::<[u8; 4]>()?);
        let length = usize::from(u.arbitrary::<u16>()? % 2048).min(u.len());
        let bytes = u.bytes(length)?;
        let outcomes = trial.give_known(&mut *function, now, wire, bytes, |packet| {
            tell(packet, about);
        });
        given += 1;
        ended += numbered(&outcomes.expect("each packet has one fate"));
    }
    let outcomes = trial.end(&mut *function).expect("all buffers come home");
    ended += numbered(&outcomes);
    assert!(ended <= given, "{ended} of {given} packets have left");
    Ok(())
}

/// Packets among these that were given, not made.
fn numbered(outcomes: &[picnic_engine::trial::Released]) -> usize {
    outcomes.iter().filter(|outcome| outcome.number.is_some()).count()
}

/// What else is known of a packet.
fn tell(packet: &mut Descriptor, [kinds, size, tag, mark]: [u8; 4]) {
    packet.mark = mark.into();
    packet.set_checksum(match kinds & 3 {
        0 => ChecksumState::Unknown,
        1 => ChecksumState::Good,
        2 => ChecksumState::Bad,
        _ => ChecksumState::Partial,
    });
    match kinds >> 2 & 7 {
        1 => packet.set_gso(GsoType::Tcp4, size.into()),
        2 => packet.set_gso(GsoType::Tcp6, size.into()),
        3 => packet.set_gso(GsoType::Udp, size.into()),
        _ => {}
    }
    if kinds & 32 != 0 {
        packet.set_vlan_aside(Some(VlanTag { tci: tag.into(), service: kinds & 64 != 0 }));
    }
    if kinds & 128 != 0 {
        packet.set_tx_queue(mark % 4);
    }
}

/// All kinds of frames for each function, as received and as a host may send them.
pub fn seeds() -> Vec<Vec<u8>> {
    let packets = |about: u8| -> Vec<u8> {
        let frames = frames::all().into_iter();
        frames
            .flat_map(|frame| {
                let length = (frame.len() as u16).to_le_bytes();
                [&[1, 0, about, 8, 0, 0], &length[..], &frame].concat()
            })
            .collect()
    };
    (0..FUNCTIONS.len() as u8)
        .flat_map(|function| {
            [(0, 0), (1, 7)].map(|(direction, about)| {
                [&[direction, function, 0], packets(about).as_slice()].concat()
            })
        })
        .collect()
}
