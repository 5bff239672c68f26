//! The keys of `rss`, and the parts built from them.
//!
//! Guarantees: an error names the key, the value found and the values allowed; a key that the
//! chosen hash ignores is refused. Source: Microsoft, "RSS hashing types" (NDIS), for the names of
//! the types.

use super::balance::Balance;
use super::contexts::{Contexts, MAX_CONTEXTS};
use super::{Hash, Types};
use crate::settings::check_queue;
use picnic_core::error::ConfigError;
use picnic_core::registry::BuildContext;
use picnic_hash::{IndirectionTable, Key, Toeplitz};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of `rss`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The hash: Toeplitz as NICs use it, Jenkins' lookup3 (jhash), or the paper's lookup2.
    pub hash: HashName,
    /// Toeplitz key, 40 to 64 bytes in hex; default: the key of Microsoft's verification suite.
    pub key: Option<String>,
    /// Whether to use the Toeplitz key that gives both directions of a flow the same hash.
    pub symmetric: bool,
    /// Initial value of jhash and lookup2; default: 0.
    #[schemars(extend("x-advanced" = true))]
    pub jhash_init: Option<u32>,
    /// Indirection-table size, filled round-robin.
    #[schemars(range(min = 1, max = IndirectionTable::MAX_ENTRIES))]
    pub table_size: usize,
    /// The queue of each entry of the indirection table, instead of `table_size`.
    pub table: Option<Vec<u16>>,
    /// The weight of each queue, instead of `table`: its share of the `table_size` entries.
    pub weights: Option<Vec<u32>>,
    /// Further tables, up to 16: each has `mark` and `table`, or `table_size` and `weights`.
    /// Packets with a context's mark, set by `flow-director` or another earlier function, use its
    /// table.
    pub contexts: Vec<Context>,
    /// Microseconds between two checks of the queues' load, after which table entries move to
    /// queues with less load, 1000 or more; 0: never.
    pub rebalance_usecs: u32,
    /// Most table entries moved by one check.
    #[schemars(range(min = 1, max = 64), extend("x-advanced" = true))]
    pub rebalance_moves: u16,
    /// Percent by which a queue's load must exceed its share before an entry is moved from it.
    #[schemars(range(min = 1, max = 1000), extend("x-advanced" = true))]
    pub rebalance_percent: u16,
    /// The enabled hash types; TCP and UDP without their type hash by addresses. By default this is
    /// so for UDP: a fragment has no ports, so with `udp-ipv4` or `udp-ipv6`, a UDP flow with some
    /// fragments is spread over two queues and loses its order.
    pub types: Vec<HashType>,
    /// Whether packets of a tunnel are hashed by their inner headers, if `tunnel` has exposed them.
    #[schemars(extend("x-advanced" = true))]
    pub inner: bool,
    /// The queue of packets without a hash; default: they continue in the chain.
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
            weights: None,
            contexts: Vec::new(),
            rebalance_usecs: 0,
            rebalance_moves: 4,
            rebalance_percent: 20,
            types: HashType::DEFAULT.to_vec(),
            inner: false,
            default_queue: None,
        }
    }
}

/// A separate table for packets with a mark.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Context {
    /// The mark of its packets.
    #[schemars(range(min = 1))]
    pub mark: u32,
    /// Entries of its table.
    #[schemars(range(min = 1, max = IndirectionTable::MAX_ENTRIES))]
    pub table_size: usize,
    /// The queue of each entry, instead of `table_size`.
    pub table: Option<Vec<u16>>,
    /// The weight of each queue, instead of `table`.
    pub weights: Option<Vec<u32>>,
}

impl Default for Context {
    fn default() -> Self {
        let table_size = IndirectionTable::DEFAULT_ENTRIES;
        Context { mark: 0, table_size, table: None, weights: None }
    }
}

/// A hash, by its name in card files.
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

/// A hash type, by its name in card files.
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
    /// All types.
    pub const ALL: [HashType; 6] = [
        HashType::Ipv4,
        HashType::TcpIpv4,
        HashType::UdpIpv4,
        HashType::Ipv6,
        HashType::TcpIpv6,
        HashType::UdpIpv6,
    ];

    /// The default types: TCP by four-tuple, all else by addresses.
    pub const DEFAULT: [HashType; 4] =
        [HashType::Ipv4, HashType::TcpIpv4, HashType::Ipv6, HashType::TcpIpv6];
}

impl Config {
    /// Refuses a default queue that the card does not have.
    pub(super) fn check_default_queue(&self, context: &BuildContext) -> Result<(), ConfigError> {
        let check = |queue| check_queue("default_queue", queue, context.queues);
        self.default_queue.map_or(Ok(()), check)
    }

