//! Conformance tests for any function, built in or yours.
//!
//! ```
//! use picnic_core::function::{Function, Verdict, per_packet};
//! use picnic_core::registry::BuildContext;
//! use picnic_engine::trial::conformance;
//!
//! let build = || -> Box<dyn Function> {
//!     Box::new(per_packet(|packet| match packet.data().first() {
//!         Some(0) => Verdict::Steer(1),
//!         _ => Verdict::Next,
//!     }))
//! };
//! conformance::of_frames(build, &BuildContext::default()).unwrap();
//! conformance::of_bytes(build, &BuildContext::default(), &[1, 2, 3, 4]).unwrap();
//! ```
//!
//! Guarantees: an error if a packet has no fate, or two; if one is lost or `held()` lies; if a
//! packet or a buffer stays after the last flush; if the layers in a packet's descriptor differ
//! from its bytes. A panic of the function is passed on.

use super::{Released, Trial, frames};
use picnic_core::direction::Direction;
use picnic_core::function::Function;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType, VlanTag};
use picnic_core::packet::headers::Front;
use picnic_core::packet::layers::{self, Layers};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use std::collections::HashSet;

/// Most packets of one input of [`of_bytes`].
const MOST: usize = 64;
/// Bytes before each packet's own: gap, wire, metadata, length.
const HEAD: usize = 8;
const LONGEST: u16 = 2048;
/// Lengths that no frame of the list has: zero, about a buffer, several.
const ODD_LENGTHS: [usize; 8] = [0, 1, 13, 127, 128, 129, 4000, 9000];

/// Tests every kind of frame cut at every byte, with every leading byte damaged, and of odd
/// lengths, in both chains.
///
/// # Errors
/// The violation, with its frame.
pub fn of_frames(
    mut build: impl FnMut() -> Box<dyn Function>,
    context: &BuildContext,
) -> Result<(), String> {
    for direction in Direction::ALL {
        let mut player = Player::new(build(), context, direction)?;
        for (kind, frame) in frames::all().into_iter().enumerate() {
            let told = |text| format!("{direction:?}, frame {kind}, {text}");
            for length in 0..=frame.len() {
                player
                    .give(1, 0, [0; 4], &frame[..length])
                    .map_err(|error| told(format!("cut to {length} bytes: {error}")))?;
            }
            for place in 12..frame.len().min(64) {
                let mut damaged = frame.clone();
                damaged[place] ^= 0x55;
                player
                    .give(1, 0, [0; 4], &damaged)
                    .map_err(|error| told(format!("byte {place} damaged: {error}")))?;
            }
            for length in ODD_LENGTHS {
                let mut odd = frame.clone();
                odd.resize(length, 0x55);
                player
                    .give(1, 0, [0; 4], &odd)
                    .map_err(|error| told(format!("of {length} bytes: {error}")))?;
            }
        }
        player.end().map_err(|error| format!("{direction:?}: {error}"))?;
    }
    Ok(())
}

/// Tests every kind of frame in buffers of every length: buffer boundaries change neither its fate
/// nor its bytes. The Ethernet header, with its tags, is in one buffer.
///
/// # Errors
/// The fates of the frame whole and in pieces.
pub fn of_pieces(
    mut build: impl FnMut() -> Box<dyn Function>,
    context: &BuildContext,
) -> Result<(), String> {
    for direction in Direction::ALL {
        let mut whole = Player::new(build(), context, direction)?;
        let mut cut = Player::new(build(), context, direction)?;
        for (kind, frame) in frames::all().into_iter().enumerate() {
            for (first, others) in ways_to_cut(&frame) {
                let pieces: Vec<_> =
                    [&frame[..first]].into_iter().chain(frame[first..].chunks(others)).collect();
                let told = |text| {
                    format!("{direction:?}, frame {kind}, {first} bytes and then {others}: {text}")
                };
                let expected = whole.give_pieces(1, 0, [0; 4], &[&frame]).map_err(told)?;
                let found = cut.give_pieces(1, 0, [0; 4], &pieces).map_err(told)?;
                if what_became(&expected) != what_became(&found) {
                    return Err(told(difference(&expected, &found, &frame, &pieces)));
                }
            }
        }
        for player in [whole, cut] {
            player.end().map_err(|error| format!("{direction:?}: {error}"))?;
        }
    }
    Ok(())
}

