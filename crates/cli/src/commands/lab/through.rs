//! The traffic through a measured card: none, or client and server.

use clap::Args;
use clap::builder::PossibleValuesParser;
use picnic_lab::ab::{Kind, Side, Workload};
use std::path::PathBuf;

// A card with changes, and the traffic through it. (Docs would replace the help of its commands.)
#[derive(Clone, Debug, Args)]
pub(crate) struct Measured {
    /// Card file [default: the built-in demonstration card]
    #[arg(value_name = "CARD.toml")]
    pub(crate) card: Option<PathBuf>,
    /// Change a key of the card
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) through: Through,
}

impl Measured {
    /// The card.
    pub(crate) fn side(&self) -> Side {
        Side { name: "card".into(), path: self.card.clone(), set: self.set.clone() }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Through {
    /// A shell command in the client's namespace
    #[arg(long, value_name = "COMMAND")]
    workload: Option<String>,
    /// A ready-made client, its server, and its figure; or a workload of `picnic workload list`
    #[arg(long, value_name = "KIND",
          value_parser = PossibleValuesParser::new(Kind::all().map(|kind|
              clap::builder::PossibleValue::new(kind.name()).help(kind.help()))))]
    workload_kind: Option<String>,
    /// A shell command in the server's namespace, which must listen on a port
    #[arg(long, value_name = "COMMAND")]
    server: Option<String>,
}

impl Through {
    /// The ready-made client, if one was named.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::all().find(|kind| Some(kind.name()) == self.workload_kind.as_deref())
    }

    /// Client and server; none for the card alone.
    pub(crate) fn workload(&self) -> Result<Option<Workload>, String> {
        let (kind, command, server) =
            (self.kind(), self.workload.as_deref(), self.server.as_deref());
        match (kind, command, server) {
            (None, None, None) => Ok(None),
            (None, None, Some(_)) => {
                Err("found --server, allowed only with --workload or --workload-kind".into())
            }
            (kind, command, server) => Workload::new(kind, command, server).map(Some),
        }
    }
}
