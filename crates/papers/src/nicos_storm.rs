//! Total order among five members: on the cards, and on the hosts.
//!
//! Each point runs the same protocol in both places. *Latency* is from the submission of a message
//! to its delivery in order at a host's program: the sender's, or the last member's. *Throughput*
//! is the ordered payload per second that each member's program receives; the bytes on the wire are
//! beside it.
//!
//! In the sim world, five hosts with a card each are joined by a switch, at the costs of a machine
//! profile. The profile of the paper's nodes gives neither the kernel's time for a datagram nor the
//! protocol's time on either processor. The protocol's time is assumed, and the kernel's is fitted:
//! to the paper's 200 µs on the host, at one sender, a window of one and the shortest payload. All
//! other figures follow.
//!
//! On the host, members on the host are threads with UDP sockets on the loopback interface, and
//! members on cards are tasks, on cards that cables join, in one process.
//!
//! The paper gives neither message size nor window nor loss, and its 768 Mb/s exceed the link that
//! it names. So only the ratios are compared: latency at the point that is fitted, throughput at
//! the longest payload and the widest window.
//!
//! Source: NICOS 4.7.

use super::cards::repeated;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point as Labelled};
use picnic_lab::paper::{Row, number, row};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use picnic_machine::topology::available;
use picnic_sim::SwitchConfig;
use picnic_sim::machine::{Cost, Profile};
use picnic_storm::bench::{self, Load};
use picnic_storm::card::load::{Costs, Place};
use picnic_storm::cards::{self, Model};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// The latency on the host to which the kernel's time is fitted, in nanoseconds.
const PAPERS_HOST_NS: f64 = 200_000.0;
/// The fitted time, in the results of a point.
const KERNEL_KEY: &str = "kernel_frame_ns";
/// The profile of the paper's nodes.
const PROFILE: &str = "tigon";

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// The modelled machine, with world = "sim"; the paper's if not said
    pub profile: Option<String>,
    /// Seed of losses and of the order of events
    pub seed: u64,
    /// Members of the group, 2 to 16
    #[schemars(range(min = 2, max = 16))]
    pub members: usize,
    /// Bytes of a payload, 16 to 1400 [default: 16, 64, 512, 1400]
    pub payloads: Option<Vec<usize>>,
    /// Undelivered messages per sender [default: 1, 8, 64]
    pub windows: Option<Vec<usize>>,
    /// Senders: "one" or "all"
    pub senders: Vec<Senders>,
    /// Percentages of packets that are lost [default: 0, 0.1, 1]
    pub losses: Option<Vec<f64>>,
    /// Time of the host for a packet of the protocol, in nanoseconds; sim only. The default is the
    /// least that `picnic-micro storm` measures on a current core, times two for the paper's
    pub packet_ns: f64,
    /// The same for an ordered message
    pub message_ns: f64,
    /// Duration of each run, in milliseconds [default: 50 in the sim world, 300 on the host, less
    /// for --quick]
    #[schemars(inner(range(min = 1, max = 60_000)))]
    pub milliseconds: Option<u64>,
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Senders {
    /// The first member.
    One,
    /// All members.
    All,
}

impl Senders {
    fn name(self) -> &'static str {
        match self {
            Senders::One => "one",
            Senders::All => "all",
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            profile: None,
            seed: 1,
            members: 5,
            payloads: None,
            windows: None,
            senders: vec![Senders::One, Senders::All],
            losses: None,
            packet_ns: 500.0,
            message_ns: 200.0,
            milliseconds: None,
        }
    }
}

impl Settings {
    fn payloads(&self, effort: Effort) -> Vec<usize> {
        let usual = effort.of(vec![16, 1400], vec![16, 64, 512, 1400], vec![16, 64, 512, 1400]);
        self.payloads.clone().unwrap_or(usual)
    }

    fn windows(&self, effort: Effort) -> Vec<usize> {
        self.windows.clone().unwrap_or(effort.of(vec![1, 64], vec![1, 8, 64], vec![1, 8, 64]))
    }

    fn losses(&self, effort: Effort) -> Vec<f64> {
        self.losses.clone().unwrap_or(effort.of(
            vec![0.0],
            vec![0.0, 0.1, 1.0],
            vec![0.0, 0.1, 1.0],
        ))
    }

