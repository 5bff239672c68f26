//! Any text is a card file or an error that names its place.

use super::components::CounterConfig;
use super::{Trace, parse, told};
use picnic_core::config::{CardFile, Section, Sections, Setting, keys_of};
use picnic_core::error::ConfigError;
use proptest::prelude::*;

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
