//! The client and the server of a comparison: a command with a server, or one of the workloads of
//! `picnic workload list`.

use super::figure::{ComparedFigure, Reading};
use crate::workloads::busiest::Busiest;
use crate::workloads::hosts::{Hosts, PLAIN_CLIENT, PLAIN_SERVER, Role, SERVER, client_address};
use crate::workloads::kind::{self as web_workload, KINDS};
use crate::workloads::servers::{self, WebServer};
use crate::workloads::tools::Tool;
use crate::workloads::{group, web};
use anyhow::Context;
use picnic_machine::signals;
use picnic_machine::testbed::Program;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Time between two checks of the client.
const LOOK: Duration = Duration::from_millis(20);
/// Extra time for a client beyond its duration.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest time that a server may still be busy with the previous client.
const BUSY: Duration = Duration::from_secs(60);
/// Bytes of the file served by nginx.
const FILE_BYTES: usize = 1024;
/// Seed of a workload's random choices: the same for all sides.
const SEED: u64 = 1;

/// Predefined workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Small requests by wrk to nginx, a web server.
    Wrk,
    /// Bulk TCP from client to server: iperf3.
    Iperf3,
    /// One of the workloads of `picnic workload list`, by its name.
    Named(&'static str),
}

impl Kind {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Kind> {
        let named = KINDS.iter().map(|(name, _)| Kind::Named(name));
        [Kind::Wrk, Kind::Iperf3].into_iter().chain(named)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Wrk => "wrk",
            Kind::Iperf3 => "iperf3",
            Kind::Named(name) => name,
        }
    }

    /// A line of help.
    pub fn help(self) -> String {
        match self {
            Kind::Wrk => "small requests to nginx, each answered before the next (wrk)".into(),
            Kind::Iperf3 => "bulk TCP to the server".into(),
            Kind::Named(name) => web_workload::Workload::find(name)
                .map_or_else(|error| error.to_string(), |workload| workload.help),
        }
    }

    /// The command of its client, if any.
    fn command(self) -> Option<&'static str> {
        match self {
            Kind::Wrk => Some("wrk --latency -t2 -c50 -d{seconds} http://{server}/file"),
            Kind::Iperf3 => Some("iperf3 -J -c {server} -t {seconds}"),
            Kind::Named(_) => None,
        }
    }

    /// Its figure.
    pub fn figure(self) -> ComparedFigure {
        match self {
            Kind::Wrk => ComparedFigure::Printed("requests_per_second".into(), Reading::Wrk),
            Kind::Iperf3 => ComparedFigure::Printed("received_bps".into(), Reading::Iperf3),
            Kind::Named(_) => ComparedFigure::Printed("requests_per_second".into(), Reading::Named),
        }
    }
}

/// A workload to run.
#[derive(Clone, Debug)]
pub struct Workload {
    kind: Option<Kind>,
    client: Client,
    /// The server's command, if not the kind's.
    server: Option<String>,
    /// Files and server, if the kind has them.
    named: Option<web_workload::Workload>,
    pub(super) tools: Vec<Tool>,
}

/// The client.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Client {
    /// A shell command; `{server}` is the server's address, `{seconds}` the duration.
    Command(String),
    /// The client of the workload of this name.
    Named(&'static str),
}

/// A running server.
#[allow(dead_code, reason = "they end when dropped")]
pub(super) enum Serving {
    Web(web::Server),
    Named(WebServer),
    Program(Program),
}

/// The way to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A veth from client to server.
    Plain,
    /// The card, by its host's interface.
    Card {
        /// The interface.
        link: &'static str,
        /// Its address.
        mac: &'static str,
    },
}

impl Way {
    fn server(self) -> &'static str {
        if self == Way::Plain { PLAIN_SERVER } else { SERVER }
    }
}

/// The result of a client.
pub(super) struct ClientOutput {
    /// The client's output.
    pub(super) printed: String,
    /// The share of time that its busiest thread ran; none if unknown.
    pub(super) busiest: Option<f64>,
    /// Whether the client could not send all its requests.
    pub(super) at_limit: bool,
}

