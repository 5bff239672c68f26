//! `picnic man`: writes the manual pages, one per command.

use crate::failure::Usage;
use crate::output;
use anyhow::Context;
use clap::{Args, Command};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic man ~/.local/share/man/man1 && man picnic-run

`make install` also does this.")]
pub(crate) struct ManArgs {
    /// The folder for the pages, created if missing
    folder: PathBuf,
}

pub(crate) fn run(args: &ManArgs, whole: Command, json: bool) -> anyhow::Result<()> {
    if json {
        return Err(Usage("manual pages have no JSON form".into()).into());
    }
    let folder = args.folder.display();
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("{folder}: cannot be created"))?;
    clap_mangen::generate_to(whole, &args.folder)
        .with_context(|| format!("{folder}: cannot be written"))?;
    output::print(&format!("manual pages are in {folder}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::whole;

    #[test]
    fn every_command_has_a_page() {
        picnic_lab::registry::set(picnic_papers::registry::PAPERS, &[]);
        let folder = tempfile::tempdir().unwrap();
        run(&ManArgs { folder: folder.path().join("man1") }, whole(), false).unwrap();
        let page = |name: &str| {
            let path = folder.path().join(format!("man1/{name}.1"));
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        for command in whole().get_subcommands() {
            let name = command.get_name();
            assert!(page(&format!("picnic-{name}")).contains(".SH SYNOPSIS"), "{name}");
        }
        assert!(page("picnic").contains("programmable NIC"));
        assert!(page("picnic-run").contains("duration"));
        assert!(page("picnic-ctl-filter-add").contains("KEY=VALUE"));
        // Pages derived from registries.
        assert!(page("picnic-ctl-rss-set").contains("chain"));
        assert!(page("picnic-bench").contains("moderation"));
    }
}
