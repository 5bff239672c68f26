//! `picnic completions`: prints a completion script for a shell.

use crate::failure::Usage;
use crate::output;
use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic completions bash > ~/.local/share/bash-completion/completions/picnic
  picnic completions zsh > ~/.zfunc/_picnic
  picnic completions fish > ~/.config/fish/completions/picnic.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs, mut whole: Command, json: bool) -> anyhow::Result<()> {
    if json {
        return Err(Usage("a completion script has no JSON form".into()).into());
    }
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "picnic", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
