//! The keys of `attachment = "tap"`, checked.

use picnic_core::error::ConfigError;
use picnic_core::registry::BuildContext;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::IpAddr;

const MTU_LOW: u32 = 68;
const MTU_HIGH: u32 = 9000;
/// What IPv6 asks of a link (RFC 8200, 5).
const MTU_IPV6: u32 = 1280;
/// An Ethernet header and one VLAN tag, which the MTU does not count.
const FRAME_BYTES: usize = 18;
/// The longest name of an interface, in bytes.
const NAME_BYTES: usize = 15;

/// The keys of `attachment = "tap"`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct TapConfig {
    /// Name of the interface, up to 15 bytes; "%d" in it becomes the lowest free number.
    pub name: String,
    /// Its MAC address, as 02:00:00:00:00:01. The kernel draws one if absent.
    pub mac: Option<String>,
    /// Bytes of the longest packet without its Ethernet header, 68 to 9000.
    pub mtu: u32,
    /// Its addresses with prefix length, as 10.0.0.1/24 or fd00::1/64.
    pub addresses: Vec<String>,
    /// The network namespace to make it in: a name of `ip netns`, or a path. The card's own if
    /// absent.
    pub namespace: Option<String>,
    /// Leave the interface behind when the card ends, and take up one that was left.
    pub persistent: bool,
    /// Take the interface up.
    pub up: bool,
    /// Number of the wire that the host's packets leave by, unless a tx function decides otherwise.
    pub wire: u8,
}

impl Default for TapConfig {
    fn default() -> Self {
        TapConfig {
            name: "picnic%d".into(),
            mac: None,
            mtu: 1500,
            addresses: Vec::new(),
            namespace: None,
            persistent: false,
            up: true,
            wire: 0,
        }
    }
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    pub(super) address: IpAddr,
    pub(super) prefix: u8,
}

/// What is wanted of the device, read from the keys.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: u32,
    pub(super) addresses: Vec<Cidr>,
    pub(super) namespace: Option<String>,
    pub(super) persistent: bool,
    pub(super) up: bool,
    pub(super) queues: u16,
}

impl TapConfig {
    /// Reads and checks all keys.
    ///
    /// # Errors
    /// A value that is not allowed: key, what was found, what is allowed.
    pub(super) fn read(self, context: &BuildContext) -> Result<Wanted, ConfigError> {
        let wrong = |key: &str, found: &dyn std::fmt::Debug, allowed: &str| {
            ConfigError::new(key, format!("found {found:?}, allowed: {allowed}"))
        };
        if !is_interface_name(&self.name) {
            let allowed = "1 to 15 bytes without space, slash and colon, and at most one \"%d\"";
            return Err(wrong("name", &self.name, allowed));
        }
        if self.persistent && self.name.contains('%') {
            let message = format!(
                "found true, but name is {:?}: an interface that stays needs a name without \"%d\"",
                self.name,
            );
            return Err(ConfigError::new("persistent", message));
        }
        let mac = match &self.mac {
            None => None,
            Some(text) => Some(parse_mac(text).ok_or_else(|| {
                wrong("mac", text, "six bytes as 02:00:00:00:00:01, not multicast, not zero")
            })?),
        };
        if !(MTU_LOW..=MTU_HIGH).contains(&self.mtu) {
            let allowed = format!("{MTU_LOW} to {MTU_HIGH}");
            return Err(wrong("mtu", &self.mtu, &allowed));
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
        let mut addresses = Vec::new();
        for (index, text) in self.addresses.iter().enumerate() {
            let cidr = parse_cidr(text).ok_or_else(|| {
                let allowed = "an address and a prefix length, as 10.0.0.1/24 or fd00::1/64";
                wrong(&format!("addresses[{index}]"), text, allowed)
            })?;
            if cidr.address.is_ipv6() && self.mtu < MTU_IPV6 {
                let allowed = format!("{MTU_IPV6} or more with an IPv6 address");
                return Err(wrong("mtu", &self.mtu, &allowed));
            }
            addresses.push(cidr);
        }
        if self.wire >= context.wires {
            let allowed = format!("0 to {}", context.wires.saturating_sub(1));
            return Err(wrong("wire", &self.wire, &allowed));
        }
        Ok(Wanted {
            name: self.name,
            mac,
            mtu: self.mtu,
            addresses,
            namespace: self.namespace,
            persistent: self.persistent,
            up: self.up,
            queues: context.queues,
        })
    }
}

fn is_interface_name(name: &str) -> bool {
    let plain = name.replacen("%d", "0", 1);
    let allowed = |byte: u8| byte.is_ascii_graphic() && !b"/:%".contains(&byte);
    (1..=NAME_BYTES).contains(&name.len())
        && ![".", ".."].contains(&name)
        && plain.bytes().all(allowed)
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()))?;
        let digits = part.bytes().all(|digit| digit.is_ascii_hexdigit());
        *byte = u8::from_str_radix(part, 16).ok().filter(|_| digits)?;
    }
    let usable = mac[0] & 1 == 0 && mac != [0; 6];
    (usable && parts.next().is_none()).then_some(mac)
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
        let config = section.parse::<TapConfig>().unwrap();
        section.locate(config.read(&BuildContext::default()).unwrap_err())
    }

    #[test]
    fn what_is_wrong_is_named_with_key_and_line() {
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
            ("wire = 1", "wire", "allowed: 0 to 0"),
        ] {
            let error = error(keys);
            assert_eq!(error.key, key, "{keys}: {error}");
            assert!(error.message.contains(part), "{keys}: {error}");
            assert!(error.line >= 1, "{keys}: {error}");
        }
    }

    #[test]
    fn what_is_right_is_read() {
        let config = TapConfig {
            name: "web%d".into(),
            mac: Some("02:0a:0B:c:00:01".into()),
            mtu: 9000,
            addresses: vec!["10.0.0.1/24".into(), "fd00::1/64".into()],
            ..TapConfig::default()
        };
        let context = BuildContext { buffer_size: 9018, queues: 3, ..BuildContext::default() };
        let wanted = config.read(&context).unwrap();
        assert_eq!(wanted.mac, Some([2, 10, 11, 12, 0, 1]));
        let cidr = |text: &str, prefix| Cidr { address: text.parse().unwrap(), prefix };
        assert_eq!(wanted.addresses, [cidr("10.0.0.1", 24), cidr("fd00::1", 64)]);
        assert_eq!((wanted.queues, wanted.mtu), (3, 9000));
    }
}
