//! A command that is run in the client's namespace, and what it talks to in the server's.

use super::figure::{Figured, Reading};
use crate::workloads::hosts::{Hosts, Role};
use crate::workloads::tools::Tool;
use crate::workloads::web;
use picnic_machine::signals;
use picnic_machine::testbed::Program;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two looks at the client.
const LOOK: Duration = Duration::from_millis(20);
/// A client may take this much longer than it was told to.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a server may be busy with the client before.
const BUSY: Duration = Duration::from_secs(5);
/// Bytes of the file that nginx hands out.
const FILE_BYTES: usize = 1024;
/// A thread that was there for less than this share of the run says nothing of the whole.
const SEEN: f64 = 0.5;

/// Workloads that are ready to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Small requests to a web server: nginx asked by wrk.
    Wrk,
    /// Bulk TCP from client to server: iperf3.
    Iperf3,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::Wrk, Kind::Iperf3];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Wrk => "wrk",
            Kind::Iperf3 => "iperf3",
        }
    }

    fn command(self) -> &'static str {
        match self {
            Kind::Wrk => "wrk --latency -t2 -c50 -d{seconds} http://{server}/file",
            Kind::Iperf3 => "iperf3 -J -c {server} -t {seconds}",
        }
    }

    fn tools(self) -> Vec<Tool> {
        match self {
            Kind::Wrk => web::TOOLS.to_vec(),
            Kind::Iperf3 => vec![("iperf3", "iperf3")],
        }
    }

    /// What it gives.
    pub fn figure(self) -> Figured {
        match self {
            Kind::Wrk => Figured::Printed("requests_per_second".into(), Reading::Wrk),
            Kind::Iperf3 => Figured::Printed("received_bps".into(), Reading::Iperf3),
        }
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Workload {
    kind: Option<Kind>,
    /// For a shell; `{server}` is the server's address, `{seconds}` how long it is to last.
    command: String,
    /// The server's, if it is not the kind's.
    server: Option<String>,
    pub(super) tools: Vec<Tool>,
}

/// A server at work.
#[allow(dead_code, reason = "they end when dropped")]
pub(super) enum Serving {
    Web(web::Server),
    Program(Program),
}

impl Workload {
    /// One of a kind, or by a command, or both: then command and server are used in place of the
    /// kind's.
    ///
    /// # Errors
    /// There is neither a kind nor a command.
    pub fn new(
        kind: Option<Kind>,
        command: Option<&str>,
        server: Option<&str>,
    ) -> Result<Self, String> {
        let own = command.map(str::to_owned);
        let command = own.or_else(|| kind.map(|kind| kind.command().to_owned()));
        let command = command.ok_or("found no command, needed is one, or a kind")?;
        let tools = kind.map(Kind::tools).unwrap_or_default();
        Ok(Workload { kind, command, server: server.map(str::to_owned), tools })
    }

    /// The command as it was given.
    pub fn command(&self) -> &str {
        &self.command
    }

    pub(super) fn serve(&self, hosts: &Hosts) -> anyhow::Result<Option<Serving>> {
        let command = match (&self.server, self.kind) {
            (Some(command), _) => command.as_str(),
            (None, Some(Kind::Iperf3)) => "exec iperf3 -s",
            (None, Some(Kind::Wrk)) => {
                let workers = picnic_machine::topology::cores().len().max(2);
                return Ok(Some(Serving::Web(web::Server::start(hosts, workers, FILE_BYTES)?)));
            }
            (None, None) => return Ok(None),
        };
        let mut program = hosts.start(Role::Server, &["sh", "-c", command])?;
        program.wait_for_any_port()?;
        Ok(Some(Serving::Program(program)))
    }

    /// Runs the command to its end; what it printed, and how busy it was.
    pub(super) fn run(
        &self,
        hosts: &Hosts,
        server: &str,
        seconds: f64,
    ) -> anyhow::Result<(String, Busiest)> {
        let started = Instant::now();
        loop {
            match self.run_once(hosts, server, seconds) {
                // The server may not be done with the client before.
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
        let command = self.command.replace("{server}", server).replace("{seconds}", &whole);
        let mut busiest = Busiest::start();
        let mut client = hosts.start(Role::Client, &["sh", "-c", &command])?;
        let limit = Duration::from_secs_f64(seconds) + PATIENCE;
        let status = loop {
            if let Some(status) = client.ended() {
                break status;
            }
            busiest.look(&client);
            anyhow::ensure!(
                busiest.started.elapsed() < limit,
                "the workload has not ended after {} s: {command}",
                limit.as_secs()
            );
            signals::sleep(LOOK)?;
        };
        busiest.ended = Some(busiest.started.elapsed());
        let words = client.last_words();
        // iperf3 says so in what it prints.
        let about = if words.trim() == "}" { client.output() } else { words };
        anyhow::ensure!(status.success(), "the workload ended with {status}: {command}: {about}");
        Ok((client.output(), busiest))
    }
}

/// How much of the time each thread of a client ran.
pub(super) struct Busiest {
    started: Instant,
    ended: Option<Duration>,
    /// First and last look, and the time that it had run by then.
    threads: BTreeMap<i32, [(Duration, Duration); 2]>,
}

impl Busiest {
    fn start() -> Self {
        Busiest { started: Instant::now(), ended: None, threads: BTreeMap::new() }
    }

    fn look(&mut self, client: &Program) {
        let now = self.started.elapsed();
        for (thread, ran) in client.thread_times() {
            let looks = self.threads.entry(thread).or_insert([(now, ran); 2]);
            looks[1] = (now, ran);
        }
    }

    /// The share of the time that the busiest one ran.
    pub(super) fn share(&self) -> Option<f64> {
        let whole = self.ended?.as_secs_f64();
        let shares = self.threads.values().filter_map(|[(first, ran_first), (last, ran_last)]| {
            let seen = last.saturating_sub(*first).as_secs_f64();
            let ran = ran_last.saturating_sub(*ran_first).as_secs_f64();
            (seen >= SEEN * whole).then(|| ran / seen)
        });
        shares.reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_full_by_the_time_it_was_there() {
        let ms = Duration::from_millis;
        let threads = BTreeMap::from([
            (1, [(ms(0), ms(0)), (ms(1000), ms(300))]),
            (2, [(ms(100), ms(5)), (ms(1000), ms(905))]),
            // A moment, and full: it does not count.
            (3, [(ms(0), ms(0)), (ms(20), ms(20))]),
        ]);
        let busiest = Busiest { started: Instant::now(), ended: Some(ms(1000)), threads };
        assert_eq!(busiest.share(), Some(1.0));
        assert_eq!(Busiest::start().share(), None);
    }

    #[test]
    fn a_command_stands_in_for_the_kinds() {
        assert!(Workload::new(None, None, Some("nc -l 1")).is_err());
        let own = Workload::new(Some(Kind::Wrk), Some("wrk -c1 {server}"), None).unwrap();
        assert_eq!(own.command(), "wrk -c1 {server}");
        let ready = Workload::new(Some(Kind::Iperf3), None, None).unwrap();
        assert!(ready.command().contains("{seconds}") && ready.command().contains("{server}"));
    }
}
