//! INIC: a NIC on the processor against a NIC on a bus, on a modelled Niagara 2.
//!
//! Contenders are `integrated`, `discrete`, `integrated-dca` (packets go to a cache) and `ideal` (no
//! registers). Latency is fitted; everything else is predicted. A finding that does not follow from
//! queues, wake-ups and caches reads "not reproduced".
//!
//! Source: INIC, all slides with figures.

use crate::modelled::{Curve, on_machine};
use crate::testbeds::niagara2;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Experiment, World};
use picnic_lab::paper::{PaperFigure, Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The modelled machine [default: the paper's]
    pub profile: Option<String>,
    /// Whether predictions are repeated with each assumed cost at ±25 %
    pub vary: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { profile: None, vary: true }
    }
}

/// An experiment of the paper.
struct Case {
    name: &'static str,
    help: &'static str,
    row: Row,
    curve: Curve,
}

const fn of(what: &'static str, figures: &'static [PaperFigure]) -> Row {
    row("INIC", what, figures).on("niagara2", 65)
}

/// Bandwidth of all contenders along a value.
fn lines(title: &str, x: &str) -> Plot {
    Plot::lines(title, "contenders", x, "integrated_bps")
        .and("discrete_bps")
        .and("integrated_dca_bps")
        .and("ideal_bps")
}

/// A gain that is noise: seeds differ by this.
const NONE: f64 = 0.02;

