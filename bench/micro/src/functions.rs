//! The cost of NIC functions, per packet or segment: each alone in a chain, on one core.
//!
//! The timing covers the burst in the chain and the packets that the function releases at its end,
//! not making packets or taking them from the rings. The time of an empty chain is subtracted.
//! Packets were just written, so they are in the caches, as with a NIC that writes there.

mod frames;

use super::{measured, time_per_packet};
use anyhow::{Context, ensure};
use frames::{
    flow_rules, in_order_frames, large_frames, pools, small_frames, station_frames, super_frame,
    sync_frames,
};
use picnic_core::config::Section;
use picnic_core::doorbell::NoDoorbell;
use picnic_core::function::{Function, Verdict, per_packet};
use picnic_core::ledger::{Ledger, Stage};
use picnic_core::out::{Doors, TargetRing};
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::{BuildContext, find};
use picnic_core::ring::gate::Gate;
use picnic_core::ring::moderation::{Moderation, ModerationMode};
use picnic_core::ring::spsc::{self, Consumer};
use picnic_core::stats::SteerCounters;
use picnic_core::time::Time;
use picnic_engine::chain::{Chain, ChainFunction};
use picnic_host::registries;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Comparison, Figure, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const QUEUES: u16 = 4;
/// Wires of the card with a bond, and stations at each.
const WIRES: u8 = 4;
const STATIONS: usize = 256;
/// Slots of a ring, the default of a card. Four larger rings do not fit in the second-level cache,
/// and each function would pay for stores to the third.
const RING: usize = 1024;
/// Payload of a full TCP segment with timestamps; below, of a super-frame of 45.
const SEGMENT: usize = 1448;
const SUPER_FRAME: usize = 45 * SEGMENT;
const MAC_LENGTH: usize = 6;
/// From a burst to its flush, and on to the next burst, by the clock of the functions.
const HALF_TURN_NS: u64 = 500;
const ENCAPSULATE: &str = "function = \"tunnel\"\nmode = \"encapsulate\"\nkinds = [\"vxlan\"]\n\
    network = 42\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\"\n\
    source_mac = \"02:00:00:00:00:01\"\ndestination_mac = \"02:00:00:00:00:02\"";

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Functions {
    /// Rules of flow-director
    #[schemars(range(min = 1, max = 65_536))]
    rules: usize,
    /// Bursts of each timing
    #[schemars(range(min = 1, max = 1_000_000))]
    bursts: usize,
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
}

impl Default for Functions {
    fn default() -> Self {
        Functions { rules: 4096, bursts: 500, repeats: 21 }
    }
}

impl Benchmark for Functions {
    const NAME: &'static str = "functions";
    const HELP: &'static str = "NIC functions, per packet; a plugin against a built-in function";
    const QUICK: &'static str = "bursts = 2\nrepeats = 2\nrules = 16";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &Functions, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    let mut small = Case::new("", small_frames(0))?;
    let mut large = Case::new("", large_frames())?;
    let mut to_stations = Case::to_wires(None)?;
    let mut cases = rx_cases(args.rules)?;
    cases.extend(tx_cases()?);
    let mut built_in = Case::of(Some(steer()), small_frames(0))?;
    let mut plugin = plugin()?;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    let (mut empty, mut copies) = (Vec::new(), Vec::new());
    let (mut in_rust, mut in_c) = (Vec::new(), Vec::new());
    for round in 0..args.repeats {
        run.round(round.into(), args.repeats.into());
        let (rx, tx) = (small.run(args.bursts), to_stations.run(args.bursts));
        // For the caches only: frames of the cases were this long, too.
        large.run(args.bursts);
        empty.push(rx);
        copies.push(large.copy(args.bursts));
        for ((key, case), times) in cases.iter_mut().zip(&mut times) {
            let alone = match case.stage {
                // The end of the chain gets other segments.
                _ if key.contains("segment") => 0.0,
                Stage::Tx => tx,
                _ => rx,
            };
            times.push(case.run(args.bursts) - alone);
        }
        if let Some(plugin) = &mut plugin {
            in_rust.push(built_in.run(args.bursts));
            in_c.push(plugin.run(args.bursts));
        }
    }
    for (key, case) in &cases {
        let dropped = case.doors.ledger.read().dropped;
        ensure!(dropped == 0, "{key}: {dropped} packets were dropped, which costs less");
    }
    let mut outcome = measured();
    outcome.tell("burst", BURST);
    outcome.tell("rules", args.rules);
    outcome.add(Figure::of("empty_chain_ns", empty));
    let checksum = times[0].clone();
    for ((key, _), times) in cases.iter().zip(times) {
        outcome.add(Figure::of(key, times));
    }
    outcome.compare(Comparison::of("of_1514_bytes_ns", ("copy", copies), ("checksum", checksum)));
    let beyond = in_c.iter().zip(&in_rust).map(|(in_c, in_rust)| in_c - in_rust).collect();
    outcome.add(Figure::of("plugin_beyond_built_in_ns", beyond));
    Ok(outcome)
}

