//! Options of the command line made from core's types: config keys, rx and tx.

use clap::Arg;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use picnic_core::config::KeyHelp;
use picnic_core::direction::Direction;

/// A word in the command line's form: `table-size`. Cached for the life of the process, since the
/// parser needs static names.
pub(crate) fn word(name: &str) -> &'static str {
    name.replace('_', "-").leak()
}

/// Help with a capital first letter, as for all commands.
pub(crate) fn about(help: &str) -> String {
    let mut letters = help.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect::<String>())
}

/// An argument with the key's help and its allowed words, if they are few.
pub(crate) fn valued(arg: Arg, key: &KeyHelp) -> Arg {
    let arg = arg
        .help(key.help.trim_end_matches('.').to_owned())
        .allow_hyphen_values(true)
        .value_name(key.name.to_uppercase().replace('-', "_").leak() as &'static str);
    // A fixed set of words: these can be completed.
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

/// Parses a chain: `rx` or `tx`.
pub(crate) fn direction() -> impl TypedValueParser<Value = Direction> {
    let allowed = Direction::ALL.map(|direction| {
        let help = match direction {
            Direction::Rx => "Wire to target",
            Direction::Tx => "Target to wire",
        };
        PossibleValue::new(direction.name()).help(help)
    });
    // The parser accepts nothing else.
    PossibleValuesParser::new(allowed)
        .map(|name| if name == Direction::Tx.name() { Direction::Tx } else { Direction::Rx })
}
