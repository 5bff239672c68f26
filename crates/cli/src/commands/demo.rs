//! `picnic demo`: a card in front of unmodified programs, set up and removed again.

mod web;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    what: DemoCommand,
}

#[derive(Debug, Subcommand)]
enum DemoCommand {
    /// A web server behind the card: nginx under load from wrk, each in its own namespace
    Web(web::WebArgs),
}

pub(crate) fn run(args: &DemoArgs, json: bool) -> anyhow::Result<()> {
    match &args.what {
        DemoCommand::Web(args) => web::run(args, json),
    }
}
