//! Commands of `object`: show and change its maps, as `bpftool map` does.
//!
//! A key or a value is a list of bytes, decimal or `0x..`, or hexadecimal after the word `hex`;
//! with 1, 2, 4 or 8 bytes also a number, in this machine's byte order.

use super::XdpObject;
use picnic_core::command::{Command, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_ports::bpf_map::{BpfMap, Entry as Presence};
use picnic_ports::interface::within;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::io;

/// A query of an object.
pub(crate) trait ObjectQuery: Send + 'static {
    type Answer: Send + 'static;

    fn ask(&self, object: &XdpObject) -> Result<Self::Answer, CommandError>;
}

/// A query for the object, which returns with the answer.
pub(crate) struct PendingQuery<A, R> {
    ask: A,
    answer: Option<Result<R, CommandError>>,
}

impl<A: ObjectQuery> Order for PendingQuery<A, A::Answer> {
    type Target = XdpObject;

    fn apply(&mut self, object: &mut XdpObject, _now: Time) -> bool {
        let answer = self.ask.ask(object);
        let is_done = answer.is_ok();
        self.answer = Some(answer);
        is_done
    }
}

impl<A, R> PendingQuery<A, R> {
    fn new(ask: A) -> Self {
        PendingQuery { ask, answer: None }
    }

    fn answer(self) -> Result<R, CommandError> {
        let other = || CommandError::Refused("the function there is not an object".into());
        self.answer.ok_or_else(other)?
    }
}

/// The arguments of `object.get`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {}

/// A map of an object.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct MapInfo {
    /// Its number in the kernel, as in `bpftool`.
    pub(crate) id: u32,
    /// Its name; the kernel keeps 15 bytes.
    pub(crate) name: String,
    /// Its type, as `bpftool` calls it.
    pub(crate) r#type: String,
    /// Bytes of a key.
    pub(crate) key_bytes: usize,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
    /// Most entries.
    pub(crate) max_entries: u32,
}

/// The result of `object.get`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Listed {
    /// The program.
    pub(crate) program: String,
    /// Its maps: id, name, type, key_bytes, value_bytes and max_entries of each.
    pub(crate) maps: Vec<MapInfo>,
}

impl ObjectQuery for List {
    type Answer = Listed;

    fn ask(&self, object: &XdpObject) -> Result<Listed, CommandError> {
        let maps = object.maps.iter().map(|map| MapInfo {
            id: map.id(),
            name: map.name(),
            r#type: type_name(map.kind()),
            key_bytes: map.key_size(),
            value_bytes: map.value_size(),
            max_entries: map.max_entries(),
        });
        Ok(Listed { program: object.program.clone(), maps: maps.collect() })
    }
}

impl Command for List {
    const NAME: &'static str = "get";
    const HELP: &'static str = "the program and its maps";
    type Order = PendingQuery<Self, Listed>;
    type Reply = Listed;

    fn prepare(self, _: &BuildContext) -> Result<Self::Order, CommandError> {
        Ok(PendingQuery::new(self))
    }

    fn reply(order: Self::Order) -> Result<Listed, CommandError> {
        order.answer()
    }

    fn text(reply: &Listed, place: &str) -> String {
        let mut text = format!("{place}: program {}, {} maps\n", reply.program, reply.maps.len());
        for MapInfo { id, name, r#type, key_bytes, value_bytes, max_entries } in &reply.maps {
            let _ = writeln!(
                text,
                "{id}: {type}  name {name}  key {key_bytes}B  value {value_bytes}B  \
                 max_entries {max_entries}"
            );
        }
        text
    }
}

/// An entry of a map.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Entry {
    /// Its key: bytes in hexadecimal.
    pub(crate) key: String,
    /// Its values in hexadecimal: one, or one per processor.
    pub(crate) values: Vec<String>,
}

impl Entry {
    fn new(key: &[u8], values: &[Vec<u8>]) -> Self {
        Entry { key: hex(key), values: values.iter().map(|value| hex(value)).collect() }
    }

    fn text(&self) -> String {
        let values: Vec<_> = self.values.iter().map(|value| with_number(value)).collect();
        format!("key {}  value {}\n", with_number(&self.key), values.join(" | "))
    }
}

