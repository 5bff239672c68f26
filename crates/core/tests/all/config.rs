//! The card file: the message of each kind of mistake, literally; and nothing panics.

mod components;
mod input;
mod settings;

use picnic_core::config::{
    CardFile, CoreChoice, DEMONSTRATION, Idle, InterruptSection, Section, SectionConfig,
    SectionEntry, Sections, Shape, TargetCores,
};
use picnic_core::error::ConfigError;
use picnic_core::packet::pool::PoolConfig;
use picnic_core::ring::moderation::ModerationMode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// `[trace]`: a section of another crate.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Trace {
    /// Where to.
    path: String,
    /// How much.
    #[schemars(range(min = 1, max = 10))]
    share: Option<u8>,
}

impl SectionConfig for Trace {
    const NAME: &'static str = "trace";
    const HELP: &'static str = "A trace.";
    const SHAPE: Shape = Shape::Optional;

    fn check(&self) -> Result<(), ConfigError> {
        match self.path.as_str() {
            "" => Err(ConfigError::new("path", "found none, allowed: a name")),
            _ => Ok(()),
        }
    }
}

fn sections() -> Sections {
    Sections::core().with(&[SectionEntry::of::<Trace>()])
}

fn parse(text: &str) -> Result<CardFile, ConfigError> {
    sections().parse(text, Some(Path::new("cards/nic.toml")))
}

/// The message to the user, after the file's name.
fn told(text: &str) -> String {
    let shown = parse(text).expect_err(text).to_string();
    shown.strip_prefix("cards/nic.toml:").expect("the file is named").to_owned()
}

#[test]
fn an_empty_file_is_the_demonstration_card() {
    let card = CardFile::parse(DEMONSTRATION, None).unwrap();
    assert_eq!((card.card.name.as_str(), card.card.seed), ("picnic0", 1));
    assert_eq!((&*card.card.engine, card.card.idle), ("poll", Idle::Adaptive));
    assert_eq!(card.card.borrowed_core, CoreChoice::Auto);
    assert_eq!((card.card.burst, card.card.default_queue), (64, 0));
    assert_eq!(card.pool, PoolConfig::default());
    assert_eq!(card.wires.len(), 1);
    assert_eq!((card.wires[0].name.as_str(), card.wires[0].port.name()), ("wire0", "generator"));
    assert!(card.wires[0].fault.is_none() && card.tx.is_empty());
    assert_eq!(card.rx.iter().map(Section::name).collect::<Vec<_>>(), ["rss"]);
    assert_eq!((card.host.queues, card.host.ring_size, card.host.tx_ring_size), (4, 1024, 1024));
    assert_eq!(card.host.target_cores, TargetCores::Auto);
    assert_eq!(card.host.section.name(), "app");
    let moderation = ModerationMode::Static { usecs: 20, frames: 64 };
    assert_eq!(card.interrupt.moderation(), moderation);
    // Comments and blank lines change nothing; an empty chain is one without functions.
    assert_eq!(parse("# nothing\n\n").unwrap().rx.len(), 1);
    assert_eq!(parse("rx = []\n").unwrap().rx.len(), 0);
}

#[test]
fn a_whole_card_is_read() {
    let card = parse(
        r#"
        [card]
        name = "nic"
        borrowed_core = 7
        idle = "spin"
        [[wire]]
        port = "pcap"
        path = "web.pcap"
        [wire.fault]
        drop = 0.5
        [[wire]]
        name = "uplink"
        [[rx]]
        function = "pass"
        [[rx]]
        function = "rss"
        table_size = 64
        [[tx]]
        function = "drop"
        [host]
        attachment = "tap"
        queues = 2
        target_cores = [0, 3]
        [interrupt]
        adaptive = true
        rx_usecs = 50
        [trace]
        path = "out.pcapng"
        "#,
    )
    .unwrap();
    assert_eq!(card.card.borrowed_core, CoreChoice::Chosen(7));
    let wires: Vec<_> = card.wires.iter().map(|w| (w.name.as_str(), w.port.name())).collect();
    assert_eq!(wires, [("wire0", "pcap"), ("uplink", "generator")]);
    assert_eq!(card.wires[0].fault.as_ref().map(Section::name), Some("fault"));
    assert_eq!(card.rx.iter().map(Section::name).collect::<Vec<_>>(), ["pass", "rss"]);
    assert_eq!(card.tx.iter().map(Section::name).collect::<Vec<_>>(), ["drop"]);
    assert_eq!(card.host.target_cores, TargetCores::Chosen(vec![0, 3]));
    assert_eq!(card.host.section.name(), "tap");
    assert_eq!(card.interrupt.moderation(), ModerationMode::Adaptive { max_usecs: 50 });
    assert_eq!(card.given::<Trace>().len(), 1);
    assert_eq!(card.section::<Trace>().path, "out.pcapng");
    assert!(parse("").unwrap().given::<Trace>().is_empty());
    assert_eq!(card.directory, PathBuf::from("cards"));

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Keys {
        path: String,
    }
    // The section's own keys, without its name and common keys.
    assert_eq!(card.wires[0].port.parse::<Keys>().unwrap().path, "web.pcap");
}

