//! The experiments with web servers: what each asks of which servers, and what its paper found.

use super::WebServers;
use crate::knet_web::WEBFS;
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::unit::Unit;
use picnic_lab::workloads::kind::ServerKind;

/// PICNIC's sends: 4 kB at a time.
const BULK: &str = "workload = \"bulk\"\nserver = \"nginx-copy\"\nsend_bytes = 4096\n\
                    connections = 32\n[[file]]\nbytes = 1000000\nweight = 1\n";
/// KNET's, by whichever server.
const FILES: &str = "workload = \"files\"\nserver = \"webfs\"\nconnections = 64\n\
                     [[file]]\nbytes = 20000\nweight = 1\n";
const PAGES: &str = "workload = \"pages\"\nserver = \"apache\"\nconnections = 16\n\
                     patience_ms = 1000\n[[file]]\nbytes = 300000\nweight = 1\nphp = true\n";

/// What an experiment varies.
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
    /// What the paper found.
    pub(super) paper: Row,
    /// Clients, each with a wire of the card for itself.
    pub(super) clients: u8,
    /// Loads with --quick.
    pub(super) quick_loads: &'static [f64],
    /// Loads in the example: all by system go the same way there, so one of them is enough.
    pub(super) example_loads: &'static str,
}

const USUAL: Preset = Preset {
    name: "",
    help: "",
    workload: "",
    varied: Variation::Servers(&[]),
    paper: row("", "", &[]),
    clients: 1,
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
            number("1 to 2 queues", 0.29, Unit::Change).ours("2_over_1_queues_gain"),
            number("2 to 6 queues", 0.06, Unit::Change).ours("6_over_2_queues_gain"),
            number("1 to 6 queues", 0.37, Unit::Change).ours("6_over_1_queues_gain"),
            words("JHash over Toeplitz", "no difference, so that the card could use JHash")
                .ours("jhash_over_toeplitz_change"),
        ],
    ),
        clients: 4,
        ..USUAL
    },
    Preset {
        name: "rss-bulk",
        help: "bulk transmit by RSS queues (root, nginx)",
        workload: BULK,
        varied: Variation::Queues(&[1, 2, 4], &["toeplitz"]),
        paper: row(
        "PICNIC 5.3 (its reference 7)",
        "bulk transmit, 32 flows of 1 MB files, 4 kB sends, 1, 2 and 4 queues",
        &[
            number("1 queue", 5.090e9, Unit::BitsPerSecond).ours("payload_1_queue_bps"),
            number("2 queues", 6.023e9, Unit::BitsPerSecond).ours("payload_2_queues_bps"),
            number("4 queues", 6.274e9, Unit::BitsPerSecond).ours("payload_4_queues_bps"),
            number("1 to 2 queues", 0.18, Unit::Change).ours("2_over_1_queues_gain"),
            number("1 to 4 queues", 0.23, Unit::Change).ours("4_over_1_queues_gain"),
        ],
    ),
        ..USUAL
    },
    Preset {
        name: "knet-webfs",
        help: "files of 20 KB from webfs, by KNET's systems (root, webfs)",
        workload: FILES,
        varied: Variation::Servers(&[ServerKind::Webfs]),
        paper: row(
    "KNET, \"Webfs/Sclient (20K-file)\"",
    "the same with webfs itself, and a client that goes on beyond saturation",
    WEBFS,
)
.corrected(
    "CLAS over NAPI is not in the paper: it follows from the other two. It measured webfs without \
             sendfile in this row; Debian's always uses it, so the paper's figures with sendfile (17 \
             and 30 %) may be the nearer ones",
),
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
            number("KNET over CLAS", 0.17, Unit::Change).ours("knet_over_clas_gain"),
            number("KNET over NAPI", 0.30, Unit::Change).ours("knet_over_napi_gain"),
            number("CLAS over NAPI", 0.11, Unit::Change).ours("clas_over_napi_gain"),
        ],
    ),
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
            number("KNET over CLAS", 0.20, Unit::Change).ours("knet_over_clas_gain"),
            number("KNET over NAPI", 0.27, Unit::Change).ours("knet_over_napi_gain"),
            number("CLAS over NAPI", 0.06, Unit::Change).ours("clas_over_napi_gain"),
        ],
    ),
        ..USUAL
    },
    Preset {
        name: "knet-pages",
        help: "PHP pages, offered up to 10 times too many (root, apache2)",
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
