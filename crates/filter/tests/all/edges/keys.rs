//! Keys of `[[filter]]` at the ends of their ranges.

use super::any;
use picnic_filter::config::Keys;
use picnic_filter::{Action, Base, Filter, Filters, FiveTuple, Match, Pattern};

#[test]
fn filter_names_are_limited() {
    let filters = Filters::new(1);
    let named = |length: usize| Filter { name: "n".repeat(length), ..any(Action::Count) };
    assert_eq!(
        [0, 1, 64, 65].map(|length| filters.add(named(length)).is_ok()),
        [false, true, true, false]
    );
}

#[test]
fn pattern_keys_read_back_as_written() {
    let text = r#"{"name":"p","group":"g","action":"drop","base":"l3","start":9,"mask":"fff0",
        "values":["0110","abc0"]}"#;
    let keys: Keys = serde_json::from_str(text).unwrap();
    let filter = keys.filter().unwrap();
    let pattern =
        Pattern::new(Base::L3, 9, &[0xff, 0xf0], &[&[0x01, 0x10], &[0xab, 0xc0]]).unwrap();
    assert_eq!(filter.matching, Match::Pattern(pattern));
    let written = serde_json::to_value(Keys::of(&filter)).unwrap();
    let wanted: serde_json::Value = serde_json::from_str(text).unwrap();
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(&written[key], value, "{key}");
    }
}

#[test]
fn bytes_are_written_in_pairs_of_digits_alone() {
    let error = |mask: &str| {
        let text =
            format!(r#"{{"name":"p","action":"drop","start":0,"mask":"{mask}","values":["00"]}}"#);
        let keys: Keys = serde_json::from_str(&text).unwrap();
        keys.filter().unwrap_err().to_string()
    };
    for mask in ["f", "fff", "+f", "0x", "g0", "ä"] {
        let expected = format!("mask: found \"{mask}\", allowed: hexadecimal digits, two per byte");
        assert_eq!(error(mask), expected);
    }
}

#[test]
fn keys_ask_for_one_kind_of_match() {
    let matching = |keys: &str| {
        let text = format!(r#"{{"name":"p","action":"count"{keys}}}"#);
        let keys: Keys = serde_json::from_str(&text).unwrap();
        keys.filter().map(|filter| filter.matching).map_err(|error| error.to_string())
    };
    assert_eq!(matching(""), Ok(Match::Any));
    assert_eq!(matching(r#","predicate":true"#), Ok(Match::Predicate));
    assert_eq!(matching(r#","protocol":"any""#), Ok(Match::FiveTuple(FiveTuple::default())));
    for (key, value) in [
        ("source", "\"10.0.0.0/8\""),
        ("destination", "\"10.0.0.0/8\""),
        ("protocol", "\"udp\""),
        ("source_ports", "\"7\""),
        ("destination_ports", "\"7\""),
    ] {
        let alone = matching(&format!(r#","{key}":{value}"#)).unwrap();
        assert!(matches!(alone, Match::FiveTuple(_)), "{key}");
        let both = matching(&format!(r#","{key}":{value},"predicate":true"#)).unwrap_err();
        let kinds =
            "found keys of two kinds, allowed: keys of a five-tuple, of a pattern, or neither";
        assert_eq!(both, format!("{key}: {kinds}"));
    }
}
