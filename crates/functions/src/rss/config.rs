//! The keys of `rss`, and what is made of them.
//!
//! Guarantees: what is refused is named by key, with what was found and what is allowed;
//! a key that the chosen hash would not look at is refused, not passed over.
//! Source: Microsoft, "RSS hashing types" (NDIS), for the names of the types' switches.

use super::{Hash, Types};
use crate::settings::check_queue;
use picnic_core::error::ConfigError;
use picnic_hash::{IndirectionTable, Key, Toeplitz};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of `rss`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The hash: Toeplitz as NICs use it, Jenkins' lookup3 (jhash), or the paper's lookup2.
    pub hash: HashName,
    /// Toeplitz key, 40 to 64 bytes in hex; left out, that of Microsoft's verification suite.
    pub key: Option<String>,
    /// Whether the Toeplitz key is the one that hashes both directions of a flow alike.
    pub symmetric: bool,
    /// What jhash and lookup2 start from; left out, 0.
    pub jhash_init: Option<u32>,
    /// Indirection-table size, filled round-robin, 1 to 4096.
    pub table_size: usize,
    /// The queue of each entry of the indirection table, in place of `table_size`.
    pub table: Option<Vec<u16>>,
    /// The hash types that are on; TCP and UDP whose type is off hash by addresses. UDP does by
    /// default: a fragment has no ports, so with `udp-ipv4` or `udp-ipv6` on, a UDP flow of which
    /// some packets are fragments is spread over two queues and loses its order.
    pub types: Vec<HashType>,
    /// The queue of packets without a hash; left out, they go on in the chain.
    pub default_queue: Option<u16>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            hash: HashName::Toeplitz,
            key: None,
            symmetric: false,
            jhash_init: None,
            table_size: IndirectionTable::DEFAULT_ENTRIES,
            table: None,
            types: HashType::DEFAULT.to_vec(),
            default_queue: None,
        }
    }
}

/// A hash, by the name it has in card files.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum HashName {
    /// The hash of NICs.
    #[default]
    Toeplitz,
    /// Bob Jenkins' lookup3, Linux `jhash` since 2.6.37.
    Jhash,
    /// Bob Jenkins' lookup2, Linux `jhash` before that, and the paper's.
    Lookup2,
}

/// What a packet can be hashed over, by the name it has in card files.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum HashType {
    /// IPv4 addresses.
    Ipv4,
    /// IPv4 addresses and TCP ports.
    TcpIpv4,
    /// IPv4 addresses and UDP ports.
    UdpIpv4,
    /// IPv6 addresses.
    Ipv6,
    /// IPv6 addresses and TCP ports.
    TcpIpv6,
    /// IPv6 addresses and UDP ports.
    UdpIpv6,
}

impl HashType {
    /// All of them.
    pub const ALL: [HashType; 6] = [
        HashType::Ipv4,
        HashType::TcpIpv4,
        HashType::UdpIpv4,
        HashType::Ipv6,
        HashType::TcpIpv6,
        HashType::UdpIpv6,
    ];

    /// Those that are on unless a card file says otherwise: TCP by four-tuple, all else by two.
    pub const DEFAULT: [HashType; 4] =
        [HashType::Ipv4, HashType::TcpIpv4, HashType::Ipv6, HashType::TcpIpv6];
}

impl Config {
    /// The hash that the keys describe.
    pub(super) fn build_hash(&self) -> Result<Hash, ConfigError> {
        let is_toeplitz = self.hash == HashName::Toeplitz;
        let for_toeplitz = |key| ConfigError::new(key, "allowed with hash = \"toeplitz\" only");
        if !is_toeplitz && self.key.is_some() {
            return Err(for_toeplitz("key"));
        }
        if !is_toeplitz && self.symmetric {
            return Err(for_toeplitz("symmetric"));
        }
        if is_toeplitz && self.jhash_init.is_some() {
            let message = "allowed with hash = \"jhash\" or \"lookup2\" only";
            return Err(ConfigError::new("jhash_init", message));
        }
        let init = self.jhash_init.unwrap_or_default();
        Ok(match self.hash {
            HashName::Toeplitz => Hash::Toeplitz(Box::new(Toeplitz::new(&self.toeplitz_key()?))),
            HashName::Jhash => Hash::Lookup3(init),
            HashName::Lookup2 => Hash::Lookup2(init),
        })
    }

    fn toeplitz_key(&self) -> Result<Key, ConfigError> {
        match &self.key {
            Some(_) if self.symmetric => {
                let message = "found together with a key, allowed is one of the two";
                Err(ConfigError::new("symmetric", message))
            }
            Some(text) => text.parse().map_err(|error| ConfigError::new("key", format!("{error}"))),
            None if self.symmetric => Ok(Key::symmetric()),
            None => Ok(Key::MICROSOFT),
        }
    }

    /// The indirection table that the keys describe.
    pub(super) fn build_table(&self, queues: u16) -> Result<IndirectionTable, ConfigError> {
        let (key, table) = match &self.table {
            None => {
                check_size("table_size", self.table_size)?;
                ("table_size", IndirectionTable::uniform(self.table_size, queues))
            }
            Some(entries) => {
                check_size("table", entries.len())?;
                let asked = self.table_size;
                if asked != entries.len() && asked != IndirectionTable::DEFAULT_ENTRIES {
                    let length = entries.len();
                    let message =
                        format!("found {asked}, allowed beside `table` is its length, {length}");
                    return Err(ConfigError::new("table_size", message));
                }
                for (entry, &queue) in entries.iter().enumerate() {
                    check_queue(&format!("table[{entry}]"), queue, queues)?;
                }
                ("table", IndirectionTable::from_entries(entries, queues))
            }
        };
        table.map_err(|error| ConfigError::new(key, error.to_string()))
    }

    /// What each kind of packet is hashed over.
    pub(super) fn build_types(&self) -> Types {
        Types::new(|hash_type| self.types.contains(&hash_type))
    }
}

fn check_size(key: &str, found: usize) -> Result<(), ConfigError> {
    let most = IndirectionTable::MAX_ENTRIES;
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(ConfigError::new(key, format!("found {found} entries, allowed is 1 to {most}")))
}