    fn duration(&self, effort: Effort) -> Duration {
        let usual = match self.world {
            World::Sim => effort.of(10, 50, 200),
            World::Host => effort.of(100, 300, 1_000),
        };
        Duration::from_millis(self.milliseconds.unwrap_or(usual))
    }

    /// The machine of the sim world.
    fn machine(&self) -> Result<Profile, ConfigError> {
        let wrong = |message: String| ConfigError::new("profile", message);
        let name = self.profile.as_deref().unwrap_or(PROFILE);
        Profile::named(name).map_err(|error| wrong(error.to_string()))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let (World::Host, Some(name)) = (self.world, &self.profile) {
            let message =
                format!("found \"{name}\" with world = \"host\", allowed only with \"sim\"");
            return Err(ConfigError::new("profile", message));
        }
        self.machine()?;
        let wrong = |key: &str, found: &dyn std::fmt::Display, allowed: &str| {
            Err(ConfigError::new(key, format!("found {found}, allowed: {allowed}")))
        };
        let each = Effort::Usual;
        if let Some(payload) = self.payloads(each).iter().find(|p| !(16..=1400).contains(*p)) {
            return wrong("payloads", payload, "16 to 1400");
        }
        if let Some(window) = self.windows(each).iter().find(|w| !(1..=1024).contains(*w)) {
            return wrong("windows", window, "1 to 1024");
        }
        if let Some(loss) = self.losses(each).iter().find(|loss| !(0.0..=50.0).contains(*loss)) {
            return wrong("losses", loss, "0 to 50");
        }
        for (key, ns) in [("packet_ns", self.packet_ns), ("message_ns", self.message_ns)] {
            if !(1.0..=1e6).contains(&ns) {
                return wrong(key, &ns, "1 to 1000000");
            }
        }
        let is_empty = [
            ("payloads", self.payloads(each).is_empty()),
            ("windows", self.windows(each).is_empty()),
            ("senders", self.senders.is_empty()),
            ("losses", self.losses(each).is_empty()),
        ];
        match is_empty.into_iter().find(|(_, is_empty)| *is_empty) {
            Some((key, _)) => wrong(key, &"nothing", "one value or more"),
            None => Ok(()),
        }
    }
}

/// The experiment.
#[derive(Debug)]
pub struct NicosStorm {
    settings: Settings,
    /// The kernel's time for a frame, fitted at the first use.
    kernel: OnceLock<Result<f64, String>>,
}

impl Component for NicosStorm {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "nicos-storm";
    const HELP: &'static str = "total order of five members' messages, on card and host";

    fn example(_: &Path) -> Option<String> {
        let keys = "payloads = [64]\nwindows = [1, 8]\nsenders = [\"one\"]\nlosses = [0]\n";
        Some(format!("{keys}milliseconds = 5"))
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.check()?;
        Ok(Box::new(NicosStorm { settings, kernel: OnceLock::new() }))
    }
}

impl Reproduces for NicosStorm {
    const PAPER: Row = row(
        "NICOS 4.7",
        "Lamport total ordering among 5 nodes, on the card and on the host",
        &[
            number("latency, host to card", 2.38, Unit::Ratio).ours("latency_host_to_card_ratio"),
            number("throughput, card to host", 1.57, Unit::Ratio)
                .ours("throughput_card_to_host_ratio"),
        ],
    )
    .corrected("768 Mb/s over the stated 100 Mb/s link cannot be: ratios only");
}

/// The places of the protocol, alternating: the reference first.
const SIDES: [&str; 2] = ["host", "card"];

/// The network and the costs of the paper's nodes. `kernel_ns` is the kernel's time for a frame
/// each way, from the driver to the program.
fn model(settings: &Settings, profile: &Profile, kernel_ns: f64) -> Model {
    let Settings { packet_ns, message_ns, .. } = settings;
    let costs = &profile.costs;
    let ns = |cost| costs.ns(cost);
    // Behind a card, the program and the card share memory: no system call, no copy by the kernel.
    // A card in a slot wakes a program by an interrupt.
    let wake = [
        Cost::InterruptWay,
        Cost::Interrupt,
        Cost::RegisterRead,
        Cost::DriverInterrupt,
        Cost::Wake,
        Cost::Switch,
    ];
    let behind_card = Costs {
        message_ns: *message_ns as u64 / 4,
        wake_ns: wake.into_iter().map(ns).sum(),
        ..Costs::default()
    };
    let on_host = Costs {
        receive_ns: kernel_ns as u64,
        send_ns: kernel_ns as u64 + ns(Cost::DriverSend),
        packet_ns: *packet_ns as u64,
        message_ns: *message_ns as u64,
        byte_ns: costs.get(Cost::CopyByte),
        wake_ns: 0,
    };
    Model {
        profile: Some(profile.clone()),
        network: SwitchConfig::default(),
        behind_card,
        on_host,
        card_packet_ns: profile.on_card_ns(*packet_ns) as u64,
        card_message_ns: profile.on_card_ns(*message_ns) as u64,
        repeat_after_ns: 2_000_000,
        suspect_after_ns: 0,
    }
}

