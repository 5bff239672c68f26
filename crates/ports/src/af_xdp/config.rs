//! The keys of `port = "xdp"`, checked.

use super::handed::MOST_QUEUES;
use crate::sys::packet::{Name, name};
use crate::sys::xsk::{CHUNK_LOW, Chunks, SocketsConfig};
use picnic_core::error::ConfigError;
use picnic_core::kernel::refuse;
use picnic_core::packet::pool::PoolMemory;
use picnic_forms::KernelForm;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// An Ethernet header and two VLAN tags, which the MTU does not include.
pub(super) const FRAME_BYTES: usize = 22;
/// As much of it as is sent: one tag more than the MTU allows, as from a packet socket.
pub(super) const SENT_FRAME_BYTES: usize = 18;
const SLOTS_LOW: u32 = 64;
const SLOTS_HIGH: u32 = 32_768;
/// Default slots of the receive ring, unless the pool has too few buffers.
const SLOTS: u32 = 2048;

/// Which of the interface's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// All queues that exist when the card starts.
    #[default]
    All,
    /// This many, from 0 on.
    Count(u32),
    /// These.
    List(Vec<u32>),
}

const QUEUES: &str = "\"all\", a number of queues, or a list such as [0, 2]";

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Queues;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(QUEUES)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Queues, E> {
                match text {
                    "all" => Ok(Queues::All),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Queues, E> {
                u32::try_from(number)
                    .map(Queues::Count)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Queues, A::Error> {
                let mut queues = Vec::new();
                while let Some(queue) = list.next_element()? {
                    queues.push(queue);
                }
                Ok(Queues::List(queues))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Queues {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Queues".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": QUEUES, "default": "all" })
    }
    fn inline_schema() -> bool {
        true
    }
}

/// The place of the XDP program.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In the driver, or else in the kernel's own path.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the kernel's own path, which every interface has.
    Generic,
}

/// The writer of the card's buffers.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum CopyMode {
    /// The NIC if it can, or else the kernel.
    #[default]
    Auto,
    /// The kernel.
    Copy,
    /// The NIC.
    ZeroCopy,
}

/// Treatment of partial checksums on arrival.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Checksums {
    /// Mend them if the interface has no device.
    #[default]
    Auto,
    /// Find and mark them, so that they are completed.
    Mend,
    /// Accept packets unchanged.
    Trust,
}

/// Keys of the `xdp` port.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct XdpConfig {
    /// The interface, Ethernet; mandatory.
    pub interface: Option<String>,
    /// Its network namespace: a name of `ip netns`, or a path; default: the card's own.
    pub namespace: Option<String>,
    /// Its queues: "all", a number of them, or a list. Packets of other queues go to the kernel.
    pub queues: Queues,
    /// Place of its program: "native" (in the driver), "generic" (in the kernel) or "auto".
    pub mode: Mode,
    /// Writer of the buffers: "zero-copy" (the NIC), "copy" (the kernel) or "auto".
    pub copy_mode: CopyMode,
    /// Whether to call the kernel only when it requests a call.
    #[schemars(extend("x-advanced" = true))]
    pub need_wakeup: bool,
    /// Whether to receive packets for other addresses too, until the card ends.
    pub promiscuous: bool,
    /// Buffers waiting for packets, per queue; default: as the
    /// pool allows.
    #[schemars(range(min = SLOTS_LOW, max = SLOTS_HIGH), extend("powerOfTwo" = true))]
    pub rx_ring: Option<u32>,
    /// Most packets being sent.
    #[schemars(range(min = SLOTS_LOW, max = SLOTS_HIGH), extend("x-advanced" = true, "powerOfTwo" = true))]
    pub tx_ring: u32,
    /// Packets per busy poll, instead of interrupts; 0: use interrupts.
    #[schemars(range(max = 1024), extend("x-advanced" = true))]
    pub busy_poll: u32,
    /// Whether the XDP program reads each packet's arrival time, at about 20 ns per packet in the
    /// kernel; otherwise the time of reception by the card is used.
    #[schemars(extend("x-advanced" = true))]
    pub stamps: bool,
    /// Partial checksums on arrival: "mend", "trust", or "auto" (mend if the interface has no device).
    #[schemars(extend("x-advanced" = true))]
    pub checksums: Checksums,
}

impl Default for XdpConfig {
    fn default() -> Self {
        XdpConfig {
            interface: None,
            namespace: None,
            queues: Queues::All,
            mode: Mode::Auto,
            copy_mode: CopyMode::Auto,
            need_wakeup: true,
            promiscuous: true,
            rx_ring: None,
            tx_ring: 1024,
            busy_poll: 0,
            stamps: true,
            checksums: Checksums::Auto,
        }
    }
}

fn wrong(key: &str, message: String) -> ConfigError {
    ConfigError::new(key, message)
}

