//! Questions as files: each key is an option of `picnic lab ab`.
//!
//! Options of the command line follow the options of the file: a single value replaces the file's,
//! a list adds to it. Card files are relative to the question's file. Questions in
//! `examples/questions` come with the program and have names.

use super::ab::AbArgs;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use picnic_core::error::not_among;
use std::path::Path;

/// Questions that come with the program: names and files.
pub(crate) const QUESTIONS: [(&str, &str); 5] = [
    ("latency", include_str!("../../../../../examples/questions/latency.toml")),
    ("moderation", include_str!("../../../../../examples/questions/moderation.toml")),
    ("overload", include_str!("../../../../../examples/questions/overload.toml")),
    ("tcp", include_str!("../../../../../examples/questions/tcp.toml")),
    ("web", include_str!("../../../../../examples/questions/web.toml")),
];

/// The key that is not an option: a line about the question.
const HELP: &str = "help";
/// Keys whose value is the path of a card file.
const PATHS: [&str; 2] = ["baseline", "candidate"];

/// A question: the options of its file, if any, then the options of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) options: AbArgs,
}

/// The same for a named question.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) options: AbArgs,
}

impl Args for Asked {
    fn augment_args(command: Command) -> Command {
        let question = Arg::new("question").value_name("QUESTION").help(
            "A file with options of this command as keys, or the name of a question of `picnic bench`",
        );
        AbArgs::augment_args(command.arg(question))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Asked {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Some(name) = matches.get_one::<String>("question") else {
            return AbArgs::from_arg_matches(matches).map(|options| Asked { options });
        };
        asked(name, matches).map(|options| Asked { options })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Named {
    fn augment_args(command: Command) -> Command {
        let names = QUESTIONS.map(|(name, text)| {
            let help = table(text).ok().and_then(|keys| Some(keys.get(HELP)?.as_str()?.to_owned()));
            clap::builder::PossibleValue::new(name).help(help.unwrap_or_default())
        });
        let question = Arg::new("question").value_name("NAME").required(true);
        let question = question.value_parser(PossibleValuesParser::new(names));
        AbArgs::augment_args(command.arg(question.help("The question")))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Named {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let name = matches.get_one::<String>("question").cloned().unwrap_or_default();
        asked(&name, matches).map(|options| Named { name, options })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn options() -> Command {
    AbArgs::augment_args(Command::new("ab")).no_binary_name(true).args_override_self(true)
}

/// The options of a question, then the given ones.
fn asked(name: &str, matches: &ArgMatches) -> Result<AbArgs, clap::Error> {
    let refused = |message: String| clap::Error::raw(ErrorKind::ValueValidation, message + "\n");
    let shipped = QUESTIONS.iter().find(|(known, _)| *known == name);
    let text = match shipped {
        Some((_, text)) => (*text).to_owned(),
        None => std::fs::read_to_string(name).map_err(|error| {
            let names = QUESTIONS.map(|(name, _)| name).join(", ");
            refused(format!("{name}: {error}; allowed: a file, or one of {names}"))
        })?,
    };
    let command = options();
    let folder = Path::new(name).parent().filter(|_| shipped.is_none());
    let mut words = words(&command, &text, folder).map_err(|errors| {
        let lines = errors.into_iter().map(|(line, why)| format!("{name}:{line}: {why}"));
        refused(lines.collect::<Vec<_>>().join("\n"))
    })?;
    words.extend(given(&command, matches));
    AbArgs::from_arg_matches(&command.try_get_matches_from(words)?)
}

fn table(text: &str) -> Result<toml::Table, toml::de::Error> {
    toml::from_str(text)
}

/// The options in a question's text; or its errors, each with its line.
fn words(
    command: &Command,
    text: &str,
    folder: Option<&Path>,
) -> Result<Vec<String>, Vec<(usize, String)>> {
    let keys = table(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        vec![(1 + text[..start].matches('\n').count(), error.message().to_owned())]
    })?;
    let (mut words, mut errors) = (Vec::new(), Vec::new());
    for (key, value) in keys.iter().filter(|(key, _)| *key != HELP) {
        let own = |line: &str| line.split('=').next().is_some_and(|word| word.trim() == key);
        let line = 1 + text.lines().position(own).unwrap_or(0);
        let is_known = |arg: &&Arg| arg.get_id() == key.as_str();
        if !command.get_arguments().any(|arg| is_known(&arg)) {
            let allowed = command.get_arguments().map(|arg| arg.get_id().as_str());
            errors.push((line, not_among("key ", key, allowed)));
            continue;
        }
        let long = key.replace('_', "-");
        let values = match value {
            toml::Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            match value {
                toml::Value::Boolean(false) => {}
                toml::Value::Boolean(true) => words.push(format!("--{long}")),
                toml::Value::String(text) => {
                    let folder = folder.filter(|_| PATHS.contains(&key.as_str()));
                    let path = folder.map(|folder| folder.join(text).display().to_string());
                    words.push(format!("--{long}={}", path.as_ref().unwrap_or(text)));
                }
                toml::Value::Integer(_) | toml::Value::Float(_) => {
                    words.push(format!("--{long}={value}"));
                }
                _ => {
                    let message =
                        format!("{key}: found {value}, allowed: text, a number or a list");
                    errors.push((line, message));
                }
            }
        }
    }
    if errors.is_empty() { Ok(words) } else { Err(errors) }
}

/// The options of the command line as words.
fn given(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let is_given =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let options = command.get_arguments().filter(is_given).flat_map(|arg| {
        let long = arg.get_long().unwrap_or_default();
        let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
        let values = values.map(|value| value.to_string_lossy());
        values
            .map(|value| match arg.get_action().takes_values() {
                true => format!("--{long}={value}"),
                false => format!("--{long}"),
            })
            .collect::<Vec<_>>()
    });
    options.collect()
}

#[cfg(test)]
mod tests {
    use super::super::ab::question;
    use super::*;

    fn parsed<A: Args>(words: &[&str]) -> Result<A, clap::Error> {
        let command = A::augment_args(Command::new("ab"));
        A::from_arg_matches(&command.try_get_matches_from([&["ab"], words].concat())?)
    }

    #[test]
    fn every_question_of_the_program_can_be_asked_and_has_help() {
        for (name, text) in QUESTIONS {
            let keys = table(text).unwrap();
            assert!(keys[HELP].as_str().is_some_and(|help| help.len() <= 90), "{name}");
            let asked: Named = parsed(&[name]).unwrap_or_else(|error| panic!("{name}: {error}"));
            question(&asked.options).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn command_line_options_follow_the_files_options() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.toml");
        std::fs::write(
            &path,
            "help = \"mine\"\nbaseline = \"a.toml\"\nset = [\"card.seed=1\"]\nseconds = 0.5\n\
             candidate_set = [\"host.queues=1\"]\nallow_loss = 5\nno_cost = true\n",
        )
        .unwrap();
        let words = [path.to_str().unwrap(), "--seconds", "2", "--set", "card.seed=2"];
        let asked = question(&parsed::<Asked>(&words).unwrap().options).unwrap();
        assert_eq!(asked.seconds, 2.0);
        assert_eq!(asked.baseline.path, Some(folder.path().join("a.toml")));
        assert_eq!(asked.baseline.set, ["card.seed=1", "card.seed=2"]);
        assert!(!asked.cost && asked.allowed.loss == 0.05);
        let plain: Asked = parsed(&["--candidate-set", "host.queues=1"]).unwrap();
        assert_eq!(question(&plain.options).unwrap().seconds, 0.2);
    }

    #[test]
    fn all_errors_of_a_question_have_their_lines() {
        let errors = |text| words(&options(), text, None).unwrap_err();
        let found = errors("seconds = 1\nsecond = 2\nset = [\"a=1\"]\nswep = \"x\"\n");
        let [(2, first), (4, second)] = &found[..] else { panic!("{found:?}") };
        assert!(
            first.contains("found key \"second\"") && first.contains("did you mean"),
            "{first}"
        );
        assert!(second.contains("found key \"swep\""), "{second}");
        assert_eq!(errors("seconds = 1\nset = = 1\n")[0].0, 2);
        assert!(errors("set = { a = 1 }\n")[0].1.contains("allowed: text, a number or a list"));
        let error = parsed::<Asked>(&["missing.toml"]).unwrap_err().to_string();
        assert!(error.contains("missing.toml") && error.contains("moderation"), "{error}");
        assert!(parsed::<Named>(&["missing.toml"]).is_err());
    }
}