/// The functions of rx chains; `checksum` first, compared with copying.
fn rx_cases(rules: usize) -> anyhow::Result<Vec<(&'static str, Case)>> {
    let (rules, pools) = (flow_rules(rules), pools());
    let small = |section: &str| Case::new(section, small_frames(0));
    let in_tunnels = |mode: &str| {
        let section = format!("function = \"tunnel\"\nmode = \"{mode}\"\nlocal = \"10.0.0.2\"");
        Case::new(&section, in_vxlan()?)
    };
    Ok(vec![
        ("checksum_ns", Case::new("function = \"checksum\"", large_frames())?),
        ("vlan_ns", Case::new("function = \"vlan\"\nstrip = true", small_frames(100))?),
        ("vmdq_ns", small(&format!("function = \"vmdq\"\n{pools}"))?),
        ("flow_director_ns", small(&rules)?),
        ("rss_ns", small("function = \"rss\"")?),
        ("by_wire_ns", {
            let case = small("function = \"by-wire\"")?;
            case.known(|packet| packet.wire = packet.data()[MAC_LENGTH - 1] % WIRES)
        }),
        ("sample_ns", small("function = \"sample\"\nevery = 100")?),
        ("sample_random_ns", small("function = \"sample\"\nevery = 100\nrandom = true")?),
        // A copy of every packet; copying takes time.
        ("mirror_ns", small("function = \"mirror\"\nqueue = 1")?),
        ("mirror_1514_ns", Case::new("function = \"mirror\"\nqueue = 1", large_frames())?),
        ("header_split_1514_ns", Case::new("function = \"header-split\"", large_frames())?),
        ("timestamp_ns", Case::new("function = \"timestamp\"\ncorrect = true", sync_frames())?),
        ("timestamp_others_ns", small("function = \"timestamp\"\ncorrect = true")?),
        ("tunnel_decapsulate_ns", in_tunnels("decapsulate")?),
        ("tunnel_expose_ns", in_tunnels("expose")?),
        // To the end of the burst; as if a wire had verified it.
        ("lro_segment_ns", {
            let case = Case::new("function = \"lro\"\ntimeout_usecs = 0", in_order_frames())?;
            case.known(|packet| packet.set_checksum(ChecksumState::Good))
        }),
    ])
}

/// The functions of tx chains, and `tso`.
fn tx_cases() -> anyhow::Result<Vec<(&'static str, Case)>> {
    let to_wires = |section: &str| Case::to_wires(Some(build(section, Path::new(""))?));
    Ok(vec![
        ("tso_segment_ns", {
            let case = Case::new("function = \"tso\"", vec![vec![super_frame()]])?;
            let case = case.known(|packet| {
                packet.set_gso(GsoType::Tcp4, SEGMENT as u16);
                packet.set_checksum(ChecksumState::Partial);
            });
            Case { packets_each: SUPER_FRAME / SEGMENT, ..case }
        }),
        ("tunnel_encapsulate_ns", to_wires(ENCAPSULATE)?),
        // Enough credit that nothing waits.
        ("rate_limit_ns", to_wires(&rate_limit("all", BURST, "drop"))?),
        ("rate_limit_flow_ns", to_wires(&rate_limit("flow", BURST, "drop"))?),
        // Half of each burst leaves at once, the other half waits for the flush.
        ("rate_limit_pace_ns", to_wires(&rate_limit("all", BURST / 2, "pace"))?),
        ("bond_learn_ns", bond_case("learn")?),
        ("bond_flow_ns", bond_case("flow")?),
    ])
}

