//! INIC: 64 hardware threads with a 10 Gb/s NIC on the processor, or on a bus.
//!
//! The driver does not poll: with a polling gate, both NICs are equal. No rule defines what changes
//! with connections or processors: it follows from queues, wake-ups and lines, or does not come out.

use super::runs::{Passed, run};
use picnic_lab::experiment::Effort;
use picnic_lab::outcome::{Figure, Point};
use picnic_sim::machine::{Accounts, Component, Cost, Profile};

/// Where the NIC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nic {
    Integrated,
    Discrete,
    Dca,
    Ideal,
}

impl Nic {
    pub(crate) const ALL: [Nic; 4] = [Nic::Integrated, Nic::Discrete, Nic::Dca, Nic::Ideal];

    /// Its kind in a card file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Nic::Integrated => "integrated",
            Nic::Discrete => "discrete",
            Nic::Dca => "integrated-dca",
            Nic::Ideal => "ideal",
        }
    }

    /// Its section of a card file, at a machine's costs.
    fn section(self, profile: &Profile) -> String {
        let ns = |cost| profile.costs.ns(cost);
        let (write, near) = (ns(Cost::RegisterWrite), ns(Cost::IntegratedRead));
        let keys = match self {
            Nic::Ideal => String::new(),
            Nic::Integrated | Nic::Dca => {
                format!("register_read_ns = {near}\nregister_write_ns = {write}\n")
            }
            Nic::Discrete => format!(
                "register_read_ns = {}\nregister_write_ns = {write}\nbus_ns = {}\n",
                ns(Cost::RegisterRead),
                ns(Cost::BusWay)
            ),
        };
        format!("[device]\nkind = \"{}\"\n{keys}", self.name())
    }
}

/// Hardware threads of the machine, and receive channels of either NIC.
const THREADS: usize = 64;
const CHANNELS: usize = 8;

/// A workload.
#[derive(Clone, Copy, Debug)]
struct Load {
    sends: bool,
    connections: u16,
    threads: usize,
    io_bytes: u32,
}

const RECEIVE: Load = Load { sends: false, connections: 32, threads: THREADS, io_bytes: 8192 };

fn bulk(profile: &Profile, nic: Nic, load: Load, effort: Effort) -> Result<Passed, String> {
    let Load { sends, connections, threads, io_bytes } = load;
    // Spread over the cores.
    let stride = (threads / CHANNELS).max(1);
    let channels: Vec<_> = (0..CHANNELS).map(|of| (stride * of) % threads).collect();
    let (workload, file) = match sends {
        true => ("request", "file_bytes = 1000000\n"),
        false => ("send", ""),
    };
    let text = format!(
        "[card]\nborrowed_core = 64\nidle = \"spin\"\n[pool]\nbuffers = 32768\n{}[[wire]]\n\
         port = \"peers\"\nworkload = \"{workload}\"\nconnections = {connections}\n{file}\
         window_bytes = 65160\nrate_mbps = 10000\ndelay_us = 50\nring = 8192\n[[rx]]\n\
         function = \"rss\"\n[host]\nattachment = \"model\"\nqueues = {CHANNELS}\n\
         target_cores = {channels:?}\ncores = {threads}\nio_bytes = {io_bytes}\n\
         send_window = 44\nfirst_window = 44\nring_size = 8192\n\
         [interrupt]\nrx_usecs = 0\ngate = \"none\"\n",
        nic.section(profile)
    );
    run(profile, &text, effort.lasts(10_000, 20_000, 50_000, 200_000), 1)
}

/// Payload, in bits per second.
fn bps(passed: &Passed, load: Load) -> f64 {
    match load.sends {
        true => passed.goodput_bps(),
        false => passed.host.bytes_read as f64 * 8.0 / passed.seconds,
    }
}

/// Received packets.
fn packets(passed: &Passed) -> f64 {
    passed.received.max(1) as f64
}

/// Nanoseconds of all cores for a packet.
fn ns_per_packet(passed: &Passed) -> f64 {
    passed.accounts.iter().map(Accounts::busy).sum::<u64>() as f64 / packets(passed)
}

fn both(profile: &Profile, load: Load, effort: Effort) -> Result<[Passed; 2], String> {
    let of = |nic| bulk(profile, nic, load, effort);
    Ok([of(Nic::Integrated)?, of(Nic::Discrete)?])
}

