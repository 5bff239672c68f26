//! The keys of `attachment = "tap"` and of `port = "tap"`, checked.

use crate::sys::sysfs;
use picnic_core::cores::CoreSet;
use picnic_core::error::ConfigError;
use picnic_core::packet::wire::MacAddress;
use picnic_core::registry::BuildContext;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::IpAddr;

const MTU_LOW: u32 = 68;
const MTU_HIGH: u32 = 9000;
/// IPv6's minimum MTU of a link (RFC 8200, 5).
const MTU_IPV6: u32 = 1280;
/// An Ethernet header and one VLAN tag, which the MTU does not count.
const FRAME_BYTES: usize = 18;
/// A super-frame of 64 KiB with its Ethernet header and two VLAN tags.
const SUPER_FRAME_BYTES: usize = 65_536 + 22;
/// Buffers that one read scatters a packet over, at most.
pub(super) const LANDING_BUFFERS: usize = 64;
/// Packets that may wait in a queue of the interface: see the note in `tap.rs`.
const TX_QUEUE_LENGTH: u32 = 4096;
/// The longest name of an interface, in bytes.
const NAME_BYTES: usize = 15;

macro_rules! keys {
    ($(#[$about:meta])* $name:ident by $interface:ident { $($(#[$extra_about:meta])* $extra:ident: $type:ty = $value:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// Name of the interface, up to 15 bytes; "%d" in it becomes the lowest free number.
            pub $interface: String,
            /// Its MAC address, such as 02:00:00:00:00:01; default: one made from the names of
            /// machine, card and interface, so that a restarted card keeps it.
            pub mac: Option<String>,
            /// Bytes of the longest packet without its Ethernet header.
            #[schemars(range(min = MTU_LOW, max = MTU_HIGH))]
            pub mtu: u32,
            /// Its addresses with prefix length, such as 10.0.0.1/24 or fd00::1/64.
            pub addresses: Vec<String>,
            /// The network namespace to make it in: a name of `ip netns`, or a path; default: the
            /// card's own.
            pub namespace: Option<String>,
            /// Whether to leave the interface behind when the card ends, and reuse an existing one.
            pub persistent: bool,
            /// Whether to set the interface up.
            pub up: bool,
            /// Packets that may wait in each of its queues for the card.
            #[schemars(range(min = 16, max = 65_536), extend("x-advanced" = true))]
            pub tx_queue_length: u32,
            /// Whether the kernel may send super-frames of up to 64 KiB, if all requirements are
            /// met.
            #[schemars(extend("x-advanced" = true))]
            pub super_frames: bool,
            $($(#[$extra_about])* pub $extra: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name {
                    $interface: "picnic%d".into(),
                    mac: None,
                    mtu: 1500,
                    addresses: Vec::new(),
                    namespace: None,
                    persistent: false,
                    up: true,
                    tx_queue_length: TX_QUEUE_LENGTH,
                    super_frames: true,
                    $($extra: $value,)*
                }
            }
        }

        impl $name {
            /// Reads and checks the keys of the interface, which has `queues` queues.
            ///
            /// # Errors
            /// A wrong value: key, value found, values allowed.
            pub(super) fn read(self, context: &BuildContext, queues: u16) -> Result<DeviceConfig, ConfigError> {
                let $name {
                    $interface: name, mac, mtu, addresses, namespace, persistent, up, tx_queue_length, super_frames, ..
                } = self;
                let wanted = DeviceConfig {
                    name_key: stringify!($interface),
                    mac: stable_mac(&[
                        rustix::system::uname().nodename().to_bytes(),
                        context.card.as_bytes(),
                        stringify!($interface).as_bytes(),
                        name.as_bytes(),
                    ]),
                    name,
                    mtu,
                    addresses: Vec::new(),
                    namespace,
                    persistent,
                    up,
                    tx_queue_length,
                    landing: 1,
                    super_frames,
                    rps_cores: CoreSet::new(),
                    queues,
                };
                wanted.check(mac.as_deref(), &addresses, context)
            }
        }
    };
}