const CASES: [Case; 6] = [
    Case {
        name: "inic-rx",
        help: "receive bandwidth by I/O size, NIC integrated and discrete",
        row: of(
            "receive bandwidth and CPU by I/O size, integrated against discrete",
            &[
                number("bandwidth above 1 KB", 0.075, Unit::Change)
                    .ours("bandwidth_gain")
                    .modelled(niagara2::rx_gain),
                number("relative CPU above 1 KB", -0.20, Unit::Change)
                    .ours("cpu_change")
                    .modelled(niagara2::rx_cpu),
            ],
        ),
        curve: Curve {
            series: "contenders",
            points: niagara2::rx_by_size,
            plot: || lines("received by I/O size", "io_bytes"),
        },
    },
    Case {
        name: "inic-tx",
        help: "transmit bandwidth by I/O size, NIC integrated and discrete",
        row: of(
            "transmit bandwidth by I/O size, integrated against discrete",
            &[words("similar transmit performance", "yes")
                .ours("bandwidth_gain")
                .at_most(NONE, "integrated to discrete")
                .modelled(niagara2::tx_gain)],
        ),
        curve: Curve {
            series: "contenders",
            points: niagara2::tx_by_size,
            plot: || lines("sent by I/O size", "io_bytes"),
        },
    },
    Case {
        name: "inic-connections",
        help: "receive bandwidth by connections, NIC integrated and discrete",
        row: of(
            "receive bandwidth by number of connections",
            &[
                words("not better with up to 16 connections", "yes")
                    .ours("few_connections_gain")
                    .at_most(NONE, "largest gain")
                    .modelled(niagara2::few_connections),
                words("better with 32 connections", "yes")
                    .ours("many_connections_gain")
                    .at_least(NONE, "gain")
                    .modelled(niagara2::many_connections),
            ],
        )
        .corrected("\"> 16\" in the figure, \"≥ 32\" in the text"),
        curve: Curve {
            series: "contenders",
            points: niagara2::by_connections,
            plot: || lines("received by connections", "connections"),
        },
    },
    Case {
        name: "inic-cpus",
        help: "receive bandwidth by CPUs, NIC integrated and discrete",
        row: of(
            "receive bandwidth by number of CPUs",
            &[
                words("not better with up to 16 CPUs", "yes")
                    .ours("few_cpus_gain")
                    .at_most(NONE, "largest gain")
                    .modelled(niagara2::few_cpus),
                words("better with 64 CPUs", "yes")
                    .ours("many_cpus_gain")
                    .at_least(NONE, "gain")
                    .modelled(niagara2::many_cpus),
            ],
        ),
        curve: Curve {
            series: "contenders",
            points: niagara2::by_cpus,
            plot: || lines("received by CPUs", "cpus"),
        },
    },
    Case {
        name: "inic-latency",
        help: "ping-pong latency, NIC integrated and discrete",
        row: of(
            "ping-pong latency",
            &[number("latency saved", 6.0, Unit::Microseconds)
                .ours("latency_saved_us")
                .modelled_and(niagara2::latency_saved_us, niagara2::latency_formula_us)],
        ),
        curve: Curve {
            series: "contenders",
            points: niagara2::round_trips,
            plot: || Plot::bars("a round trip", "contenders", "round_trip_us"),
        },
    },
    Case {
        name: "inic-breakdown",
        help: "a packet's cost by part, NIC integrated and discrete",
        row: of(
            "per-packet cost by part, context switches, interrupts, cache misses, memory traffic",
            &[
                number("driver cost", -0.5, Unit::Change)
                    .ours("driver_change")
                    .modelled(niagara2::driver_change),
                words("other parts shrink as well", "yes")
                    .ours("others_change")
                    .at_most(-NONE, "change of the other parts")
                    .modelled(niagara2::others_change),
                words("they save more than the driver", "yes")
                    .ours("others_to_driver_ratio")
                    .at_least(1.0, "saved by others, by the driver")
                    .modelled(niagara2::others_to_driver),
                words("discrete: more instructions with 64 connections", "yes")
                    .ours("computation_change")
                    .at_least(NONE, "computation, to integrated")
                    .modelled(niagara2::computation_more),
                words("discrete: more context switches with 64 connections", "yes")
                    .ours("switches_change")
                    .at_least(NONE, "to integrated")
                    .modelled(niagara2::switches_more),
                words("discrete: more interrupts with 64 connections", "yes")
                    .ours("interrupts_change")
                    .at_least(NONE, "with cross-calls, to integrated")
                    .modelled(niagara2::interrupts_more),
                words("discrete: more cross-calls with 64 connections", "yes")
                    .ours("cross_calls_change")
                    .at_least(NONE, "to integrated")
                    .modelled(niagara2::cross_calls_more),
                words("discrete: more data misses with 64 connections", "yes")
                    .ours("misses_change")
                    .at_least(NONE, "lines that move to a core")
                    .modelled(niagara2::misses_more),
                number("L2 data misses, and memory traffic", -0.076, Unit::Change)
                    .ours("memory_misses_change")
                    .modelled(niagara2::memory_misses_change),
                number("L2 data misses a packet, fewer", 1.5, Unit::Count)
                    .ours("memory_misses_fewer")
                    .modelled(niagara2::memory_misses_fewer),
            ],
        )
        .corrected("misses of the instruction caches are not modelled"),
        curve: Curve {
            series: "contenders",
            points: niagara2::breakdown,
            plot: || {
                Plot::bars("a packet's cost", "contenders", "driver_ns")
                    .and("stack_ns")
                    .and("buffers_ns")
                    .and("socket_ns")
                    .and("copy_ns")
                    .and("kernel_ns")
            },
        },
    },
];

/// One of them.
#[derive(Debug)]
pub struct Inic<const CASE: usize>;

/// Receive by I/O size.
pub type InicRx = Inic<0>;
/// Transmit by I/O size.
pub type InicTx = Inic<1>;
/// Receive by connections.
pub type InicConnections = Inic<2>;
/// Receive by CPUs.
pub type InicCpus = Inic<3>;
/// Ping-pong.
pub type InicLatency = Inic<4>;
/// Cost by part.
pub type InicBreakdown = Inic<5>;

impl<const CASE: usize> Component for Inic<CASE> {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = CASES[CASE].name;
    const HELP: &'static str = CASES[CASE].help;

    fn example(_: &Path) -> Option<String> {
        Some("vary = false".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        let curve = Some(CASES[CASE].curve);
        let built = on_machine::<Self>(World::Sim, settings.profile.as_deref(), &settings, curve)?;
        built.ok_or_else(|| ConfigError::new("profile", "found none, expected a modelled machine"))
    }
}

impl<const CASE: usize> Reproduces for Inic<CASE> {
    const PAPER: Row = CASES[CASE].row;
}
