//! The network namespace of a journal's interfaces.
//!
//! A change names the namespace of its interface; without a name it is the namespace of the process
//! which made the change, such as a card started by `ip netns exec`. The restoring process may be
//! in another one, which can have an interface of the same name.
//!
//! Guarantees: without a name, a command runs in the namespace of the journal or not at all.
//!
//! Source: network_namespaces(7), ip-netns(8).

use super::change::within;
use super::machine::Machine;
use super::process;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The namespace of a journal's changes without a name, as seen from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The current one.
    Here,
    /// One with a name of `ip netns`.
    Named(String),
    /// In the namespace of this process.
    Of(i32),
    /// One that no longer exists.
    Gone,
}

/// The number of this thread's network namespace, if the kernel reports it.
pub(super) fn current(machine: &Machine) -> Option<u64> {
    number(&machine.procfs.join("thread-self/ns/net"))
}

fn number(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.ino())
}

impl Home {
    /// Finds the namespace of this number; without a number, the current one.
    pub(super) fn find(machine: &Machine, network: Option<u64>) -> Self {
        let Some(wanted) = network.filter(|&network| current(machine) != Some(network)) else {
            return Home::Here;
        };
        let names = fs::read_dir(&machine.namespaces).into_iter().flatten().flatten();
        let mut names = names.filter(|entry| number(&entry.path()) == Some(wanted));
        if let Some(name) = names.find_map(|entry| entry.file_name().into_string().ok()) {
            return Home::Named(name);
        }
        let mut processes = process::numbered(&machine.procfs).unwrap_or_default().into_iter();
        let is_there = |process: &i32| {
            number(&machine.procfs.join(process.to_string()).join("ns/net")) == Some(wanted)
        };
        processes.find(is_there).map_or(Home::Gone, Home::Of)
    }

    /// A command that runs there, with the namespace's own `/sys`.
    pub(super) fn within(&self, words: &[&str]) -> Vec<String> {
        const MOUNT: &str = "mount -t sysfs sysfs /sys && exec \"$@\"";
        match self {
            Home::Here | Home::Gone => within(None, words),
            Home::Named(name) => within(Some(name), words),
            Home::Of(process) => {
                let network = format!("--net=/proc/{process}/ns/net");
                let enter = ["nsenter", &network, "unshare", "--mount", "sh", "-c", MOUNT, "sh"];
                within(None, &[&enter, words].concat())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::napi::Polling;
    use crate::relay::Relay;
    use crate::steering::gather;
    use crate::testbed::Testbed;
    use crate::undo::{Journal, JournalSelection, Machine, Restored, restore_all};
    use picnic_testing::{skip, wait_for};
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    const TEST: &str = "undo::network::tests::changes_are_restored_in_their_namespace";
    /// Set for a process of the test: its task.
    const ROLE: &str = "PICNIC_NETWORK_ROLE";
    const LINK: &str = "v0";

    /// Changes the interface, and leaves everything when the process is killed.
    fn change() -> ! {
        let machine = Machine::this();
        let mut journal = Journal::create(&machine, "test").unwrap();
        Polling::start(&machine, &mut journal, LINK, None)
            .unwrap()
            .hold(&mut journal, 20, 1)
            .unwrap();
        gather(&mut journal, LINK, None, 0).unwrap();
        Relay::make(&mut journal, LINK, None, 1).unwrap();
        println!("\nchanged");
        // Until it is killed, or the test has failed.
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(1);
    }

    /// This test in another process, run through `enter` in a namespace.
    fn start(bed: &Testbed, enter: &[&str], role: &str) -> Child {
        let [program, rest @ ..] = enter else { panic!("no command") };
        Command::new(program)
            .args(rest)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", TEST])
            .env(ROLE, role)
            .env("PICNIC_STATE_DIR", bed.folder().join("state"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// The state of an interface, and the names of others.
    fn state(enter: &[&str]) -> String {
        let ask = format!(
            "cd /sys/class/net; ls; cd {LINK}; ethtool -k {LINK}; grep . threaded \
             gro_flush_timeout napi_defer_hard_irqs queues/rx-*/rps_cpus"
        );
        crate::command::run(&[enter, &["sh", "-c", &ask]].concat()).unwrap()
    }

    /// Changes the interface from within a namespace, and is killed.
    fn changed(bed: &Testbed, enter: &[&str]) {
        let mut victim = start(bed, enter, "change");
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let changed = || (lines.next()?.ok()? == "changed").then_some(());
        wait_for("the interface has been changed", changed);
        victim.kill().unwrap();
        victim.wait().unwrap();
    }

    /// Restores it from another namespace.
    fn taken_back(bed: &Testbed, enter: &[&str]) -> String {
        let output = start(bed, enter, "take back").wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = text.lines().find_map(|line| line.strip_prefix("took back: "));
        told.unwrap_or_else(|| panic!("{text}")).to_owned()
    }

    #[test]
    fn changes_are_restored_in_their_namespace() {
        match std::env::var(ROLE).as_deref() {
            Ok("change") => change(),
            Ok(_) => {
                let all = restore_all(&Machine::this(), JournalSelection::Stale).unwrap();
                let all: Vec<_> = all.iter().map(Restored::to_string).collect();
                return println!("\ntook back: {}", all.join("; "));
            }
            Err(_) => {}
        }
        let Ok(bed) = Testbed::build("network-test") else { return skip(TEST, "it needs root") };
        for place in ["card", "here", "far"] {
            bed.add_namespace(place).unwrap();
        }
        for (place, peer) in [("card", "p0"), ("here", "p1")] {
            bed.add_veth((place, LINK), ("far", peer), "").unwrap();
            bed.ip(place, &format!("link set {LINK} up")).unwrap();
        }
        let [card, here] = ["card", "here"].map(|place| bed.netns(place));
        let exec = |name| ["ip", "netns", "exec", name];
        let (card_exec, here_exec) = (exec(&*card), exec(&*here));
        let before = [state(&card_exec), state(&here_exec)];

        // From a namespace with an interface of the same name, and from one without.
        for other in [&here_exec[..], &["env"]] {
            changed(&bed, &card_exec);
            assert_ne!(state(&card_exec), before[0], "nothing was changed");
            let told = taken_back(&bed, other);
            assert!(told.contains("0 unchanged, 0 gone"), "{told}");
            assert_eq!([state(&card_exec), state(&here_exec)], before, "{told}");
        }

        // A namespace without a name, which a process is in.
        let mut holder = Command::new("ip")
            .args(["netns", "exec", &card, "sh", "-c", "echo there; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        changed(&bed, &card_exec);
        crate::command::run(&["ip", "netns", "del", &card]).unwrap();
        let told = taken_back(&bed, &here_exec);
        assert!(told.contains("0 unchanged, 0 gone"), "{told}");
        let all = format!("--target={}", holder.id());
        let found = state(&["nsenter", &all, "--net", "--mount"]);
        assert_eq!([found, state(&here_exec)], before, "{told}");
        drop(holder.stdin.take());
        holder.wait().unwrap();

        // One that no longer exists.
        bed.add_namespace("card").unwrap();
        bed.add_veth(("card", LINK), ("far", "p2"), "").unwrap();
        bed.ip("card", &format!("link set {LINK} up")).unwrap();
        changed(&bed, &card_exec);
        crate::command::run(&["ip", "netns", "del", &card]).unwrap();
        let told = taken_back(&bed, &here_exec);
        assert!(told.contains(" gone (the network namespace it was in)"), "{told}");
        assert_eq!(state(&here_exec), before[1]);
        assert_eq!(taken_back(&bed, &here_exec), "");
    }
}