keys! {
    /// The keys of `attachment = "tap"`.
    TapConfig by name {
        /// Number of the wire for the host's packets, unless a tx function decides otherwise.
        wire: u8 = 0,
        /// Cores over which the kernel spreads the flows of each queue (receive packet steering),
        /// such as [0, 1, 2, 3]; empty: none, so a queue's protocol work is done on its target
        /// core.
        rps_cores: Vec<usize> = Vec::new(),
    }
}

keys! {
    /// The keys of `port = "tap"`.
    TapWireConfig by interface {}
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    pub(super) address: IpAddr,
    pub(super) prefix: u8,
}

/// The device's settings, from the keys.
#[derive(Clone, Debug)]
pub(super) struct DeviceConfig {
    pub(super) name: String,
    /// Its key in the card file.
    pub(super) name_key: &'static str,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    pub(super) addresses: Vec<Cidr>,
    pub(super) namespace: Option<String>,
    pub(super) persistent: bool,
    pub(super) up: bool,
    pub(super) tx_queue_length: u32,
    /// Buffers that the longest packet takes.
    pub(super) landing: usize,
    pub(super) super_frames: bool,
    /// Cores that the kernel spreads flows over.
    pub(super) rps_cores: CoreSet,
    pub(super) queues: u16,
}

fn wrong(key: &str, found: &dyn std::fmt::Debug, allowed: &str) -> ConfigError {
    ConfigError::new(key, format!("found {found:?}, allowed: {allowed}"))
}

impl DeviceConfig {
    fn check(
        mut self,
        mac: Option<&str>,
        addresses: &[String],
        context: &BuildContext,
    ) -> Result<DeviceConfig, ConfigError> {
        if !is_interface_name(&self.name) {
            let allowed = "1 to 15 bytes without space, slash and colon, and at most one \"%d\"";
            return Err(wrong(self.name_key, &self.name, allowed));
        }
        if self.persistent && self.name.contains('%') {
            let message = format!(
                "found true, but {} is {:?}: a persistent interface needs a name without \"%d\"",
                self.name_key, self.name,
            );
            return Err(ConfigError::new("persistent", message));
        }
        if let Some(text) = mac {
            let mac = text.parse::<MacAddress>().ok().filter(|mac| mac.is_assignable());
            let mac = mac.ok_or_else(|| {
                wrong("mac", &text, "six bytes such as 02:00:00:00:00:01, not multicast, not zero")
            })?;
            self.mac = mac.0;
        }
        let frame = self.mtu as usize + FRAME_BYTES;
        if frame > context.buffer_size {
            let message = format!(
                "found {}, whose frames are up to {frame} bytes, but a buffer holds {}: set \
                 buffer_size in [pool] to {frame} or more",
                self.mtu, context.buffer_size,
            );
            return Err(ConfigError::new("mtu", message));
        }
        for (index, text) in addresses.iter().enumerate() {
            let cidr = parse_cidr(text).ok_or_else(|| {
                let allowed = "an address and a prefix length, such as 10.0.0.1/24 or fd00::1/64";
                wrong(&format!("addresses[{index}]"), text, allowed)
            })?;
            if cidr.address.is_ipv6() && self.mtu < MTU_IPV6 {
                let allowed = format!("{MTU_IPV6} or more with an IPv6 address");
                return Err(wrong("mtu", &self.mtu, &allowed));
            }
            self.addresses.push(cidr);
        }
        self.decide_super_frames(context);
        Ok(self)
    }