/// The integrated NIC's bandwidth over the discrete one's.
fn gain(profile: &Profile, load: Load, effort: Effort) -> Result<f64, String> {
    let [integrated, discrete] = both(profile, load, effort)?;
    Ok(bps(&integrated, load) / bps(&discrete, load) - 1.0)
}

/// I/O sizes above 1 KB, over which the paper averages.
const LARGE: [u32; 3] = [2048, 8192, 65_536];
const SIZES: [u32; 6] = [64, 256, 1024, 2048, 8192, 65_536];
const CONNECTIONS: [u16; 7] = [1, 2, 4, 8, 16, 32, 64];
const CPUS: [usize; 5] = [8, 16, 24, 32, 64];

fn mean(
    profile: &Profile,
    sends: bool,
    effort: Effort,
    of: fn(&Profile, Load, Effort) -> Result<f64, String>,
) -> Result<f64, String> {
    let of = |io_bytes| of(profile, Load { sends, io_bytes, ..RECEIVE }, effort);
    Ok(LARGE.into_iter().map(of).sum::<Result<f64, String>>()? / LARGE.len() as f64)
}

pub(crate) fn rx_gain(profile: &Profile, effort: Effort) -> Result<f64, String> {
    mean(profile, false, effort, gain)
}

/// The change of processor time for the same bandwidth.
fn cpu_change(profile: &Profile, load: Load, effort: Effort) -> Result<f64, String> {
    let [integrated, discrete] = both(profile, load, effort)?;
    let cpu = |passed: &Passed| passed.busy() / bps(passed, load);
    Ok(cpu(&integrated) / cpu(&discrete) - 1.0)
}

pub(crate) fn rx_cpu(profile: &Profile, effort: Effort) -> Result<f64, String> {
    mean(profile, false, effort, cpu_change)
}

pub(crate) fn tx_gain(profile: &Profile, effort: Effort) -> Result<f64, String> {
    mean(profile, true, effort, |profile, load, effort| {
        gain(profile, Load { threads: THREADS, ..load }, effort)
    })
}

/// The largest of some gains.
fn largest(gains: impl Iterator<Item = Result<f64, String>>) -> Result<f64, String> {
    gains.reduce(|a, b| Ok(a?.max(b?))).unwrap_or(Ok(f64::NAN))
}

fn with_connections(profile: &Profile, connections: u16, effort: Effort) -> Result<f64, String> {
    gain(profile, Load { connections, ..RECEIVE }, effort)
}

pub(crate) fn few_connections(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let few = CONNECTIONS.into_iter().filter(|count| *count <= 16);
    largest(few.map(|count| with_connections(profile, count, effort)))
}

pub(crate) fn many_connections(profile: &Profile, effort: Effort) -> Result<f64, String> {
    with_connections(profile, 32, effort)
}

fn with_cpus(profile: &Profile, threads: usize, effort: Effort) -> Result<f64, String> {
    gain(profile, Load { threads, ..RECEIVE }, effort)
}

pub(crate) fn few_cpus(profile: &Profile, effort: Effort) -> Result<f64, String> {
    largest([8, 16].into_iter().map(|threads| with_cpus(profile, threads, effort)))
}

pub(crate) fn many_cpus(profile: &Profile, effort: Effort) -> Result<f64, String> {
    with_cpus(profile, THREADS, effort)
}

/// Microseconds of a request of one byte and its answer, one after the other.
fn round_trip_us(profile: &Profile, nic: Nic, effort: Effort) -> Result<f64, String> {
    let text = format!(
        "[card]\nborrowed_core = 64\nidle = \"spin\"\n{}[[wire]]\nport = \"peers\"\n\
         connections = 1\nfile_bytes = 64\nrequest_bytes = 64\npiggyback = true\n\
         rate_mbps = 10000\ndelay_us = 20\n[host]\nattachment = \"model\"\nqueues = 1\ncores = 64\n\
         [interrupt]\nrx_usecs = 0\ngate = \"none\"\n",
        nic.section(profile)
    );
    // Whole round trips are counted: over this time, one more changes the 6 us by 0.2 %.
    let passed = run(profile, &text, effort.lasts(5_000, 400_000, 400_000, 400_000), 1)?;
    Ok(passed.seconds * 1e6 / passed.host.answers as f64)
}

pub(crate) fn latency_saved_us(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let of = |nic| round_trip_us(profile, nic, effort);
    Ok(of(Nic::Discrete)? - of(Nic::Integrated)?)
}

