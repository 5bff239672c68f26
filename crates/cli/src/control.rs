//! The client of a running card: finds its socket, calls methods, explains errors.

use crate::failure::Usage;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use picnic_control::folders::folders;
use picnic_control::protocol::{self, INVALID_PARAMS, METHOD_NOT_FOUND, NO_ANSWER};
use picnic_control::socket::{RunningCard, running};
use picnic_core::error::ConfigError;
use rustix::cmsg_space;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for a card's answer, which may itself wait for the borrowed core.
const PATIENCE: Duration = Duration::from_secs(60);

/// Selects a running card.
#[derive(Clone, Debug, Args)]
pub(crate) struct CardChoice {
    /// Name of the running card; optional if only one is running
    #[arg(long, value_name = "NAME", global = true)]
    card: Option<String>,
    /// Its control socket, if not in the usual place
    #[arg(long, value_name = "PATH", global = true, conflicts_with = "card")]
    socket: Option<PathBuf>,
}

/// The borrowed core of a card does not answer, while the card itself does.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct SilentCore(String);

/// A connection to a running card.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    calls: u64,
}

impl CardChoice {
    /// The socket of the selected card.
    fn path(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.socket {
            return Ok(path.clone());
        }
        let cards = running();
        let named = |card: &&RunningCard| self.card.as_ref().is_none_or(|name| *name == card.name);
        let meant: Vec<_> = cards.iter().filter(named).collect();
        let list = |cards: &[&RunningCard]| {
            let names = cards.iter().map(|card| match card.pid {
                0 => card.name.clone(),
                pid => format!("{} (pid {pid})", card.name),
            });
            names.collect::<Vec<_>>().join(", ")
        };
        match (&meant[..], &self.card) {
            ([card], _) if card.permitted => Ok(card.path.clone()),
            ([card], _) => {
                bail!("card {} belongs to another user: permission denied", card.name)
            }
            ([], None) => {
                let folders = folders();
                let folders: Vec<_> =
                    folders.iter().map(|folder| folder.display().to_string()).collect();
                bail!("no card is running (looked in {})", folders.join(", "))
            }
            ([], Some(name)) if cards.is_empty() => {
                bail!("card {name} is not running, and neither is any other")
            }
            ([], Some(name)) => {
                let all: Vec<_> = cards.iter().collect();
                bail!("card {name} is not running; running cards: {}", list(&all))
            }
            (several, None) => {
                let message = format!("several cards are running, choose one: {}", list(several));
                Err(Usage(format!("{message} (--card NAME)")).into())
            }
            (several, Some(name)) => {
                let paths: Vec<_> =
                    several.iter().map(|card| card.path.display().to_string()).collect();
                let message = format!("several cards are called {name}, choose one with --socket");
                Err(Usage(format!("{message}: {}", paths.join(", "))).into())
            }
        }
    }

    /// Connects to the selected card.
    ///
    /// # Errors
    /// None is running, several are, or access is denied.
    pub(crate) fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(self.path()?, PATIENCE)
    }
}

