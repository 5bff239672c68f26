//! Options of the command line that are made from core's types: a typed config's keys, rx and tx.

use clap::Arg;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use picnic_core::config::KeyHelp;
use picnic_core::direction::Direction;

/// A word as command lines have it: `table-size`. Made once per process, for a parser that
/// wants names to stay.
pub(crate) fn word(name: &str) -> &'static str {
    name.replace('_', "-").leak()
}

/// Help begins with a capital letter, as that of all other commands.
pub(crate) fn about(help: &str) -> String {
    let mut letters = help.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect::<String>())
}

/// An argument with the key's help and, if only a few words are allowed, these.
pub(crate) fn valued(arg: Arg, key: &KeyHelp) -> Arg {
    let arg = arg
        .help(key.help.trim_end_matches('.').to_owned())
        .allow_hyphen_values(true)
        .value_name(key.name.to_uppercase().replace('-', "_").leak() as &'static str);
    // All of a few words: these can be completed.
    let words: Option<Vec<_>> =
        key.r#type.split(" | ").map(serde_json::from_str::<String>).map(Result::ok).collect();
    match words {
        Some(words) => {
            let words = words.into_iter().map(|word| word.leak() as &'static str);
            arg.value_parser(PossibleValuesParser::new(words.collect::<Vec<_>>()))
        }
        None => arg,
    }
}

/// Reads which chain is meant: `rx` or `tx`.
pub(crate) fn direction() -> impl TypedValueParser<Value = Direction> {
    let allowed = Direction::ALL.map(|direction| {
        let help = match direction {
            Direction::Rx => "Wire to target",
            Direction::Tx => "Target to wire",
        };
        PossibleValue::new(direction.name()).help(help)
    });
    // The parser lets nothing else through.
    PossibleValuesParser::new(allowed)
        .map(|name| if name == Direction::Tx.name() { Direction::Tx } else { Direction::Rx })
}