/// The difference between the fates of the packet in pieces and whole, with the likely reason.
fn difference(whole: &[Released], cut: &[Released], frame: &[u8], pieces: &[&[u8]]) -> String {
    let fates = |released: &[Released]| {
        let fates: Vec<_> = released.iter().map(|one| format!("{:?}", one.fate)).collect();
        if fates.is_empty() { "held back".into() } else { fates.join(", ") }
    };
    let (expected, found) = (fates(whole), fates(cut));
    let mut text = match expected == found {
        true => {
            let differs = |name: &'static str, differs: bool| differs.then_some(name);
            let pairs = || whole.iter().zip(cut);
            let changed = [
                differs("bytes", pairs().any(|(whole, cut)| whole.data != cut.data)),
                differs("mark", pairs().any(|(whole, cut)| whole.mark != cut.mark)),
                differs("RSS hash", pairs().any(|(whole, cut)| whole.rss_hash != cut.rss_hash)),
                differs("wire", pairs().any(|(whole, cut)| whole.wire != cut.wire)),
            ];
            let changed: Vec<_> = changed.into_iter().flatten().collect();
            format!("{found} as of the whole packet, but with another {}", changed.join(" and "))
        }
        false => format!("found {found}, expected {expected} as of the whole packet"),
    };
    let (first, whole) = (Front::of(pieces[0], frame.len()), Front::of(frame, frame.len()));
    let lost = [
        ("ipv4", whole.ipv4().is_some() && first.ipv4().is_none()),
        ("ipv6", whole.ipv6().is_some() && first.ipv6().is_none()),
        ("tcp", whole.tcp().is_some() && first.tcp().is_none()),
        ("udp", whole.udp().is_some() && first.udp().is_none()),
    ];
    let lost: Vec<_> = lost.iter().filter(|(_, lost)| *lost).collect();
    if let Some((name, _)) = lost.last() {
        text += &format!(
            "; `packet.{name}()` returned nothing: headers are split over two buffers. Try: call \
             `packet.gather_headers()` first"
        );
    } else if pieces.len() > 1 {
        text += "; `packet.data()` is only the first buffer, `packet.segments()` are all";
    }
    text
}

/// Lengths of the first buffer, and of each other one.
fn ways_to_cut(frame: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let first = usize::from(layers::parse(frame).l3_offset);
    let ways =
        (first..frame.len()).flat_map(|first| [(first, usize::MAX), (first, 1), (first, 16)]);
    ways.filter(move |_| first != 0)
}

/// Everything except the number: a packet may continue in another buffer.
fn what_became(released: &[Released]) -> Vec<Released> {
    released.iter().map(|one| Released { number: None, ..one.clone() }).collect()
}

/// Tests packets encoded in the bytes, in both chains: for fuzzing, and for property tests.
///
/// Each packet starts with 8 bytes: microseconds since the previous one, its wire, four of metadata
/// (checksum, segmentation, a stripped tag, a mark), two of length.
///
/// # Errors
/// The violation.
pub fn of_bytes(
    mut build: impl FnMut() -> Box<dyn Function>,
    context: &BuildContext,
    bytes: &[u8],
) -> Result<(), String> {
    Direction::ALL.iter().try_for_each(|&direction| of_bytes_in(build(), context, direction, bytes))
}

/// The same in one chain.
///
/// # Errors
/// The violation.
pub fn of_bytes_in(
    function: Box<dyn Function>,
    context: &BuildContext,
    direction: Direction,
    bytes: &[u8],
) -> Result<(), String> {
    let mut player = Player::new(function, context, direction)?;
    let mut rest = bytes;
    while let Some((&[gap, wire, kinds, size, tag, mark, low, high], behind)) =
        rest.split_first_chunk::<HEAD>()
    {
        if player.given == MOST {
            break;
        }
        let length = usize::from(u16::from_le_bytes([low, high]) % LONGEST).min(behind.len());
        let (data, next) = behind.split_at(length);
        player.give(gap.into(), wire, [kinds, size, tag, mark], data)?;
        rest = next;
    }
    player.end()
}

