//! Memory for tasks: one kind of block, on the card or at the host.
//!
//! ```
//! # use picnic_os::{context::Nic, memory::MemoryError};
//! async fn keep(nic: Nic) -> Result<(), MemoryError> {
//!     let mut block = nic.allocate(256)?; // or nic.allocate_host(256)?: the rest stays the same
//!     nic.write(&mut block, 0, b"seen on the card").await?;
//!     let mut first = [0; 4];
//!     nic.read(&mut block, 0, &mut first).await
//! } // freed here, or when the task is killed
//! ```
//!
//! Card memory is one arena of fixed size. It is allocated by the boundary tag method, until a task
//! installs its own allocator, which gets a piece of the arena and serves all requests from then
//! on. Not only blocks take bytes from the arena: so do tasks, mailboxes, channels, filters of tasks
//! and frames whose end is awaited ([`Kind`]), and creating one fails if there is no room. Safe code
//! cannot place a future in the arena, so these objects live on the heap, and the arena reserves
//! their exact size while they exist ([`Charge`]).
//!
//! Host memory is the process's, or any other [`HostBytes`]. A task reaches it by transfers, which
//! take the time of a DMA engine with the given latency and rate: modelled, and marked as such, in
//! both worlds. Small writes to consecutive places are gathered into one transfer.
//!
//! Guarantees: a block is released once, by its owner's drop or its task's end, and a handle to it
//! is refused from then on; no access leaves its block; a failed allocation is an error, never a
//! panic. The result of an installed allocator is checked for range, alignment and overlap. An
//! allocator that returns a wrong place, refuses to free its own, or panics is uninstalled and
//! counted; its blocks stay valid. A block is freed by the allocator that returned it.
//!
//! Source: NICOS 4.1.

mod access;
mod arena;
mod charge;
mod host;
mod region;

pub use access::{Block, Target};
pub(crate) use arena::{CARD, Memory, Name};
pub use charge::Charge;
pub(crate) use host::Reserved;
pub use host::{HostBytes, TransferCost};

use crate::alloc::Figures;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Bytes of the smallest allocation, and the unit of all.
pub const UNIT_BYTES: usize = 16;
/// The largest alignment, and the alignment of the arena.
pub const MOST_ALIGN: usize = 4096;
/// Writes to a host block that are shorter are gathered: bytes of card memory for that, per block.
pub const GATHER_BYTES: usize = 256;

/// The use of bytes of the arena.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "MemoryKind")]
pub enum Kind {
    /// A block of a task, or the gathering buffer of its host block.
    Block,
    /// A task: its future and its cell.
    Task,
    /// A mailbox: its ring and its state.
    Mailbox,
    /// A filter of a task: its record, counters and code.
    Filter,
    /// A channel to a host program.
    Channel,
    /// A sent frame whose end is awaited.
    Send,
    /// The bytes managed by an installed allocator.
    Allocator,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Block,
        Kind::Task,
        Kind::Mailbox,
        Kind::Filter,
        Kind::Channel,
        Kind::Send,
        Kind::Allocator,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Block => "block",
            Kind::Task => "task",
            Kind::Mailbox => "mailbox",
            Kind::Filter => "filter",
            Kind::Channel => "channel",
            Kind::Send => "send record",
            Kind::Allocator => "allocator",
        })
    }
}

/// Why memory was not allocated or not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No piece of the arena is large enough.
    #[error("{kind}: found no room for {wanted} bytes: {free} are free, {largest} in one piece")]
    Exhausted {
        /// The use of the bytes.
        kind: Kind,
        /// Bytes requested.
        wanted: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes of the largest free piece.
        largest: usize,
    },
    /// Not an alignment.
    #[error("found an alignment of {0}, allowed: a power of two up to {MOST_ALIGN}")]
    Alignment(usize),
    /// All host memory for tasks is in use.
    #[error("found no room for {wanted} bytes at the host: {left} are left (os.host_bytes)")]
    HostExhausted {
        /// Bytes requested.
        wanted: usize,
        /// Bytes left.
        left: usize,
    },
    /// The range leaves the block.
    #[error("found bytes {start} to {end}, but the block has {length}")]
    Range {
        /// Where it starts.
        start: usize,
        /// Where it ends.
        end: usize,
        /// Bytes of the block.
        length: usize,
    },
    /// The task that had the block ended.
    #[error("the block has been released")]
    Released,
    /// A host block cannot be accessed in place.
    #[error("found a block at the host, allowed: one on the card")]
    AtHost,
    /// The allocator panicked while it took over its bytes.
    #[error("the allocator panicked when it was installed")]
    Broken,
}

/// The figures of a NIC OS's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReport {
    /// The arena, from its own allocator.
    pub arena: Figures,
    /// Fragmentation of the arena's free bytes, 0 to 1.
    pub fragmentation: f64,
    /// Allocators that tasks have installed and that still exist.
    pub installed_allocators: usize,
    /// Allocators uninstalled because they returned a wrong place, refused to free one, or
    /// panicked.
    #[serde(default)]
    pub broken_allocators: u64,
    /// Blocks that tasks have, from any allocator.
    pub blocks: usize,
    /// Bytes in use by kind, with any allocator. Bytes of installed allocators include those
    /// that they have allocated.
    #[serde(default)]
    pub kinds: Vec<KindMemory>,
    /// Bytes in use by owner.
    #[serde(default)]
    pub owners: Vec<OwnerMemory>,
    /// Host memory in use by tasks.
    pub host_used_bytes: u64,
    /// The maximum in use.
    pub host_high_water_bytes: u64,
    /// Transfers between card and host.
    pub transfers: u64,
    /// Their bytes.
    pub transferred_bytes: u64,
    /// Writes that needed no transfer of their own.
    #[serde(default)]
    pub gathered_writes: u64,
    /// The time they took: modelled.
    pub transfer_modelled_ns: u64,
}

/// Memory in use for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KindMemory {
    /// The purpose.
    pub kind: Kind,
    /// Allocations.
    pub allocations: usize,
    /// Their bytes, without the allocator's overhead.
    pub bytes: usize,
}

/// Memory in use by one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnerMemory {
    /// The task's number; 0 for NIC OS itself.
    pub task: u64,
    /// Allocations.
    pub allocations: usize,
    /// Their bytes, without the allocator's overhead.
    pub bytes: usize,
}

fn check_range(range: &Range<usize>, length: usize) -> Result<(), MemoryError> {
    let (start, end) = (range.start, range.end);
    if start <= end && end <= length {
        return Ok(());
    }
    Err(MemoryError::Range { start, end, length })
}