impl Workload {
    /// A workload of a kind, or by a command, or both: then command and server replace the kind's.
    ///
    /// # Errors
    /// Neither a kind nor a command.
    pub fn new(
        kind: Option<Kind>,
        command: Option<&str>,
        server: Option<&str>,
    ) -> Result<Self, String> {
        let own = command.or_else(|| kind?.command()).map(|own| Client::Command(own.to_owned()));
        let named = match kind {
            Some(Kind::Named(name)) => {
                let found = web_workload::Workload::find(name).map_err(|error| error.to_string());
                Some((name, found?))
            }
            _ => None,
        };
        let client = own.or_else(|| Some(Client::Named(named.as_ref()?.0)));
        let client = client.ok_or("missing workload, expected a command or a kind")?;
        let named = named.map(|(_, workload)| workload);
        let tools = match kind {
            Some(Kind::Wrk) => web::TOOLS.to_vec(),
            Some(Kind::Iperf3) => vec![("iperf3", "iperf3")],
            Some(Kind::Named(_)) => named.as_ref().map(servers::tools).unwrap_or_default(),
            None => Vec::new(),
        };
        Ok(Workload { kind, client, server: server.map(str::to_owned), named, tools })
    }

    /// The command as given, or the name of the workload.
    pub fn command(&self) -> &str {
        match &self.client {
            Client::Command(command) => command,
            Client::Named(name) => name,
        }
    }

    pub(super) fn serve(&self, hosts: &Hosts) -> anyhow::Result<Option<Serving>> {
        let workers = picnic_machine::topology::cores().len().max(2);
        if let Some(workload) = &self.named {
            group::give_addresses(hosts, workload, 1)?;
        }
        let command = match (&self.server, self.kind) {
            (Some(command), _) => command.as_str(),
            (None, Some(Kind::Iperf3)) => "exec iperf3 -s",
            (None, Some(Kind::Wrk)) => {
                return Ok(Some(Serving::Web(web::Server::start(hosts, workers, FILE_BYTES)?)));
            }
            (None, Some(Kind::Named(_)) | None) => {
                let Some(workload) = &self.named else { return Ok(None) };
                return Ok(Some(Serving::Named(WebServer::start(hosts, workload, workers)?)));
            }
        };
        let mut program = hosts.start(Role::Server, &["sh", "-c", command])?;
        program.wait_for_any_port()?;
        Ok(Some(Serving::Program(program)))
    }

    /// Runs the client to its end on this way.
    pub(super) fn run(
        &self,
        hosts: &Hosts,
        way: Way,
        seconds: f64,
    ) -> anyhow::Result<ClientOutput> {
        if let Some(workload) = &self.named {
            let plain: Ipv4Addr = PLAIN_CLIENT.parse().context("the client's address")?;
            match way {
                Way::Plain => group::lead_back(hosts, workload, 1, |_| plain)?,
                Way::Card { link, mac } => {
                    group::lead_back(hosts, workload, 1, client_address)?;
                    hosts.keep_neighbours(1, link, mac)?;
                }
            }
        }
        match (&self.client, &self.named) {
            (Client::Named(_), Some(workload)) => {
                let talked = ask(hosts, workload, way.server(), seconds)?;
                wait_until_idle(hosts, servers::port(workload))?;
                Ok(talked)
            }
            _ => {
                let (printed, busiest) = self.run_command(hosts, way.server(), seconds)?;
                Ok(ClientOutput { printed, busiest: busiest.share(), at_limit: false })
            }
        }
    }

    /// Runs the command to completion; returns its output and load.
    fn run_command(
        &self,
        hosts: &Hosts,
        server: &str,
        seconds: f64,
    ) -> anyhow::Result<(String, Busiest)> {
        let started = Instant::now();
        loop {
            match self.run_once(hosts, server, seconds) {
                // The server may still be busy with the previous client.
                Err(error)
                    if self.kind == Some(Kind::Iperf3)
                        && format!("{error:#}").contains("busy")
                        && started.elapsed() < BUSY =>
                {
                    signals::sleep(Duration::from_millis(100))?;
                }
                result => return result,
            }
        }
    }

    fn run_once(
        &self,
        hosts: &Hosts,
        server: &str,
        seconds: f64,
    ) -> anyhow::Result<(String, Busiest)> {
        let whole = seconds.ceil().max(1.0).to_string();
        let command = self.command().replace("{server}", server).replace("{seconds}", &whole);
        let mut busiest = Busiest::start();
        let mut client = hosts.start(Role::Client, &["sh", "-c", &command])?;
        let limit = Duration::from_secs_f64(seconds) + PATIENCE;
        let status = loop {
            if let Some(status) = client.ended() {
                break status;
            }
            busiest.look(&client);
            anyhow::ensure!(
                busiest.elapsed() < limit,
                "the workload has not ended after {} s: {command}",
                limit.as_secs()
            );
            signals::sleep(LOOK)?;
        };
        busiest.end();
        let words = client.last_words();
        // iperf3 reports errors in its output.
        let about = if words.trim() == "}" { client.output() } else { words };
        anyhow::ensure!(status.success(), "the workload ended with {status}: {command}: {about}");
        Ok((client.output(), busiest))
    }
}

