//! The other end of a veth pair, in any namespace, and its offloads.
//!
//! ```no_run
//! use picnic_machine::veth::{VethPeer, far};
//! if let VethPeer::End(end) = far("veth0", None) {
//!     println!("{} leaves checksums: {}", end.interface, end.leaves_checksums);
//! }
//! ```
//!
//! A veth completes nothing: packets of the other end have the checksums and sizes that it was
//! told to leave to a NIC.
//!
//! Source: ip-link(8), ip-netns(8), ethtool(8).

use crate::command;
use crate::undo::within;
use serde_json::Value;

/// The other end of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VethPeer {
    /// It has none, since it is not a veth, or this process may not query it.
    None,
    /// One in a namespace without a name, which cannot be queried.
    Unknown,
    /// This one.
    End(End),
}

/// The other end of a veth pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its name.
    pub interface: String,
    /// Its namespace, a name of `ip netns`; none for this process's.
    pub namespace: Option<String>,
    /// Whether senders may leave their checksums to it.
    pub leaves_checksums: bool,
    /// The longest packet that it sends.
    pub mtu: usize,
}

/// Whether an interface is one end of a veth pair.
pub fn is_one(interface: &str, namespace: Option<&str>) -> bool {
    link(namespace, interface).is_some_and(|link| is_veth(&link))
}

/// The other end of an interface of a namespace (a name of `ip netns`; default: this process's).
pub fn far(interface: &str, namespace: Option<&str>) -> VethPeer {
    let Some(near) = link(namespace, interface).filter(is_veth) else { return VethPeer::None };
    let Some(place) = place_of(&near, namespace) else { return VethPeer::Unknown };
    let namespace = place.as_deref();
    // By name in the same namespace, by number in another.
    let is_far = |far: &Value| match near.get("link") {
        Some(name) => far["ifname"] == *name,
        None => far["ifindex"] == near["link_index"],
    };
    let far = links(namespace).into_iter().find(is_far);
    let Some(name) = far.as_ref().and_then(|far| far["ifname"].as_str()) else {
        return VethPeer::Unknown;
    };
    let Some(features) = said(&within(namespace, &["ethtool", "-k", name])) else {
        return VethPeer::Unknown;
    };
    let (interface, leaves_checksums) = (name.to_owned(), leaves_checksums(&features));
    let mtu = far.as_ref().and_then(|far| far["mtu"].as_u64()).unwrap_or_default() as usize;
    VethPeer::End(End { interface, namespace: place, leaves_checksums, mtu })
}

impl End {
    /// The command that makes senders complete their checksums.
    pub fn mend(&self) -> String {
        within(self.namespace.as_deref(), &["ethtool", "-K", &self.interface, "tx", "off"])
            .join(" ")
    }
}

/// The namespace of the other end; none if it has no name.
fn place_of(near: &Value, namespace: Option<&str>) -> Option<Option<String>> {
    let Some(number) = near["link_netnsid"].as_u64() else {
        return Some(namespace.map(str::to_owned));
    };
    if let Some(name) = name_of(number, namespace) {
        return Some(Some(name));
    }
    // Only named ones are given by name, and this process's may have none: it then has an interface
    // whose other end is the near one.
    let is_pair = |far: &Value| {
        let place = far["link_netnsid"].as_u64().and_then(|number| name_of(number, None));
        far["ifindex"] == near["link_index"]
            && far["link_index"] == near["ifindex"]
            && is_veth(far)
            && place.as_deref() == namespace
    };
    (namespace.is_some() && links(None).iter().any(is_pair)).then_some(None)
}

/// The name of a namespace by the number that another one has for it.
fn name_of(number: u64, namespace: Option<&str>) -> Option<String> {
    let all: Vec<Value> = json(namespace, &["netns", "list-id"])?;
    let one = all.into_iter().find(|one| one["nsid"].as_u64() == Some(number))?;
    one["name"].as_str().map(str::to_owned)
}

fn is_veth(link: &Value) -> bool {
    link["linkinfo"]["info_kind"] == "veth"
}

/// Whether checksums may be left, from the output of `ethtool -k`.
fn leaves_checksums(features: &str) -> bool {
    let word = features.lines().find_map(|line| line.trim().strip_prefix("tx-checksumming:"));
    word.is_some_and(|word| word.split_whitespace().next() == Some("on"))
}

fn link(namespace: Option<&str>, interface: &str) -> Option<Value> {
    json(namespace, &["link", "show", "dev", interface])?.pop()
}

fn links(namespace: Option<&str>) -> Vec<Value> {
    json(namespace, &["link", "show"]).unwrap_or_default()
}

/// The output of `ip` with all details.
fn json(namespace: Option<&str>, words: &[&str]) -> Option<Vec<Value>> {
    let enter = namespace.map(|name| ["-n", name]);
    let all = ["ip", "-d", "-j"].into_iter().chain(enter.into_iter().flatten());
    let all: Vec<_> = all.chain(words.iter().copied()).collect();
    serde_json::from_str(&command::run(&all).ok()?).ok()
}

fn said(words: &[String]) -> Option<String> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    command::run(&words).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Testbed;
    use picnic_testing::skip;

    #[test]
    fn checksum_offload_is_read_from_ethtool() {
        let told =
            |word| format!("Features for f0:\nrx-checksumming: on\ntx-checksumming: {word}\n");
        assert!(leaves_checksums(&told("on")) && !leaves_checksums(&told("off")));
        assert!(!leaves_checksums(&told("off [fixed]")) && !leaves_checksums(""));
    }

    #[test]
    fn the_other_end_is_found_in_named_namespaces() {
        assert_eq!((far("lo", None), is_one("lo", None)), (VethPeer::None, false));
        assert_eq!(far("no-such", None), VethPeer::None);
        let Ok(bed) = Testbed::build("veth-test") else {
            return skip("the_other_end_is_found_in_named_namespaces", "it needs root");
        };
        for place in ["one", "other"] {
            bed.add_namespace(place).unwrap();
        }
        let [one, other] = ["one", "other"].map(|place| bed.netns(place));
        bed.add_veth(("one", "v0"), ("other", "v1"), "").unwrap();
        bed.add_veth(("one", "v2"), ("one", "v3"), "").unwrap();
        assert!(is_one("v0", Some(&one)));
        let end = |interface: &str, namespace: &str, leaves_checksums| {
            let (interface, namespace) = (interface.into(), Some(namespace.into()));
            VethPeer::End(End { interface, namespace, leaves_checksums, mtu: 1500 })
        };
        assert_eq!(far("v0", Some(&one)), end("v1", &other, true));
        assert_eq!(far("v1", Some(&other)), end("v0", &one, true));
        assert_eq!(far("v2", Some(&one)), end("v3", &one, true));
        // This process's namespace has no name known to the other.
        let pid = std::process::id();
        let own = format!("pv{pid}");
        bed.ip("one", &format!("link add v4 type veth peer name {own} netns {pid}")).unwrap();
        let namespace = None;
        let found = far("v4", Some(&one));
        let leaves_checksums = true;
        let end_here = End { interface: own, namespace, leaves_checksums, mtu: 1500 };
        assert_eq!(found, VethPeer::End(end_here));
        let VethPeer::End(found) = far("v0", Some(&one)) else { unreachable!() };
        let words = found.mend();
        assert_eq!(words, format!("ip netns exec {other} ethtool -K v1 tx off"));
        command::run(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(far("v0", Some(&one)), end("v1", &other, false));
    }
}
