//! A relay: an interface that programs hand packets to, with the destination encoded as a queue.
//!
//! ```no_run
//! use picnic_machine::relay::Relay;
//! use picnic_machine::undo::{Journal, Machine};
//! let machine = Machine::this();
//! let mut journal = Journal::create(&machine, "demo")?;
//! let relay = Relay::make(&mut journal, "eth0", None, 2)?;
//! // ... programs hand packets to relay.name, as if received there on queue 0 or 1 ...
//! journal.undo()?;
//! # Ok::<(), picnic_machine::error::MachineError>(())
//! ```
//!
//! It is one end of a veth, which can have any number of receive queues; its other end stays
//! down.
//!
//! Guarantees: every change is in the journal before it is made ([`crate::undo`]). A relay has no
//! address and sends nothing.
//!
//! Source: ip-link(8), section veth.

use crate::error::MachineError;
use crate::steering::{change, read};
use crate::undo::{Change, Journal, within};
use std::str::FromStr;

/// An interface that only receives packets from programs.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// The number of the interface that it was made for.
    pub of: u32,
    /// The number of their network namespace.
    pub network: u64,
}

impl Relay {
    /// Makes one beside an interface, with the given number of queues.
    ///
    /// # Errors
    /// The interface does not exist, there is no veth driver, or this process may not.
    pub fn make(
        journal: &mut Journal,
        interface: &str,
        namespace: Option<&str>,
        queues: usize,
    ) -> Result<Self, MachineError> {
        let of = index_of(interface, namespace)?;
        let network = number(namespace, &["stat", "-L", "-c", "%i", "/proc/self/ns/net"])?;
        let address = format!("/sys/class/net/{interface}/address");
        let address = read(namespace, &["cat", &address])?;
        let (name, end) = (format!("picnic-r{of}"), format!("picnic-e{of}"));
        journal.record(Change::Interface {
            name: name.clone(),
            namespace: namespace.map(Into::into),
        })?;
        let queues = queues.to_string();
        let change = |words: &[&str]| change(journal, &within(namespace, words));
        let add = ["ip", "link", "add", "name", &name, "numrxqueues", &queues];
        change(&[&add[..], &["type", "veth", "peer", "name", &end]].concat()).map_err(|error| {
            match error.to_string() {
                why if why.contains("Unknown device type") => {
                    MachineError::Refused(format!("a relay is a veth: {why} (modprobe veth)"))
                }
                _ => error,
            }
        })?;
        change(&["ip", "link", "set", "dev", &end, "addrgenmode", "none"])?;
        // If a program ends before its packets have arrived, the stack takes them from here: they
        // are addressed to this interface, too.
        let set = ["ip", "link", "set", "dev", &name, "address", address.trim()];
        change(&[&set[..], &["addrgenmode", "none", "arp", "off", "up"]].concat())?;
        let index = index_of(&name, namespace)?;
        Ok(Relay { name, index, of, network })
    }
}

/// The number of an interface.
fn index_of(interface: &str, namespace: Option<&str>) -> Result<u32, MachineError> {
    number(namespace, &["cat", &format!("/sys/class/net/{interface}/ifindex")])
}

/// The number that a command prints.
fn number<T: FromStr>(namespace: Option<&str>, words: &[&str]) -> Result<T, MachineError> {
    let text = read(namespace, words)?;
    let number = text.trim().parse();
    number.map_err(|_| MachineError::Refused(format!("{}: found {}", words.join(" "), text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Testbed;
    use crate::undo::Machine;
    use picnic_testing::skip;

    /// Packets handed to it that no program takes any more go up the stack as the wire's would, so
    /// none is for another host; and it sends none itself.
    #[test]
    fn relays_have_their_interfaces_address_and_send_nothing() {
        let test = "relays_have_their_interfaces_address_and_send_nothing";
        let Ok(bed) = Testbed::build("relay-test") else { return skip(test, "it needs root") };
        for place in ["one", "other"] {
            bed.add_namespace(place).unwrap();
        }
        bed.add_veth(("one", "v0"), ("other", "v1"), "").unwrap();
        bed.ip("one", "link set v0 address 02:00:00:00:00:77 up").unwrap();
        let mut journal = Journal::create(&Machine::this(), "relay-test").unwrap();
        let relay = Relay::make(&mut journal, "v0", Some(&bed.netns("one")), 3).unwrap();
        let shown = bed.ip("one", &format!("-d address show dev {}", relay.name)).unwrap();
        assert!(shown.contains("link/ether 02:00:00:00:00:77"), "{shown}");
        assert!(shown.contains("NOARP") && !shown.contains("inet"), "{shown}");
        assert!(shown.contains("numrxqueues 3"), "{shown}");
        let end = bed.ip("one", &format!("address show dev picnic-e{}", relay.of)).unwrap();
        assert!(end.contains("state DOWN") && !end.contains("inet"), "{end}");
        assert!(journal.undo().unwrap().is_whole());
        // Neither end: both are in this namespace.
        let left = bed.ip("one", "-o link show").unwrap();
        assert!(!left.contains(&format!("{}@", relay.name)), "{left}");
        assert!(!left.contains(&format!("picnic-e{}@", relay.of)), "{left}");
    }
}
