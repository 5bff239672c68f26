//! Shared by the control socket's tests: a card with a socket, and a client.

#![allow(dead_code, unreachable_pub, missing_docs)]

use picnic_control::{Launch, Limits, Report};
use picnic_host::registries;
use picnic_testing::{PATIENCE, machine};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tempfile::TempDir;

/// A running card with a control socket.
pub struct Served {
    pub running: picnic_control::ServedCard,
    pub path: PathBuf,
    _folder: TempDir,
    _machine: picnic_testing::Machine,
}

/// A generator of a steady rate, flows in order, four queues.
pub const STEADY: &str = "[[wire]]\nport = \"generator\"\nrate_pps = 200000\nflows = 64\n\
                          size = 100\nsequence_numbers = true\n";

impl Served {
    pub fn start(text: &str) -> Self {
        Served::with_limits(text, Limits::default())
    }

    pub fn with_limits(text: &str, limits: Limits) -> Self {
        let machine = machine();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let text = format!("{text}\n[control]\nsocket = \"{}\"\n", path.display());
        let card = picnic_host::sections().parse(&text, None).unwrap();
        let running = Launch::new(&card, registries()).limits(limits).start().unwrap();
        Served { running, path, _folder: folder, _machine: machine }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.path)
    }

    /// Stops the card and checks its ledger.
    pub fn stop(self) -> Report {
        let report = self.running.stop().unwrap();
        assert!(!self.path.exists(), "the socket is left over");
        assert!(report.ledger.balanced(), "{:?}", report.ledger);
        assert_eq!(report.buffers_missing, 0);
        report
    }
}

/// A client of a card.
pub struct Client {
    pub stream: BufReader<UnixStream>,
    calls: u64,
}

impl Client {
    pub fn connect(path: &std::path::Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client { stream: BufReader::new(stream), calls: 0 }
    }

    pub fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// The next line; `None` if the card has closed the connection.
    pub fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The next call as a line.
    fn next_call(&mut self, method: &str, params: Value) -> String {
        self.calls += 1;
        let call =
            json!({ "jsonrpc": "2.0", "id": self.calls, "method": method, "params": params });
        format!("{call}\n")
    }

    /// The answer to the last call; its result or error.
    fn answer(&mut self) -> Result<Value, Value> {
        let mut answer = self.line().expect("the card has gone");
        assert_eq!(answer["id"], self.calls, "{answer}");
        match answer.get_mut("error") {
            Some(error) => Err(error.take()),
            None => Ok(answer["result"].take()),
        }
    }

    /// Calls a method; returns its result or error.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let line = self.next_call(method, params);
        self.send(&line);
        self.answer()
    }

    /// Calls a method, passing an open file.
    pub fn call_with(
        &mut self,
        file: impl AsFd,
        method: &str,
        params: Value,
    ) -> Result<Value, Value> {
        let line = self.next_call(method, params);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        assert!(along.push(SendAncillaryMessage::ScmRights(&files)));
        let parts = [IoSlice::new(line.as_bytes())];
        let sent = sendmsg(self.stream.get_ref(), &parts, &mut along, SendFlags::empty()).unwrap();
        assert_eq!(sent, line.len());
        self.answer()
    }

    pub fn good(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params.clone())
            .unwrap_or_else(|error| panic!("{method} {params}: {error}"))
    }

    pub fn error(&mut self, method: &str, params: Value) -> String {
        let error = self.call(method, params).unwrap_err();
        error["message"].as_str().unwrap().to_owned()
    }
}
