//! The card file: the message of each kind of mistake, literally; and nothing panics.

use picnic_core::config::{
    CardFile, CoreChoice, DEMONSTRATION, Idle, InterruptSection, Section, SectionConfig,
    SectionEntry, Sections, Setting, Shape, TargetCores, keys_of,
};
use picnic_core::error::ConfigError;
use picnic_core::packet::pool::PoolConfig;
use picnic_core::registry::{BuildContext, Component, Entry, find};
use picnic_core::ring::moderation::ModerationMode;
use proptest::prelude::*;
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

// ---------------------------------------------------------------- components

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct CounterConfig {
    /// Where to start.
    start: u32,
    /// Names,
    /// in order.
    names: Vec<String>,
    /// A word, if any.
    word: Option<String>,
}

struct CounterPart;

impl Component for CounterPart {
    type Product = u32;
    type Config = CounterConfig;
    const NAME: &'static str = "counter";
    const HELP: &'static str = "counts";

    fn build(config: CounterConfig, context: &BuildContext) -> Result<u32, ConfigError> {
        if config.start > 9 {
            return Err(ConfigError::new("start", "found more than 9"));
        }
        if let Some(index) = config.names.iter().position(String::is_empty) {
            return Err(ConfigError::new(format!("names[{index}]"), "found no name"));
        }
        Ok(config.start + context.position as u32)
    }
}

const REGISTRY: &[Entry<u32>] = &[Entry::of::<CounterPart>()];

fn build(text: &str) -> Result<u32, ConfigError> {
    let card = parse(text)?;
    let context = BuildContext { position: 100, ..BuildContext::default() };
    find(REGISTRY, &card.rx[0])?.build(&card.rx[0], &context)
}

#[test]
fn components_are_found_and_built() {
    assert_eq!(build("[[rx]]\nfunction = \"counter\"\nstart = 3").unwrap(), 103);
    let told = |text: &str| build(text).unwrap_err().to_string();
    assert_eq!(
        told("[[rx]]\nfunction = \"conter\""),
        "cards/nic.toml:2: rx[0].function: found \"conter\", allowed: counter; did you mean \"counter\"?"
    );
    assert_eq!(
        told("[[rx]]\nfunction = \"counter\"\n\nstart = 10"),
        "cards/nic.toml:4: rx[0].start: found more than 9"
    );
    assert_eq!(
        told("[[rx]]\nfunction = \"counter\"\nnames = [\n\"a\",\n\"\"]"),
        "cards/nic.toml:5: rx[0].names[1]: found no name"
    );
    assert_eq!(
        told("[[rx]]\nfunction = \"counter\"\nstrt = 10"),
        "cards/nic.toml:3: rx[0].strt: found key \"strt\", allowed: start, names, word, function; \
         did you mean \"start\"?"
    );
    let section = Section::from_text("function", "function = \"counter\"\nstart = \"x\"").unwrap();
    assert_eq!(
        REGISTRY[0].build(&section, &BuildContext::default()).unwrap_err().to_string(),
        "card:2: start: found \"x\", allowed: a whole number, 0 to 4294967295"
    );
    let unnamed = Section::from_text("port", "path = \"x\"").unwrap_err();
    assert_eq!(unnamed.to_string(), "card: missing port, expected a name");
    assert_eq!(Section::named("function", "counter").parse::<CounterConfig>().unwrap().start, 0);
}

