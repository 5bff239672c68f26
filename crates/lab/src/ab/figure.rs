//! The figure to compare: one of the card's counts, or a number in the workload's output.

use crate::unit::Unit;
use crate::window::Window;
use regex_lite::Regex;
use serde_json::Value;
use std::fmt;

/// A figure from the card's counts.
pub struct CardFigure {
    /// Its name, with its unit.
    pub name: &'static str,
    /// A line of help.
    pub help: &'static str,
    more_is_better: bool,
    /// It is meaningless for packets without a known arrival time.
    pub(super) of_arrival: bool,
    read: fn(&Window) -> Option<f64>,
}

/// The list of the card's figures.
pub const CARD_FIGURES: &[CardFigure] = &[
    CardFigure {
        name: "delivered_pps",
        help: "packets delivered to the host",
        more_is_better: true,
        of_arrival: false,
        read: |window| Some(window.rate(window.delivered)),
    },
    CardFigure {
        name: "delivered_bps",
        help: "bits delivered to the host",
        more_is_better: true,
        of_arrival: false,
        read: |window| Some(window.rate(window.delivered_bytes) * 8.0),
    },
    CardFigure {
        name: "received_pps",
        help: "packets received from wires",
        more_is_better: true,
        of_arrival: false,
        read: |window| Some(window.rate(window.received)),
    },
    CardFigure {
        name: "transmitted_pps",
        help: "packets sent to wires",
        more_is_better: true,
        of_arrival: false,
        read: |window| Some(window.rate(window.transmitted)),
    },
    CardFigure {
        name: "latency_p50_ns",
        help: "median time from wire to target routine",
        more_is_better: false,
        of_arrival: false,
        read: |window| window.report.latency_ns.p50.map(|ns| ns as f64),
    },
    CardFigure {
        name: "latency_p99_ns",
        help: "the same, 99th percentile",
        more_is_better: false,
        of_arrival: false,
        read: |window| window.report.latency_ns.p99.map(|ns| ns as f64),
    },
    CardFigure {
        name: "latency_at_wire_ns",
        help: "mean time from arrival until the borrowed core takes the packet",
        more_is_better: false,
        of_arrival: true,
        read: |window| window.report.latency_ns.at_wire.map(|ns| ns as f64),
    },
    CardFigure {
        name: "borrowed_core_busy_fraction",
        help: "share of the borrowed core's time in turns that found work",
        more_is_better: false,
        of_arrival: false,
        read: |window| Some(window.report.borrowed_core.busy_fraction),
    },
    CardFigure {
        name: "borrowed_core_ns_per_packet",
        help: "the same, per packet",
        more_is_better: false,
        of_arrival: false,
        read: |window| {
            let report = &window.report;
            let packets: u64 = report.wires.iter().map(|wire| wire.rx_packets).sum();
            let busy_ns = report.borrowed_core.busy_fraction * report.duration_s * 1e9;
            (packets != 0).then(|| busy_ns / packets as f64)
        },
    },
    CardFigure {
        name: "packets_per_interrupt",
        help: "packets delivered to the host per interrupt",
        more_is_better: true,
        of_arrival: false,
        read: |window| {
            let interrupts: u64 = window.report.queues.iter().map(|queue| queue.interrupts).sum();
            let packets: u64 = window.report.queues.iter().map(|queue| queue.packets).sum();
            (interrupts != 0).then(|| packets as f64 / interrupts as f64)
        },
    },
];

impl fmt::Debug for CardFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How to find a figure in a program's output.
#[derive(Clone, Debug)]
pub enum Reading {
    /// The last match of a pattern's only group.
    Pattern(Regex),
    /// The last number of the last line that has one.
    LastNumber,
    /// `Requests/sec` of wrk.
    Wrk,
    /// Bytes received by iperf3's server, from its client's `-J` output.
    Iperf3,
    /// Requests answered per second, from the client of a listed workload.
    Named,
}

/// The figure to compare.
#[derive(Clone, Debug)]
pub enum ComparedFigure {
    /// One of the card's.
    Card(&'static CardFigure),
    /// One of the workload's, under this name.
    Printed(String, Reading),
}

impl ComparedFigure {
    /// The card's figure of this name.
    pub fn of_card(name: &str) -> Option<Self> {
        CARD_FIGURES.iter().find(|figure| figure.name == name).map(ComparedFigure::Card)
    }

    /// Its name, with its unit if known.
    pub fn key(&self) -> &str {
        match self {
            ComparedFigure::Card(figure) => figure.name,
            ComparedFigure::Printed(name, _) => name,
        }
    }

    /// Whether more is better, if known.
    pub fn more_is_better(&self) -> bool {
        match self {
            ComparedFigure::Card(figure) => figure.more_is_better,
            ComparedFigure::Printed(name, _) => Unit::of_key(name).more_is_better().unwrap_or(true),
        }
    }

