//! Keys that the command line replaces (`--set`).

use super::{Trace, sections};
use picnic_core::config::{CardFile, CoreChoice, Idle, Section, Setting, TargetCores};
use picnic_core::error::ConfigError;
use std::path::Path;

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
