//! Options that are described when somebody asks for them.
//!
//! A start describes all commands to the parser, most of which are not meant. What takes time to
//! describe waits until its command is; lists of all there is have it from the start.

use crate::cli::Cli;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches};
use std::cell::Cell;

thread_local! {
    static IS_WHOLE: Cell<bool> = const { Cell::new(false) };
}

/// A command, to which `describe` adds what it has when it is meant.
pub(crate) fn later(command: Command, describe: fn(Command) -> Command) -> Command {
    if IS_WHOLE.get() { describe(command) } else { command.defer(describe) }
}

/// All of the command line, for completions and manual pages.
///
/// Clap makes the tree below `help` before it describes what waits.
pub(crate) fn whole() -> Command {
    IS_WHOLE.set(true);
    let command = Cli::command();
    IS_WHOLE.set(false);
    command
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

    /// Each command below this one with its help and its arguments, but the tree below `help`.
    fn described(command: &Command, path: &str, into: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        // Those of all commands come before or behind its own.
        let mut arguments: Vec<_> = command.get_arguments().map(|each| each.get_id()).collect();
        arguments.sort();
        into.push(format!("{path}: {:?}, {arguments:?}", command.get_about()));
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            described(command, &path, into);
        }
    }

    #[test]
    fn what_waits_is_described_as_in_the_whole() {
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
        assert!(whole.1.iter().any(|line| line.starts_with(" picnic bench dispatch:")));
    }

    #[test]
    fn the_tree_below_help_is_whole() {
        let mut command = whole();
        command.build();
        for path in [["bench", "dispatch"], ["ctl", "rss"], ["lab", "ab"]] {
            let help = command.find_subcommand("help").unwrap();
            let found = path.iter().try_fold(help, |command, name| command.find_subcommand(name));
            assert!(found.is_some(), "{path:?}");
        }
    }
}
