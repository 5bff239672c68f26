//! Requirements for every experiment, and in `bench/micro` for every benchmark.
//!
//! Each runs with its example: quickly, and if this machine allows.

use super::all;
use picnic_core::config::Section;
use picnic_core::registry::BuildContext;
use picnic_lab::document::Document;
use picnic_lab::experiment::{Effort, LabError};
use picnic_lab::facts::facts;
use picnic_lab::outcome::Point;
use picnic_lab::registry::build;
use picnic_lab::runner;
use picnic_lab::unit::Unit;

/// The table width at which only headings are broken.
const PAGE: usize = 80;

#[test]
fn names_are_unique_and_keys_are_explained() {
    let mut names: Vec<_> = all().map(|(_, entry)| entry.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for (_, entry) in all() {
        let (name, help) = (entry.name, entry.help);
        assert!(help.len() <= 64 && !help.contains(['.', '\n']), "{name}: {help}");
        // "NIC OS" and "TCP" are capitalised everywhere.
        let first = help.split(' ').next().unwrap_or("");
        let is_name = first.chars().all(|letter| letter.is_uppercase());
        assert!(is_name || help.starts_with(|c: char| !c.is_uppercase()), "{name}: {help}");
        for key in entry.keys() {
            assert!(!key.help.is_empty(), "{name}.{} has no help", key.name);
            assert!(!key.r#type.is_empty(), "{name}.{} has no type", key.name);
        }
    }
}

#[test]
fn unknown_keys_are_refused_with_the_known_ones() {
    for (_, entry) in all() {
        let settings = [("no_such_key".to_owned(), "1".to_owned())];
        let error = build(entry, &settings).err().unwrap().to_string();
        let key = entry.keys().first().map_or(String::new(), |key| key.name.clone());
        assert!(error.contains("found key \"no_such_key\"") && error.contains(&key), "{error}");
    }
}

/// Keys are words with units, values are numbers, without duplicates.
fn check_point(name: &str, point: &Point) {
    let fields = point.fields();
    for figure in &point.figures {
        let key = &figure.key;
        assert_eq!(figure.unit, Unit::of_key(key), "{name}.{key}");
        assert!(!figure.label().is_empty(), "{name}.{key}");
        let is_word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        assert!(key.chars().all(|letter| is_word(letter) || letter == '_'), "{name}.{key}");
        assert!(!point.labels.contains_key(key), "{name}.{key} is a label, too");
        let value = &fields[key];
        assert!(value.is_number() || value.is_null(), "{name}.{key}: {value}");
    }
    for comparison in &point.comparisons {
        let label = &comparison.key;
        let [left, right] = [&comparison.baseline, &comparison.candidate].map(|s| s.values.len());
        assert!(left == right && left != 0, "{name}.{label}: {left} and {right}");
    }
}

#[test]
fn every_example_runs_and_gives_figures_with_units() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, entry) in all() {
        let name = entry.name;
        let keys = entry.example(folder.path()).expect("an experiment says how it is done quickly");
        let text = format!("experiment = \"{name}\"\n{keys}\n");
        let section = Section::from_text("experiment", &text).unwrap();
        let experiment = entry.build(&section, &BuildContext::default()).unwrap();
        let mut last = 0.0;
        let mut watch = |share: f64, what: &str| {
            assert!(share >= last && share <= 1.0 && !what.is_empty(), "{name}: {share} {what}");
            last = share;
        };
        let outcome = runner::outcome(name, &*experiment, Effort::Quick, &mut watch);
        let outcome = match outcome {
            Err(LabError::Unavailable(why)) => {
                picnic_testing::skip(&format!("conformance of {name}"), &why);
                continue;
            }
            outcome => outcome.unwrap_or_else(|error| panic!("{name}: {error}")),
        };
        assert_eq!(last, 1.0, "{name} does not tell that it is done");
        check_point(name, &outcome.whole);
        for series in &outcome.series {
            assert!(!series.points.is_empty(), "{name}.{}", series.name);
            series.points.iter().for_each(|point| check_point(name, point));
        }
        assert!(outcome.settings.is_object(), "{name} does not tell its settings");
        for table in outcome.tables() {
            let cell = |place: usize| {
                let cells = table.rows.iter().map(|row| row[place].chars().count());
                let heading = table.columns[place].split(' ').map(|word| word.chars().count());
                cells.chain(heading).max().unwrap_or(0)
            };
            let width = (0..table.columns.len()).map(|place| cell(place) + 2).sum::<usize>() - 1;
            assert!(width <= PAGE, "{name}: a table of {width} columns: {:?}", table.columns);
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{name}");
        }
        let document =
            Document { kind, name: name.into(), outcome, took_s: 0.0, facts: facts("test") };
        let json = document.to_json().to_string();
        let read = Document::from_json(&serde_json::from_str(&json).unwrap());
        let read = read.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((read.kind, &read.name), (kind, &document.name));
        // As people read them: the last digits of a number do not survive formatting.
        assert_eq!(read.outcome.tables(), document.outcome.tables(), "{name}");
        assert_eq!(read.outcome.notes, document.outcome.notes, "{name}");
    }
}
