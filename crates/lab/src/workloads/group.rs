//! The clients of a workload: their addresses, and running all of them.

use super::client::{self, ClientPlan, ClientResult};
use super::hosts::{Hosts, Role};
use super::kind::{ClientKind, Workload};
use super::web;
use anyhow::Context;
use std::net::{Ipv4Addr, SocketAddrV4};

/// The first address of clients with more than one; together they have a /16.
const FIRST_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 0);
const CLIENT_ADDRESSES: u32 = 1 << 16;

/// The network of a client's addresses.
fn network(client: u8, clients: u8) -> (Ipv4Addr, u32) {
    let each = CLIENT_ADDRESSES >> clients.next_power_of_two().trailing_zeros();
    let first = u32::from(FIRST_CLIENT) + u32::from(client) * each;
    (Ipv4Addr::from(first), 32 - each.trailing_zeros())
}

/// The networks of clients with more than one address each.
fn networks(workload: &Workload, clients: u8) -> impl Iterator<Item = (u8, (Ipv4Addr, u32))> {
    let has_many = workload.addresses > 1 && workload.client == ClientKind::Picnic;
    (0..clients).filter(move |_| has_many).map(move |client| (client, network(client, clients)))
}

/// Gives clients the addresses of a workload, and this process the descriptors.
///
/// # Errors
/// The system refuses.
pub fn give_addresses(hosts: &Hosts, workload: &Workload, clients: u8) -> anyhow::Result<()> {
    for (client, (first, bits)) in networks(workload, clients) {
        let route = format!("route add local {first}/{bits} dev lo");
        hosts.ip(Role::ClientAt(client), &route)?;
    }
    web::allow_descriptors(u64::from(workload.connections) + 256)
}

/// Routes the server's packets for these addresses to each client's own, known address.
///
/// # Errors
/// The system refuses.
pub fn lead_back(
    hosts: &Hosts,
    workload: &Workload,
    clients: u8,
    own: impl Fn(u8) -> Ipv4Addr,
) -> anyhow::Result<()> {
    for (client, (first, bits)) in networks(workload, clients) {
        hosts.ip(Role::Server, &format!("route replace {first}/{bits} via {}", own(client)))?;
    }
    Ok(())
}

/// Clients of a server.
#[derive(Debug)]
pub struct ClientGroup<'a> {
    /// Their namespaces.
    pub hosts: &'a Hosts,
    /// The server's address.
    pub server: &'a str,
    /// Cores of the clients.
    pub cores: usize,
    /// Number of clients.
    pub clients: u8,
}

impl ClientGroup<'_> {
    /// Requests a workload's files: by wrk, or on as many threads as there are cores.
    ///
    /// # Errors
    /// The client fails.
    pub fn ask(
        &self,
        workload: &Workload,
        seconds: f64,
        seed: u64,
    ) -> anyhow::Result<ClientResult> {
        if workload.client == ClientKind::Wrk {
            return web::ask_mix(self, workload, seconds, seed);
        }
        let clients = u32::from(self.clients);
        let most = (workload.connections / clients).max(1) as usize;
        let each = self.cores.div_ceil(clients as usize).clamp(1, most) as u32;
        let parts = each * clients;
        let mut workload = workload.clone();
        workload.addresses = (workload.addresses / clients).max(1);
        let server: Ipv4Addr = self.server.parse().context("the server's address")?;
        let threads: Vec<_> = (0..parts)
            .map(|part| {
                let client = (part % clients) as u8;
                let asked = ClientPlan {
                    workload: workload.clone(),
                    server: SocketAddrV4::new(server, 80),
                    first: network(client, self.clients).0,
                    seconds,
                    seed: seed.wrapping_add(part.into()),
                    parts,
                };
                let client = self.hosts.namespace(Role::ClientAt(client))?;
                client.spawn(move || client::ask(&asked))
            })
            .collect::<Result<_, _>>()?;
        let mut all = ClientResult::default();
        for thread in threads {
            let found = thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked: this is a bug"))??;
            all.add(&found);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_one_network_equally() {
        let of = |client, clients| {
            let (first, bits) = network(client, clients);
            format!("{first}/{bits}")
        };
        assert_eq!(of(0, 1), "10.90.0.0/16");
        assert_eq!([0, 1].map(|client| of(client, 2)), ["10.90.0.0/17", "10.90.128.0/17"]);
        assert_eq!(of(3, 4), "10.90.192.0/18");
    }
}