#[test]
fn moderation_follows_the_keys() {
    let mode = |text: &str| parse(&format!("[interrupt]\n{text}")).unwrap().interrupt.moderation();
    assert_eq!(mode("rx_usecs = 0"), ModerationMode::None);
    assert_eq!(mode("rx_frames = 0"), ModerationMode::Static { usecs: 20, frames: 0 });
    assert_eq!(mode("adaptive = true"), ModerationMode::Adaptive { max_usecs: 20 });
}

#[test]
fn unknown_names_list_the_known_ones() {
    let sections = "card, pool, wire, rx, tx, class, host, interrupt, device, trace";
    let cord = "found section \"cord\", allowed";
    assert_eq!(told("[cord]\n"), format!("1: cord: {cord}: {sections}; did you mean \"card\"?"));
    assert_eq!(told("\nx = 1"), format!("2: x: found section \"x\", allowed: {sections}"));
    // A section that the program does not allow is unknown, whoever else has it.
    let error = CardFile::parse("[trace]\n", None).unwrap_err().to_string();
    assert_eq!(
        error,
        "card:1: trace: found section \"trace\", allowed: card, pool, wire, rx, tx, class, host, interrupt, device"
    );
    assert_eq!(
        told("[interrupt]\n\nrx_usec = 1"),
        "3: interrupt.rx_usec: found key \"rx_usec\", allowed: rx_usecs, rx_frames, adaptive, \
         per_packet, gate, wire_usecs, wire_frames, tx_complete, poll_usecs, tx_usecs; did you mean \
         \"rx_usecs\"?"
    );
    assert_eq!(
        told("[card]\nidle = \"blok\""),
        "2: card.idle: found \"blok\", allowed: spin, adaptive, block; did you mean \"block\"?"
    );
}

#[test]
fn wrong_types_show_the_value_found() {
    for (text, expected) in [
        ("[card]\nname = 3", "2: card.name: found 3, allowed: text in quotes"),
        (
            "[host]\nqueues = \"4\"",
            "2: host.queues: found \"4\", allowed: a whole number, 0 to 65535",
        ),
        ("[card]\nburst = -1", "2: card.burst: found -1, allowed: 1 to 64"),
        (
            "[pool]\nbuffers = 5000000000",
            "2: pool.buffers: found 5000000000, allowed: 64 to 1048576",
        ),
        ("[interrupt]\nadaptive = 1", "2: interrupt.adaptive: found 1, allowed: true or false"),
        (
            "[card]\nborrowed_core = \"last\"",
            "2: card.borrowed_core: found \"last\", allowed: \"auto\" or a core number",
        ),
        (
            "[host]\ntarget_cores = 3",
            "2: host.target_cores: found 3, allowed: \"auto\" or a list of core numbers",
        ),
        ("[host]\nattachment = 3", "2: host.attachment: found 3, allowed: a name in quotes"),
        ("[[wire]]\nfault = 3", "2: wire[0].fault: found 3, allowed: a set of keys"),
        ("[card]\nidle = 3", "2: card.idle: found 3, allowed: spin, adaptive, block"),
        ("card = 3", "1: card: found 3, allowed: a section [card]"),
        ("[[pool]]", "1: pool: found [a set of keys], allowed: a section [pool]"),
        ("wire = 3", "1: wire: found 3, allowed: sections [[wire]]"),
        ("[wire]\nport = \"pcap\"", "1: wire: found a set of keys, allowed: sections [[wire]]"),
        ("rx = [1]", "1: rx: found [1], allowed: sections [[rx]]"),
    ] {
        assert_eq!(told(text), expected);
    }
}

