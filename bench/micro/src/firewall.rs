//! A firewall that discards everything: filters of a card in the kernel, and nftables.
//!
//! ```text
//!  client, core A ═══ veth ═══ w0, polled by a thread on core B: XDP and filters, or nftables
//! ```
//!
//! The same rules in the same namespace, in turn: only the last rule matches, and it discards.
//! nftables has them in its earliest chain for IP (`prerouting`, priority `raw`), without
//! connection tracking. A program at the client sends UDP in frames of 60 bytes as fast as it can,
//! without socket buffers, as a NIC would. The figure is packets per second of the polling thread's
//! processor time as the kernel counts it, since the sender is slower than both.

use super::{all_within, measured};
use anyhow::Context;
use picnic_control::{Launch, Registries};
use picnic_core::error::ConfigError;
use picnic_filter::filters::FilterChange;
use picnic_filter::{
    Action, Filter, FilterCode, Filters, FiveTuple, Match, PortRange, Prefix, Protocol as Number,
};
use picnic_kernel::Flood;
use picnic_lab::compare::order;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point};
use picnic_lab::workloads::hosts::{CLIENT, Hosts, Role, SERVER};
use picnic_lab::workloads::tools;
use picnic_machine::napi::{Polling, schedule};
use picnic_machine::topology::cores;
use picnic_machine::undo::{Journal, Machine};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::thread::{CpuSet, sched_setaffinity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const MTU: u32 = 1500;
/// Discard service, without a listener.
const DISCARDED: u8 = 9;
/// Frames per send call.
const TIMES: u32 = 16_384;
/// Size of the target core's ring.
pub(super) const RING_SIZE: u32 = 2048;
/// Pause after a burst, which fits in the ring: the target core is also the sender's, and takes
/// about 1 µs per packet.
const PAUSE: Duration = Duration::from_millis(3);
const SIDES: [&str; 2] = ["nftables", "card"];

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Firewall {
    /// Numbers of rules, each up to 65000
    rules: Vec<u64>,
    /// Milliseconds of each measurement
    #[schemars(range(min = 10, max = 60_000))]
    milliseconds: u64,
    /// Rounds: each measures both in turn
    #[schemars(range(min = 1, max = 1000))]
    rounds: u32,
}

impl Default for Firewall {
    fn default() -> Self {
        Firewall { rules: vec![1, 16, 128, 1024, 4096], milliseconds: 500, rounds: 5 }
    }
}

impl Benchmark for Firewall {
    const NAME: &'static str = "firewall";
    const HELP: &'static str = "filters of a card in the kernel, and nftables (root, nft)";
    const QUICK: &'static str = "rules = [4]\nmilliseconds = 50\nrounds = 1";

    fn check(&self) -> Result<(), ConfigError> {
        all_within("rules", &self.rules, 1, 65_000)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &Firewall, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    tools::need_kernel_engine(picnic_kernel::is_built())?;
    tools::need(&[("nft", "nftables"), ("ethtool", "ethtool")])?;
    let mut measured_by_rules = vec![[Vec::new(), Vec::new()]; args.rules.len()];
    for round in 0..args.rounds {
        run.round(round.into(), args.rounds.into());
        for (rules, found) in args.rules.iter().zip(&mut measured_by_rules) {
            let rules = draw(run.seed, *rules as usize);
            for side in order(round as usize, SIDES.len()) {
                let bed = Bed::build(Duration::from_millis(args.milliseconds))?;
                let capacity = match SIDES[side] {
                    "card" => bed.card("", filters(&rules)?, Load::Flood)?.0,
                    _ => bed.nftables(&rules)?,
                };
                found[side].push(capacity);
            }
        }
    }
    let mut outcome = measured();
    let mut series = outcome.series("rules");
    for (rules, [nftables, card]) in args.rules.iter().zip(measured_by_rules) {
        let [nftables, card] = [(SIDES[0], nftables), (SIDES[1], card)];
        let nanoseconds = card.1.iter().map(|rate| 1e9 / rate).collect();
        series.push(
            Point::at("rules", *rules)
                .comparing(Comparison::of("pps_of_core", nftables, card))
                .with(Figure::of("card_ns_per_packet", nanoseconds).called("card, a packet")),
        );
    }
    Ok(outcome)
}

/// Rules of which only the last matches the benchmark's traffic.
fn draw(seed: u64, rules: usize) -> Vec<FiveTuple> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut rule = || {
        let source = Ipv4Addr::new(172, 16, random.random(), random.random());
        let destination = Ipv4Addr::new(192, 168, random.random(), random.random());
        let low = random.random_range(0..60_000);
        FiveTuple {
            protocol: Some(Number(if random.random() { 6 } else { 17 })),
            source: Prefix::new(source, random.random_range(16..=32)),
            destination: Prefix::new(destination, random.random_range(16..=32)),
            source_ports: PortRange::ANY,
            destination_ports: PortRange::one(low),
        }
    };
    (1..rules).map(|_| rule()).collect()
}

/// Traffic of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// As fast as possible.
    Flood,
    /// Bursts of half a target ring; each is consumed before the next.
    Bursts,
}