/// The formula: reads of an interrupt, and the bus in both directions.
pub(crate) fn latency_formula_us(profile: &Profile) -> f64 {
    let cost = |cost| profile.costs.get(cost);
    let reads = 3.0 * (cost(Cost::RegisterRead) - cost(Cost::IntegratedRead));
    (reads + 2.0 * cost(Cost::BusWay)) / 1000.0
}

// ---------------------------------------------------------------- breakdown

/// The paper's parts of a packet's cost, with our components.
const PARTS: [(&str, &[Component]); 6] = [
    ("driver_ns", &[Component::Driver, Component::Registers]),
    ("stack_ns", &[Component::Stack]),
    ("buffers_ns", &[Component::Buffers]),
    ("socket_ns", &[Component::Socket]),
    ("copy_ns", &[Component::Copy]),
    ("kernel_ns", &[Component::Kernel, Component::Lock]),
];

/// Nanoseconds for a packet, by part.
fn parts(passed: &Passed) -> [f64; 6] {
    PARTS.map(|(_, components)| {
        let of = |component: &Component| {
            passed.accounts.iter().map(|accounts| accounts[*component]).sum::<u64>()
        };
        components.iter().map(of).sum::<u64>() as f64 / packets(passed)
    })
}

pub(crate) fn driver_change(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let [integrated, discrete] = both(profile, RECEIVE, effort)?;
    Ok(parts(&integrated)[0] / parts(&discrete)[0] - 1.0)
}

/// The change of all parts except the driver, together.
pub(crate) fn others_change(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let [integrated, discrete] = both(profile, RECEIVE, effort)?;
    let others = |passed: &Passed| parts(passed)[1..].iter().sum::<f64>();
    Ok(others(&integrated) / others(&discrete) - 1.0)
}

/// The savings of the other parts, as a multiple of the driver's.
pub(crate) fn others_to_driver(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let [integrated, discrete] = both(profile, RECEIVE, effort)?.map(|passed| parts(&passed));
    let saved = |range: std::ops::Range<usize>| -> f64 {
        range.map(|part| discrete[part] - integrated[part]).sum()
    };
    Ok(saved(1..6) / saved(0..1))
}

/// A count for a packet of the discrete NIC, by the integrated one's, with 64 connections.
fn discrete_more(profile: &Profile, effort: Effort, of: fn(&Passed) -> f64) -> Result<f64, String> {
    let many = Load { connections: 64, ..RECEIVE };
    let [integrated, discrete] = both(profile, many, effort)?;
    Ok((of(&discrete) / packets(&discrete)) / (of(&integrated) / packets(&integrated)) - 1.0)
}

macro_rules! more {
    ($($name:ident $of:expr;)*) => {
        $(pub(crate) fn $name(profile: &Profile, effort: Effort) -> Result<f64, String> {
            discrete_more(profile, effort, $of)
        })*
    };
}

more! {
    computation_more |passed| passed.host.computed_ns as f64;
    switches_more |passed| passed.host.switches as f64;
    interrupts_more |passed| (passed.host.interrupts + passed.host.remote_wakes) as f64;
    cross_calls_more |passed| passed.host.remote_wakes as f64;
    misses_more |passed| passed.host.moved.misses();
}

/// The integrated NIC's lines from memory, which the second-level cache lacks.
pub(crate) fn memory_misses_change(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let [integrated, discrete] = both(profile, RECEIVE, effort)?.map(|passed| memory(&passed));
    Ok(integrated / discrete - 1.0)
}

/// How many fewer of them a packet has.
pub(crate) fn memory_misses_fewer(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let [integrated, discrete] = both(profile, RECEIVE, effort)?.map(|passed| memory(&passed));
    Ok(discrete - integrated)
}

fn memory(passed: &Passed) -> f64 {
    passed.host.moved.from_memory() / packets(passed)
}

// ---------------------------------------------------------------- curves

fn curve<T: Copy + Into<i64>>(
    profile: &Profile,
    effort: Effort,
    (x, values): (&str, &[T]),
    load: impl Fn(T) -> Load,
) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    for &value in values {
        let mut point = Point::at(x, value.into());
        for nic in Nic::ALL {
            let load = load(value);
            let passed = bulk(profile, nic, load, effort)?;
            let name = nic.name().replace('-', "_");
            point = point
                .with(Figure::one(&format!("{name}_bps"), bps(&passed, load)))
                .with(Figure::one(&format!("{name}_cpu_ns"), ns_per_packet(&passed)).in_detail());
        }
        points.push(point);
    }
    Ok(points)
}