    /// With the kernel's receive packet steering to these cores.
    ///
    /// # Errors
    /// A core is named twice, or is not online.
    pub(super) fn steered_to(self, cores: Vec<usize>) -> Result<DeviceConfig, ConfigError> {
        let online = sysfs::online();
        let mut rps_cores = CoreSet::new();
        for (index, &core) in cores.iter().enumerate() {
            let key = format!("rps_cores[{index}]");
            if rps_cores.contains(core) {
                return Err(wrong(&key, &core, "each core once"));
            }
            if let Some(online) = online.as_ref().filter(|online| !online.contains(core)) {
                return Err(wrong(&key, &core, &format!("a core that is online: {online}")));
            }
            rps_cores.insert(core);
        }
        Ok(DeviceConfig { rps_cores, ..self })
    }

    /// Super-frames need a system call that takes all buffers of one, and a pool large enough for
    /// the landings.
    fn decide_super_frames(&mut self, context: &BuildContext) {
        let landing = SUPER_FRAME_BYTES.div_ceil(context.buffer_size.max(1));
        let laid_out = landing * usize::from(self.queues);
        self.super_frames &= landing <= LANDING_BUFFERS && laid_out <= context.buffers / 4;
        if self.super_frames {
            self.landing = landing;
        }
    }
}

fn is_interface_name(name: &str) -> bool {
    let plain = name.replacen("%d", "0", 1);
    let allowed = |byte: u8| byte.is_ascii_graphic() && !b"/:%".contains(&byte);
    (1..=NAME_BYTES).contains(&name.len())
        && ![".", ".."].contains(&name)
        && plain.bytes().all(allowed)
}