/// Client and card, and the sending time.
pub(super) struct Bed {
    pub(super) hosts: Hosts,
    time: Duration,
    /// Cores of the client and of the polling thread.
    pub(super) cores: [usize; 2],
}

impl Bed {
    pub(super) fn build(time: Duration) -> anyhow::Result<Self> {
        let cores = cores();
        let [first, .., last] = cores[..] else { anyhow::bail!("it needs two cores") };
        let hosts = Hosts::build("bench", MTU)?;
        hosts.ip(Role::Card, &format!("address add {SERVER}/24 dev w0"))?;
        Ok(Bed { hosts, time, cores: [first, last] })
    }

    /// Sends until the time has passed.
    pub(super) fn send(&self, load: Load) -> anyhow::Result<()> {
        let of = |role, link: &str, what: &str| {
            self.hosts.within(role, &format!("cat /sys/class/net/{link}/{what}"))
        };
        let interface = of(Role::Client, "c0", "ifindex")?.trim().parse()?;
        let frame = frame(of(Role::Card, "w0", "address")?.trim())?;
        let (time, core) = (self.time, self.cores[0]);
        let sending = self.hosts.namespace(Role::Client)?.spawn(move || {
            let mut set = CpuSet::new();
            set.set(core);
            sched_setaffinity(None, &set)?;
            let mut flood = Flood::by(interface)?;
            let started = Instant::now();
            while started.elapsed() < time {
                match load {
                    Load::Flood => flood.send(&frame, TIMES)?,
                    Load::Bursts => {
                        flood.send(&frame, RING_SIZE / 2)?;
                        std::thread::sleep(PAUSE);
                    }
                }
            }
            Ok(())
        })?;
        sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?
    }

    /// Packets per second of the polling thread's time, with nftables.
    fn nftables(&self, rules: &[FiveTuple]) -> anyhow::Result<f64> {
        let file = self.hosts.folder().join("rules.nft");
        std::fs::write(&file, in_nftables(rules))?;
        self.hosts.within(Role::Card, &format!("nft -f {}", file.display()))?;
        let machine = Machine::this();
        let mut journal = Journal::create(&machine, "firewall")?;
        let netns = self.hosts.netns(Role::Card);
        let mut polling = Polling::start(&machine, &mut journal, "w0", Some(&netns))?;
        polling.pin(&machine, &mut journal, self.cores[1])?;
        let spent =
            || polling.threads().filter_map(schedule).map(|found| found.run_ns).sum::<u64>();
        let before = spent();
        self.send(Load::Flood)?;
        let spent = spent() - before;
        journal.undo()?;
        let listed = self.hosts.within(Role::Card, "nft list chain ip bench first")?;
        let packets = listed.split("counter packets ").nth(1);
        let packets = packets.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        let packets = packets.context("nft shows no counter")?;
        Ok(packets / (spent as f64 / 1e9))
    }

