//! Packets: the pool of buffers, descriptors, bursts of them, and their headers.

pub mod burst;
pub mod desc;
pub mod landing;
pub mod layers;
pub mod lend;
pub mod offload;
pub mod pool;
mod space;
pub mod wire;
