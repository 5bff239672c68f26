//! The experiments with web servers: their workloads and servers, and the papers' findings.

use super::WebServers;
use crate::modelled::{Curve, along};
use crate::testbeds::piii::{self, Site, System};
use crate::testbeds::x5355;
use picnic_lab::experiment::Effort;
use picnic_lab::outcome::{Figure, Point};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::unit::Unit;
use picnic_lab::workloads::kind::ServerKind;
use picnic_sim::machine::Profile;

/// PICNIC's sends: 4 kB at a time.
const BULK: &str = "workload = \"bulk\"\nserver = \"nginx-copy\"\nsend_bytes = 4096\n\
                    connections = 32\n[[file]]\nbytes = 1000000\nweight = 1\n";
/// KNET's, with any server.
const FILES: &str = "workload = \"files\"\nserver = \"webfs\"\nconnections = 64\n\
                     [[file]]\nbytes = 20000\nweight = 1\n";
const PAGES: &str = "workload = \"pages\"\nserver = \"apache\"\nconnections = 16\n\
                     patience_ms = 1000\n[[file]]\nbytes = 300000\nweight = 1\nphp = true\n";

/// The varied setting of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variation {
    /// Queues, and the hashes that take turns.
    Queues(&'static [u16], &'static [&'static str]),
    /// Servers; the systems take turns.
    Servers(&'static [ServerKind]),
}

/// One of the experiments.
#[derive(Clone, Copy)]
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// The name of a workload, or its text.
    pub(super) workload: &'static str,
    pub(super) varied: Variation,
    /// The paper's findings.
    pub(super) paper: Row,
    /// Clients, each with its own wire of the card.
    pub(super) clients: u8,
    /// Loads with --quick.
    pub(super) quick_loads: &'static [f64],
    /// The paper's curve on its machine.
    pub(super) curve: Option<Curve>,
    /// Loads in the example: all experiments by system behave the same there, so one load is
    /// enough.
    pub(super) example_loads: &'static str,
}

const USUAL: Preset = Preset {
    name: "",
    help: "",
    workload: "",
    varied: Variation::Servers(&[]),
    paper: row("", "", &[]),
    clients: 1,
    curve: None,
    quick_loads: &[0.5, 2.0],
    example_loads: "[]",
};

/// `rss-web`.
pub type RssWeb = WebServers<0>;
/// `rss-bulk`.
pub type RssBulk = WebServers<1>;
/// `knet-webfs`.
pub type KnetWebfs = WebServers<2>;
/// `knet-sendfile`.
pub type KnetSendfile = WebServers<3>;
/// `knet-apache`.
pub type KnetApache = WebServers<4>;
/// `knet-pages`.
pub type KnetPages = WebServers<5>;

/// Payload by queues.
const fn payload(points: fn(&Profile, Effort) -> Result<Vec<Point>, String>) -> Curve {
    let plot = || Plot::lines("payload by queues", "payload", "queues", "payload_bps");
    Curve { series: "payload", points, plot }
}

/// Requests by system.
const fn requests(points: fn(&Profile, Effort) -> Result<Vec<Point>, String>) -> Curve {
    let plot = || Plot::bars("requests by system", "requests", "requests_per_second");
    Curve { series: "requests", points, plot }
}

fn systems(profile: &Profile, site: Site, effort: Effort) -> Result<Vec<Point>, String> {
    let point = |(name, system): (&str, System)| {
        let rate = piii::requests_per_second(profile, site, system, effort)?;
        Ok(Point::at("system", name).with(Figure::one("requests_per_second", rate)))
    };
    let all = [("knet", System::Knet), ("clas", System::Clas), ("napi", System::Napi)];
    all.into_iter().map(point).collect()
}

/// By the number of their types.
pub(super) const PRESETS: [Preset; 6] = [
    Preset {
        name: "rss-web",
        help: "web server throughput by RSS queues (root, apache2, PHP)",
        workload: "support",
        varied: Variation::Queues(&[1, 2, 3, 4, 5, 6], &["toeplitz", "jhash"]),
        paper: row(
        "PICNIC fig. 8",
        "web server throughput, 1 to 6 RSS queues, server on all six targets",
        &[
            number("1 to 2 queues", 0.29, Unit::Change)
                .ours("2_over_1_queues_gain")
                .modelled_and(x5355::web_1_to_2, x5355::web_1_to_2_formula),
            number("2 to 6 queues", 0.06, Unit::Change)
                .ours("6_over_2_queues_gain")
                .modelled(x5355::web_2_to_6),
            number("1 to 6 queues", 0.37, Unit::Change)
                .ours("6_over_1_queues_gain")
                .modelled(x5355::web_1_to_6),
            words("JHash over Toeplitz", "no difference, so that the card could use JHash")
                .ours("jhash_over_toeplitz_change"),
        ],
    )
    .on("x5355", 8),
        curve: Some(payload(|profile, effort| {
            Ok(along("queues", "payload_bps", x5355::web_by_queues(profile, effort)?))
        })),
        clients: 4,
        ..USUAL
    },
    Preset {
        name: "rss-bulk",
        help: "bulk transmit by number of RSS queues (root, nginx)",
        workload: BULK,
        varied: Variation::Queues(&[1, 2, 4], &["toeplitz"]),
        paper: row(
        "PICNIC 5.3 (its reference 7)",
        "bulk transmit, 32 flows of 1 MB files, 4 kB sends, 1, 2 and 4 queues",
        &[
            number("1 queue", 5.090e9, Unit::BitsPerSecond)
                .ours("payload_1_queue_bps")
                .modelled(x5355::bulk_1),
            number("2 queues", 6.023e9, Unit::BitsPerSecond).ours("payload_2_queues_bps"),
            number("4 queues", 6.274e9, Unit::BitsPerSecond).ours("payload_4_queues_bps"),
            number("1 to 2 queues", 0.183, Unit::Change)
                .ours("2_over_1_queues_gain")
                .modelled(x5355::bulk_1_to_2),
            number("1 to 4 queues", 0.233, Unit::Change)
                .ours("4_over_1_queues_gain")
                .modelled(x5355::bulk_1_to_4),
        ],
    )
    .on("x5355-tx", 9),
        curve: Some(payload(|profile, effort| {
            Ok(along("queues", "payload_bps", x5355::bulk_by_queues(profile, effort)?))
        })),
        ..USUAL
    },
    Preset {
        name: "knet-webfs",
        help: "files of 20 KB from webfs, by KNET's systems (root, webfs)",
        workload: FILES,
        varied: Variation::Servers(&[ServerKind::Webfs]),
        paper: row(
    "KNET, \"Webfs/Sclient (20K-file)\"",
    "web server (20 KB files): classes in the NIC (KNET), in the kernel (CLAS), one queue (NAPI)",
    &[
        number("KNET over CLAS", 0.12, Unit::Change)
            .ours("knet_over_clas_gain")
            .modelled(piii::webfs_over_clas),
        number("KNET over NAPI", 0.17, Unit::Change)
            .ours("knet_over_napi_gain")
            .modelled(piii::webfs_over_napi),
        number("CLAS over NAPI", 0.045, Unit::Change).ours("clas_over_napi_gain"),
        number("packets per interrupt, KNET", 45.0, Unit::Count)
            .ours("knet_packets_per_interrupt")
            .modelled(piii::knet_per_interrupt),
        number("packets per interrupt, CLAS", 5.6, Unit::Count)
            .ours("clas_packets_per_interrupt")
            .modelled(piii::clas_per_interrupt),
        number("packets per interrupt, NAPI", 40.0, Unit::Count)
            .ours("napi_packets_per_interrupt")
            .modelled(piii::napi_per_interrupt),
        number("driver rx, KNET", 0.05, Unit::Fraction)
            .ours("knet_driver_share")
            .modelled(piii::knet_driver),
        number("driver rx, CLAS", 0.12, Unit::Fraction)
            .ours("clas_driver_share")
            .modelled(piii::clas_driver),
        number("locks, CLAS", 0.06, Unit::Fraction)
            .ours("clas_handover_share")
            .modelled(piii::clas_locks),
    ],
)
.on("piii", 5)
.corrected(
    "CLAS over NAPI is not in the paper: it follows from the other two. It measured webfs without \
             sendfile in this row; Debian's always uses it, so the paper's figures with sendfile (17 \
             and 30 %) may be the nearer ones",
),
        curve: Some(requests(|profile, effort| systems(profile, Site::Webfs, effort))),
        ..USUAL
    },
    Preset {
        name: "knet-sendfile",
        help: "nginx with and without sendfile, by KNET's systems (root)",
        workload: FILES,
        varied: Variation::Servers(&[ServerKind::NginxCopy, ServerKind::Nginx]),
        paper: row(
        "KNET",
        "the same with sendfile",
        &[
            number("KNET over CLAS", 0.17, Unit::Change)
                .ours("knet_over_clas_gain")
                .modelled(piii::sendfile_over_clas),
            number("KNET over NAPI", 0.30, Unit::Change)
                .ours("knet_over_napi_gain")
                .modelled(piii::sendfile_over_napi),
            number("CLAS over NAPI", 0.11, Unit::Change).ours("clas_over_napi_gain"),
        ],
    )
    .on("piii", 5),
        curve: Some(requests(|profile, effort| systems(profile, Site::Sendfile, effort))),
        ..USUAL
    },
    Preset {
        name: "knet-apache",
        help: "a mix of files from Apache, by KNET's systems (root, apache2)",
        workload: "webstone",
        varied: Variation::Servers(&[ServerKind::Apache]),
        paper: row(
        "KNET",
        "Apache under WebStone",
        &[
            number("KNET over CLAS", 0.20, Unit::Change)
                .ours("knet_over_clas_gain")
                .modelled(piii::apache_over_clas),
            number("KNET over NAPI", 0.27, Unit::Change)
                .ours("knet_over_napi_gain")
                .modelled(piii::apache_over_napi),
            number("CLAS over NAPI", 0.06, Unit::Change).ours("clas_over_napi_gain"),
        ],
    )
    .on("piii", 5),
        curve: Some(requests(|profile, effort| systems(profile, Site::Apache, effort))),
        ..USUAL
    },
    Preset {
        name: "knet-pages",
        help: "PHP pages at up to 10 times the capacity (root, apache2)",
        workload: PAGES,
        varied: Variation::Servers(&[ServerKind::Apache]),
        paper: row(
        "KNET (its client after Banga and Druschel)",
        "pages that PHP makes, offered up to 10 times too many",
        &[
            words("KNET over CLAS", "not measured").ours("knet_over_clas_gain"),
            words("KNET over NAPI", "not measured").ours("knet_over_napi_gain"),
            words("CLAS over NAPI", "not measured").ours("clas_over_napi_gain"),
        ],
    ),
        quick_loads: &[0.5, 10.0],
        example_loads: "[2.0]",
        ..USUAL
    },
];