#[test]
fn every_key_has_type_default_and_help() {
    for entry in sections().iter() {
        let section = entry.name;
        assert!(!entry.help.is_empty(), "[{section}] has help");
        for key in entry.keys() {
            let place = format!("{section}.{}", key.name);
            assert!(!key.r#type.is_empty() && !key.r#type.contains("value"), "{place}: {key:?}");
            assert!(!key.help.is_empty() && !key.help.contains('\n'), "{place}: {key:?}");
            if matches!(section, "wire" | "trace" | "class" | "device") {
                continue;
            }
            assert!(!key.default.is_empty(), "{place}: {key:?}");
            // The default is TOML that the section takes.
            parse(&format!("[{section}]\n{} = {}", key.name, key.default)).expect(&place);
        }
    }
    let keys = keys_of::<CounterConfig>();
    let rows: Vec<_> = keys
        .iter()
        .map(|key| [&key.name, &key.r#type, &key.default, &key.help].map(String::as_str))
        .collect();
    for row in [
        ["start", "integer", "0", "Where to start."],
        ["names", "list of string", "[]", "Names, in order."],
        ["word", "string", "", "A word, if any."],
    ] {
        assert!(rows.contains(&row), "{row:?} in {rows:?}");
    }
}

// ---------------------------------------------------------------- any input

const SAMPLE: &str = r#"
[card]
name = "nic"
engine = "poll"
borrowed_core = "auto"
burst = 64
[pool]
buffers = 4096
[[wire]]
port = "pcap"
path = "web.pcap"
[wire.fault]
drop = 0.5
[[rx]]
function = "rss"
table = [0, 1, 2,
  3]
[host]
queues = 4
target_cores = [0, 1, 2, 3]
[interrupt]
rx_usecs = 20
[trace]
path = "t.pcapng"
"#;

/// Reads a text in every way; the result may only be errors, of one line each.
fn read_all(text: &str) -> Result<(), TestCaseError> {
    let check = |error: ConfigError| {
        error.each().try_for_each(|error| {
            let shown = ConfigError { further: Vec::new(), ..error.clone() }.to_string();
            prop_assert!(!shown.contains(['\n', '\r']), "{shown:?}");
            prop_assert!(error.line <= text.matches('\n').count() + 1, "{shown:?}");
            prop_assert!(!error.message.is_empty());
            Ok(())
        })
    };
    match parse(text) {
        Ok(card) => {
            let sections = card.rx.iter().chain(&card.tx);
            for section in sections.chain(card.wires.iter().map(|wire| &wire.port)) {
                section.parse::<CounterConfig>().map_or_else(check, |_| Ok(()))?;
                check(section.locate(ConfigError::new("a.b[3].c[x", "m")))?;
            }
        }
        Err(error) => check(error)?,
    }
    for kind in ["function", "port", "attachment"] {
        Section::from_text(kind, text).map_or_else(check, |_| Ok(()))?;
    }
    Ok(())
}

fn token() -> impl Strategy<Value = String> {
    let fixed = [
        "[",
        "]",
        "[[",
        "]]",
        "=",
        "\n",
        "\r\n",
        "\"",
        "'",
        "\"\"\"",
        ".",
        ",",
        "{",
        "}",
        "#",
        "-",
        "0",
        "99999999999999999999",
        "1e9",
        "nan",
        "true",
        "card",
        "wire",
        "fault",
        "rx",
        "tx",
        "host",
        "pool",
        "trace",
        "interrupt",
        "function",
        "port",
        "name",
        "queues",
        "\\u0000",
        "é",
        "\u{feff}",
        "\t",
        " ",
        "1979-05-27",
    ];
    prop::sample::select(fixed.to_vec()).prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_text_is_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_all(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn random_toml_is_never_a_panic(tokens in prop::collection::vec(token(), 0..40)) {
        read_all(&tokens.concat())?;
    }

    #[test]
    fn mutated_cards_are_never_a_panic(
        edits in prop::collection::vec((0..SAMPLE.len(), 0..20_usize, token()), 1..4),
    ) {
        let mut text = SAMPLE.to_owned();
        for (start, length, token) in edits {
            // A token may have added multi-byte characters.
            let start = text.floor_char_boundary(start.min(text.len()));
            let end = text.floor_char_boundary((start + length).min(text.len()));
            text.replace_range(start..end.max(start), &token);
        }
        read_all(&text)?;
    }
}

#[test]
fn the_sample_is_valid_and_sets_each_section() {
    let card = parse(SAMPLE).unwrap();
    assert_eq!((&*card.card.name, card.card.burst, card.pool.buffers), ("nic", 64, 4096));
    assert_eq!((card.wires.len(), card.rx.len(), card.tx.len()), (1, 1, 0));
    assert_eq!((card.host.queues, card.interrupt.rx_usecs), (4, 20));
    assert_eq!(card.given::<Trace>().len(), 1);
}

#[test]
fn deep_nesting_is_an_error() {
    for text in ["[".repeat(100_000), "a = ".to_owned() + &"[".repeat(100_000)] {
        assert!(parse(&text).is_err());
    }
    let deep = format!("[card{}]\n", ".a".repeat(20_000));
    assert!(parse(&deep).is_err());
}

#[test]
fn unknown_keys_list_the_allowed_ones() {
    assert_eq!(told("[trace]\n"), "1: trace.path: found none, allowed: a name");
    assert_eq!(told("[trace]\nshare = 11"), "2: trace.share: found 11, allowed: 1 to 10");
    let share = keys_of::<Trace>().into_iter().find(|key| key.name == "share").unwrap();
    assert_eq!(share.r#type, "integer, 1 to 10");
    // Keys of a section are listed together with the keys of its component.
    let section = parse("[host]\nqueue = 2").unwrap().host.section;
    let error = section.parse::<CounterConfig>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "cards/nic.toml:2: host.queue: found key \"queue\", allowed: start, names, word, \
         attachment, queues, target_cores, system, ring_size, tx_ring_size, tx_bytes_in_flight, priority, \
         watchdog_ms; did you mean \"queues\"?"
    );
}

#[test]
fn settings_are_listed_by_key() {
    let text = "[host]\nqueues = 2\ntarget_cores = [0, 1]\n[[wire]]\nname = \"a\"\n\
                fault = { drop = 0.5 }\n[[wire]]\n";
    let settings = [Setting::parse("card.seed=7").unwrap()];
    let card = Sections::core().parse_with(text, None, &settings).unwrap();
    let said = card.settings().into_iter().map(|(key, value)| format!("{key} = {value}"));
    assert_eq!(
        said.collect::<Vec<_>>(),
        [
            "host.queues = 2",
            "host.target_cores = [0,1]",
            "wire[0].name = \"a\"",
            "wire[0].fault.drop = 0.5",
            "card.seed = 7",
        ]
    );
    assert!(parse("").unwrap().settings().is_empty());
}

#[test]
fn typing_errors_get_suggestions() {
    use picnic_core::error::nearest;
    let near = |word| nearest(word, ["queues", "ring_size", "tx", "destination_ports"].into_iter());
    assert_eq!(near("queue"), Some("queues"));
    // Two transposed letters are one error.
    assert_eq!(near("qeuues"), Some("queues"));
    assert_eq!(near("ringsize"), Some("ring_size"));
    assert_eq!(near("destinaton_port"), Some("destination_ports"));
    assert_eq!((near("tz"), near("cores"), near(&"q".repeat(100))), (None, None, None));
    // The key that names the component is one of them.
    assert_eq!(
        told("[[rx]]\nfuncton = \"rss\"\n"),
        "2: rx[0].functon: found key \"functon\", allowed: function, plugin, object; \
         did you mean \"function\"?"
    );
    assert_eq!(
        told("[[rx]]\nplugn = \"my.so\"\n"),
        "2: rx[0].plugn: found key \"plugn\", allowed: function, plugin, object; \
         did you mean \"plugin\"?"
    );
    assert_eq!(told("[[rx]]\nhash = 1\n"), "1: rx[0]: missing function, expected a name");
}

#[test]
fn syntax_errors_have_a_line() {
    assert_eq!(told("[host]\nqueues = # two\n"), "2: host.queues: missing value");
    assert_eq!(told("[card]\nidle =\n"), "2: card.idle: missing value");
    assert_eq!(
        told("[[rx]]\nfunction = \"rss\"\nhash = toeplitz\n"),
        "3: rx[0].hash: found toeplitz, allowed: a value; text needs quotes: \"toeplitz\""
    );
    // The second wire's own section, after any list of lines before it.
    let nested = "[[wire]]\n[[wire]]\n[wire.link]\nrates = [\n  1,\n]\nrate = fast\n";
    assert_eq!(
        told(nested),
        "7: wire[1].link.rate: found fast, allowed: a value; text needs quotes: \"fast\""
    );
    assert_eq!(told("[host]\n[card]\n[host]\n"), "3: host: found twice, allowed: once");
    let twice = "[host]\nqueues = 1\nqueues = 2\n";
    assert_eq!(told(twice), "3: host.queues: found twice, allowed: once");
    assert_eq!(
        told("queues = two\n"),
        "1: queues: found two, allowed: a value; text needs quotes: \"two\""
    );
    for word in ["nic", "eth0", "10.0.0.1", "a/b.toml", "truth", "02:00:00:00:00:01"] {
        let found = told(&format!("[card]\nname = {word}\n"));
        assert!(
            found.starts_with(&format!("2: card.name: found {word}, allowed: a value")),
            "{found}"
        );
    }
    let list = told("[host]\ntarget_cores = [\n  0,\n  one,\n]\n");
    assert!(list.starts_with("4: ") && list.contains("found one"), "{list}");
    // The parser gives no place for these.
    let deep = format!("[card]\nname = \"x\"\n\nb{} = 1\n[host]\n", ".a".repeat(200));
    assert_eq!(told(&deep), "4: found too many levels, allowed: up to 80");
    let folder = std::env::temp_dir().join(format!("picnic-config-{}", std::process::id()));
    std::fs::write(&folder, b"[card]\nname = \"\xff\"\n").unwrap();
    let error = CardFile::read(&folder).unwrap_err();
    std::fs::remove_file(&folder).unwrap();
    assert_eq!((error.line, &*error.message), (2, "found byte 0xff, allowed: UTF-8 text"));
    let long = "#\n".repeat(1 << 20);
    assert_eq!(parse(&long).unwrap_err().line, (1 << 19) + 1);
}

// ---------------------------------------------------------------- settings

fn set(text: &str, settings: &[&str]) -> Result<CardFile, ConfigError> {
    let settings: Vec<_> = settings.iter().map(|text| Setting::parse(text).unwrap()).collect();
    sections().parse_with(text, Some(Path::new("FILE")), &settings)
}

fn set_error(text: &str, settings: &[&str]) -> String {
    set(text, settings).unwrap_err().to_string()
}

#[test]
fn settings_replace_only_their_key() {
    let text = "[host]\nqueues = 8\nring_size = 128\n[[rx]]\nfunction = \"pass\"\n";
    let card = set(text, &["host.queues=2", "rx[1].function=rss", "card.idle=spin"]).unwrap();
    assert_eq!((card.host.queues, card.host.ring_size), (2, 128));
    assert_eq!(card.rx.iter().map(Section::name).collect::<Vec<_>>(), ["pass", "rss"]);
    assert_eq!(card.card.idle, Idle::Spin);
    assert!(Setting::parse("a.b").is_err() && Setting::parse("=1").is_err());
}

#[test]
fn values_are_toml_and_text_needs_no_quotes() {
    let name = |value: &str| set("", &[&format!("card.name={value}")]).unwrap().card.name;
    // Where text is expected, other-looking values are text too.
    for text in ["spin", "2", "true", "1.5", "x=y", "nan", "2020-01-01"] {
        assert_eq!(name(text), text);
    }
    assert_eq!(name("\"2\""), "2");
    assert_eq!(name("1\nc = 2"), "1\nc = 2");
    let card = set("", &["host.target_cores = [1, 2, 3, 0]", "interrupt.adaptive=true"]).unwrap();
    assert_eq!(card.host.target_cores, TargetCores::Chosen(vec![1, 2, 3, 0]));
    assert!(card.interrupt.adaptive);
    assert_eq!(set("", &["card.borrowed_core=auto"]).unwrap().card.borrowed_core, CoreChoice::Auto);
}

#[test]
fn settings_change_the_built_in_chain() {
    let card = set("", &["rx[0].table_size=64"]).unwrap();
    assert_eq!((card.rx.len(), card.rx[0].name()), (1, "rss"));
    assert_eq!(set("", &["rx[0].function=pass"]).unwrap().rx[0].name(), "pass");
    assert_eq!(set("", &["wire[0].port=pcap"]).unwrap().wires[0].port.name(), "pcap");
    assert_eq!(set("", &["wire[0].fault.drop=1"]).unwrap().wires.len(), 1);
    assert_eq!(set("", &["trace.path=x"]).unwrap().section::<Trace>().path, "x");
}

#[test]
fn errors_of_settings_name_set() {
    for (text, setting, expected) in [
        ("", "host.queues=0", "host.queues: found 0, allowed: 1 to 256"),
        ("", "rx[5].function=pass", "rx[5].function: found index 5, allowed: 0 to 1"),
        (
            "[[rx]]\nfunction = \"pass\"\n",
            "rx[1].hash=toeplitz",
            "rx[1]: missing function, expected a name",
        ),
        (
            "[host]\nqueues = 1\n",
            "host.queues.x=1",
            "host.queues.x: found .x, allowed only after a section",
        ),
        ("", "trace.share=3", "trace.path: found none, allowed: a name"),
        (
            "",
            "card.idle=blok",
            "card.idle: found \"blok\", allowed: spin, adaptive, block; \
                                did you mean \"block\"?",
        ),
        (
            "",
            "host.queues=many",
            "host.queues: found \"many\", allowed: a whole number, 0 to 65535",
        ),
    ] {
        assert_eq!(set_error(text, &[setting]), format!("--set: {expected}"));
    }
    assert!(set_error("", &["hots.queues=1"]).starts_with("--set: hots: found section \"hots\""));
}

#[test]
fn other_errors_keep_their_line() {
    // Fewer queues make the file's own default_queue wrong.
    let text = "# a comment\n\n[card]\ndefault_queue = 3\n";
    let expected = "FILE:4: card.default_queue: found 3, allowed: 0 to 1";
    assert_eq!(set_error(text, &["host.queues=2"]), expected);
}

#[test]
fn odd_keys_are_refused_and_never_panic() {
    for key in [
        ".",
        "a..b",
        "host.",
        "a[",
        "a[]",
        "a[-1]",
        "[0]",
        "a]b[0",
        "rx[0][0]",
        "rx[0].",
        "rx[99999999999999999999]",
        "rx",
        "host[0]",
        "card.name.x",
        "a.b.c.d",
        "\u{0}",
        "é[0].ü",
    ] {
        let found = set_error("[card]\nname = \"x\"\n[host]\n", &[&format!("{key}=1")]);
        assert!(found.starts_with("--set: "), "{key}: {found}");
    }
}

#[test]
fn all_errors_are_reported_in_line_order() {
    let text = "[card]\nburst = 0\nseeed = 3\n[host]\nqueues = \"two\"\nring_size = 65\n\
                [pool]\nbuffers = 7\n[interrupt]\nrx_usecs = -1\n[[wire]]\nname = \"a\"\n\
                [[wire]]\nname = \"a\"\nlink = 3\n[[rx]]\nfunctoin = \"rss\"\n[sector]\n";
    let error = CardFile::parse(text, None).unwrap_err();
    let found: Vec<_> = error.each().map(|error| (error.line, error.key.as_str())).collect();
    let wanted = [
        (2, "card.burst"),
        (3, "card.seeed"),
        (5, "host.queues"),
        (6, "host.ring_size"),
        (8, "pool.buffers"),
        (10, "interrupt.rx_usecs"),
        (14, "wire[1].name"),
        (15, "wire[1].link"),
        (17, "rx[0].functoin"),
        (18, "sector"),
    ];
    assert_eq!(found, wanted, "{error}");
    assert_eq!(error.to_string().lines().count(), wanted.len());
    assert_eq!((error.found(), error.allowed()), (Some("0"), Some("1 to 64")));
    // A required key that is wrong is reported once, and syntax errors one by one.
    let text = "a = \n[card]\nname = web\n[host]\nqueues = 1\nqueues = 2\n";
    let error = CardFile::parse(text, None).unwrap_err();
    let lines: Vec<_> = error.each().map(|error| error.line).collect();
    assert_eq!(lines, [1, 3, 6], "{error}");
}