fn by_size(profile: &Profile, sends: bool, effort: Effort) -> Result<Vec<Point>, String> {
    let load = |io_bytes: u32| Load { sends, io_bytes, ..RECEIVE };
    curve(profile, effort, ("io_bytes", &SIZES), load)
}

pub(crate) fn rx_by_size(profile: &Profile, effort: Effort) -> Result<Vec<Point>, String> {
    by_size(profile, false, effort)
}

pub(crate) fn tx_by_size(profile: &Profile, effort: Effort) -> Result<Vec<Point>, String> {
    by_size(profile, true, effort)
}

pub(crate) fn by_connections(profile: &Profile, effort: Effort) -> Result<Vec<Point>, String> {
    let load = |connections: u16| Load { connections, ..RECEIVE };
    curve(profile, effort, ("connections", &CONNECTIONS), load)
}

pub(crate) fn by_cpus(profile: &Profile, effort: Effort) -> Result<Vec<Point>, String> {
    let cpus = CPUS.map(|threads| threads as u32);
    let load = |threads: u32| Load { threads: threads as usize, ..RECEIVE };
    curve(profile, effort, ("cpus", &cpus), load)
}

pub(crate) fn round_trips(profile: &Profile, effort: Effort) -> Result<Vec<Point>, String> {
    let point = |nic: Nic| {
        let us = round_trip_us(profile, nic, effort)?;
        Ok(Point::at("nic", nic.name()).with(Figure::one("round_trip_us", us)))
    };
    Nic::ALL.into_iter().map(point).collect()
}

/// Each NIC's parts of a packet's cost, and its counts for a packet.
pub(crate) fn breakdown(profile: &Profile, effort: Effort) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    for nic in Nic::ALL {
        let passed = bulk(profile, nic, RECEIVE, effort)?;
        let mut point = Point::at("nic", nic.name());
        for ((key, _), ns) in PARTS.iter().zip(parts(&passed)) {
            point = point.with(Figure::one(key, ns));
        }
        for (key, count) in [
            ("switches_per_packet", passed.host.switches as f64),
            ("interrupts_per_packet", passed.host.interrupts as f64),
            ("cross_calls_per_packet", passed.host.remote_wakes as f64),
            ("lines_per_packet", passed.host.moved.misses()),
            ("memory_lines_per_packet", passed.host.moved.from_memory()),
        ] {
            // The findings have them in words; a table of all would be too wide for a page.
            point = point.with(Figure::one(key, count / packets(&passed)).in_detail());
        }
        points.push(point);
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        Profile::named("niagara2").unwrap()
    }

    #[test]
    fn registers_of_the_same_length_make_both_nics_equal() {
        let mut flat = profile();
        flat.costs.set(Cost::RegisterRead, flat.costs.get(Cost::IntegratedRead));
        flat.costs.set(Cost::BusWay, 0.0);
        assert_eq!(latency_saved_us(&flat, Effort::Quick).unwrap(), 0.0);
        assert_eq!(gain(&flat, RECEIVE, Effort::Quick).unwrap(), 0.0);
    }

    #[test]
    fn the_latency_is_the_formulas() {
        let (found, wanted) =
            (latency_saved_us(&profile(), Effort::Quick).unwrap(), latency_formula_us(&profile()));
        assert!((found / wanted - 1.0).abs() < 0.05, "{found} of {wanted} us");
    }

    #[test]
    fn packets_in_a_cache_move_fewer_lines_from_memory() {
        let of = |nic| memory(&bulk(&profile(), nic, RECEIVE, Effort::Quick).unwrap());
        let (memory, cache) = (of(Nic::Integrated), of(Nic::Dca));
        assert!(cache < memory / 2.0, "{cache} and {memory} lines a packet");
    }

    /// Threads that share pipelines hide one another's stalls.
    #[test]
    fn with_a_pipeline_for_each_thread_computation_takes_less() {
        let mut own = profile();
        own.costs.set(Cost::PipelineShare, 0.0);
        let crowded = Load { threads: 8, connections: 64, ..RECEIVE };
        let bps = |profile: &Profile| {
            bps(&bulk(profile, Nic::Integrated, crowded, Effort::Quick).unwrap(), crowded)
        };
        let (shared, own) = (bps(&profile()), bps(&own));
        assert!(own > shared * 1.1, "{own} and {shared} b/s");
    }
}
