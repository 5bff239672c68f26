//! Receive packet steering of the kernel: off for an interface, to one core, or to these cores.
//!
//! ```no_run
//! use picnic_machine::steering::{Relay, stop};
//! use picnic_machine::undo::{Journal, Machine};
//! let machine = Machine::this();
//! let mut journal = Journal::create(&machine, "demo")?;
//! stop(&mut journal, "eth0", None)?;
//! let relay = Relay::make(&mut journal, "eth0", None, &[1, 2].into_iter().collect())?;
//! // ... a packet handed to relay.name is received on core 1 or 2, by its hash ...
//! journal.undo()?;
//! # Ok::<(), picnic_machine::error::MachineError>(())
//! ```
//!
//! The kernel steers a packet when an interface receives it, before any program sees it. For a
//! program to choose the core, it sets the packet's hash and has a second interface receive it: a
//! relay, which does nothing else.
//!
//! Guarantees: everything is in the journal before it is changed ([`crate::undo`]). A relay has no
//! address and sends nothing.
//!
//! Source: Documentation/networking/scaling.rst, section Receive Packet Steering.

use crate::command;
use crate::error::MachineError;
use crate::topology::CoreSet;
use crate::undo::{Change, Journal, feature_words, within};

/// An interface that only is there to be steered.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// The number of the interface that it was made for.
    pub of: u32,
}

/// Has what an interface receives stay on the core that takes it.
///
/// # Errors
/// The interface is not there, or this process may not.
pub fn stop(
    journal: &mut Journal,
    interface: &str,
    namespace: Option<&str>,
) -> Result<(), MachineError> {
    steer(journal, interface, namespace, &CoreSet::default())
}

/// Has all that an interface receives taken on one core, whichever it comes in on: as for a veth,
/// which hands a packet over on the core of whoever sends it. Each flow stays in order, be its sender
/// on one core or another.
///
/// # Errors
/// The interface is not there, this process may not, or the kernel does not steer to that core.
pub fn gather(
    journal: &mut Journal,
    interface: &str,
    namespace: Option<&str>,
    core: usize,
) -> Result<(), MachineError> {
    steer(journal, interface, namespace, &[core].into_iter().collect())
}

/// Has what an interface receives steered to these cores; to none, it stays where it came in.
fn steer(
    journal: &mut Journal,
    interface: &str,
    namespace: Option<&str>,
    cores: &CoreSet,
) -> Result<(), MachineError> {
    // What each queue has, in a line.
    const LIST: &str = "cd \"/sys/class/net/$1/queues\" && for queue in rx-*; do \
                        echo \"$queue $(cat $queue/rps_cpus)\"; done";
    let listed = read(namespace, &["sh", "-c", LIST, "sh", interface])?;
    let becomes = if cores.is_empty() { "0".into() } else { cores.to_mask() };
    for line in listed.lines() {
        let Some((queue, was)) = line.split_once(' ') else { continue };
        if CoreSet::parse_mask(was).as_ref() == Ok(cores) {
            continue;
        }
        let feature = format!("queues/{queue}/rps_cpus");
        let words = feature_words(interface, namespace, &feature, &becomes);
        journal.record(Change::Feature {
            interface: interface.into(),
            namespace: namespace.map(str::to_owned),
            feature,
            was: was.into(),
        })?;
        change(journal, &words)?;
    }
    Ok(())
}