impl Connection {
    /// Connects to the card at this socket, with a time limit for answers.
    ///
    /// # Errors
    /// No card listens there, or access is denied.
    pub(crate) fn open(path: PathBuf, patience: Duration) -> anyhow::Result<Connection> {
        let shown = path.display();
        let stream = UnixStream::connect(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => anyhow!("{shown}: no card is running there"),
            io::ErrorKind::ConnectionRefused => {
                anyhow!("{shown}: the card of this socket has ended")
            }
            io::ErrorKind::PermissionDenied => {
                anyhow!("{shown}: belongs to another user's card: permission denied")
            }
            _ => anyhow!("{shown}: {error}"),
        })?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Connection { stream: BufReader::new(stream), path, calls: 0 })
    }

    /// Path of the card's socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Calls a method and waits for its result.
    ///
    /// # Errors
    /// The card's error, or no answer.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let id = self.send(method, params)?;
        self.result(id)
    }

    /// Sends a call; returns its number.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> anyhow::Result<u64> {
        self.calls += 1;
        let line = call_line(self.calls, method, params);
        let sent = self.stream.get_mut().write_all(line.as_bytes());
        sent.map_err(|error| self.refused(&error))?;
        Ok(self.calls)
    }

    /// Calls a method with an open file, and waits for its result.
    ///
    /// # Errors
    /// The card's error, or no answer.
    pub(crate) fn call_with(
        &mut self,
        file: BorrowedFd<'_>,
        method: &str,
        params: Value,
    ) -> anyhow::Result<Value> {
        self.calls += 1;
        let line = call_line(self.calls, method, params);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        along.push(SendAncillaryMessage::ScmRights(&files));
        let parts = [IoSlice::new(line.as_bytes())];
        let sent = sendmsg(self.stream.get_ref(), &parts, &mut along, SendFlags::NOSIGNAL);
        let sent = sent.map_err(|error| self.refused(&error.into()))?;
        let rest = self.stream.get_mut().write_all(&line.as_bytes()[sent..]);
        rest.map_err(|error| self.refused(&error))?;
        self.result(self.calls)
    }

    /// The answer to a call, if it arrives within a short time.
    pub(crate) fn poll(&mut self, id: u64, wait: Duration) -> anyhow::Result<Option<Value>> {
        self.stream.get_ref().set_read_timeout(Some(wait))?;
        let ready = match self.stream.fill_buf() {
            Ok(_) => true,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => false,
                io::ErrorKind::Interrupted => false,
                _ => return Err(self.explain(&error)),
            },
        };
        self.stream.get_ref().set_read_timeout(Some(PATIENCE))?;
        if ready { self.result(id).map(Some) } else { Ok(None) }
    }

    /// The result of a call.
    pub(crate) fn result(&mut self, id: u64) -> anyhow::Result<Value> {
        loop {
            let answer = self.line()?.ok_or_else(|| anyhow!("the card has ended"))?;
            let mut answer: Value = serde_json::from_str(&answer)
                .with_context(|| format!("{}: no card answers there", self.path.display()))?;
            if answer["id"] != id && !answer["id"].is_null() {
                continue;
            }
            return match answer.get_mut("error") {
                Some(error) => Err(told(error.take())),
                None => Ok(answer["result"].take()),
            };
        }
    }

    /// Whether the card closes the connection within a short time.
    pub(crate) fn ended(&mut self) -> anyhow::Result<bool> {
        const LOOK: Duration = Duration::from_millis(100);
        self.stream.get_ref().set_read_timeout(Some(LOOK))?;
        let line = self.line();
        self.stream.get_ref().set_read_timeout(Some(PATIENCE))?;
        Ok(matches!(line, Ok(None)))
    }

    /// The next line; none if the card has closed the connection.
    pub(crate) fn line(&mut self) -> anyhow::Result<Option<String>> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(line)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// The reason why a call could not be sent: a closing card sends it before.
    fn refused(&mut self, error: &io::Error) -> anyhow::Error {
        let is_closed =
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        if is_closed && let Ok(Some(line)) = self.line() {
            let answer: Option<Value> = serde_json::from_str(&line).ok();
            if let Some(error) = answer.and_then(|mut answer| Some(answer.get_mut("error")?.take()))
            {
                return told(error);
            }
        }
        self.explain(error)
    }

    fn explain(&self, error: &io::Error) -> anyhow::Error {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                anyhow!("the card has not answered for {} s", PATIENCE.as_secs())
            }
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                anyhow!("the card has ended")
            }
            _ => anyhow!("{}: {error}", self.path.display()),
        }
    }
}

/// A call as a line for the socket.
pub(crate) fn call_line(id: u64, method: &str, params: Value) -> String {
    let call = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    format!("{call}\n")
}

/// A card's error as an error for the user.
fn told(error: Value) -> anyhow::Error {
    let message = error["message"].as_str().unwrap_or("the card gave no reason").to_owned();
    let data = &error["data"];
    if let (Some(key), Some(message)) = (data["key"].as_str(), data["message"].as_str()) {
        let file = data["file"].as_str().map(PathBuf::from);
        let line = data["line"].as_u64().unwrap_or(0) as usize;
        return ConfigError { file, line, ..ConfigError::new(key, message) }.into();
    }
    match error["code"].as_i64() {
        Some(INVALID_PARAMS | METHOD_NOT_FOUND | protocol::INVALID_REQUEST) => {
            Usage(message).into()
        }
        Some(NO_ANSWER) => SilentCore(message).into(),
        _ => anyhow!(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_control::protocol::LIMIT;
    use std::os::unix::net::UnixListener;

    #[test]
    fn closing_cards_reason_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let choice = CardChoice { card: None, socket: Some(path) };
        let mut connection = choice.connect().unwrap();
        let (mut card, _) = listener.accept().unwrap();
        let error = json!({ "code": LIMIT, "message": "16 clients are connected" });
        writeln!(card, "{}", json!({ "jsonrpc": "2.0", "id": null, "error": error })).unwrap();
        drop(card);
        // The call cannot even be sent.
        let error = connection.call("card.info", json!({})).unwrap_err();
        assert_eq!(error.to_string(), "16 clients are connected");
        let error = connection.call("card.info", json!({})).unwrap_err();
        assert_eq!(error.to_string(), "the card has ended");
    }

    #[test]
    fn silent_core_is_told_from_an_ended_card() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut connection = Connection::open(path, PATIENCE).unwrap();
        let (mut card, _) = listener.accept().unwrap();
        let error = json!({ "code": NO_ANSWER, "message": "not for 10 s" });
        writeln!(card, "{}", json!({ "jsonrpc": "2.0", "id": 1, "error": error })).unwrap();
        let id = connection.send("card.stats", json!({})).unwrap();
        let error = connection.poll(id, PATIENCE).unwrap_err();
        assert!(error.is::<SilentCore>() && error.to_string() == "not for 10 s", "{error}");
        drop(card);
        assert!(!connection.poll(id, PATIENCE).unwrap_err().is::<SilentCore>());
    }
}
