//! `picnic demo`: a card in front of unmodified programs, built and removed again.

mod web;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A web server behind the card: nginx under load from wrk, each in its own namespace
    Web(web::WebArgs),
}

pub(crate) fn run(args: &DemoArgs, json: bool) -> anyhow::Result<()> {
    match &args.what {
        What::Web(args) => web::run(args, json),
    }
}
