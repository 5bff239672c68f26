//! Command-line options that are described only on use.
//!
//! A start would otherwise describe all commands to the parser, most of them unused. Slow
//! descriptions wait until their command is used; complete lists (help, completions) include them
//! from the start.

use super::components::{ATTACHMENTS, FUNCTIONS, PORTS, SCHEDULERS, TASKS};
use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use picnic_lab::registry;
use std::cell::Cell;

thread_local! {
    static IS_WHOLE: Cell<bool> = const { Cell::new(false) };
}

/// A command to which `describe` adds its arguments on use.
pub(crate) fn later(command: Command, describe: fn(Command) -> Command) -> Command {
    if IS_WHOLE.get() { describe(command) } else { command.defer(describe) }
}

/// The complete command line, with all descriptions.
///
/// Clap makes the tree below `help` before it adds late descriptions.
pub(crate) fn whole(describe: fn() -> Command) -> Command {
    IS_WHOLE.set(true);
    let command = describe();
    IS_WHOLE.set(false);
    completed(command, "")
}

/// A command, its argument, and the possible names.
type Named = (&'static str, &'static str, fn() -> Vec<&'static str>);

/// Arguments that take a name of a registry.
const NAMED: &[Named] = &[
    (" functions", "name", || FUNCTIONS.names()),
    (" ports", "name", || PORTS.names()),
    (" attachments", "name", || ATTACHMENTS.names()),
    (" schedulers", "name", || SCHEDULERS.names()),
    (" tasks", "name", || TASKS.names()),
    (" try", "function", || FUNCTIONS.names()),
    (" wcet show", "task", || TASKS.names()),
    (" ctl tasks create", "task", || TASKS.names()),
    (" lab list", "name", experiments),
    (" lab run", "names", experiments),
];

fn experiments() -> Vec<&'static str> {
    registry::experiments().map(|entry| entry.name).collect()
}

/// The command with names for completion.
fn completed(command: Command, path: &str) -> Command {
    let command = command.mut_args(|argument| {
        let is_named = |&&(of, name, _): &&Named| of == path && argument.get_id().as_str() == name;
        match NAMED.iter().find(is_named) {
            Some((_, _, names)) => argument.value_parser(PossibleValuesParser::new(names())),
            None => argument,
        }
    });
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        completed(sub, &path)
    })
}

/// Arguments that are described later.
#[derive(Clone, Debug)]
pub(crate) struct Later<T>(pub(crate) T);

impl<T: Args> Args for Later<T> {
    fn augment_args(command: Command) -> Command {
        later(command, T::augment_args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        later(command, T::augment_args_for_update)
    }
}

impl<T: FromArgMatches> FromArgMatches for Later<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Later)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, whole};
    use clap::CommandFactory;

    /// Each command below this one with its help and arguments, without the tree below `help`.
    fn described(command: &Command, path: &str, into: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        // Arguments common to all commands may come before or after its own.
        let mut arguments: Vec<_> = command.get_arguments().map(|each| each.get_id()).collect();
        arguments.sort();
        into.push(format!("{path}: {:?}, {arguments:?}", command.get_about()));
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            described(command, &path, into);
        }
    }

    #[test]
    fn late_descriptions_equal_the_complete_ones() {
        picnic_lab::registry::set(picnic_papers::registry::PAPERS, &[]);
        let [whole, waiting] = [whole(), Cli::command()].map(|mut command| {
            let before = command.get_subcommands().map(|each| each.get_subcommands().count());
            let before: usize = before.sum();
            command.build();
            let mut lines = Vec::new();
            described(&command, "", &mut lines);
            lines.sort();
            (before, lines)
        });
        assert!(waiting.0 < whole.0, "{} of {} do not wait", waiting.0, whole.0);
        for (waiting, whole) in waiting.1.iter().zip(&whole.1) {
            assert_eq!(waiting, whole);
        }
        assert_eq!(waiting.1.len(), whole.1.len());
        assert!(whole.1.iter().any(|line| line.starts_with(" picnic ctl rss:")));
    }

    #[test]
    fn registry_names_are_completed_everywhere() {
        picnic_lab::registry::set(picnic_papers::registry::PAPERS, &[]);
        let whole = whole();
        for (path, argument, names) in NAMED {
            let mut words = path.split_whitespace();
            let command = words.try_fold(&whole, |command, word| command.find_subcommand(word));
            let command = command.unwrap_or_else(|| panic!("no command{path}"));
            let argument = command.get_arguments().find(|each| each.get_id() == argument);
            let found = argument.unwrap_or_else(|| panic!("{path}")).get_possible_values();
            let found: Vec<_> = found.iter().map(|value| value.get_name().to_owned()).collect();
            assert_eq!(found, names(), "{path}");
            assert!(!found.is_empty(), "{path}");
        }
    }

    #[test]
    fn the_tree_below_help_is_whole() {
        picnic_lab::registry::set(picnic_papers::registry::PAPERS, &[]);
        let mut command = whole();
        command.build();
        for path in [["ctl", "rss"], ["lab", "ab"]] {
            let help = command.find_subcommand("help").unwrap();
            let found = path.iter().try_fold(help, |command, name| command.find_subcommand(name));
            assert!(found.is_some(), "{path:?}");
        }
    }
}
