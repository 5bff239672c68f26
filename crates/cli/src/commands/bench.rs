//! `picnic bench NAME --KEY VALUE`: what the card costs on this machine.
//!
//! Names, options and help come from the registry of benchmarks. Nothing here is a test: times
//! vary with the machine. Figures of one call are measured interleaved, so that a drift of the
//! machine's speed hits all alike.

use super::keyed::{about, valued, word};
use super::lab::{self, wrong_setting};
use super::later::later;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand};
use picnic_core::config::KeyHelp;
use picnic_lab::document::Kind;
use picnic_lab::registry::{ExperimentEntry, benchmarks, build};

/// Measure the card on this machine.
#[derive(Clone, Debug)]
pub(crate) struct BenchArgs {
    /// Its name.
    name: &'static str,
    /// Keys and values, as they were given.
    settings: Vec<(String, String)>,
}

/// Runs a benchmark.
pub(crate) fn run(args: &BenchArgs, json: bool) -> anyhow::Result<()> {
    let Some(entry) = benchmarks().iter().find(|entry| entry.name == args.name) else {
        anyhow::bail!("there is no benchmark {}", args.name);
    };
    let option = |key: &str| format!("--{}", word(key));
    let experiment = build(entry, &args.settings).map_err(|error| wrong_setting(error, option))?;
    let document = lab::measure(Kind::Benchmark, entry.name, &*experiment)?;
    lab::show(&document, json)
}

/// An option for a key.
fn option(key: &KeyHelp) -> Arg {
    let name = word(&key.name);
    let kind = key.r#type.as_str();
    let arg = valued(Arg::new(name).long(name), key);
    let arg = match kind {
        "boolean" => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        kind if kind.starts_with("list of ") => arg.action(ArgAction::Append),
        kind if kind.starts_with("integer") => arg.value_parser(number::<i64>),
        kind if kind.starts_with("number") => arg.value_parser(number::<f64>),
        _ => arg,
    };
    let help = key.help.trim_end_matches('.');
    match key.default.as_str() {
        "" | "[]" | "false" => arg.help(help.to_owned()),
        default => arg.help(format!("{help} [default: {}]", default.replace('"', ""))),
    }
}

/// Checks that it is a number.
fn number<T: std::str::FromStr>(text: &str) -> Result<String, String>
where
    T::Err: std::fmt::Display,
{
    text.parse::<T>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn command_of(entry: &ExperimentEntry) -> Command {
    Command::new(entry.name).about(about(entry.help)).args(entry.keys().iter().map(option))
}

fn args_of(entry: &ExperimentEntry, matches: &ArgMatches) -> BenchArgs {
    let mut settings = Vec::new();
    for key in entry.keys() {
        let given = matches.try_get_many::<String>(word(&key.name)).ok().flatten();
        settings.extend(given.into_iter().flatten().map(|text| (key.name.clone(), text.clone())));
    }
    BenchArgs { name: entry.name, settings }
}

impl FromArgMatches for BenchArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let args = matches.subcommand().and_then(|(name, given)| {
            let entry = benchmarks().iter().find(|entry| entry.name == name)?;
            Some(args_of(entry, given))
        });
        args.ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for BenchArgs {
    // When they are asked for: at each start they would take a third of its time.
    fn augment_subcommands(command: Command) -> Command {
        later(command, |command| command.subcommands(benchmarks().iter().map(command_of)))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        benchmarks().iter().any(|entry| entry.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        picnic_lab::registry::set(picnic_papers::registry::lists(&[]));
        let command = BenchArgs::augment_subcommands(Command::new("bench"));
        let matches = command.try_get_matches_from([&["bench"], words].concat())?;
        BenchArgs::from_arg_matches(&matches)
    }

    #[test]
    fn options_are_the_keys_of_the_benchmark() {
        let words = ["tcp", "--rounds", "2", "--apart", "--set", "a=1", "--set", "b=[1,2]"];
        let args = parsed(&words).unwrap();
        let expected = [("rounds", "2"), ("apart", "true"), ("set", "a=1"), ("set", "b=[1,2]")];
        let mut settings = args.settings.clone();
        settings.sort_by_key(|(key, _)| expected.iter().position(|(name, _)| name == key));
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!((args.name, &settings[..]), ("tcp", &expected[..]));
        assert!(parsed(&["tcp", "--rounds", "few"]).is_err());
        assert!(parsed(&["dispatch", "--frames", "old"]).is_err());
        assert!(parsed(&["tcp", "--no-such-key", "1"]).is_err());
    }

    #[test]
    fn every_benchmark_is_built_from_its_options() {
        for (name, words) in [
            ("latency", &["--rates", "500,2000", "--rounds", "1"][..]),
            ("classifier", &["--families", "random,ports-only", "--rules", "16"]),
            ("wire", &["--ports", "packet", "--ports", "xdp"]),
            ("web", &["--apart", "--seconds", "1", "--set", "host.queues=2"]),
            ("overload", &["--host", "tap", "--seconds", "1.5"]),
        ] {
            let args = parsed(&[&[name], words].concat()).unwrap();
            let entry = benchmarks().iter().find(|entry| entry.name == name).unwrap();
            build(entry, &args.settings).map(drop).unwrap();
        }
    }
}
