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
//! Each wire is an interface, polled by a kernel thread that is pinned to the borrowed core. A
//! program there runs the rx chain and passes each packet to its target core through a cpumap, as
//! if the interface had interrupted that core: a ring, and a thread that takes packets from it to the
//! network stack. It is a tc program for packets that GRO has merged, or an XDP program for frames.
//! Registry entries say which functions such a chain can have ([`Component::KERNEL`]).
//!
//! * `plan`: from the card file to the validated plan;
//! * `object`: the programs, loaded with the plan;
//! * `constants`: the plan as constants of the programs;
//! * `tables`: maps that commands change;
//! * `elf`: object files in memory, read and changed;
//! * `objects`: a user's own XDP programs in the chain;
//! * `counters`: the programs' counters as the card's;
//! * `rules`: the filters, in the programs' maps;
//! * `flows`: rules for flows, in the programs' maps;
//! * `hybrid`: the poll engine's part of a card;
//! * `live`: the functions' commands while the card runs;
//! * `attached`: the programs at their wires;
//! * `swap`: another chain, while packets flow;
//! * `run`: start to clean stop;
//! * `describe`: the plan in words;
//! * `doctor`: whether a machine supports the engine;
//! * `trial`: the cost of a program per packet, for benchmarks;
//! * `work`: how a core spends its time, for benchmarks.
//!
//! Guarantees: a key that this engine does not support is refused with its name. The ledger
//! balances at the end of every run, from separate counts at each end. A new key or table applies to all
//! packets at once, a new chain to one wire after the other, without loss. Stopping loses no packet
//! that was handed over. Changes to the machine are undone, after a kill through the journal
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