    /// The same with a card with these sections after the filters; and the number of packets that
    /// found the ring full.
    pub(super) fn card(
        &self,
        rx: &str,
        filters: Filters,
        load: Load,
    ) -> anyhow::Result<(f64, u64)> {
        let [client, borrowed] = self.cores;
        let text = format!(
            "[card]\nengine = \"kernel\"\nborrowed_core = {borrowed}\n[[wire]]\nport = \"xdp\"\n\
             interface = \"w0\"\nnamespace = \"{}\"\n{rx}[host]\nattachment = \"stack\"\n\
             handover = \"cpumap\"\nqueues = 1\ntarget_cores = [{client}]\n\
             ring_size = {RING_SIZE}\n",
            self.hosts.netns(Role::Card)
        );
        let card = picnic_host::sections().parse(&text, None)?;
        let registries =
            Registries { executors: &[&picnic_kernel::Kernel], ..picnic_host::registries() };
        let launch = Launch::new(&card, registries).filters(filters);
        let running = launch.start_alone()?;
        let started = Instant::now();
        let before = running.monitor().report();
        self.send(load)?;
        // The clock thread updates its figures.
        std::thread::sleep(Duration::from_millis(100).saturating_sub(started.elapsed()));
        let window = running.monitor().report().since(&before);
        let report = running.stop()?;
        anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: this is a bug");
        let busy = window.borrowed_core.busy_fraction * window.duration_s;
        let full = report.queues.iter().map(|queue| queue.ring_full).sum();
        Ok((window.wires[0].rx_packets as f64 / busy, full))
    }
}

/// The rules as filters, with the last.
fn filters(rules: &[FiveTuple]) -> anyhow::Result<Filters> {
    let filters = Filters::new(1);
    let last = FiveTuple { protocol: Some(Number::UDP), ..FiveTuple::default() };
    let all = rules.iter().chain([&last]).enumerate();
    let changes = all.map(|(place, rule)| {
        let filter = Filter::new(format!("rule{place}"), Match::FiveTuple(*rule), Action::Drop);
        FilterChange::Add(filter.with_priority(place as i32), FilterCode::default())
    });
    filters.apply(changes.collect())?;
    Ok(filters)
}

/// A frame of 60 bytes, UDP from client to server.
fn frame(mac: &str) -> anyhow::Result<Vec<u8>> {
    let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let mut frame = bytes.collect::<Result<Vec<_>, _>>()?;
    frame.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    for address in [CLIENT, SERVER] {
        frame.extend(address.parse::<Ipv4Addr>()?.octets());
    }
    let words = frame[14..34].as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame.extend([0x30, 0x39, 0, DISCARDED, 0, 26, 0, 0]);
    frame.resize(60, 0);
    Ok(frame)
}

/// The rules as a file for `nft`.
fn in_nftables(rules: &[FiveTuple]) -> String {
    let mut text =
        "table ip bench {\n chain first {\n  type filter hook prerouting priority raw;\n"
            .to_owned();
    for rule in rules {
        let protocol = if rule.protocol == Some(Number::UDP) { "udp" } else { "tcp" };
        let prefix = |side: &str, prefix: Option<Prefix>| {
            prefix.map_or_else(String::new, |prefix| format!("ip {side} {prefix} "))
        };
        let (source, destination) =
            (prefix("saddr", rule.source), prefix("daddr", rule.destination));
        let port = rule.destination_ports.low();
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  {source}{destination}{protocol} dport {port} drop");
    }
    text + "  meta l4proto udp counter drop\n }\n}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nftables_has_the_same_rules() {
        let rules = draw(1, 3);
        let text = in_nftables(&rules);
        assert_eq!(text.matches("dport").count(), rules.len());
        let wanted = format!("ip saddr {} ip daddr", rules[0].source.unwrap());
        assert!(text.contains(&wanted), "{text}");
        assert!(text.ends_with("counter drop\n }\n}\n"));
    }
}