    /// The hash that the keys describe.
    pub(super) fn build_hash(&self) -> Result<Hash, ConfigError> {
        let is_toeplitz = self.hash == HashName::Toeplitz;
        let for_toeplitz = |key| ConfigError::new(key, "allowed only with hash = \"toeplitz\"");
        if !is_toeplitz && self.key.is_some() {
            return Err(for_toeplitz("key"));
        }
        if !is_toeplitz && self.symmetric {
            return Err(for_toeplitz("symmetric"));
        }
        if is_toeplitz && self.jhash_init.is_some() {
            let message = "allowed only with hash = \"jhash\" or \"lookup2\"";
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
                let message = "found together with a key, allowed: one of the two";
                Err(ConfigError::new("symmetric", message))
            }
            Some(text) => text.parse().map_err(|error| ConfigError::new("key", format!("{error}"))),
            None if self.symmetric => Ok(Key::symmetric()),
            None => Ok(Key::MICROSOFT),
        }
    }

    /// The indirection table from the keys.
    pub(super) fn build_table(&self, queues: u16) -> Result<IndirectionTable, ConfigError> {
        build_table("", &self.table, &self.weights, self.table_size, queues)
    }

    /// The tables for packets with marks.
    pub(super) fn build_contexts(&self, queues: u16) -> Result<Contexts, ConfigError> {
        let mut contexts = Contexts::default();
        for (place, context) in self.contexts.iter().enumerate() {
            let within = format!("contexts[{place}].");
            let Context { table, weights, table_size, mark } = context;
            if *mark == 0 || contexts.of(*mark).is_some() {
                let message = format!("found {mark}, allowed: another, 1 or more");
                return Err(ConfigError::new(format!("{within}mark"), message));
            }
            let table = build_table(&within, table, weights, *table_size, queues)?;
            if contexts.exchange(*mark, &mut Some(Box::new(table))).is_err() {
                let found = self.contexts.len();
                let message = format!("found {found}, allowed: 0 to {MAX_CONTEXTS}");
                return Err(ConfigError::new("contexts", message));
            }
        }
        Ok(contexts)
    }

    /// Rebalancing; `None` if disabled.
    pub(super) fn build_balance(
        &self,
        table: &IndirectionTable,
    ) -> Result<Option<Box<Balance>>, ConfigError> {
        let &Config { rebalance_usecs: usecs, rebalance_moves: moves, rebalance_percent, .. } =
            self;
        if (1..1000).contains(&usecs) {
            let message = format!("found {usecs}, allowed: 0, or 1000 or more");
            return Err(ConfigError::new("rebalance_usecs", message));
        }
        let balance = || Box::new(Balance::new(usecs, moves, rebalance_percent, table));
        Ok((usecs != 0).then(balance))
    }

    /// The hash type of each kind of packet.
    pub(super) fn build_types(&self) -> Types {
        Types::new(|hash_type| self.types.contains(&hash_type))
    }
}

/// A table from its entries, from weights, or with all queues in turn; its keys are `within`
/// another.
fn build_table(
    within: &str,
    table: &Option<Vec<u16>>,
    weights: &Option<Vec<u32>>,
    size: usize,
    queues: u16,
) -> Result<IndirectionTable, ConfigError> {
    let key = |name: &str| format!("{within}{name}");
    let (name, made) = match (table, weights) {
        (Some(_), Some(_)) => {
            let message = "found together with a table, allowed: one of them";
            return Err(ConfigError::new(key("weights"), message));
        }
        (None, None) => ("table_size", IndirectionTable::uniform(size, queues)),
        (None, Some(weights)) => ("weights", IndirectionTable::weighted(size, weights, queues)),
        (Some(entries), None) => {
            let most = IndirectionTable::MAX_ENTRIES;
            if !(1..=most).contains(&entries.len()) {
                let message = format!("found {} entries, allowed: 1 to {most}", entries.len());
                return Err(ConfigError::new(key("table"), message));
            }
            if size != entries.len() && size != IndirectionTable::DEFAULT_ENTRIES {
                let length = entries.len();
                let message = format!("found {size}, allowed with `table`: its length, {length}");
                return Err(ConfigError::new(key("table_size"), message));
            }
            for (entry, &queue) in entries.iter().enumerate() {
                check_queue(&key(&format!("table[{entry}]")), queue, queues)?;
            }
            ("table", IndirectionTable::from_entries(entries, queues))
        }
    };
    made.map_err(|error| ConfigError::new(key(name), error.to_string()))
}
