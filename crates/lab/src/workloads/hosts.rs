//! Three network namespaces to put a card between: client, card and server.
//!
//! ```text
//!  client            card                    server
//!  c0 ═════ veth ═══ w0 ── packet wire ─ card ─ tap h0 (made by the card)
//!  p0 ═════════════════ veth (if asked for) ═══════ p0
//! ```
//!
//! Guarantees: all of it is gone once the value is dropped. What a killed process left is removed
//! when the next one builds its own. Nothing outside these namespaces is changed.
//!
//! Source: ip-netns(8), veth(4).

use super::owner;
use super::program::run;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The client's address behind the card; the server's.
pub const CLIENT: &str = "10.88.0.2";
/// See [`CLIENT`].
pub const SERVER: &str = "10.88.0.1";

/// The server's address by the plain veth.
pub const PLAIN_SERVER: &str = "10.89.0.1";
const PLAIN_CLIENT: &str = "10.89.0.2";
const PLAIN_LINK: &str = "p0";

/// The client's interface, and the one of the card's wire.
const CLIENT_LINK: &str = "c0";
/// See [`CLIENT_LINK`].
const WIRE_LINK: &str = "w0";

/// How long an interface may take to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Whoever asks.
    Client,
    /// The card's wire.
    Card,
    /// Whoever answers.
    Server,
}

/// The namespaces, and a folder for the programs' files.
#[derive(Debug)]
pub struct Hosts {
    name: String,
    folder: PathBuf,
    /// The cores that programs stay on; none says all.
    cores: Vec<usize>,
}

impl Hosts {
    /// Makes the namespaces and the veth pair between client and wire, with this MTU.
    ///
    /// # Errors
    /// Not root, or what the system said. Nothing is left then.
    pub fn build(mtu: u32) -> anyhow::Result<Self> {
        anyhow::ensure!(
            rustix::process::geteuid().is_root(),
            "making network namespaces needs root: try it with `sudo`"
        );
        remove_stale();
        let name = owner::name();
        let folder = std::env::temp_dir().join(&name);
        // From here on it is removed, whatever happens.
        let hosts = Hosts { name, folder, cores: Vec::new() };
        std::fs::create_dir(&hosts.folder)
            .with_context(|| format!("cannot make {}", hosts.folder.display()))?;
        for place in [Place::Client, Place::Card, Place::Server] {
            run(&["ip", "netns", "add", &hosts.netns(place)])?;
            hosts.ip(place, "link set lo up")?;
        }
        // The card's own kernel is to say nothing on the wire.
        std::fs::metadata("/proc/sys/net/ipv6").map_or(Ok(()), |_| {
            hosts.within(Place::Card, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
        })?;
        hosts.ip(
            Place::Client,
            &format!(
                "link add {CLIENT_LINK} mtu {mtu} type veth peer name {WIRE_LINK} mtu {mtu} netns {}",
                hosts.netns(Place::Card)
            ),
        )?;
        hosts.ip(Place::Client, &format!("address add {CLIENT}/24 dev {CLIENT_LINK}"))?;
        hosts.ip(Place::Client, &format!("link set {CLIENT_LINK} up"))?;
        hosts.ip(Place::Card, &format!("link set {WIRE_LINK} up"))?;
        hosts.wait_for_carrier()?;
        Ok(hosts)
    }

    /// Joins client and server by a veth pair without a card, to compare with.
    pub fn join_plainly(&self, mtu: u32) -> anyhow::Result<()> {
        self.ip(
            Place::Client,
            &format!(
                "link add {PLAIN_LINK} mtu {mtu} type veth peer name {PLAIN_LINK} mtu {mtu} netns {}",
                self.netns(Place::Server)
            ),
        )?;
        for (place, address) in [(Place::Client, PLAIN_CLIENT), (Place::Server, PLAIN_SERVER)] {
            self.ip(place, &format!("address add {address}/24 dev {PLAIN_LINK}"))?;
            self.ip(place, &format!("link set {PLAIN_LINK} up"))?;
        }
        Ok(())
    }

    /// Waits until the wire's interface is running: the kernel says so a moment after both ends
    /// are up, and what is sent until then is dropped.
    fn wait_for_carrier(&self) -> anyhow::Result<()> {
        let netns = self.netns(Place::Card);
        let start = Instant::now();
        while !run(&["ip", "-n", &netns, "link", "show", WIRE_LINK])?.contains("state UP") {
            anyhow::ensure!(start.elapsed() < PATIENCE, "{WIRE_LINK} in {netns} has no carrier");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The name of a namespace, for `ip netns`.
    pub fn netns(&self, place: Place) -> String {
        let end = match place {
            Place::Client => "client",
            Place::Card => "card",
            Place::Server => "server",
        };
        format!("{}-{end}", self.name)
    }

    /// Keeps the programs that are started from now on to these cores.
    pub fn keep_programs_on(&mut self, cores: Vec<usize>) {
        self.cores = cores;
    }

    /// The cores that programs stay on; none says all.
    pub fn programs_cores(&self) -> &[usize] {
        &self.cores
    }

    /// A folder for files, which everybody may read.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `ip -n NAMESPACE REST`; what it printed.
    fn ip(&self, place: Place, rest: &str) -> anyhow::Result<()> {
        let netns = self.netns(place);
        let mut words = vec!["ip", "-n", &netns];
        words.extend(rest.split_whitespace());
        run(&words).map(drop)
    }

    fn within(&self, place: Place, command: &str) -> anyhow::Result<()> {
        let netns = self.netns(place);
        let mut words = vec!["ip", "netns", "exec", &netns];
        words.extend(command.split_whitespace());
        run(&words).map(drop)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for place in [Place::Client, Place::Card, Place::Server] {
            let netns = self.netns(place);
            if Path::new("/run/netns").join(&netns).exists() {
                // The next start tries again.
                let _ = run(&["ip", "netns", "delete", &netns]);
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Removes what killed processes have left.
fn remove_stale() {
    for netns in owner::stale_namespaces() {
        let _ = run(&["ip", "netns", "delete", &netns]);
    }
    owner::remove_stale_folders();
}
