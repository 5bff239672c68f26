//! Channels between a host process and a task on the card: messages in shared memory.
//!
//! ```no_run
//! use picnic_channel::Channel;
//!
//! fn main() -> Result<(), picnic_channel::ChannelError> {
//!     let mut channel = Channel::open("/run/picnic/picnic0.sock", "echo")?;
//!     channel.send(b"to the card")?;
//!     let mut message = [0; 64];
//!     let bytes = channel.receive_within(&mut message, None)?;
//!     println!("{:?}", &message[..bytes]);
//!     Ok(())
//! }
//! ```
//!
//! A channel is a pair of rings in a memfd that both processes map: [`End`] is either side of it,
//! [`Channel`] the host's, with the card's control socket. Neither side makes a system call while
//! the other is awake: a gate for each side, in the same memory, says whether it sleeps.
//!
//! Guarantees: messages arrive once and in order, or the channel ends; each side's own state is in
//! its own memory, and every index and length that the other side wrote is read once, then checked:
//! for any writes of the other side, no access leaves the memory, nothing panics, and no call
//! blocks. The memory cannot shrink, since its seals forbid it.
//!
//! Source: NICOS 1 and 4.1 (dividing an application between host and NIC, OS bypass).

#[cfg(not(loom))]
mod bell;
mod end;
#[cfg(not(loom))]
mod host;
mod region;
mod ring;

#[cfg(not(loom))]
pub use bell::Bell;
pub use end::{Awaits, End, Side};
#[cfg(not(loom))]
pub use host::{Channel, ChannelError};
pub use region::Region;
pub use ring::{Broken, MOST_BYTES, MOST_MESSAGES, SendError, Shape};
