//! `[net]` and `[[net.link]]`: the keys, their checks, and the resulting commands.

use crate::undo;
use picnic_core::config::{CardFile, Inner, Placed, SectionConfig, Shape};
use picnic_core::error::ConfigError;
use picnic_core::packet::wire::MacAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The longest name of an interface, in bytes.
const NAME_BYTES: usize = 15;

/// `[net]`: the network that `picnic net up` makes around the card.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetSection {
    /// Network namespaces to make.
    pub namespaces: Vec<String>,
    /// Its links.
    pub link: Vec<Inner>,
}

impl Default for NetSection {
    fn default() -> Self {
        let namespaces = ["client", "card", "server"].map(String::from).into();
        NetSection { namespaces, link: Vec::new() }
    }
}

impl SectionConfig for NetSection {
    const NAME: &'static str = "net";
    const HELP: &'static str =
        "The network that `picnic net up` makes around the card, and `picnic net down` removes.";
    const SHAPE: Shape = Shape::Optional;

    fn check(&self) -> Result<(), ConfigError> {
        for (index, name) in self.namespaces.iter().enumerate() {
            let key = format!("namespaces[{index}]");
            namespace(&key, name)?;
            if self.namespaces[..index].contains(name) {
                let message = format!("found \"{name}\" twice, allowed: once");
                return Err(ConfigError::new(key, message));
            }
        }
        Ok(())
    }
}

/// `[[net.link]]`: a veth pair.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSection {
    /// Name of the card's end, up to 15 bytes: the interface that a wire names.
    pub interface: String,
    /// The namespace it is in; "" for the current one of `picnic net up`.
    pub namespace: String,
    /// Its addresses with prefix length, such as 10.0.0.1/24 or fd00::1/64; a card's wire needs
    /// none.
    pub addresses: Vec<String>,
    /// Its MAC address, such as 02:00:00:00:00:01 [default: the kernel's choice].
    pub mac: Option<String>,
    /// Name of the other end.
    pub peer: String,
    /// The namespace of the other end.
    pub peer_namespace: String,
    /// The addresses of the other end.
    pub peer_addresses: Vec<String>,
    /// The MAC address of the other end.
    pub peer_mac: Option<String>,
    /// Bytes of the longest packet without its Ethernet header, at both ends.
    #[schemars(range(min = 68, max = 65535))]
    pub mtu: u32,
    /// Receive and transmit queues of both ends.
    #[schemars(range(min = 1, max = 64))]
    pub queues: u16,
    /// Offloads to switch on or off at both ends, by ethtool's names, such as { tx = false, gro =
    /// true }: rx, tx, sg, tso, gso, gro.
    pub offloads: Offloads,
}

impl Default for LinkSection {
    fn default() -> Self {
        LinkSection {
            interface: "wire0".into(),
            namespace: "card".into(),
            addresses: Vec::new(),
            mac: None,
            peer: "client0".into(),
            peer_namespace: "client".into(),
            peer_addresses: Vec::new(),
            peer_mac: None,
            mtu: 1500,
            queues: 1,
            offloads: Offloads::default(),
        }
    }
}

impl SectionConfig for LinkSection {
    const NAME: &'static str = "net.link";
    const HELP: &'static str = "A veth pair between the card and its peers.";
    const SHAPE: Shape = Shape::List { least: 0, most: 255, built_in: false };

    fn check(&self) -> Result<(), ConfigError> {
        self.link().map(drop)
    }
}

/// Offloads with a value: on or off.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Offloads {
    /// Checksums verified on receive.
    pub rx: Option<bool>,
    /// Checksums left to the interface.
    pub tx: Option<bool>,
    /// Packets in several pieces.
    pub sg: Option<bool>,
    /// TCP super-frames.
    pub tso: Option<bool>,
    /// Super-frames of other protocols.
    pub gso: Option<bool>,
    /// Super-frames made on receive.
    pub gro: Option<bool>,
}

impl Offloads {
    /// Those with a value: as `ethtool -K` takes them, as `ethtool -k` prints them, and the value.
    pub(super) fn named(self) -> Vec<(&'static str, &'static str, bool)> {
        let Offloads { rx, tx, sg, tso, gso, gro } = self;
        let all = [
            ("rx", "rx-checksumming", rx),
            ("tx", "tx-checksumming", tx),
            ("sg", "scatter-gather", sg),
            ("tso", "tcp-segmentation-offload", tso),
            ("gso", "generic-segmentation-offload", gso),
            ("gro", "generic-receive-offload", gro),
        ];
        all.into_iter().filter_map(|(short, long, is_on)| Some((short, long, is_on?))).collect()
    }
}

