//! Network namespaces to put a card between: one to four clients, card and server.
//!
//! ```text
//!  client            card                    server
//!  c0 ═════ veth ═══ w0 ── packet wire ─ card ─ tap h0 (made by the card)
//!  p0 ═════════════════ veth (if asked for) ═══════ p0
//!  client1
//!  c0 ═════ veth ═══ w1 ── packet wire ─ card
//! ```
//!
//! Guarantees: as for [`Testbed`].

use anyhow::Context;
use picnic_machine::error::MachineError;
use picnic_machine::testbed::{Program, Testbed};
use picnic_machine::topology::{Placement, cores};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::JoinHandle;

/// The first client's address through the card; the server's. The other clients' follow.
pub const CLIENT: &str = "10.88.0.2";
/// See [`CLIENT`].
pub const SERVER: &str = "10.88.0.1";

/// The server's address on the plain veth.
pub const PLAIN_SERVER: &str = "10.89.0.1";
/// The client's address on the plain veth.
pub const PLAIN_CLIENT: &str = "10.89.0.2";
/// The interface of both on the plain veth.
pub const PLAIN_LINK: &str = "p0";

/// The interface of both on one of several plain veth pairs.
pub fn plain_link(pair: u8) -> String {
    format!("p{pair}")
}

/// The server's address there.
pub fn plain_server(pair: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 89, pair, 1)
}

/// The interface of a card's host, and its address: the same for all cards, since the client's
/// kernel remembers it.
pub const HOST_LINK: &str = "h0";
/// See [`HOST_LINK`].
pub const HOST_MAC: &str = "02:00:00:00:88:01";

/// The interface of each client.
const CLIENT_LINK: &str = "c0";
/// The namespaces of clients; each has its own wire of the card.
const CLIENTS: [&str; 4] = ["client", "client1", "client2", "client3"];
/// TCP's congestion control there: the only one that every kernel has and allows in every
/// namespace. The machine's own may be BBR, which sends by a timer; that alone can halve the
/// maximum goodput.
const CONGESTION: &str = "net.ipv4.tcp_congestion_control=reno";
/// The most clients.
pub const MOST_CLIENTS: u8 = CLIENTS.len() as u8;

/// One of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client at the first wire.
    Client,
    /// A client at its wire; the first is [`Role::Client`].
    ClientAt(u8),
    /// The card's wire.
    Card,
    /// The server.
    Server,
}

impl Role {
    fn short(self) -> &'static str {
        match self {
            Role::Client => CLIENTS[0],
            Role::ClientAt(wire) => CLIENTS[usize::from(wire % MOST_CLIENTS)],
            Role::Card => "card",
            Role::Server => "server",
        }
    }
}

/// The card's interface of a wire.
pub fn wire_link(wire: u8) -> String {
    format!("w{wire}")
}

/// The address of the client at a wire.
pub fn client_address(wire: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, 0, 2 + wire)
}

/// A namespace for threads of this process.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Runs `work` on a new thread in it.
    ///
    /// # Errors
    /// There is no thread. Errors of `work` and of entering the namespace are the thread's result.
    pub fn spawn<R: Send + 'static>(
        self,
        work: impl FnOnce() -> anyhow::Result<R> + Send + 'static,
    ) -> io::Result<JoinHandle<anyhow::Result<R>>> {
        std::thread::Builder::new().name("traffic".into()).spawn(move || {
            self.enter().context("cannot enter a namespace")?;
            work()
        })
    }

    /// Moves the calling thread, made for the purpose, into it for good, including the sockets and
    /// threads that it makes.
    ///
    /// # Errors
    /// The system's error.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

/// The namespaces, and a directory for the programs' files.
#[derive(Debug)]
pub struct Hosts {
    testbed: Testbed,
    /// The cores that programs stay on; none means all.
    cores: Vec<usize>,
}

