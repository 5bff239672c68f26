//! `vlan`: filters by VLAN, rewrites identifiers, strips and inserts tags.
//!
//! ```toml
//! [[rx]]
//! function = "vlan"
//! allow = [10, 20]         # other tagged packets are dropped, counted as filtered
//! strip = true             # the tag is kept in the descriptor
//!
//! [[tx]]
//! function = "vlan"
//! insert = "aside"         # and inserted again
//! ```
//!
//! The steps, in this order: the filter, `rewrite`, `strip` or `insert`. All use the outer tag,
//! 802.1Q (EtherType 0x8100) or 802.1ad (0x88a8); for the filter and `rewrite`, a stripped tag is
//! the outer one. Identifier 0 tags a priority and no VLAN: the filter and `insert = "untagged"`
//! treat such a packet as untagged. If its tag is of the inserted kind, that tag gets the
//! identifier and keeps its priority, whether in the packet or stripped.
//!
//! A packet keeps its stripped tag in its descriptor, with kind and priority bits, through queues
//! and echoing hosts, until `insert` inserts it. `strip` strips one tag; a packet that already has
//! a stripped one is left alone.
//!
//! Guarantees: priority and drop-eligible bits of a tag do not change; 12 bytes are moved, never
//! copied to another buffer. A packet without headroom is dropped, counted as no_room. Source:
//! IEEE 802.1Q-2018, 9.3 to 9.6 (tags), 6.9 (priority tags), 8.6.2 (filter).

use crate::bytes::{get, get_u16, put, put_u16};
use picnic_core::command::{Command, CommandEntry, CommandError, Get, Inspect, Order, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::{Form, InKernel, KernelCounts};
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::{Descriptor, VlanTag};
use picnic_core::packet::wire::EtherType;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_forms::KernelForm;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of identifiers, including 0 and 4095.
const IDENTIFIERS: usize = 4096;
const IDENTIFIER_MASK: u16 = 0x0fff;
/// Both MAC addresses: the tag follows them.
const ADDRESSES: usize = 12;
const TAG: u16 = 4;

/// Filters, rewrites, strips and inserts VLAN tags.
#[derive(Debug)]
pub struct Vlan {
    filter: Filter,
    /// The new identifier of each; empty if all stay.
    rewrite: Box<[u16]>,
    strip: bool,
    insert: Insert,
    tag: VlanTag,
    counts: Counts,
}

/// The keys of `vlan`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Allowed identifiers; empty: all. Others are dropped, counted as filtered.
    #[schemars(inner(range(min = 1, max = IDENTIFIER_MASK)))]
    pub allow: Vec<u16>,
    /// Whether packets without a tag, or with identifier 0, pass.
    pub untagged: bool,
    /// Identifiers to rewrite, each with its new one: [[10, 20], [11, 21]].
    #[schemars(inner(inner(range(max = IDENTIFIER_MASK))))]
    pub rewrite: Vec<[u16; 2]>,
    /// Whether to strip the outer tag and keep it in the descriptor.
    pub strip: bool,
    /// Tags to insert: none, a packet's stripped one, or one with `identifier`.
    pub insert: Insert,
    /// Identifier of the tag inserted by "untagged" and "all".
    #[schemars(range(max = IDENTIFIER_MASK))]
    pub identifier: u16,
    /// Its priority.
    #[schemars(range(max = 7))]
    pub priority: u8,
    /// Its kind.
    pub kind: Kind,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            allow: Vec::new(),
            untagged: true,
            rewrite: Vec::new(),
            strip: false,
            insert: Insert::Off,
            identifier: 1,
            priority: 0,
            kind: Kind::Dot1q,
        }
    }
}

/// Which packets get a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Insert {
    /// None.
    Off,
    /// Packets with a stripped tag get that one.
    Aside,
    /// Those too; and packets without a tag, or with identifier 0, get the configured one. A tag of
    /// the same kind with identifier 0 keeps its priority.
    Untagged,
    /// All get the configured one, outside of existing tags.
    All,
}

/// The standard of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Kind {
    /// Customer tag, EtherType 0x8100.
    #[serde(rename = "802.1q")]
    Dot1q,
    /// Service tag, EtherType 0x88a8.
    #[serde(rename = "802.1ad")]
    Dot1ad,
}

/// Counters of `vlan`, in packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Counts {
    /// With a tag, in the packet or stripped.
    pub tagged: u64,
    /// Without, or too short for an Ethernet header.
    pub untagged: u64,
    /// Dropped by the filter.
    pub filtered: u64,
    /// Identifier rewritten.
    pub rewritten: u64,
    /// Tag stripped.
    pub stripped: u64,
    /// Tag inserted.
    pub inserted: u64,
    /// Dropped for lack of room for a tag.
    pub no_room: u64,
}