/// The arguments of `object.dump`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dump {
    /// The map: its name or its number.
    pub(crate) map: String,
    /// Most entries to show.
    #[serde(default = "most_shown")]
    #[schemars(range(min = 1, max = 16384))]
    pub(crate) most: u32,
}

const fn most_shown() -> u32 {
    1024
}

/// The result of `object.dump`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Dumped {
    /// The entries: key and values of each, bytes in hexadecimal.
    pub(crate) entries: Vec<Entry>,
    /// Whether there are more entries.
    pub(crate) more: bool,
}

impl ObjectQuery for Dump {
    type Answer = Dumped;

    fn ask(&self, object: &XdpObject) -> Result<Dumped, CommandError> {
        let map = find(object, &self.map)?;
        let mut dumped = Dumped { entries: Vec::new(), more: false };
        let mut next = map.next_key(None).map_err(refused)?;
        // A concurrent removal restarts the walk, so its steps are bounded, too.
        for _ in 0..self.most {
            let Some(key) = next else { return Ok(dumped) };
            if let Some(values) = map.lookup(&key).map_err(refused)? {
                dumped.entries.push(Entry::new(&key, &values));
            }
            next = map.next_key(Some(&key)).map_err(refused)?;
        }
        dumped.more = next.is_some();
        Ok(dumped)
    }
}

impl Command for Dump {
    const NAME: &'static str = "dump";
    const HELP: &'static str = "the entries of a map";
    const EXAMPLE: &'static str = r#"{"map": "blocked"}"#;
    type Order = PendingQuery<Self, Dumped>;
    type Reply = Dumped;

    fn prepare(self, _: &BuildContext) -> Result<Self::Order, CommandError> {
        Ok(PendingQuery::new(self))
    }

    fn reply(order: Self::Order) -> Result<Dumped, CommandError> {
        order.answer()
    }

    fn text(reply: &Dumped, _: &str) -> String {
        let mut text: String = reply.entries.iter().map(Entry::text).collect();
        let more = if reply.more { ", and more" } else { "" };
        let _ = writeln!(text, "{} entries{more}", reply.entries.len());
        text
    }
}

/// The arguments of `object.lookup`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lookup {
    /// The map: its name or its number.
    pub(crate) map: String,
    /// The key: bytes such as "10 0 0 1" or "hex 0a 00 00 01", or a number.
    pub(crate) key: String,
}

impl ObjectQuery for Lookup {
    type Answer = Entry;

    fn ask(&self, object: &XdpObject) -> Result<Entry, CommandError> {
        let map = find(object, &self.map)?;
        let key = bytes_of("key", &self.key, map.key_size())?;
        let values = map.lookup(&key).map_err(refused)?.ok_or_else(no_entry)?;
        Ok(Entry::new(&key, &values))
    }
}

impl Command for Lookup {
    const NAME: &'static str = "lookup";
    const HELP: &'static str = "one entry of a map";
    const EXAMPLE: &'static str = r#"{"map": "blocked", "key": "10 0 0 1"}"#;
    type Order = PendingQuery<Self, Entry>;
    type Reply = Entry;

    fn prepare(self, _: &BuildContext) -> Result<Self::Order, CommandError> {
        Ok(PendingQuery::new(self))
    }

    fn reply(order: Self::Order) -> Result<Entry, CommandError> {
        order.answer()
    }

    fn text(reply: &Entry, _: &str) -> String {
        reply.text()
    }
}

/// Whether an entry may or must exist.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UpdateMode {
    /// It may exist.
    #[default]
    Any,
    /// It must exist.
    Exist,
    /// It must not exist.
    Noexist,
}

/// The arguments of `object.update`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Update {
    /// The map: its name or its number.
    pub(crate) map: String,
    /// The key: bytes such as "10 0 0 1" or "hex 0a 00 00 01", or a number.
    pub(crate) key: String,
    /// The value in the same form; set for all processors.
    pub(crate) value: String,
    /// Whether the entry may, must or must not exist: any, exist or noexist.
    #[serde(default)]
    pub(crate) when: UpdateMode,
}

/// The result of `object.update` and `object.delete`: the previous entry.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Replaced {
    /// The key: bytes in hexadecimal.
    pub(crate) key: String,
    /// The previous values in hexadecimal; empty if there was no entry.
    pub(crate) replaced: Vec<String>,
}

