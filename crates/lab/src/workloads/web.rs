//! A web server and load for it: nginx, wrk.
//!
//! nginx runs with its own configuration in the hosts' directory: the machine's is not changed.
//!
//! Source: nginx.org/en/docs, wrk(1) and its scripting interface.

use super::busiest::Busiest;
use super::client::ClientResult;
use super::hosts::{Hosts, Role};
use super::kind::Workload;
use super::tools::Tool;
use super::{group, servers};
use crate::distribution::Distribution;
use anyhow::Context;
use picnic_machine::signals;
use picnic_machine::testbed::Program;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Requirements besides the basic programs.
pub const TOOLS: [Tool; 2] = [("nginx", "nginx-light"), WRK];
/// The load generator.
pub const WRK: Tool = ("wrk", "wrk");

/// The port that nginx listens on.
const PORT: u16 = 80;
/// The file that [`Server`] serves.
pub const FILE: &str = "/file";
/// wrk's timeout for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks of wrk.
const LOOK: Duration = Duration::from_millis(20);
/// Descriptors a process needs besides its connections.
const DESCRIPTORS: u64 = 128;

/// Makes wrk print its figures as one line of JSON, in its own units. Reading a percentile takes as
/// long as reading all values, and there are as many values as microseconds: so 200 even steps, and
/// finer ones at the end.
const REPORT_SCRIPT: &str = r#"
done = function(summary, latency, requests)
  local errors = summary.errors
  local steps = {}
  local function step(percent)
    steps[#steps + 1] = string.format('[%.2f,%d]', percent, latency:percentile(percent))
  end
  for half = 1, 199 do step(half / 2) end
  step(99.9)
  step(99.99)
  io.write(string.format(
    'picnic {"requests":%d,"duration_us":%d,"bytes":%d,"connect":%d,"read":%d,"write":%d,' ..
    '"status":%d,"timeout":%d,"max_us":%d,"percentiles":[%s]}\n',
    summary.requests, summary.duration, summary.bytes, errors.connect, errors.read,
    errors.write, errors.status, errors.timeout, latency.max, table.concat(steps, ',')))
end
"#;

/// After `seed`, `ends` and `paths`: makes wrk choose its requests at random, each thread with its
/// own seed.
const MIX_SCRIPT: &str = r#"
local requests, threads = {}, 0
function setup(thread)
  threads = threads + 1
  thread:set('number', threads)
end
function init(arguments)
  math.randomseed(seed + number)
  for place, path in ipairs(paths) do
    requests[place] = wrk.format('GET', path, { Host = 'server', Connection = 'close' })
  end
end
function request()
  local drawn = math.random()
  for place, last in ipairs(ends) do
    if drawn <= last then return requests[place] end
  end
  return requests[#requests]
end
"#;

/// A running web server.
pub struct Server {
    #[allow(dead_code, reason = "it ends when dropped")]
    nginx: Program,
}

impl Server {
    /// Starts nginx with this number of workers, serving one file of `bytes` bytes.
    ///
    /// # Errors
    /// It cannot be started, or reports an error.
    pub fn start(hosts: &Hosts, workers: usize, bytes: usize) -> anyhow::Result<Self> {
        let folder = hosts.folder();
        let file = folder.join("nginx.conf");
        std::fs::write(folder.join(&FILE[1..]), vec![b'p'; bytes])
            .and_then(|()| std::fs::write(&file, configuration(&folder.to_string_lossy(), workers)))
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        let (folder, file) = (folder.to_string_lossy(), file.to_string_lossy());
        let words = ["nginx", "-p", &*folder, "-e", "stderr", "-c", &*file];
        let mut nginx = hosts.start(Role::Server, &words)?;
        nginx.wait_for_port(PORT)?;
        Ok(Server { nginx })
    }
}

fn configuration(folder: &str, workers: usize) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {folder}/{kind};\n"))
        .collect();
    format!(
        "daemon off;\nworker_processes {workers};\npid {folder}/nginx.pid;\n\
         worker_rlimit_nofile 65536;\nerror_log stderr;\n\
         events {{ worker_connections 16384; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  open_file_cache max=16;\n  \
         keepalive_requests 1000000000;\n  keepalive_timeout 60s;\n{temporary}  \
         server {{ listen {PORT} reuseport; root {folder}; }}\n}}\n"
    )
}

/// A load on the server.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Connections kept open.
    pub connections: usize,
    /// Threads of wrk, no more than connections.
    pub threads: usize,
    /// Whole seconds.
    pub seconds: u64,
    /// The requested path.
    pub path: &'static str,
}