/// The kernel's time for a frame with which the order on the host takes the paper's 200 µs.
fn fit(settings: &Settings, profile: &Profile) -> Result<f64, String> {
    let load = Load {
        members: settings.members,
        all_send: false,
        payload_bytes: bench::SHORTEST,
        window_messages: 1,
        loss: 0.0,
        seed: 1,
        duration: Duration::from_millis(5),
    };
    let latency = |kernel_ns: f64| {
        let outcome = cards::in_sim(&load, Place::Host, &model(settings, profile, kernel_ns));
        outcome.map(|outcome| outcome.latency_sender_ns.p50 as f64).map_err(|e| e.to_string())
    };
    let (mut low, mut high) = (0.0, 100_000.0);
    if latency(low)? > PAPERS_HOST_NS || latency(high)? < PAPERS_HOST_NS {
        return Err("no time of the kernel gives the paper's latency on the host".into());
    }
    while high - low > 10.0 {
        let middle = (low + high) / 2.0;
        match latency(middle)? < PAPERS_HOST_NS {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(high.round())
}

impl NicosStorm {
    fn run(&self, place: Place, load: &Load) -> Result<bench::Outcome, LabError> {
        let failed = |error: String| LabError::Failed(error);
        let outcome = match self.settings.world {
            World::Sim => {
                let profile = self.settings.machine().map_err(|error| failed(error.to_string()))?;
                let kernel = self.kernel.get_or_init(|| fit(&self.settings, &profile));
                let model = model(&self.settings, &profile, kernel.clone().map_err(failed)?);
                cards::in_sim(load, place, &model)
            }
            World::Host => bench::until_delivered(load, |load| match place {
                Place::Host => bench::run(load),
                Place::Card => cards::on_cores(load),
            }),
        };
        outcome.map_err(|error| failed(error.to_string()))
    }

    /// Whether each member has a core for its card and one for its program.
    fn has_own_cores(&self) -> bool {
        available().cores.len() >= 2 * self.settings.members
    }
}

impl Experiment for NicosStorm {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let settings = &self.settings;
        let mut points = Vec::new();
        for loss in settings.losses(effort) {
            for senders in &settings.senders {
                for payload in settings.payloads(effort) {
                    for window in settings.windows(effort) {
                        let spec = Spec::at("senders", senders.name())
                            .and("payload_bytes", payload)
                            .and("window", window)
                            .and("loss_percent", loss)
                            .sides(&SIDES);
                        points.push(repeated(spec, settings.world, effort.repeats()));
                    }
                }
            }
        }
        points
    }

    fn measure(&self, spec: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let load = Load {
            members: self.settings.members,
            all_send: spec.word("senders") == Senders::All.name(),
            payload_bytes: spec.number("payload_bytes") as usize,
            window_messages: spec.number("window") as usize,
            loss: spec.number("loss_percent") / 100.0,
            seed: self.settings.seed,
            duration: self.settings.duration(run.effort),
        };
        let place = if side == SIDES[0] { Place::Host } else { Place::Card };
        let seen = self.run(place, &load)?;
        let mut outcome = Outcome::of(self.settings.world.source());
        for (key, value) in [
            ("latency_sender_p50_ns", seen.latency_sender_ns.p50 as f64),
            ("latency_sender_p99_ns", seen.latency_sender_ns.p99 as f64),
            ("latency_last_p50_ns", seen.latency_last_ns.p50 as f64),
            ("latency_last_p99_ns", seen.latency_last_ns.p99 as f64),
            ("ordered_bps", seen.ordered_mbit_per_second * 1e6),
            ("wire_bps", seen.wire_mbit_per_second * 1e6),
            ("messages_per_second", seen.messages_per_second),
            ("host_cpu_per_message_ns", seen.cpu_ns_per_message),
            ("wakeups_per_message", seen.sleeps_per_message),
        ] {
            outcome.add(Figure::one(key, value));
        }
        if let Some(Ok(kernel_ns)) = self.kernel.get() {
            outcome.add(Figure::one(KERNEL_KEY, *kernel_ns));
        }
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let settings = &self.settings;
        let mut outcome = Outcome::with_settings(settings.world.source(), settings);
        let compared = |point: &MeasuredPoint, key: &str| {
            let [host, card] = [0, 1].map(|side| (SIDES[side], point.values(side, key)));
            Labelled::with_labels(point.spec.labels.clone())
                .comparing(Comparison::of(key, host, card))
        };
        let mut series = outcome.series("latency");
        for point in points {
            let of = |side: usize, key: &str| {
                Figure::of(&format!("{}_{key}", SIDES[side]), point.values(side, key)).in_detail()
            };
            let mut found = compared(point, "latency_sender_p50_ns");
            for side in 0..SIDES.len() {
                for key in [
                    "latency_sender_p99_ns",
                    "latency_last_p50_ns",
                    "latency_last_p99_ns",
                    "wire_bps",
                    "messages_per_second",
                    "host_cpu_per_message_ns",
                    "wakeups_per_message",
                ] {
                    found = found.with(of(side, key));
                }
            }
            series.push(found);
        }
        let mut series = outcome.series("throughput");
        points.iter().for_each(|point| series.push(compared(point, "ordered_bps")));
        let lossless = || points.iter().filter(|point| point.spec.number("loss_percent") == 0.0);
        let ratios = |point: &MeasuredPoint, key: &str| {
            let [host, card] = [0, 1].map(|side| point.values(side, key));
            host.into_iter().zip(card).map(|(host, card)| host / card).collect::<Vec<f64>>()
        };
        let size = |point: &MeasuredPoint| {
            (point.spec.number("payload_bytes") as u64, point.spec.number("window") as u64)
        };
        let one = lossless().filter(|point| point.spec.word("senders") == Senders::One.name());
        let shortest = one.min_by_key(|point| size(point));
        let longest =
            lossless().max_by_key(|point| (size(point), point.spec.word("senders") == "all"));
        let is_comparable = settings.world == World::Sim || self.has_own_cores();
        let key = |of: &str| match is_comparable {
            true => format!("{of}_ratio"),
            false => format!("{of}_on_shared_cores_ratio"),
        };
        if let Some(point) = shortest {
            let latency = ratios(point, "latency_sender_p50_ns");
            outcome.add(
                Figure::of(&key("latency_host_to_card"), latency).called("latency, host to card"),
            );
        }
        if let Some(point) = longest {
            let throughput = ratios(point, "ordered_bps").iter().map(|ratio| 1.0 / ratio).collect();
            outcome.add(
                Figure::of(&key("throughput_card_to_host"), throughput)
                    .called("throughput, card to host"),
            );
        }
        for (what, point) in [("latency", shortest), ("throughput", longest)] {
            if let Some(point) = point {
                outcome.note(format!("{what} is compared at {}", point.spec.name()));
            }
        }
        match settings.world {
            World::Sim => {
                let fitted = points.iter().flat_map(|point| point.values(0, KERNEL_KEY)).next();
                if let Some(kernel_ns) = fitted {
                    outcome.note(format!(
                        "fitted: the kernel takes {:.1} µs for a frame, so that the order on the \
                         host takes the paper's 200 µs with one sender, a window of 1 and {} bytes",
                        kernel_ns / 1e3,
                        bench::SHORTEST
                    ));
                }
                outcome.note(format!(
                    "assumed: a packet of the order takes the host {} ns, a message {} ns, and the \
                     card as many times more as profile {} says (card_slowdown)",
                    settings.packet_ns,
                    settings.message_ns,
                    settings.profile.as_deref().unwrap_or(PROFILE)
                ));
            }
            World::Host if !is_comparable => outcome.note(format!(
                "not a reproduction: {} members share {} cores",
                settings.members,
                available().cores.len()
            )),
            World::Host => {}
        }
        outcome.note(
            "the paper gives neither message size nor window nor loss, and its 768 Mb/s exceed its \
             link: only ratios are compared",
        );
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::lines("ordered payload, all send", "points", "window", "host_ordered_bps")
                .and("card_ordered_bps")
                .only("senders", "all")
                .with_logarithms(),
        ]
    }
}