#[test]
fn values_out_of_range_show_the_range() {
    for (text, expected) in [
        ("[card]\nburst = 0", "2: card.burst: found 0, allowed: 1 to 64"),
        ("[card]\nburst = 65", "2: card.burst: found 65, allowed: 1 to 64"),
        ("[card]\nwire_backlog = 3", "2: card.wire_backlog: found 3, allowed: 64 to 65536"),
        ("[card]\ndefault_queue = 4", "2: card.default_queue: found 4, allowed: 0 to 3"),
        ("[host]\nqueues = 0", "2: host.queues: found 0, allowed: 1 to 256"),
        ("[host]\nqueues = 257", "2: host.queues: found 257, allowed: 1 to 256"),
        (
            "[host]\nring_size = 100",
            "2: host.ring_size: found 100, allowed: a power of two, 64 to 65536",
        ),
        (
            "[host]\ntx_bytes_in_flight = 100",
            "2: host.tx_bytes_in_flight: found 100, allowed: 1514 to 1073741824",
        ),
        (
            "[host]\npriority = \"high\"",
            "2: host.priority: found \"high\", allowed: auto, normal, real-time",
        ),
        (
            "[host]\ntx_ring_size = 131072",
            "2: host.tx_ring_size: found 131072, allowed: a power of two, 64 to 65536",
        ),
        (
            "[host]\nsystem = \"clas\"\nqueues = 1",
            "3: host.queues: found 1 with system = \"clas\", allowed: 2 or more",
        ),
        (
            "[host]\nsystem = \"napi\"\n[card]\ndefault_queue = 1",
            "4: card.default_queue: found 1, allowed: 0 to 0",
        ),
        (
            "[host]\ntarget_cores = [0, 1]",
            "2: host.target_cores: found 2 cores for 4 queues, \
             allowed: one core for each queue, or \"auto\"",
        ),
        ("[pool]\nbuffers = 3", "2: pool.buffers: found 3, allowed: 64 to 1048576"),
        ("[pool]\nheadroom = 65", "2: pool.headroom: found 65, allowed: 0 to 1024 in steps of 64"),
        (
            "[pool]\nbuffer_size = 61440\nbuffers = 1048576",
            "3: pool.buffers: found 1048576 of 61632 bytes each (buffer_size, headroom and \
             header), together 64625836032 bytes; allowed: 34359738368 bytes, 557498 buffers",
        ),
        (
            "[interrupt]\nrx_usecs = 1000001",
            "2: interrupt.rx_usecs: found 1000001, allowed: 0 to 1000000",
        ),
        (
            "[interrupt]\npoll_usecs = 1000001",
            "2: interrupt.poll_usecs: found 1000001, allowed: 0 to 1000000",
        ),
        (
            "[interrupt]\ntx_usecs = 1000001",
            "2: interrupt.tx_usecs: found 1000001, allowed: 0 to 1000000",
        ),
        (
            "[interrupt]\nper_packet = true\nrx_frames = 8",
            "3: interrupt.rx_frames: found 8 with per_packet = true, allowed: 0 or no key",
        ),
        (
            "[interrupt]\nadaptive = true\nper_packet = true",
            "2: interrupt.adaptive: found true with per_packet = true, allowed: false",
        ),
        (
            "[interrupt]\npoll_usecs = 5\ngate = \"none\"",
            "2: interrupt.poll_usecs: found 5 with gate = \"none\", allowed: 0",
        ),
        (
            "[interrupt]\nwire_frames = 8",
            "2: interrupt.wire_frames: found 8 without wire_usecs, allowed: 0, or a time",
        ),
        (
            "[interrupt]\ntx_complete = \"now\"",
            "2: interrupt.tx_complete: found \"now\", allowed: off, interrupt, moderated",
        ),
    ] {
        assert_eq!(told(text), expected);
    }
}

/// Changes of a running card are refused with the same messages as the card file.
#[test]
fn changes_are_refused_as_in_card_files() {
    let choices = [
        ("per_packet", json!([false, true])),
        ("adaptive", json!([false, true])),
        ("rx_frames", json!([64, 0, 8])),
        ("gate", json!(["queue", "none"])),
        ("poll_usecs", json!([0, 5])),
        ("wire_usecs", json!([0, 50, 1_000_001])),
        ("wire_frames", json!([0, 8, 65_537])),
    ];
    let mut sets = vec![Map::new()];
    for (key, values) in &choices {
        let with = |set: &Map<String, Value>, value: &Value| {
            let mut set = set.clone();
            set.insert((*key).into(), value.clone());
            set
        };
        let values = values.as_array().unwrap();
        sets = sets.iter().flat_map(|set| values.iter().map(|value| with(set, value))).collect();
    }
    let mut refused = 0;
    for set in sets {
        let keys = set.iter().map(|(key, value)| format!("{key} = {value}\n"));
        let of_file = parse(&format!("[interrupt]\n{}", keys.collect::<String>()));
        let of_file = of_file.map(|card| card.interrupt).map_err(|error| error.to_string());
        match (of_file, InterruptSection::default().changed(&set)) {
            (Ok(card), Ok(running)) => assert_eq!(card, running),
            (Err(card), Err(running)) => {
                let same = format!("interrupt.{running}");
                assert!(card.lines().any(|line| line.ends_with(&same)), "{card}\n{same}");
                refused += 1;
            }
            (card, running) => panic!("{set:?}: {card:?}, {running:?}"),
        }
    }
    assert!(refused > 0);
}

