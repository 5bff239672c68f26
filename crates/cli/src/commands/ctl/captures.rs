//! `picnic ctl capture`: captures that go on when this command has ended.

use super::text::{number, text_of};
use crate::commands::capture::{self, CaptureWhat};
use crate::control::Connection;
use crate::failure::Usage;
use crate::output;
use anyhow::bail;
use clap::Subcommand;
use picnic_control::listing::CAPTURES;
use serde_json::{Value, json};

#[derive(Debug, Subcommand)]
pub(crate) enum CaptureCommand {
    /// Start a capture and print its number
    Start(CaptureWhat),
    /// End a capture and wait until its file is complete
    Stop {
        /// Its number; optional if only one is running
        capture: Option<u32>,
    },
    /// Running captures (the default)
    List,
}

pub(super) fn run(
    connection: &mut Connection,
    command: &CaptureCommand,
    json: bool,
) -> anyhow::Result<()> {
    let (result, text) = match command {
        CaptureCommand::Start(what) => {
            if what.is_stdout() {
                let message = "allowed: --write FILE: this command ends before the capture does";
                return Err(Usage(message.into()).into());
            }
            let started = what.start(connection, false)?;
            let mut text =
                format!("capture {} of {}\n", started["capture"], text_of(&started["interfaces"]));
            if let Some(note) = started["note"].as_str() {
                text.push_str(&format!("{note}\n"));
            }
            (started, text)
        }
        CaptureCommand::Stop { capture } => {
            let capture = match capture {
                Some(number) => *number,
                None => only_capture(&connection.call("capture.list", json!({}))?)?,
            };
            let outcome = connection.call("capture.stop", json!({ "capture": capture }))?;
            let mut text = format!("{}\n", capture::summary(&outcome));
            if let Some(error) = outcome["error"].as_str() {
                text.push_str(&format!("it ended early: {error}\n"));
            }
            (outcome, text)
        }
        CaptureCommand::List => {
            let list = connection.call("capture.list", json!({}))?;
            let text = output::listing(&CAPTURES, &list);
            (list, text)
        }
    };
    if json { output::print_json(&result) } else { output::print(&text) }
}

fn only_capture(list: &Value) -> anyhow::Result<u32> {
    let numbers: Vec<_> = list["captures"].as_array().into_iter().flatten().collect();
    match &numbers[..] {
        [] => bail!("no capture runs"),
        [only] => Ok(number(&only["capture"]) as u32),
        several => {
            let numbers: Vec<_> = several.iter().map(|one| text_of(&one["capture"])).collect();
            let message =
                format!("several captures are running, choose one: {}", numbers.join(", "));
            Err(Usage(message).into())
        }
    }
}