impl Hosts {
    /// Makes the namespaces and the veth pair between client and wire, with this MTU. `purpose` is
    /// a word for the journal.
    ///
    /// # Errors
    /// Not root, or the system's error. Nothing is left then.
    pub fn build(purpose: &str, mtu: u32) -> Result<Self, MachineError> {
        Hosts::with_clients(purpose, mtu, 1)
    }

    /// The same with one to [`MOST_CLIENTS`] clients.
    ///
    /// # Errors
    /// As [`Hosts::build`].
    pub fn with_clients(purpose: &str, mtu: u32, clients: u8) -> Result<Self, MachineError> {
        let hosts = Hosts { testbed: Testbed::build(purpose)?, cores: Vec::new() };
        let clients: Vec<_> = (0..clients.clamp(1, MOST_CLIENTS)).collect();
        let roles = clients.iter().map(|&wire| Role::ClientAt(wire));
        for place in roles.chain([Role::Card, Role::Server]) {
            hosts.testbed.add_namespace(place.short())?;
            hosts.within(place, &format!("sysctl -qw {CONGESTION}"))?;
        }
        // The card's own kernel must send nothing on the wire.
        if Path::new("/proc/sys/net/ipv6").exists() {
            hosts.within(Role::Card, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")?;
        }
        for wire in clients {
            let (client, link) = (Role::ClientAt(wire), wire_link(wire));
            hosts.join((client, CLIENT_LINK), (Role::Card, &link), mtu)?;
            let address = client_address(wire);
            hosts.ip(client, &format!("address add {address}/24 dev {CLIENT_LINK}"))?;
            hosts.ip(client, &format!("link set {CLIENT_LINK} up"))?;
            hosts.ip(Role::Card, &format!("link set {link} up"))?;
            hosts.testbed.wait_for_carrier(Role::Card.short(), &link)?;
        }
        Ok(hosts)
    }

    /// Joins client and server by a veth pair without a card, for comparison.
    ///
    /// # Errors
    /// The system's error.
    pub fn join_plainly(&self, mtu: u32) -> Result<(), MachineError> {
        self.join_plainly_by(0, mtu)
    }

    /// The same with this one of several pairs, each with addresses of its own.
    ///
    /// # Errors
    /// The system's error.
    pub fn join_plainly_by(&self, pair: u8, mtu: u32) -> Result<(), MachineError> {
        let link = plain_link(pair);
        self.join((Role::Client, &link), (Role::Server, &link), mtu)?;
        for (place, host) in [(Role::Client, 2), (Role::Server, 1)] {
            let address = Ipv4Addr::new(10, 89, pair, host);
            self.ip(place, &format!("address add {address}/24 dev {link}"))?;
            self.ip(place, &format!("link set {link} up"))?;
        }
        Ok(())
    }

    /// Moves the first wire's interface to the server, with the server's address: for cards that
    /// hand packets to the network stack of their wire.
    ///
    /// # Errors
    /// The system's error.
    pub fn serve_at_wire(&self) -> Result<(), MachineError> {
        let link = wire_link(0);
        self.ip(Role::Card, &format!("link set {link} netns {}", self.netns(Role::Server)))?;
        self.ip(Role::Server, &format!("address add {SERVER}/24 dev {link}"))?;
        self.ip(Role::Server, &format!("link set {link} up"))?;
        self.testbed.wait_for_carrier(Role::Server.short(), &link)
    }

    /// Makes the first client send packets as on a wire, both ways: its kernel merges none and
    /// completes their checksums, without which nothing later may merge them.
    ///
    /// # Errors
    /// The system's error; `ethtool` is not installed.
    pub fn send_frames(&self) -> Result<(), MachineError> {
        for link in [CLIENT_LINK, PLAIN_LINK] {
            self.within(Role::Client, &format!("ethtool -K {link} tx off tso off gso off"))?;
        }
        Ok(())
    }

    fn join(
        &self,
        (near, near_link): (Role, &str),
        (far, far_link): (Role, &str),
        mtu: u32,
    ) -> Result<(), MachineError> {
        let (near, far) = ((near.short(), near_link), (far.short(), far_link));
        self.testbed.add_veth(near, far, &format!("mtu {mtu}"))
    }

    /// Makes the server, on this interface with this address, and the clients keep each other's
    /// link addresses: an overloaded card also loses address queries, and a host without an address
    /// sends nothing.
    ///
    /// # Errors
    /// The system's error.
    pub fn keep_neighbours(&self, clients: u8, link: &str, mac: &str) -> Result<(), MachineError> {
        let keep = |place, address: &str, mac: &str, link| {
            let rest = format!("neighbour replace {address} lladdr {mac} dev {link} nud permanent");
            self.ip(place, &rest)
        };
        for client in 0..clients.clamp(1, MOST_CLIENTS) {
            let (place, address) = (Role::ClientAt(client), client_address(client));
            let own = self.within(place, &format!("cat /sys/class/net/{CLIENT_LINK}/address"))?;
            keep(place, SERVER, mac, CLIENT_LINK)?;
            keep(Role::Server, &address.to_string(), own.trim(), link)?;
        }
        Ok(())
    }

    /// The name of a namespace, for `ip netns`.
    pub fn netns(&self, place: Role) -> String {
        self.testbed.netns(place.short())
    }

    /// A namespace for threads of this process.
    ///
    /// # Errors
    /// The system's error.
    pub fn namespace(&self, place: Role) -> io::Result<Namespace> {
        File::open(Path::new("/run/netns").join(self.netns(place))).map(Namespace)
    }

    /// Restricts programs started from now on to the cores that a card's isolation would leave
    /// them.
    pub fn keep_programs_off(&mut self, placement: &Placement) {
        let is_taken = |core: &usize| {
            *core == placement.borrowed_core
                || placement.left_out.iter().any(|left_out| left_out.core == *core)
        };
        self.cores = cores().into_iter().filter(|core| !is_taken(core)).collect();
    }

    /// The cores that programs stay on; none means all.
    pub fn programs_cores(&self) -> &[usize] {
        &self.cores
    }

    /// A directory for files, readable for all.
    pub fn folder(&self) -> &Path {
        self.testbed.folder()
    }

    /// Output of `ip -n NAMESPACE REST`.
    ///
    /// # Errors
    /// Its last line of output.
    pub fn ip(&self, place: Role, rest: &str) -> Result<String, MachineError> {
        self.testbed.ip(place.short(), rest)
    }

    /// Runs a command in a namespace to completion and returns its output.
    ///
    /// # Errors
    /// Its last line of output.
    pub fn within(&self, place: Role, command: &str) -> Result<String, MachineError> {
        self.testbed.within(place.short(), command)
    }

    /// Starts a program; see [`Testbed::start`].
    ///
    /// # Errors
    /// It cannot be started or recorded.
    pub fn start(&self, place: Role, words: &[&str]) -> Result<Program, MachineError> {
        self.testbed.start(place.short(), words, &self.cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_client_address_is_consistent() {
        assert_eq!(client_address(0).to_string(), CLIENT);
        assert_eq!(
            (plain_link(0), plain_server(0).to_string()),
            (PLAIN_LINK.into(), PLAIN_SERVER.into())
        );
    }

    #[test]
    fn tcp_of_all_hosts_uses_reno() {
        if let Err(why) = crate::workloads::tools::need(&[]) {
            return picnic_testing::skip("the hosts' congestion control", &why.to_string());
        }
        let hosts = Hosts::with_clients("lab", 1500, 2).unwrap();
        for place in [Role::Client, Role::ClientAt(1), Role::Card, Role::Server] {
            let told = hosts.within(place, "cat /proc/sys/net/ipv4/tcp_congestion_control");
            assert_eq!(told.unwrap().trim(), "reno", "{place:?}");
        }
    }
}