impl Relay {
    /// Makes one beside an interface, steered to these cores: by the hash of a packet to the core
    /// that [`hash_for`] says.
    ///
    /// # Errors
    /// The interface is not there, there is no TAP driver, or the kernel does not steer to these.
    pub fn make(
        journal: &mut Journal,
        interface: &str,
        namespace: Option<&str>,
        cores: &CoreSet,
    ) -> Result<Self, MachineError> {
        let of = index_of(interface, namespace)?;
        let address = format!("/sys/class/net/{interface}/address");
        let address = read(namespace, &["cat", &address])?;
        let name = format!("picnic-r{of}");
        journal.record(Change::Interface {
            name: name.clone(),
            namespace: namespace.map(Into::into),
        })?;
        change(journal, &within(namespace, &["ip", "tuntap", "add", "dev", &name, "mode", "tap"]))?;
        // Should a program end before what it has handed over has arrived, the stack takes it from
        // here: it is addressed to this interface, too.
        let set = ["ip", "link", "set", "dev", &name, "address", address.trim()];
        let set = [&set[..], &["addrgenmode", "none", "arp", "off"]].concat();
        change(journal, &within(namespace, &set))?;
        let mask = cores.to_mask();
        let feature = "queues/rx-0/rps_cpus";
        change(journal, &feature_words(&name, namespace, feature, &mask))?;
        let steered = read(namespace, &["cat", &format!("/sys/class/net/{name}/{feature}")])?;
        if CoreSet::parse_mask(steered.trim()).as_ref() != Ok(cores) {
            let message = format!(
                "receive packet steering leads to cores {}, not to {cores}: are some of them \
                 isolated (isolcpus, nohz_full)?",
                CoreSet::parse_mask(steered.trim()).unwrap_or_default()
            );
            return Err(MachineError::Refused(message));
        }
        change(journal, &within(namespace, &["ip", "link", "set", "dev", &name, "up"]))?;
        let index = index_of(&name, namespace)?;
        Ok(Relay { name, index, of })
    }
}

/// The hash that steering to these cores takes to one of them; none if it is not among them.
pub fn hash_for(core: usize, cores: &CoreSet) -> Option<u32> {
    // The kernel scales a hash to the number of cores, which it has in order. This is in the midst
    // of those for the core, and so never zero.
    let place = cores.iter().position(|other| other == core)? as u64;
    Some((((2 * place + 1) << 31) / cores.len() as u64) as u32)
}

/// The number of an interface.
fn index_of(interface: &str, namespace: Option<&str>) -> Result<u32, MachineError> {
    let path = format!("/sys/class/net/{interface}/ifindex");
    let text = read(namespace, &["cat", &path])?;
    let number = text.trim().parse();
    number.map_err(|_| MachineError::Refused(format!("{path}: found {}", text.trim())))
}

fn read(namespace: Option<&str>, words: &[&str]) -> Result<String, MachineError> {
    let words = within(namespace, words);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    command::run(&words).map_err(|error| MachineError::Refused(error.to_string()))
}

fn change(journal: &Journal, words: &[String]) -> Result<(), MachineError> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = journal.run(&words).map(drop);
    done.map_err(|error| MachineError::Refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Testbed;
    use crate::undo::Machine;
    use picnic_testing::skip;

    /// What is handed over to it when nothing takes it any more goes up the stack as the wire's would,
    /// so that no packet is for somebody else there; and it makes none of its own.
    #[test]
    fn a_relay_has_the_address_of_its_interface_and_sends_nothing() {
        let test = "a_relay_has_the_address_of_its_interface_and_sends_nothing";
        let Ok(bed) = Testbed::build("relay-test") else { return skip(test, "it needs root") };
        for place in ["one", "other"] {
            bed.add_namespace(place).unwrap();
        }
        bed.add_veth(("one", "v0"), ("other", "v1"), "").unwrap();
        bed.ip("one", "link set v0 address 02:00:00:00:00:77 up").unwrap();
        let mut journal = Journal::create(&Machine::this(), "relay-test").unwrap();
        let cores = [0].into_iter().collect();
        let relay = Relay::make(&mut journal, "v0", Some(&bed.netns("one")), &cores).unwrap();
        let shown = bed.ip("one", &format!("address show dev {}", relay.name)).unwrap();
        assert!(shown.contains("link/ether 02:00:00:00:00:77"), "{shown}");
        assert!(shown.contains("NOARP") && !shown.contains("inet"), "{shown}");
        assert!(journal.undo().unwrap().is_whole());
        assert!(!bed.ip("one", "link show").unwrap().contains(&relay.name));
    }

    #[test]
    fn a_hash_is_scaled_to_its_core() {
        for count in 1..=200_usize {
            let cores: CoreSet = (0..count).map(|place| 3 * place + 1).collect();
            for (place, core) in cores.iter().enumerate() {
                let hash = hash_for(core, &cores).unwrap();
                // As `reciprocal_scale` of the kernel.
                assert_eq!(((u64::from(hash) * count as u64) >> 32) as usize, place, "of {count}");
                assert_ne!(hash, 0);
            }
            assert_eq!(hash_for(0, &cores), None);
        }
    }
}