impl Replaced {
    fn text(&self) -> String {
        let Replaced { key, replaced } = self.clone();
        match replaced.is_empty() {
            true => format!("key {}: new\n", with_number(&key)),
            false => format!("before: {}", Entry { key, values: replaced }.text()),
        }
    }
}

impl ObjectQuery for Update {
    type Answer = Replaced;

    fn ask(&self, object: &XdpObject) -> Result<Replaced, CommandError> {
        let map = find(object, &self.map)?;
        let key = bytes_of("key", &self.key, map.key_size())?;
        let value = bytes_of("value", &self.value, map.value_size())?;
        // Some kinds can only be written.
        let before = map.lookup(&key).ok().flatten().unwrap_or_default();
        let presence = match self.when {
            UpdateMode::Any => Presence::Any,
            UpdateMode::Exist => Presence::Present,
            UpdateMode::Noexist => Presence::New,
        };
        let namespace = object.namespace.as_deref();
        within(namespace, || map.update(&key, &value, presence))
            .map_err(|error| CommandError::Refused(error.to_string()))?
            .map_err(refused)?;
        let Entry { key, values } = Entry::new(&key, &before);
        Ok(Replaced { key, replaced: values })
    }
}

impl Command for Update {
    const NAME: &'static str = "update";
    const HELP: &'static str = "write an entry of a map; the result has the previous one";
    const EXAMPLE: &'static str = r#"{"map": "blocked", "key": "10 0 0 1", "value": "1"}"#;
    type Order = PendingQuery<Self, Replaced>;
    type Reply = Replaced;

    fn prepare(self, _: &BuildContext) -> Result<Self::Order, CommandError> {
        Ok(PendingQuery::new(self))
    }

    fn reply(order: Self::Order) -> Result<Replaced, CommandError> {
        order.answer()
    }

    fn text(reply: &Replaced, _: &str) -> String {
        reply.text()
    }
}

/// The arguments of `object.delete`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delete {
    /// The map: its name or its number.
    pub(crate) map: String,
    /// The key: bytes such as "10 0 0 1" or "hex 0a 00 00 01", or a number.
    pub(crate) key: String,
}

impl ObjectQuery for Delete {
    type Answer = Replaced;

    fn ask(&self, object: &XdpObject) -> Result<Replaced, CommandError> {
        let map = find(object, &self.map)?;
        let key = bytes_of("key", &self.key, map.key_size())?;
        let before = map.lookup(&key).ok().flatten().unwrap_or_default();
        if !map.delete(&key).map_err(refused)? {
            return Err(no_entry());
        }
        let Entry { key, values } = Entry::new(&key, &before);
        Ok(Replaced { key, replaced: values })
    }
}

impl Command for Delete {
    const NAME: &'static str = "delete";
    const HELP: &'static str = "delete an entry of a map; the result has it";
    const EXAMPLE: &'static str = r#"{"map": "blocked", "key": "10 0 0 1"}"#;
    type Order = PendingQuery<Self, Replaced>;
    type Reply = Replaced;

    fn prepare(self, _: &BuildContext) -> Result<Self::Order, CommandError> {
        Ok(PendingQuery::new(self))
    }

    fn reply(order: Self::Order) -> Result<Replaced, CommandError> {
        order.answer()
    }

    fn text(reply: &Replaced, _: &str) -> String {
        reply.text()
    }
}

fn refused(error: io::Error) -> CommandError {
    CommandError::Refused(error.to_string())
}

fn no_entry() -> CommandError {
    CommandError::Refused("the map has no such entry".into())
}

/// The map with this name or number.
fn find<'o>(object: &'o XdpObject, wanted: &str) -> Result<&'o BpfMap, CommandError> {
    let is_it = |map: &&BpfMap| map.name() == wanted || map.id().to_string() == wanted;
    object.maps.iter().find(is_it).ok_or_else(|| {
        let names: Vec<_> = object.maps.iter().map(BpfMap::name).collect();
        let allowed = if names.is_empty() { "none".into() } else { names.join(", ") };
        CommandError::argument("map", format!("found \"{wanted}\", allowed: {allowed}"))
    })
}

