//! Workloads: what is asked of which server, and how; each a file.
//!
//! ```toml
//! workload = "downloads"
//! server = "apache"
//! connections = 64
//!
//! [[file]]
//! bytes = 1000000
//! weight = 1
//! ```
//!
//! Those that come with the program stand in `examples/workloads`.

use picnic_core::config::{KeyHelp, Section, keys_of};
use picnic_core::error::{ConfigError, not_among};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Those that come with the program: names and files.
pub const KINDS: [(&str, &str); 6] = [
    ("support", include_str!("../../../../examples/workloads/support.toml")),
    ("banking", include_str!("../../../../examples/workloads/banking.toml")),
    ("e-commerce", include_str!("../../../../examples/workloads/e-commerce.toml")),
    ("webstone", include_str!("../../../../examples/workloads/webstone.toml")),
    ("sclient", include_str!("../../../../examples/workloads/sclient.toml")),
    ("closed-loop", include_str!("../../../../examples/workloads/closed-loop.toml")),
];

/// A workload.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Its name; the key `workload` of its file
    #[serde(skip)]
    pub name: String,
    /// What it is, in a line
    pub help: String,
    /// The server
    pub server: ServerKind,
    /// Who asks
    pub client: ClientKind,
    /// Whether it is asked over TLS; by wrk, and not of webfs
    pub tls: bool,
    /// With tls: a PEM file with a certificate and its key, relative to the workload's file; made for
    /// the run if absent
    pub certificate: Option<PathBuf>,
    /// Bytes that the server hands to the kernel at a time, 2048 to 1048576; 0 for as many as it
    /// chooses; by nginx-copy alone
    #[schemars(range(max = 1_048_576))]
    pub send_bytes: u32,
    /// Connections at a time: that many ask, one request each and then another; at a rate, no more
    /// than that many wait for answers, 1 to 50000
    #[schemars(range(min = 1, max = 50_000))]
    pub connections: u32,
    /// Requests offered a second, whatever is answered; 0 for as many as are answered; not by wrk
    pub requests_per_second: f64,
    /// Milliseconds between an answer and the next request of its connection; not at a rate
    #[schemars(range(max = 60_000))]
    pub think_ms: u32,
    /// Milliseconds after which a request that is not answered is given up, 100 to 60000
    #[schemars(range(min = 100, max = 60_000))]
    pub patience_ms: u32,
    /// Addresses that clients have, 1 to 65536; wrk asks from a single one
    #[schemars(range(min = 1, max = 65_536))]
    pub addresses: u32,
    /// What is asked for
    pub file: Vec<FileKind>,
}

impl Default for Workload {
    fn default() -> Self {
        Workload {
            name: String::new(),
            help: String::new(),
            server: ServerKind::Nginx,
            client: ClientKind::Picnic,
            tls: false,
            certificate: None,
            send_bytes: 0,
            connections: 32,
            requests_per_second: 0.0,
            think_ms: 0,
            patience_ms: 5000,
            addresses: 4096,
            file: Vec::new(),
        }
    }
}

/// A file, or a page that is made, and how often it is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileKind {
    /// Bytes of it, 1 to 1000000000
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub bytes: u64,
    /// Its part of all requests, to those of the others
    pub weight: f64,
    /// Whether PHP makes it; by Apache alone
    pub php: bool,
}

/// A web server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// nginx, which hands files to the kernel whole (`sendfile`).
    #[default]
    Nginx,
    /// nginx, which reads files and writes them.
    NginxCopy,
    /// Apache with PHP, a process for each connection.
    Apache,
    /// webfs, the server of KNET.
    Webfs,
}

/// A client of web servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// This program: a new connection for each request, back to back or at a rate.
    #[default]
    Picnic,
    /// wrk: a new connection for each request, back to back.
    Wrk,
}

impl ClientKind {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            ClientKind::Picnic => "picnic",
            ClientKind::Wrk => "wrk",
        }
    }
}

impl FileKind {
    /// Its keys.
    pub fn keys() -> Vec<KeyHelp> {
        keys_of::<FileKind>()
    }
}

impl Workload {
    /// The one with this name, or from the file of this name.
    ///
    /// # Errors
    /// There is none, or what is wrong with the file.
    pub fn find(name: &str) -> Result<Workload, ConfigError> {
        if let Some((_, text)) = KINDS.iter().find(|(kind, _)| *kind == name) {
            return Workload::parse(text);
        }
        let path = Path::new(name);
        if !path.exists() {
            let names = KINDS.iter().map(|(kind, _)| *kind);
            return Err(ConfigError::new("", not_among("workload ", name, names)));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::new("", format!("{name} cannot be read: {error}")))?;
        let mut workload = Workload::parse(&text)
            .map_err(|error| ConfigError { file: Some(path.into()), ..error })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        workload.certificate = workload.certificate.map(|own| folder.join(own));
        Ok(workload)
    }

