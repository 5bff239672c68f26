//! Packets: the pool of buffers, descriptors, bursts of them, and their headers.
//!
//! Functions read a packet's headers with [`ports`](desc::Descriptor::ports),
//! [`ipv4`](desc::Descriptor::ipv4), [`ipv6`](desc::Descriptor::ipv6),
//! [`tcp`](desc::Descriptor::tcp) and [`udp`](desc::Descriptor::udp).

pub mod burst;
pub mod desc;
pub mod headers;
pub mod landing;
pub mod layers;
pub mod lend;
pub mod offload;
pub mod pool;
mod space;
pub mod wire;