/// Waits until the server knows that the client has closed its connections: once the card is gone
/// it would not find out, and its processes would keep them while the next side is measured.
fn wait_until_idle(hosts: &Hosts, port: u16) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let sockets = hosts.within(Role::Server, "cat /proc/net/tcp /proc/net/tcp6")?;
        let open = connections(&sockets, port);
        if open == 0 {
            return Ok(());
        }
        anyhow::ensure!(
            started.elapsed() < BUSY,
            "the server still has {open} connections of a client that has ended, after {} s",
            BUSY.as_secs()
        );
        signals::sleep(LOOK)?;
    }
}

/// Connections of a port that are held by a program, in the kernel's list of sockets.
fn connections(sockets: &str, port: u16) -> usize {
    // Established, being closed by the server, closed by the client.
    const STATES: [&str; 3] = ["01", "04", "08"];
    let own = format!(":{port:04X}");
    let is_open = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&own))
            && words.nth(1).is_some_and(|state| STATES.contains(&state))
    };
    sockets.lines().filter(is_open).count()
}

/// Runs a workload's own client.
fn ask(
    hosts: &Hosts,
    workload: &web_workload::Workload,
    server: &str,
    seconds: f64,
) -> anyhow::Result<ClientOutput> {
    let cores = picnic_machine::topology::cores().len();
    let asking = group::ClientGroup { hosts, server, cores, clients: 1 };
    let answered = asking.ask(workload, seconds, SEED)?;
    let first = answered.first_broken.as_deref().unwrap_or("none is known to be broken");
    anyhow::ensure!(
        answered.answered != 0,
        "no request was answered: of {}, {} were broken, {} refused, {} timed out; the first: {first}",
        answered.offered,
        answered.broken,
        answered.refused,
        answered.timeouts
    );
    let mut printed = serde_json::to_value(&answered)?;
    printed["requests_per_second"] = answered.per_second().into();
    Ok(ClientOutput {
        printed: printed.to_string(),
        busiest: answered.busy_fraction,
        at_limit: answered.is_at_limit(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_port_and_state() {
        let sockets = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
             0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n   \
             1: 0100580A:0050 07005A0A:9C40 01 00000000:00000000 00:00000000 00000000\n   \
             2: 0100580A:0050 08005A0A:9C41 06 00000000:00000000 00:00000000 00000000\n   \
             3: 0100580A:01BB 08005A0A:9C41 01 00000000:00000000 00:00000000 00000000\n   \
             0: 0000000000000000FFFF00000100580A:0050 0000000000000000FFFF000008005A0A:9C42 08 0\n";
        assert_eq!((connections(sockets, 80), connections(sockets, 443)), (2, 1));
        assert_eq!(connections("", 80), 0);
    }

    #[test]
    fn commands_replace_commands_of_the_same_kind() {
        assert!(Workload::new(None, None, Some("nc -l 1")).is_err());
        let own = Workload::new(Some(Kind::Wrk), Some("wrk -c1 {server}"), None).unwrap();
        assert_eq!(own.command(), "wrk -c1 {server}");
        let ready = Workload::new(Some(Kind::Iperf3), None, None).unwrap();
        assert!(ready.command().contains("{seconds}") && ready.command().contains("{server}"));
    }

    #[test]
    fn listed_workloads_have_client_and_server() {
        let names: Vec<_> = Kind::all().map(Kind::name).collect();
        let named = ["support", "banking", "e-commerce", "webstone", "sclient", "closed-loop"];
        assert_eq!(names, [&["wrk", "iperf3"][..], &named].concat());
        assert!(Kind::all().all(|kind| !kind.help().is_empty()));
        let new = |command| Workload::new(Some(Kind::Named("sclient")), command, None).unwrap();
        let ready = new(None);
        assert_eq!((ready.command(), &ready.client), ("sclient", &Client::Named("sclient")));
        assert_eq!(ready.tools, [("webfsd", "webfs")]);
        // The user's own client with the same server.
        let own = new(Some("./ask {server}"));
        assert_eq!((own.command(), own.named.is_some()), ("./ask {server}", true));
        assert!(Workload::new(Some(Kind::Named("bank")), None, None).is_err());
    }
}
