//! The list of wire ports and host attachments: one line each.
//!
//! ```
//! use picnic_core::config::Section;
//! use picnic_core::registry::{BuildContext, find};
//! use picnic_ports::registry::WIRES;
//! let section = Section::from_text("port", "port = \"generator\"\nflows = 16").unwrap();
//! let wire = find(WIRES, &section).unwrap().build(&section, &BuildContext::default()).unwrap();
//! assert!(wire.describe().capabilities.patient);
//! ```
//!
//! To add one: a file with a type that implements
//! [`Component`](picnic_core::registry::Component), and its line here.

use crate::af_packet::Packet;
use crate::af_xdp::Xdp;
use crate::app::App;
use crate::cable::CablePort;
use crate::generator::Generator;
use crate::middleware::fault::FaultConfig;
use crate::middleware::link::LinkConfig;
use crate::middleware::tracer::TraceConfig;
use crate::pcap::Pcap;
use crate::stack::Stack;
use crate::tap::{Tap, TapWire};
use crate::vhost_user::VhostUser;
use picnic_core::attachment::HostAttachment;
use picnic_core::config::SectionEntry;
use picnic_core::port::WirePort;
use picnic_core::registry::Entry;

/// Values of `port` in `[[wire]]`.
pub static WIRES: &[Entry<Box<dyn WirePort>>] = &[
    Entry::of::<Generator>(),
    Entry::of::<Pcap>(),
    Entry::of::<Packet>(),
    Entry::of::<TapWire>(),
    Entry::of::<Xdp>(),
    Entry::of::<CablePort>(),
];

/// Values of `attachment` in `[host]`.
pub static ATTACHMENTS: &[Entry<Box<dyn HostAttachment>>] =
    &[Entry::of::<App>(), Entry::of::<Tap>(), Entry::of::<VhostUser>(), Entry::of::<Stack>()];

/// Further sections of a card file.
pub const SECTIONS: &[SectionEntry] = &[
    SectionEntry::of::<TraceConfig>(),
    SectionEntry::of::<LinkConfig>(),
    SectionEntry::of::<FaultConfig>(),
];