/// Credit for `packets` packets at each burst, and again at each flush.
fn rate_limit(per: &str, packets: usize, action: &str) -> String {
    let rate = packets as u64 * 1_000_000_000 / HALF_TURN_NS;
    format!(
        "function = \"rate-limit\"\nper = \"{per}\"\npackets_per_second = {rate}\n\
         burst_packets = {packets}\naction = \"{action}\""
    )
}

/// The small frames, each in a tunnel.
fn in_vxlan() -> anyhow::Result<Vec<Vec<Vec<u8>>>> {
    let function = build(ENCAPSULATE, Path::new(""))?;
    let mut tunnel = Case::in_chain(Stage::Tx, Some(function), small_frames(0))?;
    let mut bursts = Vec::new();
    for _ in 0..tunnel.bursts.len() {
        let mut burst = tunnel.burst();
        tunnel.chain.run(Time::ZERO, &mut burst, &mut tunnel.doors);
        let doors = &mut tunnel.doors;
        let mut frames = Vec::new();
        while let Some(packet) = doors.backlog.take() {
            frames.push(packet.segments().collect::<Vec<_>>().concat());
            doors.pool.free(packet);
        }
        bursts.push(frames);
    }
    Ok(bursts)
}

/// A chain of one function or none, and the bursts for it.
struct Case {
    stage: Stage,
    chain: Chain,
    doors: Doors,
    rings: Vec<Consumer<Descriptor>>,
    bursts: Vec<Vec<Vec<u8>>>,
    /// Metadata of each packet.
    tell: fn(&mut Descriptor),
    /// Number of packets that one packet counts as.
    packets_each: usize,
    next: usize,
    now: Time,
}

impl Case {
    /// With the function of a section; an empty section means no function.
    fn new(section: &str, bursts: Vec<Vec<Vec<u8>>>) -> anyhow::Result<Self> {
        let function = (!section.is_empty()).then(|| build(section, Path::new(""))).transpose()?;
        Case::of(function, bursts)
    }

    fn of(function: Option<Box<dyn Function>>, bursts: Vec<Vec<Vec<u8>>>) -> anyhow::Result<Self> {
        Case::in_chain(Stage::Rx, function, bursts)
    }

    /// In the tx chain, with frames to stations; an empty chain without a function.
    fn to_wires(function: Option<Box<dyn Function>>) -> anyhow::Result<Self> {
        Case::in_chain(Stage::Tx, function, station_frames(0))
    }

    fn in_chain(
        stage: Stage,
        function: Option<Box<dyn Function>>,
        bursts: Vec<Vec<Vec<u8>>>,
    ) -> anyhow::Result<Self> {
        let links =
            function.into_iter().map(|function| ChainFunction::new("bench", function)).collect();
        let (pool, _) = Pool::new(&PoolConfig::default(), usize::from(QUEUES))?;
        let ring = |_| {
            let (producer, consumer) = spsc::channel(RING);
            let moderation = Moderation::new(ModerationMode::None);
            let (gate, counters) = (Arc::new(Gate::new()), Arc::<SteerCounters>::default());
            (TargetRing::new(producer, gate, Arc::new(NoDoorbell), moderation, counters), consumer)
        };
        let (targets, rings) = (0..QUEUES).map(ring).unzip();
        let ledger = Arc::new(Ledger::new(QUEUES.into()));
        let doors = Doors::new(pool, targets, WIRES.into(), RING, ledger);
        let chain = Chain::new(stage, links);
        Ok(Case {
            stage,
            chain,
            doors,
            rings,
            bursts,
            tell: |_| {},
            packets_each: 1,
            next: 0,
            now: Time::ZERO,
        })
    }

    fn known(self, tell: fn(&mut Descriptor)) -> Self {
        Case { tell, ..self }
    }

    /// Makes the next burst.
    fn burst(&mut self) -> Burst {
        let mut burst = Burst::new();
        for frame in &self.bursts[self.next % self.bursts.len()] {
            if let Some(mut packet) = self.doors.pool.packet(frame) {
                (self.tell)(&mut packet);
                let _ = burst.push(packet);
            }
        }
        self.next += 1;
        burst
    }

