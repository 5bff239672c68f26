//! The kernel engine: the same card file, with packets that never leave the kernel.
//!
//! ```no_run
//! use picnic_control::{Launch, Registries};
//! use picnic_core::config::CardFile;
//!
//! /// `registries` are those of a program, with [`Kernel`] among its executors.
//! fn second(registries: Registries) -> Result<u64, Box<dyn std::error::Error>> {
//!     let text = "[card]\nengine = \"kernel\"\n[[wire]]\nport = \"xdp\"\ninterface = \"eth0\"\n\
//!                 [host]\nattachment = \"stack\"\nqueues = 1\n";
//!     let card = CardFile::parse(text, None)?;
//!     let mut running = Launch::new(&card, registries).start()?;
//!     running.pass(std::time::Duration::from_secs(1));
//!     Ok(running.stop()?.ledger.delivered)
//! }
//! ```
//!
//! Each wire is an interface, polled by a thread of the kernel that is pinned to the borrowed
//! core. A program there runs the rx chain and hands each packet to its target core by a cpumap, as if
//! the interface had interrupted that core: a ring, and behind it a thread that brings packets to the
//! network stack. It is a tc program, of packets that GRO has merged, or an XDP program, of frames.
//! Which functions can be in such a chain say their registry entries ([`Component::KERNEL`]).
//!
//! * `plan`: from card file to what is loaded, all validated;
//! * `object`: the programs, loaded with the plan;
//! * `constants`: what a plan is to them;
//! * `tables`: what commands change of them;
//! * `elf`: object files in memory, read and changed;
//! * `objects`: a user's own XDP programs in the chain;
//! * `counters`: what they count, as the card's counters;
//! * `rules`: the filters, in the programs' maps;
//! * `flows`: rules for flows, in the programs' maps;
//! * `hybrid`: the part of a card that the poll engine has;
//! * `live`: the functions' commands while the card runs;
//! * `attached`: the programs at their wires;
//! * `swap`: another chain, while packets flow;
//! * `run`: start to clean stop;
//! * `describe`: the plan in words;
//! * `doctor`: whether a machine can do it;
//! * `trial`: what a program costs a packet, for benchmarks;
//! * `work`: what a core's time goes to, for benchmarks.
//!
//! Guarantees: what a card file asks for and this engine does not do is refused by key. The ledger
//! balances at the end of every run, by counts of each end. A change of key or table is made at once
//! for all packets, that of a chain on one wire after the other; none is lost. Stopping loses nothing
//! that was handed over. The machine is left as it was found, after a kill by the journal
//! ([`picnic_machine::undo`]); the programs themselves end with the process.
//!
//! Source: PICNIC, sections 2 and 3; Documentation/bpf/map_cpumap.rst,
//! Documentation/networking/napi.rst; docs/decisions/040-the-kernel-engine.md,
//! 042-merged-packets-by-relay.md.
//!
//! [`Component::KERNEL`]: picnic_core::registry::Component::KERNEL

#![forbid(unsafe_code)]

mod attached;
mod constants;
mod counters;
mod cuckoo;
mod describe;
mod doctor;
mod elf;
mod flows;
mod hybrid;
mod live;
mod object;
mod objects;
mod plan;
mod pools;
mod rules;
mod run;
mod swap;
mod tables;
#[cfg(test)]
mod tests;
mod trial;
mod work;

pub use doctor::examine;
pub use object::is_built;
pub use objects::{ENTRY, wrapped};
pub use run::{Hybrid, Kernel};
pub use trial::{Flood, Peer, Trial};
pub use work::{Work, WorkMeter};
