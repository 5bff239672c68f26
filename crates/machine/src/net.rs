//! `[net]` of a card file: creates and removes namespaces and veth pairs.
//!
//! ```no_run
//! use picnic_core::config::Sections;
//! use picnic_machine::net::{self, Network};
//! use picnic_machine::{config::SECTIONS, undo::Machine};
//! let text = "[net]\nnamespaces = [\"client\", \"card\"]\n[[net.link]]\n";
//! let card = Sections::core().with(SECTIONS).parse(text, None)?;
//! let network = Network::of(&card)?;
//! let made = net::up(&Machine::this(), &network)?;
//! assert!(made.changed);
//! net::down(&Machine::this(), Some(&network.card))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Guarantees: every change is in a journal first ([`crate::undo`]), so that `picnic cleanup` can
//! remove everything after a kill; once complete, the journal is held until [`down`]. [`up`] on an
//! identical network changes nothing; a different one is removed and made anew. Nothing made by
//! others is changed or removed.
//!
//! Source: ip-netns(8), ip-link(8), veth(4), ethtool(8).

mod config;
#[cfg(test)]
mod tests;

pub use config::{Link, LinkSection, NetSection, Network, Offloads};

use crate::error::MachineError;
use crate::undo::{
    Change, Journal, JournalInfo, JournalSelection, Machine, Restored, journals, restore_all,
};
use crate::{command, signals};
use config::End;
use serde::Serialize;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time for an interface to come up, of which the kernel tells late on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two checks.
const LOOK: Duration = Duration::from_millis(5);
/// Prefix of the purpose of a network's journal.
const PURPOSE: &str = "net-";

/// The result of [`up`].
#[derive(Clone, Debug, Serialize)]
pub struct NetworkState {
    /// Whether anything was made; otherwise the network was up already.
    pub changed: bool,
    /// Each end of each link, as the kernel reports it.
    pub interfaces: Vec<Interface>,
}

/// One end of a veth pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its name.
    pub interface: String,
    /// Its namespace; none for the current one.
    pub namespace: Option<String>,
    /// The interface at the other end.
    pub peer: String,
    /// Its MAC address.
    pub mac: String,
    /// Its MTU in bytes.
    pub mtu: u64,
    /// Its addresses, without link-local ones.
    pub addresses: Vec<String>,
    /// Whether it and the other end are up.
    pub up: bool,
}

/// The name of the journal of a card's network, valid in a file name.
fn purpose(card: &str) -> String {
    let plain = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        byte => format!("%{byte:02x}"),
    };
    format!("{PURPOSE}{}", card.bytes().map(plain).collect::<String>())
}

/// The journals of networks that are up.
fn held(machine: &Machine) -> Result<Vec<JournalInfo>, MachineError> {
    let all = journals(machine)?.into_iter().flatten();
    Ok(all
        .filter(|journal| journal.is_held && !journal.is_past)
        .filter(|journal| journal.purpose.starts_with(PURPOSE))
        .collect())
}

/// Whether the network of a card is up, or partly made.
///
/// # Errors
/// The state directory cannot be read.
pub fn is_up(machine: &Machine, card: &str) -> Result<bool, MachineError> {
    Ok(held(machine)?.iter().any(|journal| journal.purpose == purpose(card)))
}

/// Makes a card's network, or finds it made.
///
/// # Errors
/// Not root; a name is already in use; the system's error. Nothing remains in these cases.
pub fn up(machine: &Machine, network: &Network) -> Result<NetworkState, MachineError> {
    if !rustix::process::geteuid().is_root() {
        let message = "making network namespaces needs root: try it with `sudo`";
        return Err(MachineError::Refused(message.into()));
    }
    let stop = signals::stop_flag()
        .map_err(|error| MachineError::system("signals cannot be handled", error))?;
    restore_all(machine, JournalSelection::Stale)?;
    let purpose = purpose(&network.card);
    let planned = changes(network);
    if let Some(journal) = held(machine)?.into_iter().find(|journal| journal.purpose == purpose) {
        if journal.changes == planned
            && let Some(interfaces) = as_wanted(machine, network)
        {
            return Ok(NetworkState { changed: false, interfaces });
        }
        whole(restore_all(machine, JournalSelection::Held(&purpose))?)?;
    }
    refuse_taken(machine, network)?;
    let mut journal = Journal::create(machine, &purpose)?;
    let made = journal.record_all(planned).and_then(|()| make(machine, network, &journal, &stop));
    match made.and_then(|interfaces| journal.hold().map(|()| interfaces)) {
        Ok(interfaces) => Ok(NetworkState { changed: true, interfaces }),
        Err(error) => {
            // Changes that cannot be restored now stay in the journal, for the next start.
            let _ = journal.undo();
            Err(error)
        }
    }
}

/// Removes the network of a card, or of all cards.
///
/// # Errors
/// The state directory cannot be read. What cannot be removed is in the result.
pub fn down(machine: &Machine, card: Option<&str>) -> Result<Vec<Restored>, MachineError> {
    let mut restored = Vec::new();
    let wanted = card.map(purpose);
    for journal in held(machine)? {
        if wanted.as_ref().is_none_or(|wanted| *wanted == journal.purpose) {
            restored.extend(restore_all(machine, JournalSelection::Held(&journal.purpose))?);
        }
    }
    Ok(restored)
}