/// A locally administered address, always the same for the same words: FNV-1a over them, folded to
/// 46 bits.
fn stable_mac(words: &[&[u8]]) -> [u8; 6] {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    // A zero between words, which no name holds, keeps "ab", "c" and "a", "bc" apart.
    let bytes = words.iter().flat_map(|word| word.iter().chain(&[0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, step);
    let [.., a, b, c, d, e, f] = (hash ^ hash >> 48).to_be_bytes();
    [a & !1 | 2, b, c, d, e, f]
}

fn parse_cidr(text: &str) -> Option<Cidr> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let digits = prefix.bytes().all(|digit| digit.is_ascii_digit());
    let prefix: u8 = prefix.parse().ok().filter(|_| digits)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let usable = !address.is_unspecified() && !address.is_multicast();
    (usable && prefix <= most).then_some(Cidr { address, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::config::Section;

    fn error(keys: &str) -> ConfigError {
        let section =
            Section::from_text("attachment", &format!("attachment = \"tap\"\n{keys}")).unwrap();
        let config = match section.parse::<TapConfig>() {
            Ok(config) => config,
            Err(error) => return error,
        };
        let cores = config.rps_cores.clone();
        let wanted = config.read(&BuildContext::default(), 4);
        section.locate(wanted.and_then(|wanted| wanted.steered_to(cores)).unwrap_err())
    }

    #[test]
    fn tap_errors_name_key_and_line() {
        for (keys, key, part) in [
            ("name = \"\"", "name", "1 to 15 bytes"),
            ("name = \"sixteen-bytes-it\"", "name", "1 to 15 bytes"),
            ("name = \"a b\"", "name", "without space"),
            ("name = \"a/b\"", "name", "slash"),
            ("name = \"..\"", "name", "found \"..\""),
            ("name = \"a%d%d\"", "name", "at most one"),
            ("name = \"a%s\"", "name", "at most one"),
            ("persistent = true", "persistent", "without \"%d\""),
            ("mac = \"02:00:00:00:00\"", "mac", "six bytes"),
            ("mac = \"02:00:00:00:00:01:02\"", "mac", "six bytes"),
            ("mac = \"02:00:00:00:00:+1\"", "mac", "six bytes"),
            ("mac = \"01:00:00:00:00:01\"", "mac", "not multicast"),
            ("mac = \"00:00:00:00:00:00\"", "mac", "not zero"),
            ("mtu = 67", "mtu", "allowed: 68 to 9000"),
            ("mtu = 9001", "mtu", "allowed: 68 to 9000"),
            ("mtu = 9000", "mtu", "buffer_size in [pool] to 9018"),
            ("mtu = 1000\naddresses = [\"fd00::1/64\"]", "mtu", "1280 or more"),
            ("addresses = [\"10.0.0.1\"]", "addresses[0]", "prefix length"),
            ("addresses = [\"10.0.0.1/24\", \"10.0.0.1/33\"]", "addresses[1]", "10.0.0.1/33"),
            ("addresses = [\"10.0.0.300/24\"]", "addresses[0]", "10.0.0.300/24"),
            ("addresses = [\"fd00::1/129\"]", "addresses[0]", "fd00::1/129"),
            ("addresses = [\"224.0.0.1/24\"]", "addresses[0]", "224.0.0.1/24"),
            ("rps_cores = [0, 0]", "rps_cores[1]", "found 0, allowed: each core once"),
            ("rps_cores = [0, 65000]", "rps_cores[1]", "found 65000, allowed: a core that is"),
            ("tx_queue_length = 15", "tx_queue_length", "allowed: 16 to 65536"),
        ] {
            let error = error(keys);
            assert_eq!(error.key, key, "{keys}: {error}");
            assert!(error.message.contains(part), "{keys}: {error}");
            assert!(error.line >= 1, "{keys}: {error}");
        }
    }

    #[test]
    fn valid_tap_keys_are_read() {
        let config = TapConfig {
            name: "web%d".into(),
            mac: Some("02:0a:0B:c:00:01".into()),
            mtu: 9000,
            addresses: vec!["10.0.0.1/24".into(), "fd00::1/64".into()],
            ..TapConfig::default()
        };
        let context = BuildContext { buffer_size: 9018, queues: 3, ..BuildContext::default() };
        let wanted = config.read(&context, 3).unwrap();
        assert_eq!(wanted.mac, [2, 10, 11, 12, 0, 1]);
        let cidr = |text: &str, prefix| Cidr { address: text.parse().unwrap(), prefix };
        assert_eq!(wanted.addresses, [cidr("10.0.0.1", 24), cidr("fd00::1", 64)]);
        assert_eq!((wanted.queues, wanted.mtu), (3, 9000));
        assert_eq!((wanted.super_frames, wanted.landing), (true, 8));
    }

    #[test]
    fn cards_keep_their_unique_mac() {
        let mac = |card: &str, name: &str| {
            let config = TapConfig { name: name.into(), ..TapConfig::default() };
            let context = BuildContext { card: card.into(), ..BuildContext::default() };
            config.read(&context, 1).unwrap().mac
        };
        let wire = TapWireConfig { interface: "web".into(), ..TapWireConfig::default() };
        let context = BuildContext { card: "a".into(), ..BuildContext::default() };
        let wire = wire.read(&context, 1).unwrap().mac;
        let all = [mac("a", "web"), mac("b", "web"), mac("a", "web1"), mac("aw", "eb"), wire];
        for (index, one) in all.iter().enumerate() {
            assert_eq!(one[0] & 3, 2, "locally administered, no group: {one:02x?}");
            assert!(!all[..index].contains(one), "{all:02x?}");
        }
        assert_eq!(mac("a", "web"), all[0]);
    }

    #[test]
    fn super_frames_need_buffers_to_land_in() {
        for (buffer_size, buffers, landing) in
            [(2048, 8192, 33), (2048, 263, 1), (2048, 264, 33), (1518, 8192, 44), (1000, 65536, 1)]
        {
            let context = BuildContext { buffer_size, buffers, ..BuildContext::default() };
            let config = TapWireConfig { mtu: 900, ..TapWireConfig::default() };
            let wanted = config.read(&context, 2).unwrap();
            assert_eq!(wanted.landing, landing, "{buffer_size} {buffers}");
            assert_eq!(wanted.super_frames, landing != 1);
        }
    }
}
