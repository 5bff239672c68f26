//! Commands of this machine, run to their end.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs a command to its end, which must be a good one; what it printed. Ctrl-C does not reach it:
/// what is being undone is undone to its end.
///
/// # Errors
/// It cannot be started or does not end well: its last words.
pub fn run(words: &[&str]) -> io::Result<String> {
    run_with(words, Stdio::null())
}

/// The same, with this for its standard input.
pub(crate) fn run_with(words: &[&str], input: Stdio) -> io::Result<String> {
    let about = |what: &dyn std::fmt::Display| format!("`{}`: {what}", words.join(" "));
    let [program, arguments @ ..] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
    let command = Command::new(program).args(arguments).stdin(input).process_group(0).output();
    let output = command.map_err(|error| io::Error::new(error.kind(), about(&error)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(about(&last_words(&errors, &text))))
}

/// The last line that says something, of errors or else of output.
pub fn last_words(errors: &str, output: &str) -> String {
    let lines = errors.lines().rev().chain(output.lines().rev());
    lines.map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_says_its_last_words() {
        assert_eq!(run(&["echo", "a b"]).unwrap(), "a b\n");
        let said = |script: &str| run(&["sh", "-c", script]).unwrap_err().to_string();
        assert!(said("echo one >&2; echo two >&2; exit 3").ends_with(": two"));
        assert!(said("echo one; echo >&2; false").ends_with(": one"));
        assert!(said("false").ends_with(": it said nothing"));
        let absent = run(&["/nowhere/program"]).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        assert!(absent.to_string().contains("/nowhere/program"));
    }
}