/// All [`frames::all`] in the encoding of [`of_bytes`], as seeds for fuzzing. `kinds` is the
/// metadata of each.
pub fn bytes_of_frames(kinds: u8) -> Vec<u8> {
    let packet = |frame: Vec<u8>| {
        let length = (frame.len() as u16).to_le_bytes();
        [&[1, 0, kinds, 8, 0, 0], &length[..], &frame].concat()
    };
    frames::all().into_iter().flat_map(packet).collect()
}

/// Checks that the layers in a packet's descriptor agree with its bytes. A packet that nobody
/// parsed has none; the protocol is not stored, nor an inner tag of a packet with a stripped one;
/// and a packet that was split may keep the layers of the whole.
///
/// # Errors
/// The layers in the descriptor and in the bytes.
pub fn keeps_its_layers(packet: &Descriptor) -> Result<(), String> {
    let kept = packet.layers();
    let is_kept = |found: Layers| {
        let vlan_tci = if packet.vlan_aside().is_none() { found.vlan_tci } else { 0 };
        kept == Layers { protocol: 0, vlan_tci, ..found }
    };
    let found = layers::parse_of(packet.data(), packet.length() as usize);
    if kept == Layers::default() || is_kept(found) {
        return Ok(());
    }
    let whole: Vec<u8> = packet.segments().flatten().copied().collect();
    if is_kept(layers::parse(&whole)) {
        return Ok(());
    }
    Err(format!("its descriptor has the layers {kept:?}, its bytes have {found:?}"))
}

/// A function under test, with counters of its packets.
struct Player {
    function: Box<dyn Function>,
    trial: Trial,
    wires: u8,
    now: Time,
    given: usize,
    /// Numbers of packets with a known fate.
    ended: HashSet<usize>,
    /// Packets with a fate, including those that the function made and those that continued in
    /// another buffer, which have no number.
    fates: usize,
}

impl Player {
    fn new(
        function: Box<dyn Function>,
        context: &BuildContext,
        direction: Direction,
    ) -> Result<Self, String> {
        let trial = Trial::new(context, direction).map_err(|error| error.to_string())?;
        let wires = context.wires.max(1);
        Ok(Player {
            function,
            trial,
            wires,
            now: Time::ZERO,
            given: 0,
            ended: HashSet::new(),
            fates: 0,
        })
    }

    fn give(&mut self, gap_us: u64, wire: u8, about: [u8; 4], data: &[u8]) -> Result<(), String> {
        self.give_pieces(gap_us, wire, about, &[data]).map(drop)
    }

    fn give_pieces(
        &mut self,
        gap_us: u64,
        wire: u8,
        about: [u8; 4],
        pieces: &[&[u8]],
    ) -> Result<Vec<Released>, String> {
        self.now = self.now + gap_us * 1000;
        let wire = wire % self.wires;
        let function = &mut *self.function;
        let tell = |packet: &mut Descriptor| tell(packet, about);
        let outcomes = self.trial.give_pieces(function, self.now, wire, pieces, tell)?;
        self.given += 1;
        self.count(&outcomes)?;
        Ok(outcomes)
    }

    fn end(mut self) -> Result<(), String> {
        let outcomes = self.trial.end(&mut *self.function)?;
        self.count(&outcomes)?;
        match self.given.saturating_sub(self.fates) {
            0 => Ok(()),
            lost => Err(format!("{lost} of {} packets were lost", self.given)),
        }
    }

    fn count(&mut self, outcomes: &[Released]) -> Result<(), String> {
        self.fates += outcomes.len();
        for number in outcomes.iter().filter_map(|outcome| outcome.number) {
            if number >= self.given || !self.ended.insert(number) {
                return Err(format!("packet {number} has two fates"));
            }
        }
        Ok(())
    }
}

/// Sets other metadata of a packet.
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
