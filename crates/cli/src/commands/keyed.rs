//! Options of the command line that are made from a typed config's keys.

use clap::Arg;
use clap::builder::PossibleValuesParser;
use picnic_core::config::KeyHelp;

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
