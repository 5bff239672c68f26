//! `[net]` of a card file: namespaces and veth pairs, made and taken away.
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
//! Guarantees: what is made is in a journal first ([`crate::undo`]), so that a kill leaves nothing
//! that `picnic cleanup` does not take back; once all is made, the journal is held until [`down`].
//! Making what is there as wanted changes nothing; what differs is taken away and made anew.
//! Nothing that others have made is changed or taken away.
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

/// How long an interface may take to come up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// How the purpose of a network's journal begins.
const PURPOSE: &str = "net-";

/// What [`up`] came to.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkState {
    /// Whether anything was made; if not, all was there as wanted.
    pub changed: bool,
    /// Each end of each link as the kernel has it.
    pub interfaces: Vec<Interface>,
}

/// One end of a veth pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its name.
    pub interface: String,
    /// Its namespace; none if it is this one.
    pub namespace: Option<String>,
    /// The interface at the other end.
    pub peer: String,
    /// Its MAC address.
    pub mac: String,
    /// Its MTU in bytes.
    pub mtu: u64,
    /// Its addresses, those of the link's own scope left out.
    pub addresses: Vec<String>,
    /// Whether it is up and the other end, too.
    pub up: bool,
}

/// The name of the journal of a card's network: a file's name is made of it.
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

/// Whether the network of a card is up, or was left half made.
///
/// # Errors
/// The state directory cannot be read.
pub fn is_up(machine: &Machine, card: &str) -> Result<bool, MachineError> {
    Ok(held(machine)?.iter().any(|journal| journal.purpose == purpose(card)))
}

/// Makes a card's network, or finds it made.
///
/// # Errors
/// Not root; a name is taken by what this network has not made; what the system says. Nothing of
/// it is left then.
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
            // What cannot be taken back now stays in the journal, for the next start.
            let _ = journal.undo();
            Err(error)
        }
    }
}

/// Takes away the network of a card, or of all cards.
///
/// # Errors
/// The state directory cannot be read. What cannot be taken back is in the answer.
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

/// All that [`up`] makes, in order.
fn changes(network: &Network) -> Vec<Change> {
    let namespaces = network.namespaces.iter().cloned().map(|name| Change::Namespace { name });
    // The other end goes with it.
    let links = network.links.iter().map(|link| Change::Interface {
        name: link.near.interface.clone(),
        namespace: link.near.namespace.clone(),
    });
    namespaces.chain(links).collect()
}

/// What the kernel has already is somebody's: it would be taken away as if it were ours.
fn refuse_taken(machine: &Machine, network: &Network) -> Result<(), MachineError> {
    let refused = |what: String| {
        Err(MachineError::Refused(format!(
            "{what} exists, and `picnic net up` has not made it for card {}",
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
    for command in network.commands() {
        if stop.load(Ordering::Acquire) {
            return Err(MachineError::Refused("interrupted; everything is removed".into()));
        }
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        journal.run(&words).map_err(|error| MachineError::Refused(error.to_string()))?;
    }
    // The kernel says that both ends are up a moment after they are.
    let start = Instant::now();
    loop {
        match as_wanted(machine, network) {
            Some(interfaces) => return Ok(interfaces),
            None if start.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            None => {
                let message = "the interfaces did not come up as wanted within 10 s";
                return Err(MachineError::Refused(message.into()));
            }
        }
    }
}

/// The interfaces, if all that the network has is there as it should be.
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

/// What `ip` knows of an interface; none if it is not there.
fn look(end: &End) -> Option<Value> {
    let mut words = vec!["ip", "-j"];
    if let Some(namespace) = &end.namespace {
        words.extend(["-n", namespace]);
    }
    words.extend(["address", "show", "dev", &end.interface]);
    let told: Value = serde_json::from_str(&command::run(&words).ok()?).ok()?;
    // Older versions tell of every interface, those asked for or not.
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

/// Whether the offloads that the card file names are as it says.
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

/// Nothing is left that may be tried again.
fn whole(restored: Vec<Restored>) -> Result<(), MachineError> {
    let failed: Vec<_> = restored.into_iter().flat_map(|journal| journal.failed).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(MachineError::Refused(failed.join("; "))),
    }
}