/// Everything that [`up`] makes, in order.
fn changes(network: &Network) -> Vec<Change> {
    let namespaces = network.namespaces.iter().cloned().map(|name| Change::Namespace { name });
    // The other end is removed with it.
    let links = network.links.iter().map(|link| Change::Interface {
        name: link.near.interface.clone(),
        namespace: link.near.namespace.clone(),
    });
    namespaces.chain(links).collect()
}

/// Anything that exists already belongs to others, and would be removed as if it were ours.
fn refuse_taken(machine: &Machine, network: &Network) -> Result<(), MachineError> {
    let refused = |what: String| {
        Err(MachineError::Refused(format!(
            "{what} exists, but `picnic net up` did not create it for card {}",
            network.card
        )))
    };
    for name in &network.namespaces {
        if machine.namespaces.join(name).exists() {
            return refused(format!("network namespace {name}"));
        }
    }
    for end in network.links.iter().flat_map(Link::ends) {
        let is_new = end.namespace.as_ref().is_some_and(|name| network.namespaces.contains(name));
        if !is_new && look(end).is_some() {
            let place = end.namespace.as_ref().map(|name| format!(" in namespace {name}"));
            return refused(format!("interface {}{}", end.interface, place.unwrap_or_default()));
        }
    }
    Ok(())
}

fn make(
    machine: &Machine,
    network: &Network,
    journal: &Journal,
    stop: &AtomicBool,
) -> Result<Vec<Interface>, MachineError> {
    let check = || match stop.load(Ordering::Acquire) {
        true => Err(MachineError::Refused("interrupted; everything is removed".into())),
        false => Ok(()),
    };
    for command in network.commands() {
        check()?;
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        journal.run(&words).map_err(|error| MachineError::Refused(error.to_string()))?;
    }
    // The kernel reports both ends up a moment after they are.
    let start = Instant::now();
    loop {
        match as_wanted(machine, network) {
            Some(interfaces) => return Ok(interfaces),
            None if start.elapsed() < PATIENCE => {
                check()?;
                std::thread::sleep(LOOK);
            }
            None => {
                let seconds = PATIENCE.as_secs();
                let message = format!("the interfaces were not up within {seconds} s");
                return Err(MachineError::Refused(message));
            }
        }
    }
}

/// The interfaces, if the whole network exists as specified.
fn as_wanted(machine: &Machine, network: &Network) -> Option<Vec<Interface>> {
    if !network.namespaces.iter().all(|name| machine.namespaces.join(name).exists()) {
        return None;
    }
    let mut interfaces = Vec::new();
    for link in &network.links {
        for (end, peer) in link.ends().into_iter().zip(link.ends().into_iter().rev()) {
            let found = interface(end, &peer.interface)?;
            let addresses = end.addresses.iter().all(|wanted| found.addresses.contains(wanted));
            let is_wanted = found.up
                && found.mtu == u64::from(link.mtu)
                && addresses
                && found.addresses.len() == end.addresses.len()
                && end.mac.as_ref().is_none_or(|mac| *mac == found.mac)
                && has_offloads(end, link.offloads);
            if !is_wanted {
                return None;
            }
            interfaces.push(found);
        }
    }
    Some(interfaces)
}

/// The state of an interface from `ip`; none if it does not exist.
fn look(end: &End) -> Option<Value> {
    let mut words = vec!["ip", "-j"];
    if let Some(namespace) = &end.namespace {
        words.extend(["-n", namespace]);
    }
    words.extend(["address", "show", "dev", &end.interface]);
    let told: Value = serde_json::from_str(&command::run(&words).ok()?).ok()?;
    // Older versions list every interface for any request.
    let mut all = told.as_array()?.iter();
    all.find(|found| found["ifname"] == *end.interface).cloned()
}

fn interface(end: &End, peer: &str) -> Option<Interface> {
    let found = look(end)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let global = found["addr_info"].as_array().into_iter().flatten();
    let global = global.filter(|address| address["scope"] != "link");
    let addresses =
        global.map(|address| format!("{}/{}", text(&address["local"]), address["prefixlen"]));
    Some(Interface {
        interface: end.interface.clone(),
        namespace: end.namespace.clone(),
        peer: peer.into(),
        mac: text(&found["address"]),
        mtu: found["mtu"].as_u64()?,
        addresses: addresses.collect(),
        up: found["operstate"] == "UP",
    })
}

/// Whether the offloads in the card file have their values.
fn has_offloads(end: &End, offloads: Offloads) -> bool {
    let wanted = offloads.named();
    if wanted.is_empty() {
        return true;
    }
    let words = end.within(&["ethtool", "-k", &end.interface]);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let Ok(told) = command::run(&words) else { return false };
    wanted.iter().all(|(_, feature, is_on)| {
        let state = if *is_on { "on" } else { "off" };
        let mut lines = told.lines().filter_map(|line| line.split_once(": "));
        lines.any(|(name, value)| name == *feature && value.split(' ').next() == Some(state))
    })
}

/// An error if something is left that may be tried again.
fn whole(restored: Vec<Restored>) -> Result<(), MachineError> {
    let failed: Vec<_> = restored.into_iter().flat_map(|journal| journal.failed).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(MachineError::Refused(failed.join("; "))),
    }
}