    /// The one that this text describes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Workload, ConfigError> {
        let section = Section::from_text("workload", text)?;
        let workload = Workload { name: section.name().into(), ..section.parse()? };
        workload.check().map_err(|error| section.locate(error))?;
        Ok(workload)
    }

    /// What the types do not say.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, message: String| Err(ConfigError::new(key, message));
        if self.file.is_empty() {
            return wrong("file", "found none, allowed: one or more".into());
        }
        for (place, file) in self.file.iter().enumerate() {
            let key = |key: &str| format!("file[{place}].{key}");
            if !(1..=1_000_000_000).contains(&file.bytes) {
                let message = format!("found {}, allowed: 1 to 1000000000", file.bytes);
                return wrong(&key("bytes"), message);
            }
            if !(file.weight.is_finite() && file.weight >= 0.0) {
                return wrong(&key("weight"), format!("found {}, allowed: 0 or more", file.weight));
            }
            if file.php && self.server != ServerKind::Apache {
                let message = "found true, allowed with server = \"apache\"".into();
                return wrong(&key("php"), message);
            }
        }
        if self.file.iter().all(|file| file.weight == 0.0) {
            return wrong("file", "found weights of zero alone, allowed: one above zero".into());
        }
        let rate = self.requests_per_second;
        if !(0.0..=1e6).contains(&rate) {
            return wrong("requests_per_second", format!("found {rate}, allowed: 0 to 1000000"));
        }
        if self.tls && (self.client != ClientKind::Wrk || self.server == ServerKind::Webfs) {
            let message = "found true, allowed with client = \"wrk\", and nginx or Apache";
            return wrong("tls", message.into());
        }
        if self.client == ClientKind::Wrk && rate != 0.0 {
            let message = "found \"wrk\", allowed with requests_per_second = 0: wrk has no rate";
            return wrong("client", message.into());
        }
        if self.certificate.is_some() && !self.tls {
            return wrong("certificate", "found one, allowed with tls = true".into());
        }
        if self.send_bytes != 0 && self.server != ServerKind::NginxCopy {
            let message =
                format!("found {}, allowed with server = \"nginx-copy\"", self.send_bytes);
            return wrong("send_bytes", message);
        }
        // Less waits until there is a segment's worth.
        if self.send_bytes != 0 && !(2048..=1 << 20).contains(&self.send_bytes) {
            let message = format!("found {}, allowed: 0, 2048 to 1048576", self.send_bytes);
            return wrong("send_bytes", message);
        }
        for (key, found, least, most) in [
            ("connections", self.connections, 1, 50_000),
            ("addresses", self.addresses, 1, 65_536),
            ("patience_ms", self.patience_ms, 100, 60_000),
        ] {
            if !(least..=most).contains(&found) {
                return wrong(key, format!("found {found}, allowed: {least} to {most}"));
            }
        }
        Ok(())
    }

    /// Its keys.
    pub fn keys() -> Vec<KeyHelp> {
        keys_of::<Workload>()
    }

    /// The path of a file by its place.
    pub fn path(&self, place: usize) -> String {
        format!("/{place}.{}", if self.file[place].php { "php" } else { "bin" })
    }

    /// Where the part of each file ends, the parts of all being 1.
    pub fn shares(&self) -> Vec<f64> {
        let all: f64 = self.file.iter().map(|file| file.weight).sum();
        let mut sum = 0.0;
        let ends = self.file.iter().map(|file| {
            sum += file.weight / all;
            sum
        });
        ends.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_come_along_are_right() {
        for (name, _) in KINDS {
            let workload = Workload::find(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(
                !workload.help.is_empty() && (workload.shares().last().unwrap() - 1.0).abs() < 1e-9
            );
        }
        assert_eq!(Workload::find("support").unwrap().path(0), "/0.php");
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        const FILE: &str = "[[file]]\nbytes = 1\nweight = 1\n";
        let refused = |text: &str| {
            Workload::parse(&format!("workload = \"mine\"\n{text}")).unwrap_err().to_string()
        };
        for (text, wanted) in [
            (String::new(), "file: found none, allowed: one or more"),
            ("[[file]]\nbytes = 0\nweight = 1\n".into(), "file[0].bytes: found 0, allowed: 1 to"),
            ("[[file]]\nbytes = 1\nweight = -1\n".into(), "file[0].weight: found -1, allowed: 0"),
            ("[[file]]\nbytes = 1\nweight = 0\n".into(), "file: found weights of zero alone"),
            (format!("{FILE}php = true\n"), "file[0].php: found true, allowed with server"),
            (format!("tls = true\n{FILE}"), "tls: found true, allowed with client = \"wrk\""),
            (
                format!("client = \"wrk\"\nrequests_per_second = 5\n{FILE}"),
                "client: found \"wrk\", allowed with requests_per_second = 0",
            ),
            (format!("client = \"ab\"\n{FILE}"), "allowed: picnic, wrk"),
            (
                format!("certificate = \"a.pem\"\n{FILE}"),
                "certificate: found one, allowed with tls",
            ),
            (format!("requests_per_second = -5\n{FILE}"), "requests_per_second: found -5, allowed"),
            (
                format!("send_bytes = 4096\n{FILE}"),
                "send_bytes: found 4096, allowed with server = \"nginx-copy\"",
            ),
            (
                format!("server = \"nginx-copy\"\nsend_bytes = 1024\n{FILE}"),
                "send_bytes: found 1024, allowed: 0, 2048 to 1048576",
            ),
            (format!("patience_ms = 99\n{FILE}"), "patience_ms: found 99, allowed: 100 to 60000"),
            (format!("connections = 0\n{FILE}"), "connections: found 0, allowed: 1 to 50000"),
            (format!("server = \"iis\"\n{FILE}"), "allowed: nginx, nginx-copy, apache, webfs"),
            (format!("sever = 1\n{FILE}"), "found key \"sever\""),
        ] {
            let told = refused(&text);
            assert!(told.contains(wanted), "{told}");
        }
        let told = Workload::find("suport").unwrap_err().to_string();
        assert!(told.contains("did you mean \"support\"?"), "{told}");
    }
}