/// The allowed identifiers: one bit each.
#[derive(Clone, Copy, Debug)]
struct Filter {
    allowed: [u64; IDENTIFIERS / 64],
    untagged: bool,
}

impl Filter {
    fn new(allow: &[u16], untagged: bool) -> Filter {
        let mut allowed = [if allow.is_empty() { u64::MAX } else { 0 }; IDENTIFIERS / 64];
        for identifier in allow.iter().map(|identifier| identifier & IDENTIFIER_MASK) {
            allowed[usize::from(identifier / 64)] |= 1 << (identifier % 64);
        }
        Filter { allowed, untagged }
    }

    fn form(self) -> KernelForm {
        KernelForm::Vlans { allowed: Box::new(self.allowed), untagged: self.untagged }
    }

    /// Whether a packet with this tag, or none, passes.
    #[inline]
    fn passes(&self, tci: Option<u16>) -> bool {
        match tci.map(|tci| tci & IDENTIFIER_MASK) {
            None | Some(0) => self.untagged,
            Some(identifier) => {
                self.allowed[usize::from(identifier / 64)] >> (identifier % 64) & 1 != 0
            }
        }
    }
}

impl Component for Vlan {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "vlan";
    const HELP: &'static str = "filter by VLAN, rewrite identifiers, strip and insert tags";
    const COMMANDS: &'static [CommandEntry] =
        &[CommandEntry::of::<Get<Vlan>>(), CommandEntry::of::<Set>()];
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &["allow", "untagged"],
        beside: &[],
        commands: &["get", "set"],
        form: |config, _| Ok(Filter::new(&config.allow, config.untagged).form().into()),
    });

    fn build(config: Config, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let Config { allow, untagged, rewrite, strip, insert, identifier, priority, kind } = config;
        let filter = Filter::new(&allow, untagged);
        if strip && insert != Insert::Off {
            return Err(ConfigError::new("insert", "found together with strip, allowed: one"));
        }
        let mut table = if rewrite.is_empty() {
            Box::default()
        } else {
            (0..IDENTIFIERS as u16).collect::<Box<[u16]>>()
        };
        for [from, to] in rewrite {
            table[usize::from(from & IDENTIFIER_MASK)] = to;
        }
        let tag =
            VlanTag { tci: u16::from(priority) << 13 | identifier, service: kind == Kind::Dot1ad };
        let counts = Counts::default();
        Ok(Box::new(Vlan { filter, rewrite: table, strip, insert, tag, counts }))
    }
}

/// The tag in a packet, the outer of two.
#[inline]
fn tag_of(data: &[u8]) -> Option<VlanTag> {
    let service = match EtherType(get_u16(data, ADDRESSES)?) {
        EtherType::VLAN => false,
        EtherType::QINQ => true,
        _ => return None,
    };
    // A tag needs the type of the following header.
    get_u16(data, ADDRESSES + 4)?;
    Some(VlanTag { tci: get_u16(data, ADDRESSES + 2)?, service })
}

/// Strips the outer tag of a packet that has one, and keeps it in the descriptor.
fn strip(packet: &mut Descriptor, tag: VlanTag) {
    if let Some(addresses) = get::<ADDRESSES>(packet.data(), 0) {
        put(packet.data_mut(), TAG.into(), addresses);
    }
    packet.pull_front(TAG);
    packet.set_vlan_aside(Some(tag));
    packet.parse();
}

/// Inserts a tag outside of existing tags; false if there is no headroom. The packet has both
/// MAC addresses.
fn insert(packet: &mut Descriptor, tag: VlanTag) -> bool {
    if !packet.push_front(TAG) {
        return false;
    }
    let data = packet.data_mut();
    data.copy_within(usize::from(TAG)..usize::from(TAG) + ADDRESSES, 0);
    let kind = if tag.service { EtherType::QINQ } else { EtherType::VLAN };
    put_u16(data, ADDRESSES, kind.0);
    put_u16(data, ADDRESSES + 2, tag.tci);
    packet.parse();
    true
}

