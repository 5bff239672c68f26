//! Metadata of a descriptor: hash, checksum, segmentation and VLAN tag.

/// The input of the RSS hash: the hash types of the NDIS and virtio specifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RssType {
    /// Not hashed.
    #[default]
    None = 0,
    /// IPv4 addresses.
    Ipv4 = 1,
    /// IPv4 addresses and TCP ports.
    Ipv4Tcp = 2,
    /// IPv4 addresses and UDP ports.
    Ipv4Udp = 3,
    /// IPv6 addresses.
    Ipv6 = 4,
    /// IPv6 addresses and TCP ports.
    Ipv6Tcp = 5,
    /// IPv6 addresses and UDP ports.
    Ipv6Udp = 6,
}

/// The kind of function that made an RSS hash, in the detail that readers need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RssFunction {
    /// Toeplitz, as NICs hash.
    #[default]
    Toeplitz = 0,
    /// One of Jenkins': lookup2, lookup3.
    Jenkins = 1,
}

/// The state of a received packet's checksums, or the request to the wire on transmit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ChecksumState {
    /// Nothing is known; the receiver checks for itself.
    #[default]
    Unknown = 0,
    /// Verified by the sender of the packet.
    Good = 1,
    /// Known to be wrong.
    Bad = 2,
    /// The L4 checksum holds the pseudo-header sum only and must be completed.
    Partial = 3,
}

/// A request for segmentation: the packet is a super-frame to be cut to `gso_size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum GsoType {
    /// An ordinary packet.
    #[default]
    None = 0,
    /// TCP over IPv4.
    Tcp4 = 1,
    /// TCP over IPv6.
    Tcp6 = 2,
    /// UDP (USO), either family.
    Udp = 3,
}

/// A VLAN tag that is not in the packet: removed, or to be inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanTag {
    /// Tag control information: priority, drop eligible, VLAN identifier.
    pub tci: u16,
    /// A service tag (802.1ad, EtherType 0x88a8), not a customer tag (802.1Q, 0x8100).
    pub service: bool,
}