    /// Its value, if any.
    pub(crate) fn read(&self, window: Option<&Window>, printed: &str) -> Option<f64> {
        match self {
            ComparedFigure::Card(figure) => (figure.read)(window?),
            ComparedFigure::Printed(_, reading) => reading.read(printed),
        }
    }
}

impl Reading {
    /// A pattern with one group.
    ///
    /// # Errors
    /// The fault.
    pub fn pattern(text: &str) -> Result<Self, String> {
        let regex = Regex::new(text).map_err(|error| error.to_string())?;
        match regex.captures_len() {
            2 => Ok(Reading::Pattern(regex)),
            groups => Err(format!("found {} groups, allowed: one, as in (...)", groups - 1)),
        }
    }

    fn read(&self, printed: &str) -> Option<f64> {
        let caught = |regex: &Regex| -> Option<f64> {
            regex.captures_iter(printed).last()?.get(1)?.as_str().trim().parse().ok()
        };
        match self {
            Reading::Pattern(regex) => caught(regex),
            Reading::LastNumber => printed.lines().rev().find_map(|line| {
                let is_part = |letter: char| letter.is_ascii_digit() || ".eE+-".contains(letter);
                line.split(|letter| !is_part(letter)).rev().find_map(|word| word.parse().ok())
            }),
            Reading::Wrk => caught(&Regex::new(r"Requests/sec:\s+([0-9.]+)").ok()?),
            Reading::Iperf3 => {
                let report: Value = serde_json::from_str(printed).ok()?;
                report["end"]["sum_received"]["bits_per_second"].as_f64()
            }
            Reading::Named => answered(printed)?["requests_per_second"].as_f64(),
        }
    }
}

/// The requests answered per second, from the client of a listed workload.
fn answered(printed: &str) -> Option<Value> {
    serde_json::from_str(printed).ok()
}

/// Request latencies, from `wrk --latency` or a workload's client: keys with their units, and
/// nanoseconds.
pub(super) fn latencies(printed: &str) -> Vec<(&'static str, f64)> {
    const SHARES: [(&str, &str); 3] =
        [("50%", "request_p50_ns"), ("90%", "request_p90_ns"), ("99%", "request_p99_ns")];
    const UNITS: [(&str, f64); 5] =
        [("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    if let Some(told) = answered(printed).filter(|told| told.get("answered").is_some()) {
        let own = [("p50_ns", "request_p50_ns"), ("p99_ns", "request_p99_ns")];
        return own.into_iter().filter_map(|(own, key)| Some((key, told[own].as_f64()?))).collect();
    }
    let lines = printed.lines().skip_while(|line| !line.contains("Latency Distribution"));
    let read = |line: &str| {
        let (share, time) = line.trim().split_once(char::is_whitespace)?;
        let (_, key) = SHARES.iter().find(|(name, _)| *name == share)?;
        let time = time.trim();
        let (digits, unit) = time.split_at(time.find(|letter: char| letter.is_alphabetic())?);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        Some((*key, digits.parse::<f64>().ok()? * factor))
    };
    lines.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_outputs() {
        let pattern = |text| Reading::pattern(text).unwrap();
        assert_eq!(pattern(r"rate=(\d+)").read("rate=1\nrate=25 x\n"), Some(25.0));
        assert_eq!(pattern(r"rate=(\d+)").read("speed=1"), None);
        let last = |text| Reading::LastNumber.read(text);
        assert_eq!(last("took 3 s\n1.5e3 of 2 (3.25 MB)\nbye\n\n"), Some(3.25));
        assert_eq!(last("-7.5\n"), Some(-7.5));
        assert_eq!(last("nothing - here.\n"), None);
        assert_eq!(Reading::Wrk.read("Requests/sec:  80123.45\nTransfer/sec: 1MB"), Some(80123.45));
        let json = r#"{"end":{"sum_received":{"bits_per_second":1e9}}}"#;
        assert_eq!(Reading::Iperf3.read(json), Some(1e9));
        assert_eq!(Reading::Iperf3.read("iperf3: error"), None);
        let told = r#"{"answered":7,"requests_per_second":3.5,"p50_ns":1000,"p99_ns":2000}"#;
        assert_eq!(Reading::Named.read(told), Some(3.5));
        assert_eq!(latencies(told), [("request_p50_ns", 1e3), ("request_p99_ns", 2e3)]);
    }

    #[test]
    fn latencies_of_wrk_have_units() {
        let printed = "  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   635.91us\n  \
             Latency Distribution\n     50%  635.00us\n     75%    1.00ms\n     90%    1.20ms\n     \
             99%    2.00s \n  10 requests in 1.00s, 1.2MB read\nRequests/sec:  10.00\n";
        let expected =
            [("request_p50_ns", 635e3), ("request_p90_ns", 1.2e6), ("request_p99_ns", 2e9)];
        assert_eq!(latencies(printed), expected);
        assert_eq!(latencies("Requests/sec:  10.00\n"), []);
    }

    #[test]
    fn a_pattern_has_one_group() {
        assert!(Reading::pattern("a(b").is_err());
        let error = Reading::pattern("rate").unwrap_err();
        assert_eq!(error, "found 0 groups, allowed: one, as in (...)");
    }

    #[test]
    fn card_figures_have_consistent_units() {
        for figure in CARD_FIGURES {
            let unit = Unit::of_key(figure.name);
            let known = unit.more_is_better().unwrap_or(figure.more_is_better);
            assert_eq!(known, figure.more_is_better, "{}", figure.name);
            assert!(!figure.help.is_empty());
        }
    }
}