impl Load {
    /// Starts wrk. A numeric port needs no list of services.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(self, hosts: &Hosts, address: &str) -> anyhow::Result<RunningWrk> {
        allow_descriptors(self.connections as u64 + DESCRIPTORS)?;
        let script = hosts.folder().join("report.lua");
        std::fs::write(&script, REPORT_SCRIPT)
            .with_context(|| format!("cannot write {}", script.display()))?;
        let number = |flag: &str, value: u64| format!("-{flag}{value}");
        let words = [
            "wrk".into(),
            number("t", self.threads.clamp(1, self.connections) as u64),
            number("c", self.connections as u64),
            number("d", self.seconds),
            format!("--timeout={}", TIMEOUT.as_secs()),
            "-s".into(),
            script.to_string_lossy().into_owned(),
            format!("http://{address}:{PORT}{}", self.path),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(RunningWrk { wrk: hosts.start(Role::Client, &words)? })
    }
}

/// Allows this process and its children this many open descriptors.
pub(super) fn allow_descriptors(wanted: u64) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map_or(wanted, |maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(maximum) })
        .with_context(|| format!("cannot have {wanted} descriptors open: try fewer connections"))
}

/// Requests a workload's files by a wrk of each client, with a new connection each time.
///
/// # Errors
/// One cannot be started, failed, or printed something else.
pub(super) fn ask_mix(
    by: &group::ClientGroup<'_>,
    workload: &Workload,
    seconds: f64,
    seed: u64,
) -> anyhow::Result<ClientResult> {
    let clients = usize::from(by.clients);
    let connections = (workload.connections as usize / clients).max(1);
    let threads = by.cores.div_ceil(clients).clamp(1, connections);
    let patience = workload.patience_ms.div_ceil(1000);
    let scheme = if workload.tls { "https" } else { "http" };
    let address = format!("{scheme}://{}:{}/", by.server, servers::port(workload));
    let start = |client: u8| {
        let script = by.hosts.folder().join(format!("mix{client}.lua"));
        let seed = seed.wrapping_add(u64::from(client) * threads as u64);
        std::fs::write(&script, mix(workload, seed) + REPORT_SCRIPT)
            .with_context(|| format!("cannot write {}", script.display()))?;
        let words = [
            "wrk".into(),
            format!("-t{threads}"),
            format!("-c{connections}"),
            // It only takes whole seconds.
            format!("-d{}", seconds.ceil()),
            format!("--timeout={patience}"),
            "-s".into(),
            script.to_string_lossy().into_owned(),
            address.clone(),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        anyhow::Ok((by.hosts.start(Role::ClientAt(client), &words)?, Busiest::start()))
    };
    let mut asking = (0..by.clients).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut all = ClientResult::default();
    while !asking.is_empty() {
        let mut left = Vec::new();
        for (wrk, mut busiest) in asking {
            busiest.look(&wrk);
            let mut wrk = RunningWrk { wrk };
            match wrk.finished()? {
                Some(found) => {
                    busiest.end();
                    all.add(&answered(&found, busiest.share()));
                }
                None => left.push((wrk.wrk, busiest)),
            }
        }
        asking = left;
        signals::sleep(LOOK)?;
    }
    Ok(all)
}

/// The results of wrk, in the form of any client's.
fn answered(found: &WebFigures, busy_fraction: Option<f64>) -> ClientResult {
    let errors = &found.errors;
    let broken = [
        (errors.connect, "no connection"),
        (errors.read, "an incomplete answer"),
        (errors.write, "an unsent request"),
    ];
    let first_broken = broken.iter().find(|(count, _)| *count > 0).map(|(_, how)| *how);
    ClientResult {
        offered: found.requests + errors.total() - errors.status,
        answered: found.requests - errors.status.min(found.requests),
        bytes: found.received_bytes,
        broken: broken.iter().map(|(count, _)| count).sum(),
        first_broken: first_broken.map(Into::into),
        refused: errors.status,
        timeouts: errors.timeout,
        seconds: found.duration_s,
        p50_ns: found.request_latency_ns.p50,
        p99_ns: found.request_latency_ns.p99,
        busy_fraction,
        ..ClientResult::default()
    }
}

/// A script for wrk that requests a workload's files by their shares.
fn mix(workload: &Workload, seed: u64) -> String {
    let count = workload.file.len();
    let paths: Vec<_> = (0..count).map(|place| format!("\"{}\"", workload.path(place))).collect();
    let ends: Vec<_> = workload.shares().iter().map(f64::to_string).collect();
    let delay = match workload.think_ms {
        0 => String::new(),
        think => format!("function delay()\n  return {think}\nend\n"),
    };
    let (paths, ends) = (paths.join(", "), ends.join(", "));
    // Lua's numbers have 53 bits.
    let seed = seed % (1 << 31);
    format!(
        "local seed = {seed}\nlocal ends = {{{ends}}}\nlocal paths = {{{paths}}}\n\
         {MIX_SCRIPT}{delay}"
    )
}

/// A running wrk.
pub struct RunningWrk {
    wrk: Program,
}

impl RunningWrk {
    /// Its results, once it has ended.
    ///
    /// # Errors
    /// It failed, or printed something else.
    pub fn finished(&mut self) -> anyhow::Result<Option<WebFigures>> {
        let Some(status) = self.wrk.ended() else { return Ok(None) };
        anyhow::ensure!(status.success(), "wrk: {}", self.wrk.last_words());
        figures(&self.wrk.output()).map(Some)
    }
}

/// The output of wrk's script.
#[derive(Deserialize)]
struct Printed {
    requests: u64,
    duration_us: u64,
    bytes: u64,
    connect: u64,
    read: u64,
    write: u64,
    status: u64,
    timeout: u64,
    max_us: u64,
    /// Percent of all requests, and their maximum in microseconds.
    percentiles: Vec<(f64, u64)>,
}

/// The results of a web server's client.
#[derive(Clone, Debug, Serialize)]
pub struct WebFigures {
    /// Requests answered.
    pub requests: u64,
    /// The same, per second.
    pub requests_per_second: f64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Its duration in seconds.
    pub duration_s: f64,
    /// Failed requests.
    pub errors: WebErrors,
    /// Request latency.
    pub request_latency_ns: WebLatency,
    /// All latencies, at the resolution of the requested percentiles.
    #[serde(skip)]
    pub request_distribution: Distribution,
}

/// Failed requests, by kind.
#[derive(Clone, Debug, Serialize)]
pub struct WebErrors {
    /// Connections not made.
    pub connect: u64,
    /// Answers read incompletely.
    pub read: u64,
    /// Requests not sent.
    pub write: u64,
    /// Answers other than 2xx or 3xx.
    pub status: u64,
    /// Requests without an answer in time.
    pub timeout: u64,
}

impl WebErrors {
    /// Their total.
    pub fn total(&self) -> u64 {
        self.connect + self.read + self.write + self.status + self.timeout
    }
}

/// Percentiles in nanoseconds, to the microsecond.
#[derive(Clone, Debug, Serialize)]
pub struct WebLatency {
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The maximum.
    pub max: u64,
}

fn figures(text: &str) -> anyhow::Result<WebFigures> {
    let line = text.lines().find_map(|line| line.strip_prefix("picnic "));
    let line = line.context("wrk did not report its figures")?;
    let printed: Printed =
        serde_json::from_str(line).context("wrk's report has an unexpected format")?;
    let duration_s = printed.duration_us as f64 / 1e6;
    Ok(WebFigures {
        requests: printed.requests,
        requests_per_second: printed.requests as f64 / duration_s.max(1e-6),
        received_bytes: printed.bytes,
        duration_s,
        errors: WebErrors {
            connect: printed.connect,
            read: printed.read,
            write: printed.write,
            status: printed.status,
            timeout: printed.timeout,
        },
        request_latency_ns: WebLatency {
            p50: percentile(&printed, 50.0)?,
            p99: percentile(&printed, 99.0)?,
            p999: percentile(&printed, 99.9)?,
            max: printed.max_us * 1000,
        },
        request_distribution: distribution(&printed),
    })
}

/// In nanoseconds.
fn percentile(printed: &Printed, percent: f64) -> anyhow::Result<u64> {
    let found = printed.percentiles.iter().find(|(asked, _)| *asked == percent);
    found.map(|(_, us)| us * 1000).with_context(|| format!("wrk reports no percentile {percent}"))
}

/// At each percentile's time, the number of requests since the previous one.
fn distribution(printed: &Printed) -> Distribution {
    let steps = printed.percentiles.iter().copied().chain([(100.0, printed.max_us)]);
    let mut before = 0;
    let counts = steps.map(|(percent, us)| {
        let until = (printed.requests as f64 * percent / 100.0).round() as u64;
        let count = until.saturating_sub(before);
        before = until;
        (us * 1000, count)
    });
    Distribution::of("request_ns", counts.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_wrks_output() {
        let text = "Running 2s test\n  2 threads\npicnic {\"requests\":3000,\"duration_us\":2000000,\
                    \"bytes\":9,\"connect\":1,\"read\":2,\"write\":3,\"status\":4,\"timeout\":5,\
                    \"max_us\":4,\"percentiles\":[[50,1],[99,2],[99.9,3]]}\n";
        let figures = figures(text).unwrap();
        assert_eq!((figures.requests_per_second, figures.errors.total()), (1500.0, 15));
        assert_eq!(figures.request_latency_ns.max, 4000);
        let lie = Distribution::of("", [(1000, 1500), (2000, 1470), (3000, 27), (4000, 3)]);
        assert_eq!(figures.request_distribution, lie.keyed("request_ns"));
        assert!(super::figures("Running 2s test\n").is_err());
        assert!(super::figures("picnic {}\n").is_err());
    }

    #[test]
    fn configuration_writes_only_to_its_directory() {
        let text = configuration("/tmp/here", 3);
        assert!(text.contains("worker_processes 3;") && text.contains("access_log off;"));
        for line in text.lines().filter(|line| line.contains("_path") || line.contains("pid ")) {
            assert!(line.contains("/tmp/here/"), "{line}");
        }
    }
}
