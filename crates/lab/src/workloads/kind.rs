//! Workloads: the requests, the server and the client; each a file.
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
//! The built-in ones are in `examples/workloads`.

use picnic_core::config::{KeyHelp, Section, keys_of};
use picnic_core::error::{ConfigError, not_among};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The built-in workloads: names and files.
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
    /// A line of help
    pub help: String,
    /// The server
    pub server: ServerKind,
    /// The client
    pub client: ClientKind,
    /// Whether to use TLS; only with wrk, and not with webfs
    pub tls: bool,
    /// With tls: a PEM file with a certificate and its key, relative to the workload's file
    /// [default: made for the run]
    pub certificate: Option<PathBuf>,
    /// Bytes that the server writes at a time, 2048 to 1048576; 0 for its own choice; only with
    /// nginx-copy
    #[schemars(range(max = 1_048_576))]
    pub send_bytes: u32,
    /// Parallel connections: each sends one request and is replaced; at a rate, the most that may
    /// wait for answers, 1 to 50000
    #[schemars(range(min = 1, max = 50_000))]
    pub connections: u32,
    /// Requests sent per second, independent of answers; 0: each follows an answer; not with
    /// wrk
    pub requests_per_second: f64,
    /// Milliseconds between an answer and the next request of its connection; not at a rate
    #[schemars(range(max = 60_000))]
    pub think_ms: u32,
    /// Milliseconds to wait for an answer, 100 to 60000
    #[schemars(range(min = 100, max = 60_000))]
    pub patience_ms: u32,
    /// Addresses of the clients, 1 to 65536; wrk uses a single one
    #[schemars(range(min = 1, max = 65_536))]
    pub addresses: u32,
    /// The files to request
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

/// A file, or a generated page, and how often it is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileKind {
    /// Its size in bytes, 1 to 1000000000
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub bytes: u64,
    /// Its weight among all requests
    pub weight: f64,
    /// Whether PHP generates it; only with Apache
    pub php: bool,
}

/// A web server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// nginx, handing whole files to the kernel (`sendfile`).
    #[default]
    Nginx,
    /// nginx, reading files and writing them.
    NginxCopy,
    /// Apache with PHP, a process per connection.
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
    /// Its name.
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
    /// The built-in one with this name, or one from the file with this name.
    ///
    /// # Errors
    /// It does not exist, or the file has errors.
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

    /// A workload from this text.
    ///
    /// # Errors
    /// The fault.
    pub fn parse(text: &str) -> Result<Workload, ConfigError> {
        let section = Section::from_text("workload", text)?;
        let workload = Workload { name: section.name().into(), ..section.parse()? };
        workload.check().map_err(|error| section.locate(error))?;
        Ok(workload)
    }

    /// Checks what types do not express.
    ///
    /// # Errors
    /// A wrong value.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, message: String| Err(ConfigError::new(key, message));
        if self.file.is_empty() {
            return wrong("file", "missing, expected one or more".into());
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
                let message = "found true, allowed only with server = \"apache\"".into();
                return wrong(&key("php"), message);
            }
        }
        if self.file.iter().all(|file| file.weight == 0.0) {
            return wrong(
                "file",
                "found only weights of zero, allowed: at least one above zero".into(),
            );
        }
        let rate = self.requests_per_second;
        if !(0.0..=1e6).contains(&rate) {
            return wrong("requests_per_second", format!("found {rate}, allowed: 0 to 1000000"));
        }
        if self.tls && (self.client != ClientKind::Wrk || self.server == ServerKind::Webfs) {
            let message = "found true, allowed only with client = \"wrk\", and nginx or Apache";
            return wrong("tls", message.into());
        }
        if self.client == ClientKind::Wrk && rate != 0.0 {
            let message =
                "found \"wrk\", allowed only with requests_per_second = 0: wrk has no rate";
            return wrong("client", message.into());
        }
        if self.certificate.is_some() && !self.tls {
            return wrong("certificate", "found one, allowed only with tls = true".into());
        }
        if self.send_bytes != 0 && self.server != ServerKind::NginxCopy {
            let message =
                format!("found {}, allowed only with server = \"nginx-copy\"", self.send_bytes);
            return wrong("send_bytes", message);
        }
        // Less waits until a segment is full.
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

    /// The path of a file by its number.
    pub fn path(&self, place: usize) -> String {
        format!("/{place}.{}", if self.file[place].php { "php" } else { "bin" })
    }

    /// The cumulative share of each file; the total is 1.
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
    fn built_in_workloads_are_valid() {
        for (name, _) in KINDS {
            let workload = Workload::find(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(
                !workload.help.is_empty() && (workload.shares().last().unwrap() - 1.0).abs() < 1e-9
            );
        }
        assert_eq!(Workload::find("support").unwrap().path(0), "/0.php");
    }

    #[test]
    fn invalid_workloads_are_refused() {
        const FILE: &str = "[[file]]\nbytes = 1\nweight = 1\n";
        let refused = |text: &str| {
            Workload::parse(&format!("workload = \"mine\"\n{text}")).unwrap_err().to_string()
        };
        for (text, wanted) in [
            (String::new(), "file: missing, expected one or more"),
            ("[[file]]\nbytes = 0\nweight = 1\n".into(), "file[0].bytes: found 0, allowed: 1 to"),
            ("[[file]]\nbytes = 1\nweight = -1\n".into(), "file[0].weight: found -1, allowed: 0"),
            ("[[file]]\nbytes = 1\nweight = 0\n".into(), "file: found only weights of zero"),
            (format!("{FILE}php = true\n"), "file[0].php: found true, allowed only with server"),
            (format!("tls = true\n{FILE}"), "tls: found true, allowed only with client = \"wrk\""),
            (
                format!("client = \"wrk\"\nrequests_per_second = 5\n{FILE}"),
                "client: found \"wrk\", allowed only with requests_per_second = 0",
            ),
            (format!("client = \"ab\"\n{FILE}"), "allowed: picnic, wrk"),
            (
                format!("certificate = \"a.pem\"\n{FILE}"),
                "certificate: found one, allowed only with tls",
            ),
            (format!("requests_per_second = -5\n{FILE}"), "requests_per_second: found -5, allowed"),
            (
                format!("send_bytes = 4096\n{FILE}"),
                "send_bytes: found 4096, allowed only with server = \"nginx-copy\"",
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
