//! Runs commands on this machine to completion.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs a command to completion and returns its output. Ctrl-C does not reach it, so that restoring
/// is not interrupted.
///
/// # Errors
/// It cannot be started or fails: its last line of output.
pub fn run(words: &[&str]) -> io::Result<String> {
    run_with(words, Stdio::null())
}

/// The same, with this standard input.
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

/// The last non-empty line of errors, or else of output.
pub fn last_words(errors: &str, output: &str) -> String {
    let lines = errors.lines().rev().chain(output.lines().rev());
    lines.map(str::trim).find(|line| !line.is_empty()).unwrap_or("it printed nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_commands_report_their_last_line() {
        assert_eq!(run(&["echo", "a b"]).unwrap(), "a b\n");
        let said = |script: &str| run(&["sh", "-c", script]).unwrap_err().to_string();
        assert!(said("echo one >&2; echo two >&2; exit 3").ends_with(": two"));
        assert!(said("echo one; echo >&2; false").ends_with(": one"));
        assert!(said("false").ends_with(": it printed nothing"));
        let absent = run(&["/nowhere/program"]).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        assert!(absent.to_string().contains("/nowhere/program"));
    }
}
