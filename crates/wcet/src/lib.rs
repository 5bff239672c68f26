//! Bounds of a task's segments under a cost profile.
//!
//! `#[task]` takes an async function apart into blocks, edges and loops, splits it
//! at its awaits, and refuses what could run without end between two of them:
//!
//! ```
//! use picnic_wcet::{CostProfile, bounded, bounds, task};
//! # pub struct Card;
//! # impl Card {
//! #     fn next_segment(&self, _segment: u16) {}
//! #     async fn sleep(&self, _ns: u64) {}
//! # }
//!
//! #[bounded]
//! fn checksum(words: &[u16]) -> u32 {
//!     let mut sum = 0;
//!     #[bound(64)]
//!     for word in words {
//!         sum += u32::from(*word);
//!     }
//!     sum
//! }
//!
//! #[task]
//! async fn watch(card: Card, words: [u16; 64]) {
//!     loop {
//!         let sum = checksum(&words);
//!         card.sleep(u64::from(sum)).await;
//!     }
//! }
//!
//! # fn main() {
//! let bounds = bounds(&watch::GRAPH, &CostProfile::built_in()).unwrap();
//! assert_eq!(bounds.segments.len(), 2);
//! # }
//! ```
//!
//! The structure is exact: the longest path through the graph, with loops at
//! their maximum number of rounds. The costs of operations are measured, so the
//! result is a *bound under the cost profile*.
//!
//! Guarantees: with the costs of a profile, no path through a segment costs more
//! than its bound; higher costs never give a smaller bound; no overflow: values
//! that are too large become "no bound".
//!
//! Source: NICOS 4.6.

#[doc(hidden)]
pub mod __private;
mod analysis;
pub mod calibrate;
mod class;
mod dot;
mod graph;
mod profile;

pub use analysis::{Analysis, Bounds, GraphError, analyse, block_cost_ps, bounds};
pub use class::{Class, Counts};
pub use dot::dot;
pub use graph::{Block, Edge, EdgeKind, Graph, Loop, Segment};
pub use picnic_wcet_macros::{bounded, task, wcet};
pub use profile::{CostProfile, Interruptions, Machine, Measured, Method, PathCosts};