    /// Nanoseconds per packet in the chain.
    fn run(&mut self, bursts: usize) -> f64 {
        let (mut spent, mut packets) = (0.0, 0);
        for _ in 0..bursts {
            let mut burst = self.burst();
            let count = burst.len();
            packets += count * self.packets_each;
            let flush = self.now + HALF_TURN_NS;
            spent += count as f64
                * time_per_packet(count, || {
                    self.chain.run(self.now, &mut burst, &mut self.doors);
                    self.chain.flush(flush, &mut self.doors);
                });
            self.now = flush + HALF_TURN_NS;
            self.take_out();
        }
        spent / packets as f64
    }

    /// Nanoseconds per packet for copying its bytes to other memory.
    fn copy(&mut self, bursts: usize) -> f64 {
        let mut copies = vec![0; BURST * 2048];
        let (mut spent, mut packets) = (0, 0);
        for _ in 0..bursts {
            let mut burst = self.burst();
            let start = Instant::now();
            for (packet, to) in burst.as_slice().iter().zip(copies.chunks_exact_mut(2048)) {
                let data = packet.data();
                to[..data.len()].copy_from_slice(data);
                black_box(&to);
            }
            spent += start.elapsed().as_nanos();
            packets += burst.len();
            burst.drain().for_each(|packet| self.doors.pool.free(packet));
        }
        spent as f64 / packets as f64
    }

    fn take_out(&mut self) {
        self.doors.publish(Time::ZERO);
        while let Some(packet) = self.doors.backlog.take() {
            self.doors.pool.free(packet);
        }
        for ring in &mut self.rings {
            ring.refresh();
            while let Some(packet) = ring.pop() {
                self.doors.pool.free(packet);
            }
            ring.release();
        }
    }
}

fn build(section: &str, directory: &Path) -> anyhow::Result<Box<dyn Function>> {
    let section = Section::from_text("function", section)?;
    let context =
        BuildContext { queues: QUEUES, directory: directory.into(), ..BuildContext::default() };
    Ok(find(registries().functions, &section)?.build(&section, &context)?)
}

/// A bond in the tx chain, with one in the rx chain that has seen every station.
fn bond_case(mode: &str) -> anyhow::Result<Case> {
    let context = BuildContext { queues: QUEUES, wires: WIRES, ..BuildContext::default() };
    let section =
        Section::from_text("function", &format!("function = \"bond\"\nmode = \"{mode}\""))?;
    let bond = || find(registries().functions, &section)?.build(&section, &context);
    // Both at the same time: their shared state is dropped with the last of them.
    let sender = Case::to_wires(Some(bond()?))?;
    let seen = Case::in_chain(Stage::Rx, Some(bond()?), station_frames(MAC_LENGTH))?;
    let bursts = seen.bursts.len();
    seen.known(|packet| packet.wire = packet.data()[2 * MAC_LENGTH - 1] % WIRES).run(bursts);
    Ok(sender)
}

/// The work of both the plugin and the built-in function.
fn steer() -> Box<dyn Function> {
    Box::new(per_packet(|packet| Verdict::Steer((packet.mark & 3) as u16)))
}

/// The same as a shared object; none without a C compiler.
fn plugin() -> anyhow::Result<Option<Case>> {
    const SOURCE: &str = "#include \"picnic_function.h\"\n\
        static void process_burst(void *state, uint64_t now_ns, struct picnic_packet *packets,\n\
                                  uint32_t count, int32_t *targets)\n\
        {\n\
            (void)state, (void)now_ns;\n\
            for (uint32_t index = 0; index < count; index++)\n\
                targets[index] = (int32_t)(packets[index].mark & 3);\n\
        }\n\
        const struct picnic_function picnic_function = {\n\
            PICNIC_HANDSHAKE, .name = \"steer\", .process_burst = process_burst };\n";
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("steer.c"), SOURCE)?;
    std::fs::write(path("picnic_function.h"), picnic_plugin::HEADER)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]).args([path("steer.so"), path("steer.c")]);
    let Ok(done) = compiler.output() else { return Ok(None) };
    ensure!(done.status.success(), "cc: {}", String::from_utf8_lossy(&done.stderr));
    let function = build("plugin = \"steer.so\"", folder.path()).context("the plugin")?;
    Case::of(Some(function), small_frames(0)).map(Some)
}