/// Counted before any section is read: these have no names.
#[test]
fn too_many_sections_are_refused_before_reading() {
    let told = |text: &str, count| told(&text.repeat(count));
    assert_eq!(told("[[wire]]\nport = 3\n", 256), "1: wire: found 256, allowed: 1 to 255");
    assert_eq!(told("[[rx]]\n", 65), "1: rx: found 65, allowed: 0 to 64");
    assert_eq!(told("[[tx]]\n", 65), "1: tx: found 65, allowed: 0 to 64");
    assert!(parse(&"[[tx]]\nfunction = \"pass\"\n".repeat(64)).is_ok());
}

#[test]
fn a_file_is_no_longer_than_a_mebibyte() {
    let longest = "#".repeat(1 << 20);
    assert!(parse(&longest).is_ok());
    let longer = parse(&(longest + "#")).unwrap_err().to_string();
    let expected = "found more than 1048576 bytes, allowed: up to 1048576";
    assert_eq!(longer, format!("cards/nic.toml:1: {expected}"));
    // An endless file is not read to its end.
    let endless = CardFile::read(Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(endless, format!("/dev/zero:1: {expected}"));
}

#[test]
fn wires_have_names_of_their_own() {
    let two = |first: &str, second: &str| told(&format!("[[wire]]\n{first}\n[[wire]]\n{second}"));
    assert_eq!(
        two("name = \"a\"", "name = \"a\""),
        "4: wire[1].name: found \"a\", which is the name of wire[0]"
    );
    // A wire without a name is named by its number.
    assert_eq!(
        two("", "name = \"wire0\""),
        "4: wire[1].name: found \"wire0\", which is the name of wire[0]"
    );
    assert_eq!(
        two("name = \"wire1\"", ""),
        "2: wire[0].name: found \"wire1\", which is the name of wire[1]"
    );
}

#[test]
fn missing_values_and_syntax_errors_are_reported() {
    assert_eq!(told("\n[[rx]]\nhash = 1"), "2: rx[0]: missing function, expected a name");
    assert_eq!(told("[card"), "1: unclosed table, expected `]`");
    assert_eq!(told("[card]\nseed = 1\nseed = 2"), "3: card.seed: found twice, allowed: once");
    assert!(told("[card]\nname = nic\n").starts_with("2: "));
    let missing = CardFile::read(Path::new("no/such.toml")).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "no/such.toml: cannot be read: No such file or directory (os error 2)"
    );
    // The built-in card has no file.
    let built_in = CardFile::parse("[card]\nburst = 0", None).unwrap_err();
    assert_eq!(built_in.to_string(), "card:2: card.burst: found 0, allowed: 1 to 64");
}

#[test]
fn lines_are_right_however_they_end() {
    assert_eq!(
        told("[card]\r\nname = \"a\"\r\n\r\nburst = 99\r\n"),
        "4: card.burst: found 99, allowed: 1 to 64"
    );
    assert_eq!(
        told("\u{feff}# first\n[card]\nburst = 99"),
        "3: card.burst: found 99, allowed: 1 to 64"
    );
    // In an array over several lines, the line of the item.
    assert_eq!(
        told("[host]\ntarget_cores = [\n  0, # é\n  1,\n  \"x\",\n  3\n]\n"),
        "5: host.target_cores[2]: found \"x\", allowed: a whole number from 0"
    );
    assert_eq!(
        told("[card]\nname = \"\"\"\nover\nlines\"\"\"\nburst = 99"),
        "5: card.burst: found 99, allowed: 1 to 64"
    );
    assert_eq!(
        told("[[wire]]\n[[wire]]\n\n[[wire]]\nport = 3"),
        "5: wire[2].port: found 3, allowed: a name in quotes"
    );
    assert_eq!(
        told("wire = [\n  { port = \"pcap\" },\n  { port = 3 },\n]"),
        "3: wire[1].port: found 3, allowed: a name in quotes"
    );
}

#[test]
fn messages_are_one_line_of_limited_length() {
    assert_eq!(told("card = [\n 1,\r\n 2\n]"), "1: card: found [1, 2], allowed: a section [card]");
    assert!(told("\"a\\nb\" = 3").starts_with("1: a b: found section \"a b\""));
    assert!(told("[card]\n\"a\\u001bb\" = 3").starts_with("2: card.a b: found key \"a b\""));
    let long = format!("card = \"{}\"", "é".repeat(5000));
    assert!(told(&long).contains("ééé..., allowed: "));
    assert!(told(&long).chars().count() < 150);
}