impl Vlan {
    /// Applies all steps to a packet; returns a reason to drop it, if any.
    #[inline]
    fn handle(&mut self, packet: &mut Descriptor) -> Result<(), DropReason> {
        let mut within = tag_of(packet.data());
        let mut aside = packet.vlan_aside();
        // The stripped one was outside of the remaining ones.
        let tci = aside.or(within).map(|tag| tag.tci);
        *if tci.is_some() { &mut self.counts.tagged } else { &mut self.counts.untagged } += 1;
        if !self.filter.passes(tci) {
            self.counts.filtered += 1;
            return Err(DropReason::Filtered);
        }
        if let Some(old) = tci
            && let Some(&identifier) = self.rewrite.get(usize::from(old & IDENTIFIER_MASK))
            && identifier != old & IDENTIFIER_MASK
        {
            let tci = old & !IDENTIFIER_MASK | identifier;
            if let Some(tag) = &mut aside {
                tag.tci = tci;
                packet.set_vlan_aside(aside);
            } else if let Some(tag) = &mut within {
                tag.tci = tci;
                put_u16(packet.data_mut(), ADDRESSES + 2, tci);
            }
            self.counts.rewritten += 1;
            packet.parse();
        }
        if self.strip {
            if let (Some(tag), None) = (within, aside) {
                strip(packet, tag);
                self.counts.stripped += 1;
            }
            return Ok(());
        }
        // The tag to insert, and whether a stripped tag belongs inside it.
        let (tag, is_outside) = match self.insert {
            Insert::Off => (None, false),
            Insert::Aside => (aside, false),
            Insert::Untagged => match aside.or(within) {
                None => (Some(self.tag), false),
                Some(tag) if tag.tci & IDENTIFIER_MASK != 0 => (aside, false),
                Some(tag) if tag.service != self.tag.service => (Some(self.tag), true),
                Some(priority) => {
                    let tci = priority.tci | self.tag.tci & IDENTIFIER_MASK;
                    if aside.is_none() {
                        if tci != priority.tci {
                            put_u16(packet.data_mut(), ADDRESSES + 2, tci);
                            packet.parse();
                            self.counts.inserted += 1;
                        }
                        return Ok(());
                    }
                    (Some(VlanTag { tci, ..priority }), false)
                }
            },
            Insert::All => (Some(self.tag), true),
        };
        let Some(tag) = tag.filter(|_| packet.data().len() >= ADDRESSES) else { return Ok(()) };
        if let Some(kept) = aside {
            packet.set_vlan_aside(None);
            if is_outside && !insert(packet, kept) {
                self.counts.no_room += 1;
                return Err(DropReason::NoRoom);
            }
        }
        if !insert(packet, tag) {
            self.counts.no_room += 1;
            return Err(DropReason::NoRoom);
        }
        self.counts.inserted += 1;
        Ok(())
    }
}

impl Inspect for Vlan {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

impl Function for Vlan {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        // In place, and moved only if some do not stay: a descriptor that was just written is slow
        // to move.
        let mut dropped = [None; BURST];
        let mut any = false;
        for (packet, dropped) in burst.as_mut_slice().iter_mut().zip(&mut dropped) {
            if let Err(reason) = self.handle(packet) {
                (*dropped, any) = (Some(reason), true);
            }
        }
        if !any {
            return;
        }
        let mut dropped = dropped.into_iter();
        burst.retain(|packet| match dropped.next().flatten() {
            None => Some(packet),
            Some(reason) => {
                out.drop(packet, reason);
                None
            }
        });
    }

    fn kernel_form(&self) -> Option<Form> {
        Some(self.filter.form().into())
    }

    fn note_kernel(&mut self, counts: &KernelCounts) {
        // The counters are not of one moment: tagged ones may be ahead.
        let untagged = counts.packets.saturating_sub(counts.tagged).max(self.counts.untagged);
        let (tagged, filtered) = (counts.tagged, counts.dropped);
        self.counts = Counts { tagged, untagged, filtered, ..self.counts };
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

/// The arguments of `vlan.set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// Allowed VLAN identifiers; empty: all.
    #[schemars(inner(range(min = 1, max = IDENTIFIER_MASK)))]
    pub allow: Vec<u16>,
    /// Whether packets without a tag, or with identifier 0, pass.
    #[serde(default = "yes")]
    pub untagged: bool,
}

fn yes() -> bool {
    true
}

/// The result of `vlan.set`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Replaced {
    /// Number of VLAN identifiers allowed before.
    pub allowed_before: u16,
}

/// Another filter; after the change, the previous one.
pub struct VlanFilterChange(Filter);

impl Order for VlanFilterChange {
    type Target = Vlan;

    fn apply(&mut self, vlan: &mut Vlan, _now: Time) -> bool {
        std::mem::swap(&mut self.0, &mut vlan.filter);
        true
    }
}

impl Command for Set {
    const NAME: &'static str = "set";
    const HELP: &'static str = "change the filter";
    const EXAMPLE: &'static str = r#"{"allow": [10, 20]}"#;
    type Order = VlanFilterChange;
    type Reply = Replaced;

    fn prepare(self, _: &BuildContext) -> Result<VlanFilterChange, CommandError> {
        Ok(VlanFilterChange(Filter::new(&self.allow, self.untagged)))
    }

    fn reply(order: VlanFilterChange) -> Result<Replaced, CommandError> {
        // Identifier 0 has a bit, but is not a VLAN.
        let Filter { mut allowed, .. } = order.0;
        allowed[0] &= !1;
        let count: u32 = allowed.iter().map(|word| word.count_ones()).sum();
        Ok(Replaced { allowed_before: count as u16 })
    }
}