/// The bytes of a text, exactly `size`.
fn bytes_of(argument: &str, text: &str, size: usize) -> Result<Vec<u8>, CommandError> {
    let wrong = || {
        let number = if is_number(size) { ", or a number" } else { "" };
        let allowed = format!("{size} bytes, such as \"10 0x0a\" or \"hex 0a 0a\"{number}");
        CommandError::argument(argument, format!("found \"{text}\", allowed: {allowed}"))
    };
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    let words: Vec<_> = text.split_whitespace().collect();
    let bytes: Option<Vec<u8>> = match &words[..] {
        ["hex", bytes @ ..] => bytes.iter().map(|byte| u8::from_str_radix(byte, 16).ok()).collect(),
        [only] if is_number(size) => number(only).and_then(|number| {
            let fits = size == 8 || number >> (8 * size) == 0;
            fits.then(|| match cfg!(target_endian = "little") {
                true => number.to_le_bytes()[..size].to_vec(),
                false => number.to_be_bytes()[8 - size..].to_vec(),
            })
        }),
        bytes => {
            bytes.iter().map(|byte| number(byte).and_then(|byte| byte.try_into().ok())).collect()
        }
    };
    bytes.filter(|bytes| bytes.len() == size).ok_or_else(wrong)
}

const fn is_number(size: usize) -> bool {
    matches!(size, 1 | 2 | 4 | 8)
}

fn hex(bytes: &[u8]) -> String {
    let bytes: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(" ")
}

/// Bytes in hexadecimal, with the number they encode.
fn with_number(hex: &str) -> String {
    let mut bytes: Vec<_> = hex.split(' ').collect();
    if !is_number(bytes.len()) {
        return hex.into();
    }
    if cfg!(target_endian = "little") {
        bytes.reverse();
    }
    match u64::from_str_radix(&bytes.concat(), 16) {
        Ok(number) => format!("{hex} ({number})"),
        Err(_) => hex.into(),
    }
}

/// `enum bpf_map_type`, with the names of `bpftool`.
fn type_name(kind: u32) -> String {
    const NAMES: &[&str] = &[
        "unspec",
        "hash",
        "array",
        "prog_array",
        "perf_event_array",
        "percpu_hash",
        "percpu_array",
        "stack_trace",
        "cgroup_array",
        "lru_hash",
        "lru_percpu_hash",
        "lpm_trie",
        "array_of_maps",
        "hash_of_maps",
        "devmap",
        "sockmap",
        "cpumap",
        "xskmap",
        "sockhash",
        "cgroup_storage",
        "reuseport_sockarray",
        "percpu_cgroup_storage",
        "queue",
        "stack",
        "sk_storage",
        "devmap_hash",
        "struct_ops",
        "ringbuf",
        "inode_storage",
        "task_storage",
        "bloom_filter",
    ];
    NAMES.get(kind as usize).map_or_else(|| format!("type {kind}"), |&name| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_for_bpftool() {
        let bytes = |text: &str, size| bytes_of("key", text, size);
        assert_eq!(bytes("10 0 0x0f 255", 4).unwrap(), [10, 0, 15, 255]);
        assert_eq!(bytes("hex 0a 00 0f ff", 4).unwrap(), [10, 0, 15, 255]);
        assert_eq!(bytes("258", 4).unwrap(), 258_u32.to_ne_bytes());
        assert_eq!(bytes("0xffff", 2).unwrap(), [255, 255]);
        assert_eq!(bytes("1 2 3", 3).unwrap(), [1, 2, 3]);
        for (text, size) in [("", 4), ("1 2", 4), ("256", 1), ("1 256", 2), ("hex 0g", 1), ("7", 3)]
        {
            let error = bytes(text, size).unwrap_err().to_string();
            assert!(error.contains(&format!("allowed: {size} bytes")), "{error}");
        }
    }

    #[test]
    fn numbers_are_also_shown_as_numbers() {
        assert_eq!(
            with_number(&hex(&258_u32.to_ne_bytes())),
            format!("{} (258)", hex(&258_u32.to_ne_bytes()))
        );
        assert_eq!(with_number("01 02 03"), "01 02 03");
        assert_eq!(type_name(5), "percpu_hash");
    }
}