/// A valid network.
#[derive(Clone, Debug, Serialize)]
pub struct Network {
    /// The card's name.
    pub card: String,
    /// Namespaces to make.
    pub namespaces: Vec<String>,
    /// Links to make.
    pub links: Vec<Link>,
}

/// A veth pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The card's end.
    pub near: End,
    /// The other end.
    pub far: End,
    /// Bytes of the longest packet without its Ethernet header.
    pub mtu: u32,
    /// Queues of each end.
    pub queues: u16,
    /// Offloads to switch on or off.
    #[serde(skip)]
    pub offloads: Offloads,
}

/// An end of a veth pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct End {
    /// Its name.
    pub interface: String,
    /// Its namespace, if not the current one.
    pub namespace: Option<String>,
    /// Its addresses, with prefix length.
    pub addresses: Vec<String>,
    /// Its MAC address, if not the kernel's choice.
    pub mac: Option<String>,
}

impl LinkSection {
    /// The pair that the keys describe.
    fn link(&self) -> Result<Link, ConfigError> {
        let near = end(
            ["interface", "namespace", "addresses", "mac"],
            (&self.interface, &self.namespace, &self.addresses, self.mac.as_deref()),
        )?;
        let far = end(
            ["peer", "peer_namespace", "peer_addresses", "peer_mac"],
            (&self.peer, &self.peer_namespace, &self.peer_addresses, self.peer_mac.as_deref()),
        )?;
        if (&near.namespace, &near.interface) == (&far.namespace, &far.interface) {
            let message = format!("found \"{}\", which is the other end's name", self.peer);
            return Err(ConfigError::new("peer", message));
        }
        Ok(Link { near, far, mtu: self.mtu, queues: self.queues, offloads: self.offloads })
    }
}

fn end(
    [interface_key, namespace_key, addresses_key, mac_key]: [&str; 4],
    (interface, namespace, addresses, mac): (&String, &String, &[String], Option<&str>),
) -> Result<End, ConfigError> {
    let is_plain = |letter: char| letter.is_ascii_graphic() && !"/:%".contains(letter);
    let is_name = (1..=NAME_BYTES).contains(&interface.len())
        && ![".", ".."].contains(&interface.as_str())
        && !interface.starts_with('-')
        && interface.chars().all(is_plain);
    if !is_name {
        let allowed = "a name of 1 to 15 bytes without blanks, /, : and %";
        let message = format!("found \"{interface}\", allowed: {allowed}");
        return Err(ConfigError::new(interface_key, message));
    }
    if !namespace.is_empty() {
        self::namespace(namespace_key, namespace)?;
    }
    for (index, text) in addresses.iter().enumerate() {
        if !is_address(text) {
            let message =
                format!("found \"{text}\", allowed: an address such as 10.0.0.1/24 or fd00::1/64");
            return Err(ConfigError::new(format!("{addresses_key}[{index}]"), message));
        }
    }
    let mac = match mac.map(|text| (text, text.parse::<MacAddress>())) {
        None => None,
        Some((_, Ok(mac))) if mac.is_assignable() => Some(mac.to_string()),
        Some((text, _)) => {
            let allowed = "six bytes such as 02:00:00:00:00:01, not multicast, not zero";
            let message = format!("found \"{text}\", allowed: {allowed}");
            return Err(ConfigError::new(mac_key, message));
        }
    };
    Ok(End {
        interface: interface.clone(),
        namespace: Some(namespace.clone()).filter(|name| !name.is_empty()),
        addresses: addresses.to_vec(),
        mac,
    })
}

/// A name that `ip netns` takes.
fn namespace(key: &str, name: &str) -> Result<(), ConfigError> {
    let is_plain = |letter: char| letter.is_ascii_graphic() && letter != '/';
    let is_name = (1..=64).contains(&name.len())
        && !name.starts_with(['-', '.'])
        && name.chars().all(is_plain);
    match is_name {
        true => Ok(()),
        false => {
            let allowed = "a name of `ip netns`: 1 to 64 bytes without blanks and /";
            Err(ConfigError::new(key, format!("found \"{name}\", allowed: {allowed}")))
        }
    }
}