impl XdpConfig {
    /// Checks all keys that need no machine; the interface's name.
    pub(super) fn check(&self) -> Result<(&str, Name), ConfigError> {
        let interface = self.interface.as_deref().ok_or_else(|| {
            ConfigError::new("interface", "missing, expected the name of an interface")
        })?;
        let name = name(interface).ok_or_else(|| {
            wrong("interface", format!("found \"{interface}\", allowed: a name of 1 to 15 bytes"))
        })?;
        if self.mode == Mode::Generic && self.copy_mode == CopyMode::ZeroCopy {
            let message = "found \"zero-copy\", which needs mode \"native\" or \"auto\"";
            return Err(wrong("copy_mode", message.into()));
        }
        Ok((interface, name))
    }

    /// The interface, for the kernel engine, whose program its driver runs.
    pub(super) fn kernel_form(&self) -> Result<KernelForm, ConfigError> {
        let (interface, _) = self.check()?;
        if self.mode == Mode::Generic {
            return Err(refuse("mode", "\"generic\"", "\"native\" or \"auto\""));
        }
        if let Some(path) = self.namespace.as_ref().filter(|name| name.contains('/')) {
            let message = "a name of `ip netns`";
            return Err(refuse("namespace", format!("\"{path}\""), message));
        }
        let (name, namespace) = (interface.into(), self.namespace.clone());
        Ok(KernelForm::Interface { name, namespace, stamps: self.stamps })
    }

    /// The selected queues, ascending, of the `there` queues of the interface.
    pub(super) fn queues(&self, there: u32) -> Result<Vec<u32>, ConfigError> {
        let last = there.saturating_sub(1);
        match &self.queues {
            Queues::All => Ok((0..there.min(MOST_QUEUES)).collect()),
            Queues::Count(count) if (1..=there).contains(count) => Ok((0..*count).collect()),
            Queues::Count(count) => {
                Err(wrong("queues", format!("found {count}, the interface has {there}")))
            }
            Queues::List(list) => {
                let mut queues = list.clone();
                queues.sort_unstable();
                queues.dedup();
                if queues.is_empty() || queues.len() != list.len() {
                    let message = format!("found {list:?}, allowed: queues, each once");
                    return Err(wrong("queues", message));
                }
                match queues.iter().find(|&&queue| queue >= there) {
                    None => Ok(queues),
                    Some(found) => Err(wrong(
                        "queues",
                        format!("found {found}, the interface has 0 to {last}"),
                    )),
                }
            }
        }
    }

    /// Buffers waiting for packets at each of `queues` queues, if the wire has a total of `share`.
    pub(super) fn rx_slots(&self, share: usize, queues: usize) -> u32 {
        let fits = share / queues.max(1);
        self.rx_ring.unwrap_or_else(|| SLOTS.min(1 << fits.max(1).ilog2()))
    }

    /// The sockets' settings for the card's pool, of which this wire may use `share` buffers, and
    /// the interface's MTU.
    pub(super) fn wanted(
        &self,
        queues: Vec<u32>,
        memory: &PoolMemory,
        share: usize,
        mtu: usize,
    ) -> Result<SocketsConfig, ConfigError> {
        if Chunks::of(memory).is_none() {
            let missing = CHUNK_LOW.saturating_sub(memory.room());
            let message = format!(
                "AF_XDP needs buffers of {CHUNK_LOW} bytes, including more than 256 bytes after the \
                 headroom: raise buffer_size in [pool] by {} or more",
                missing.max(64)
            );
            return Err(wrong("port", message));
        }
        if self.copy_mode == CopyMode::ZeroCopy && !memory.huge_pages() {
            let pages = memory.bytes() >> 21;
            let message = format!(
                "found \"zero-copy\", which needs a pool on 2 MiB pages, but this machine has too \
                 few of them: \"sysctl vm.nr_hugepages={pages}\" reserves {pages}"
            );
            return Err(wrong("copy_mode", message));
        }
        let fits = share / queues.len().max(1);
        let rx_slots = match self.rx_ring {
            Some(slots) if slots as usize <= fits => slots,
            None if fits >= SLOTS_LOW as usize => self.rx_slots(share, queues.len()),
            found => {
                let (key, slots) = match found {
                    Some(slots) => ("rx_ring", slots),
                    None => ("queues", SLOTS_LOW),
                };
                let message = format!(
                    "{slots} buffers for each of {} queues, but this wire's share of the pool is \
                     {share}: set more buffers in [pool], or fewer queues",
                    queues.len(),
                );
                return Err(wrong(key, message));
            }
        };
        Ok(SocketsConfig {
            handed: None,
            stamps: self.stamps,
            queues,
            rx_slots,
            tx_slots: self.tx_ring,
            native: match self.mode {
                Mode::Auto => None,
                Mode::Native => Some(true),
                Mode::Generic => Some(false),
            },
            zero_copy: match self.copy_mode {
                CopyMode::Auto => None,
                CopyMode::Copy => Some(false),
                CopyMode::ZeroCopy => Some(true),
            },
            need_wakeup: self.need_wakeup,
            busy_poll: self.busy_poll,
            longest: mtu + FRAME_BYTES,
        })
    }
}
