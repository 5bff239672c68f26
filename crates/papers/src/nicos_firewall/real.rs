//! The firewall between real wires: client, card and host in network namespaces of their own.
//!
//! ```text
//!  client ═══ veth ═══ w0 ── packet wire ─ card, rules ─ tap h0, rules ── host
//! ```
//!
//! All discarded: the client sends UDP, and the last rule discards all there is. The mix: TCP to the
//! host and from it at once, which no rule matches, and UDP beside it, which the last rule discards.

use anyhow::Context;
use picnic_control::Launch;
use picnic_filter::Filters;
use picnic_lab::traffic::{Protocol, Receive, Send};
use picnic_lab::workloads::hosts::{CLIENT, Hosts, Role, SERVER};
use picnic_lab::workloads::tools;
use std::thread::JoinHandle;
use std::time::Duration;

const MTU: u32 = 1500;
/// The host interface's address: given to the client, since with all discarded it gets no answer.
const MAC: &str = "02:00:00:00:88:01";
/// Bytes of a UDP packet before its payload.
const UDP_HEADERS: u32 = 14 + 20 + 8;
/// Bytes of a TCP packet before its payload, with timestamps.
const TCP_HEADERS: u32 = 14 + 20 + 32;
/// Bytes of a TCP write at full speed.
const WRITE_BYTES: usize = 16_384;
/// The UDP port, without a listener; the TCP ports to the host and from it.
const DISCARDED: u16 = 9;
const TO_HOST: u16 = 5300;
const FROM_HOST: u16 = 5301;

/// The traffic through the rules.
pub(super) struct Traffic {
    /// Bytes of a packet.
    pub(super) size: u32,
    /// UDP packets per second; none for the maximum.
    pub(super) udp_pps: Option<u64>,
    /// TCP to the host and from it: packets per second, none for the maximum; or no such TCP.
    pub(super) tcp_pps: [Option<Option<u64>>; 2],
    pub(super) time: Duration,
}

/// The results, while it was sent.
pub(super) struct Observed {
    /// Packets per second that the wire gave the card.
    pub(super) taken_pps: f64,
    /// The share of these that the host received.
    pub(super) accepted: f64,
    pub(super) target_busy: f64,
    pub(super) borrowed_busy: f64,
    /// TCP in both directions, if there is any.
    pub(super) goodput_bps: Option<f64>,
}

/// Sends `traffic` through `filters`.
///
/// # Errors
/// Not root, or another failure.
pub(super) fn measure(
    filters: Filters,
    queues: u16,
    traffic: &Traffic,
) -> anyhow::Result<Observed> {
    tools::need(&[])?;
    let hosts = Hosts::build("lab", MTU)?;
    let [client, card, server] = [Role::Client, Role::Card, Role::Server];
    hosts.ip(client, &format!("neighbour add {SERVER} lladdr {MAC} dev c0 nud permanent"))?;
    let text = format!(
        "[[wire]]\nport = \"packet\"\ninterface = \"w0\"\nnamespace = \"{}\"\n\
         [[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"tap\"\nqueues = {queues}\n\
         name = \"h0\"\nmac = \"{MAC}\"\naddresses = [\"{SERVER}/24\"]\nnamespace = \"{}\"\n\
         [pool]\nbuffers = 4096\nbuffer_size = 16384\n",
        hosts.netns(card),
        hosts.netns(server)
    );
    let file = picnic_host::sections().parse(&text, None)?;
    let launch = Launch::new(&file, picnic_host::registries()).filters(filters);
    let running = launch.start_alone()?;
    let before = running.monitor().report();
    let goodput_bps = traffic.send(&hosts);
    let window = running.monitor().report().since(&before);
    let report = running.stop()?;
    anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: this is a bug");
    let received: u64 = window.wires.iter().map(|wire| wire.rx_packets).sum();
    let targets = &window.target_cores;
    let awake: f64 = targets.iter().map(|core| 1.0 - core.asleep_fraction).sum();
    Ok(Observed {
        taken_pps: received as f64 / window.duration_s,
        accepted: window.ledger.delivered as f64 / (received.max(1)) as f64,
        target_busy: awake / targets.len().max(1) as f64,
        borrowed_busy: window.borrowed_core.busy_fraction,
        goodput_bps: goodput_bps?,
    })
}

impl Traffic {
    /// Sends everything; returns TCP's goodput.
    fn send(&self, hosts: &Hosts) -> anyhow::Result<Option<f64>> {
        let udp = Send {
            protocol: Protocol::Udp,
            bytes: (self.size - UDP_HEADERS) as usize,
            rate_bps: self.udp_pps.map(|pps| pps * u64::from(self.size - UDP_HEADERS) * 8),
            duration: self.time,
            ..Send::to(format!("{SERVER}:{DISCARDED}").parse()?)
        };
        let udp = hosts.namespace(Role::Client)?.spawn(move || udp.run());
        let [to_host, from_host] = self.tcp_pps;
        let mut ways = Vec::new();
        if let Some(pps) = to_host {
            ways.push(self.tcp(hosts, Role::Client, (Role::Server, SERVER), TO_HOST, pps)?);
        }
        if let Some(pps) = from_host {
            ways.push(self.tcp(hosts, Role::Server, (Role::Client, CLIENT), FROM_HOST, pps)?);
        }
        let brought = ways.into_iter().map(|way| joined(way).map(|got| got.goodput_bps));
        let brought: Vec<f64> = brought.collect::<Result<_, _>>()?;
        joined(udp?)?;
        Ok((!brought.is_empty()).then(|| brought.iter().sum()))
    }

    /// One direction of TCP: its receiver.
    fn tcp(
        &self,
        hosts: &Hosts,
        sender: Role,
        (receiver, address): (Role, &str),
        port: u16,
        pps: Option<u64>,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<picnic_lab::traffic::Received>>> {
        let limit = Some(self.time + Duration::from_secs(120));
        let receive = Receive { limit, ..Receive::at(format!("0.0.0.0:{port}").parse()?) };
        let listening = hosts.namespace(receiver)?.spawn(move || receive.listen())?;
        let listening = joined(listening)?;
        // At a rate, a write is a packet: longer ones would become super-frames, and be counted as
        // such.
        let packet = self.size.saturating_sub(TCP_HEADERS).max(1) as usize;
        let send = Send {
            rate_bps: pps.map(|pps| pps * packet as u64 * 8),
            bytes: pps.map_or(WRITE_BYTES, |_| packet),
            duration: self.time,
            ..Send::to(format!("{address}:{port}").parse()?)
        };
        let sending = hosts.namespace(sender)?.spawn(move || send.run())?;
        let both = move || {
            let received = listening.run();
            joined(sending)?;
            received
        };
        std::thread::Builder::new().name("tcp".into()).spawn(both).context("no thread")
    }
}

fn joined<R>(handle: JoinHandle<anyhow::Result<R>>) -> anyhow::Result<R> {
    handle.join().map_err(|_| anyhow::anyhow!("a thread of the traffic panicked"))?
}