fn is_address(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else { return false };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let is_number = prefix.bytes().all(|digit| digit.is_ascii_digit());
    // As the kernel writes it, to recognise it later.
    is_number
        && prefix.parse::<u8>().is_ok_and(|prefix| prefix <= most)
        && !address.is_unspecified()
        && !address.is_multicast()
        && *text == format!("{address}/{prefix}")
}

impl Network {
    /// The network of a card file.
    ///
    /// # Errors
    /// The file has no `[net]`; two ends have one name; an end's namespace is not created.
    pub fn of(card: &CardFile) -> Result<Self, ConfigError> {
        let placed: Vec<Placed<LinkSection>> = card.given();
        if !card.has("net") {
            let message = "missing, must be given: `picnic card` shows its keys";
            return Err(card.locate(ConfigError::new("net", message)));
        }
        let mut links: Vec<Link> = Vec::new();
        for section in &placed {
            let link = section.keys.link().map_err(|error| section.section.locate(error))?;
            let keys = ["interface", "peer"];
            for (end, key) in link.ends().into_iter().zip(keys) {
                let same = |other: &&End| {
                    (&other.namespace, &other.interface) == (&end.namespace, &end.interface)
                };
                if links.iter().flat_map(Link::ends).find(same).is_some() {
                    let message = format!("found \"{}\", which another link has", end.interface);
                    return Err(section.section.locate(ConfigError::new(key, message)));
                }
            }
            links.push(link);
        }
        let namespaces = card.section::<NetSection>().keys.namespaces;
        Ok(Network { card: card.card.name.clone(), namespaces, links })
    }

    /// The commands that make it, in order.
    pub fn commands(&self) -> Vec<Vec<String>> {
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let mut commands = Vec::new();
        for name in &self.namespaces {
            commands.push(words(&format!("ip netns add {name}")));
            commands.push(words(&format!("ip -n {name} link set lo up")));
        }
        for link in &self.links {
            commands.push(words(&link.add()));
            for end in link.ends() {
                let dev = &end.interface;
                for address in &end.addresses {
                    // Nobody else has the address: no need for duplicate address detection.
                    let nodad = if address.contains(':') { " nodad" } else { "" };
                    commands
                        .push(words(&end.ip(&format!("address add {address} dev {dev}{nodad}"))));
                }
                let offloads = link.offloads.named();
                if !offloads.is_empty() {
                    let named = offloads
                        .iter()
                        .flat_map(|(short, _, is_on)| [*short, if *is_on { "on" } else { "off" }]);
                    let words: Vec<_> = ["ethtool", "-K", dev].into_iter().chain(named).collect();
                    commands.push(end.within(&words));
                }
                commands.push(words(&end.ip(&format!("link set {dev} up"))));
            }
            // Senders wait while the wire's ring is full, as at a NIC, instead of losing packets.
            let dev = &link.far.interface;
            commands.push(link.far.within(&["tc", "qdisc", "replace", "dev", dev, "root", "mq"]));
        }
        commands
    }
}

impl Link {
    /// The card's end, then the other.
    pub(super) fn ends(&self) -> [&End; 2] {
        [&self.near, &self.far]
    }

    fn add(&self) -> String {
        let Link { near, far, mtu, queues, .. } = self;
        let end = |end: &End| {
            let mac = end.mac.as_ref().map(|mac| format!(" address {mac}")).unwrap_or_default();
            // Without a number, which applies to both ends, the kernel uses one queue and has room
            // for more, as `mq` needs.
            let numbers = match queues {
                1 => String::new(),
                queues => format!(" numrxqueues {queues} numtxqueues {queues}"),
            };
            format!("{}{mac} mtu {mtu}{numbers}", end.interface)
        };
        // The other end's namespace must have a name.
        let (one, other) = if far.namespace.is_none() { (far, near) } else { (near, far) };
        let netns = match &other.namespace {
            Some(name) if other.namespace != one.namespace => format!(" netns {name}"),
            _ => String::new(),
        };
        one.ip(&format!("link add {} type veth peer name {}{netns}", end(one), end(other)))
    }
}

impl End {
    /// `ip` in this end's namespace.
    fn ip(&self, rest: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("ip -n {namespace} {rest}"),
            None => format!("ip {rest}"),
        }
    }

    /// Another command there.
    pub(super) fn within(&self, words: &[&str]) -> Vec<String> {
        undo::within(self.namespace.as_deref(), words)
    }
}
