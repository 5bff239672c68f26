//! The `tap` attachment and the `tap` wire in network namespaces; needs root, iproute2, ping,
//! iperf3.

use crate::bed;
use picnic_control::{Launch, Report, Running};
use picnic_core::config::CardFile;
use picnic_host::registries;
use picnic_machine::testbed::Testbed;
use picnic_testing::{let_pass, machine, skip, wait_for, wait_until};
use std::net::{Ipv6Addr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Namespaces `client`, `card` and `server`; removed when dropped.
pub(crate) struct Lab(pub(crate) Testbed, #[allow(dead_code)] picnic_testing::Machine);

impl Lab {
    /// None, with a message, if this machine has no namespaces.
    pub(crate) fn new(test: &str) -> Option<Lab> {
        let machine = machine();
        let bed = bed::testbed(test, &["client", "card", "server"], &["ip", "/dev/net/tun"])?;
        Some(Lab(bed, machine))
    }

    pub(crate) fn netns(&self, place: &str) -> String {
        self.0.netns(place)
    }

    pub(crate) fn ip(&self, place: &str, rest: &str) -> String {
        self.0.ip(place, rest).unwrap()
    }

    pub(crate) fn within(&self, place: &str, command: &str) -> Result<String, String> {
        self.0.within(place, command).map_err(|error| error.to_string())
    }

    /// A veth from `client` to `card`, both ends up and running.
    pub(crate) fn join(&self) {
        self.0.add_veth(("client", "c0"), ("card", "w0"), "").unwrap();
        self.ip("client", "address add 10.88.0.2/24 dev c0");
        self.ip("client", "address add fd88::2/64 dev c0 nodad");
        self.ip("client", "link set c0 up");
        self.ip("card", "link set w0 up");
        self.0.wait_for_carrier("card", "w0").unwrap();
    }

    /// `[host]` with the interface h0 in `server`.
    pub(crate) fn host(&self, keys: &str) -> String {
        let server = self.netns("server");
        format!(
            "[host]\nattachment = \"tap\"\nqueues = 2\nname = \"h0\"\nnamespace = \"{server}\"\n{keys}\n"
        )
    }

    /// The wire w0.
    pub(crate) fn wire(&self) -> String {
        format!(
            "[[wire]]\nport = \"packet\"\ninterface = \"w0\"\nnamespace = \"{}\"\n",
            self.netns("card")
        )
    }

    /// Waits until an interface is gone: a child that another test is just starting has the card's
    /// descriptors for a moment.
    fn loses(&self, place: &str, link: &str) {
        wait_until("the interface is gone", || !self.ip(place, "link").contains(link));
    }

    /// iperf3 from `client` to `server`; returns bytes received.
    pub(crate) fn iperf(&self, options: &str) -> u64 {
        // A server whose only connection failed gets no other, so each try has its own.
        wait_for("iperf3 has a report", || {
            let mut server = self.0.start("server", &["iperf3", "-s", "-1"], &[]).unwrap();
            server.wait_for_port(5201).ok()?;
            // Packets in flight fit in the card's rings, if a core is preempted.
            let command = format!("timeout 50 iperf3 -J -w 256K {options}");
            let text = self.within("client", &command).ok()?;
            let report = serde_json::from_str::<serde_json::Value>(&text).ok()?;
            let bytes = report["end"]["sum_received"]["bytes"].as_u64();
            bytes.or_else(|| {
                eprintln!("iperf3 {options}: {}", report["error"]);
                None
            })
        })
    }

    /// Pings an address every ten milliseconds: each is answered, however late.
    ///
    /// The kernel counts the answers: `ping` itself counts a last answer as lost if it takes more
    /// than twice the slowest before it, which happens easily on a busy machine.
    #[track_caller]
    pub(crate) fn pings(&self, place: &str, count: u64, address: &str) {
        let answers =
            || self.count(place, "IcmpInEchoReps") + self.count(place, "Icmp6InEchoReplies");
        // The kernel gives up on a neighbour that does not answer in three seconds, and drops what
        // waits for it: a first ping finds it.
        wait_until("a ping is answered", || {
            self.within(place, &format!("ping -q -c 1 -W 60 {address}")).is_ok()
        });
        let before = answers();
        // It fails if none came in time; the count decides that.
        let _ = self.within(place, &format!("ping -q -i 0.01 -c {count} {address}"));
        wait_until("every ping is answered", || answers() >= before + count);
        assert_eq!(answers(), before + count, "more answers than pings");
    }
}

pub(crate) fn run(card: &str) -> Result<Box<dyn Running>, String> {
    let card = CardFile::parse(card, None).map_err(|error| error.to_string())?;
    Launch::new(&card, registries()).start_alone().map_err(|error| error.to_string())
}

fn refused(card: &str) -> String {
    match run(card) {
        Ok(running) => panic!("{card}: runs: {:#?}", running.stop()),
        Err(error) => error,
    }
}

pub(crate) fn stop(running: Box<dyn Running>) -> Report {
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced(), "{report:#?}");
    assert_eq!((report.ledger.in_flight, report.buffers_missing), (0, 0), "{report:#?}");
    report
}

// ---------------------------------------------------------------- tests

#[test]
fn kernel_receives_all_delivered_packets() {
    let Some(lab) = Lab::new("kernel_receives_all_delivered_packets") else { return };
    let wire = "[[wire]]\nport = \"generator\"\npackets = 20000\n[[rx]]\nfunction = \"rss\"\n";
    let keys =
        "mac = \"02:00:00:00:88:01\"\nmtu = 1400\naddresses = [\"10.88.0.1/24\", \"fd88::1/64\"]";
    let running = run(&format!("{wire}{}", lab.host(keys))).unwrap();
    let shown = lab.ip("server", "address show dev h0");
    for part in ["02:00:00:00:88:01", "mtu 1400", "10.88.0.1/24", "fd88::1/64", "UP,LOWER_UP"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    wait_until("all are delivered", || {
        running.is_finished() && running.view().ledger.read().delivered >= 20000
    });
    let counters: serde_json::Value =
        serde_json::from_str(&lab.ip("server", "-j -s link show h0")).unwrap();
    assert_eq!(counters[0]["stats64"]["rx"]["packets"].as_u64(), Some(20000), "{counters}");
    let report = stop(running);
    assert_eq!((report.ledger.delivered, report.ledger.dropped), (20000, 0), "{report:#?}");
    assert!(report.queues.iter().all(|queue| queue.packets > 5000), "{report:#?}");
    // The interface was removed with the card.
    lab.loses("server", "h0");
}

/// The kernel enables IPv6 addresses after a delay: the first packets would be lost.
#[test]
fn addresses_work_when_the_card_starts() {
    let Some(lab) = Lab::new("addresses_work_when_the_card_starts") else { return };
    let wire = "[[wire]]\nport = \"generator\"\npackets = 1\n";
    let namespace = std::fs::File::open(format!("/run/netns/{}", lab.netns("server"))).unwrap();
    for round in 1..20_u16 {
        let address = Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, round);
        let card = lab.host(&format!("addresses = [\"{address}/64\"]"));
        let running = run(&format!("{wire}{card}")).unwrap();
        // At once, in this process: another process would take as long as the kernel.
        let bound = std::thread::scope(|scope| {
            let within = scope.spawn(|| {
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
                let socket = UdpSocket::bind("[::]:0").unwrap();
                // To itself: no route existed before.
                socket.connect((address, 9)).map(|()| socket.local_addr().unwrap().ip())
            });
            within.join().unwrap()
        });
        assert_eq!(bound.unwrap(), address, "{round}");
        stop(running);
        lab.loses("server", "h0");
    }
}

/// The kernel's own VXLAN device at the other end, over IPv4 and IPv6.
#[test]
fn card_terminates_kernel_tunnels() {
    let Some(lab) = Lab::new("card_terminates_kernel_tunnels") else { return };
    lab.join();
    let links: serde_json::Value =
        serde_json::from_str(&lab.ip("client", "-j link show c0")).unwrap();
    let client = links[0]["address"].as_str().unwrap();
    let card = "02:00:00:00:88:09";
    for (local, remote) in [("10.88.0.1", "10.88.0.2"), ("fd88::1", "fd88::2")] {
        let vxlan = format!(
            "ip link add vx0 type vxlan id 42 local {remote} remote {local} dstport 4789 dev c0"
        );
        if let Err(error) = lab.within("client", &vxlan) {
            return skip("card_terminates_kernel_tunnels", &error);
        }
        // No host behind the card answers for the outer address.
        lab.ip("client", &format!("neighbour replace {local} lladdr {card} dev c0"));
        lab.ip("client", "address add 10.99.0.2/24 dev vx0");
        lab.ip("client", "address add fd99::2/64 dev vx0 nodad");
        // A packet socket cannot describe packets that the kernel would segment inside its tunnel.
        lab.ip("client", "link set vx0 up mtu 1400 gso_max_segs 1");
        let host = lab.host("mtu = 1400\naddresses = [\"10.99.0.1/24\", \"fd99::1/64\"]");
        let off = format!(
            "[[rx]]\nfunction = \"tunnel\"\nmode = \"decapsulate\"\nlocal = \"{local}\"\n\
             [[rx]]\nfunction = \"rss\"\n"
        );
        let on = format!(
            "[[tx]]\nfunction = \"tso\"\n\
             [[tx]]\nfunction = \"tunnel\"\nmode = \"encapsulate\"\nkinds = [\"vxlan\"]\nnetwork = 42\n\
             local = \"{local}\"\nremote = \"{remote}\"\n\
             source_mac = \"{card}\"\ndestination_mac = \"{client}\"\n"
        );
        let running = run(&format!("{}{off}{on}{host}", lab.wire())).unwrap();
        for address in ["10.99.0.1", "fd99::1"] {
            lab.pings("client", 20, address);
        }
        for options in ["-c 10.99.0.1 -n 16M", "-c 10.99.0.1 -n 16M -R", "-c fd99::1 -n 32M -P 4"] {
            let bytes = lab.iperf(options);
            assert!(bytes > 5_000_000, "{options}: {bytes}");
        }
        stop(running);
        lab.loses("server", "h0");
        lab.ip("client", "link delete vx0");
    }
}

/// Clients on separate wires of one network: each is answered on its own wire, and a wire that is
/// pulled out and put back loses only its own packets.
#[test]
fn each_client_is_answered_on_its_own_wire() {
    let Some(lab) = Lab::new("each_client_is_answered_on_its_own_wire") else { return };
    let mut wires = String::new();
    for n in 0..3 {
        let client = format!("client{n}");
        lab.0.add_namespace(&client).unwrap();
        lab.0.add_veth((&client, "c0"), ("card", &format!("w{n}")), "").unwrap();
        lab.ip(&client, &format!("address add 10.88.0.{}/24 dev c0", 2 + n));
        lab.ip(&client, "link set c0 up");
        lab.ip("card", &format!("link set w{n} up"));
        lab.0.wait_for_carrier("card", &format!("w{n}")).unwrap();
        wires += &lab.wire().replace("w0", &format!("w{n}"));
    }
    let chains =
        "[[rx]]\nfunction = \"bond\"\n[[rx]]\nfunction = \"rss\"\n[[tx]]\nfunction = \"bond\"\n";
    let host = lab.host("addresses = [\"10.88.0.1/24\"]");
    let running = run(&format!("{wires}{chains}{host}")).unwrap();
    let sent = |wire: usize| running.view().wires[wire].counters.tx_packets.get();
    let ping = |n: usize| lab.pings(&format!("client{n}"), 30, "10.88.0.1");
    for n in 0..3 {
        let before = [0, 1, 2].map(&sent);
        ping(n);
        wait_until("all that was sent is counted", || sent(n) >= before[n] + 30);
        let by: Vec<_> = (0..3).map(|wire| sent(wire) - before[wire]).collect();
        // Only a few broadcast frames.
        assert!((0..3).all(|wire| wire == n || by[wire] < 15), "{by:?}");
    }
    // A wire without carrier is not used; the others are unaffected, and it returns.
    lab.ip("client1", "link set c0 down");
    ping(0);
    lab.ip("client1", "link set c0 up");
    wait_until("the wire is used again", || {
        lab.within("client1", "ping -q -c 1 -W 1 10.88.0.1").is_ok()
    });
    ping(1);
    stop(running);
}

#[test]
fn unmodified_programs_talk_through_the_card() {
    let Some(lab) = Lab::new("unmodified_programs_talk_through_the_card") else { return };
    lab.join();
    let keys = "addresses = [\"10.88.0.1/24\", \"fd88::1/64\"]";
    let rss = "[[rx]]\nfunction = \"rss\"\n";
    let running = run(&format!("{}{rss}{}", lab.wire(), lab.host(keys))).unwrap();
    for address in ["10.88.0.1", "fd88::1"] {
        lab.pings("client", 20, address);
    }
    assert_eq!(running.view().ledger.read().dropped, 0, "{:?}", running.view().ledger.read());
    for options in ["-c 10.88.0.1 -n 64M", "-c 10.88.0.1 -n 64M -R", "-c fd88::1 -n 32M -P 4"] {
        let bytes = lab.iperf(options);
        assert!(bytes > 5_000_000, "{options}: {bytes}");
    }
    let report = stop(running);
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
    assert!(report.queues.iter().all(|queue| queue.packets != 0), "{report:#?}");
}

impl Lab {
    /// Makes one core receive the veth's packets: otherwise it receives a flow that is sent from
    /// two cores on both, out of order. False if this kernel cannot.
    fn keep_order(&self) -> bool {
        [("client", "c0"), ("card", "w0")].iter().all(|(place, interface)| {
            let path = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
            let netns = self.netns(place);
            let mut tee = Command::new("ip");
            let tee = tee.args(["netns", "exec", &netns, "tee", &path]).stdin(Stdio::piped());
            let mut tee = tee.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::io::Write::write_all(&mut tee.stdin.take().unwrap(), b"1").unwrap();
            tee.wait().unwrap().success()
        })
    }

    /// A counter of a namespace's network stack.
    pub(crate) fn count(&self, place: &str, name: &str) -> u64 {
        let text = self.within(place, &format!("nstat -asz {name}")).unwrap();
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    }
}

/// Datagrams of one flow to each port, every second one in fragments; returns how many arrived
/// after a later one.
fn overtaken(lab: &Lab, from: &str, (to, address): (&str, &str), ports: Range<u16>) -> u32 {
    const DATAGRAMS: u32 = 320;
    /// Datagrams in flight: every queue and socket has room for them.
    const WINDOW: u32 = 8;
    let within = |place: &str| {
        let namespace = std::fs::File::open(format!("/run/netns/{}", lab.netns(place))).unwrap();
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
    };
    let one = |port: u16| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                within(to);
                let socket = UdpSocket::bind((address, port)).unwrap();
                socket.set_read_timeout(Some(picnic_testing::PATIENCE)).unwrap();
                ready.send(()).unwrap();
                let (mut late, mut newest, mut buffer) = (0, 0, [0; 5000]);
                for _ in 0..DATAGRAMS {
                    socket.recv(&mut buffer).expect("no datagram is lost");
                    let number = u32::from_be_bytes(*buffer.first_chunk().unwrap());
                    late += u32::from(number < newest);
                    newest = newest.max(number);
                    // The last ones are not waited for.
                    let _ = ready.send(());
                }
                late
            });
            is_ready.recv().unwrap();
            let sender = scope.spawn(move || {
                within(from);
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                for number in 0..DATAGRAMS {
                    let mut data = vec![0; if number % 2 == 0 { 100 } else { 4000 }];
                    data[..4].copy_from_slice(&number.to_be_bytes());
                    if number >= WINDOW {
                        is_ready.recv().expect("the receiver waits for it");
                    }
                    socket.send_to(&data, (address, port)).unwrap();
                }
            });
            sender.join().unwrap();
            receiver.join().unwrap()
        })
    };
    ports.map(one).sum()
}

/// `rss` steers a flow's fragments to the queue of its whole datagrams. From the host, the kernel
/// chooses the queue by ports if present: with more than one queue, a fragment may take another
/// queue than the previous datagram, and overtake it.
#[test]
fn datagrams_in_fragments_and_whole_ones_keep_their_order_in_one_queue() {
    const NAME: &str = "datagrams_in_fragments_and_whole_ones_keep_their_order_in_one_queue";
    for queues in [2, 1] {
        let Some(lab) = Lab::new(NAME) else { return };
        lab.join();
        if !lab.keep_order() {
            return skip(NAME, "no receive packet steering");
        }
        let host = lab.host("addresses = [\"10.88.0.1/24\"]");
        let host = host.replace("queues = 2", &format!("queues = {queues}"));
        let rss = "[[rx]]\nfunction = \"rss\"\n";
        let running = run(&format!("{}{rss}{host}", lab.wire())).unwrap();
        lab.pings("client", 2, "10.88.0.1");
        let up = overtaken(&lab, "client", ("server", "10.88.0.1"), 7000..7016);
        let down = overtaken(&lab, "server", ("client", "10.88.0.2"), 8000..8016);
        eprintln!("{queues} queues: {up} overtaken towards the host, {down} from it");
        assert_eq!(up, 0, "{queues} queues");
        assert!(queues > 1 || down == 0, "{down} from one queue");
        stop(running);
    }
}

#[test]
fn bulk_transfers_are_not_lost_or_reordered() {
    const NAME: &str = "bulk_transfers_are_not_lost_or_reordered";
    // Without super-frames the kernel sends forty packets instead of one, and silently drops those
    // that do not fit in the interface's queue.
    for keys in ["", "super_frames = false"] {
        let Some(lab) = Lab::new(NAME) else { return };
        lab.join();
        let ordered = lab.keep_order();
        let keys = format!("{keys}\naddresses = [\"10.88.0.1/24\"]");
        let rss = "[[rx]]\nfunction = \"rss\"\n";
        let running = run(&format!("{}{rss}{}", lab.wire(), lab.host(&keys))).unwrap();
        for (options, receiver) in
            [("-c 10.88.0.1 -n 32M", "server"), ("-c 10.88.0.1 -n 32M -R", "client")]
        {
            let bytes = lab.iperf(options);
            assert!(bytes > 5_000_000, "{keys} {options}: {bytes}");
            // A segment after a gap: one before it was lost or overtaken. Packets that the receiver
            // could not queue are not the card's fault.
            let gaps = lab.count(receiver, "TcpExtTCPOFOQueue");
            let refused = lab.count(receiver, "TcpExtTCPBacklogDrop")
                + lab.count(receiver, "TcpExtTCPRcvQDrop");
            assert!(!ordered || gaps == 0 || refused != 0, "{keys} {options}: {gaps} gaps");
        }
        let shown: serde_json::Value =
            serde_json::from_str(&lab.ip("server", "-j -s link show h0")).unwrap();
        let stats = &shown[0]["stats64"];
        assert_eq!(
            (stats["tx"]["dropped"].as_u64(), stats["rx"]["dropped"].as_u64()),
            (Some(0), Some(0)),
            "{keys}: {shown}"
        );
        let report = stop(running);
        assert_eq!(report.ledger.dropped, 0, "{keys}: {report:#?}");
        let sent: u64 = report.queues.iter().map(|queue| queue.transmitted).sum();
        let completed: u64 = report.queues.iter().map(|queue| queue.tx_completed).sum();
        assert_eq!(sent, completed, "{report:#?}");
    }
}

/// Scheduling policy and real-time priority of a card's first target thread.
fn scheduling(running: &dyn Running) -> Option<(u32, u32)> {
    // Other tests' cards have threads with the same name.
    let thread = running.monitor().report().target_cores[0].thread?;
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The name is in brackets, and field 3 follows it.
    let (_, after) = stat.rsplit_once(')')?;
    let fields: Vec<_> = after.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some((field(41)?, field(40)?))
}

/// SCHED_RR at the lowest real-time priority, and SCHED_OTHER: the two options of a target's
/// thread.
const REAL_TIME: (u32, u32) = (2, 1);
const ORDINARY: (u32, u32) = (0, 0);

/// A thread of ordinary priority on one core that counts as fast as it can; ends when dropped.
struct Beside(Arc<(AtomicUsize, AtomicBool)>, Option<std::thread::JoinHandle<()>>);

impl Beside {
    fn start(core: usize) -> Self {
        let shared = Arc::new((AtomicUsize::new(0), AtomicBool::new(false)));
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            while !theirs.1.load(Ordering::Relaxed) {
                theirs.0.fetch_add(1, Ordering::Relaxed);
            }
        });
        Beside(shared, Some(thread))
    }

    fn count(&self) -> usize {
        self.0.0.load(Ordering::Relaxed)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.1.store(true, Ordering::Relaxed);
        let _ = self.1.take().unwrap().join();
    }
}

#[test]
fn target_routine_preempts_without_starving_others() {
    const NAME: &str = "target_routine_preempts_without_starving_others";
    let Some(lab) = Lab::new(NAME) else { return };
    let core = picnic_machine::topology::cores()[0];
    let cores = format!("target_cores = [{core}, {core}]");
    // Without packets it waits at the configured priority, the lowest that preempts.
    let quiet = "[[wire]]\nport = \"generator\"\nrate_pps = 10\n";
    let running = run(&format!("{quiet}{}", lab.host(&cores))).unwrap();
    let of_core = || running.monitor().report().target_cores[0].clone();
    wait_until("its thread is there", || of_core().thread.is_some());
    if of_core().priority != "real-time" {
        let notes = running.stop().unwrap().notes.join("\n");
        assert!(notes.contains("CAP_SYS_NICE"), "{notes}");
        return skip(NAME, "real-time priority is not permitted here");
    }
    wait_until("asleep, to preempt when woken", || scheduling(&*running) == Some(REAL_TIME));
    wait_until("woken", || of_core().wakeups > 1);
    // It may step up again after the process has dropped its privileges.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Rtprio).current;
    let may_raise = rustix::thread::capabilities(None).unwrap().effective;
    let may_raise = may_raise.contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
    let is_enough = limit.is_none_or(|limit| limit >= u64::from(REAL_TIME.1));
    assert!(is_enough || !may_raise, "{limit:?}");
    let report = stop(running);
    assert_eq!((&*report.target_cores[0].priority, report.notes.len()), ("real-time", 0));
    lab.loses("server", "h0");
    // As much as the kernel can take: the target core is always busy. The thread steps down before
    // the kernel's own limit on real-time threads applies.
    let limit = "/proc/sys/kernel/sched_rt_runtime_us";
    let limited = std::fs::read_to_string(limit).ok();
    let flood = "[[wire]]\nport = \"generator\"\n[[rx]]\nfunction = \"rss\"\n";
    let beside = Beside::start(core);
    for (keys, is_real_time) in [("", true), ("priority = \"normal\"", false)] {
        let running = run(&format!("{flood}{}", lab.host(&format!("{keys}\n{cores}")))).unwrap();
        let of_core = || running.monitor().report().target_cores[0].clone();
        if is_real_time {
            wait_until("given way under overload", || of_core().priority_yields != 0);
        }
        wait_until("ordinary under overload", || scheduling(&*running) == Some(ORDINARY));
        let (delivered, before) = (running.view().ledger.read().delivered, beside.count());
        wait_until("the thread beside it gets on", || beside.count() > before + 1_000_000);
        wait_until("so does it", || running.view().ledger.read().delivered > delivered + 1000);
        let report = stop(running);
        assert_eq!(report.target_cores[0].priority_yields != 0, is_real_time, "{report:#?}");
        let told = if is_real_time { "real-time" } else { "normal" };
        assert_eq!(report.target_cores[0].priority, told);
        lab.loses("server", "h0");
    }
    assert_eq!(std::fs::read_to_string(limit).ok(), limited);
}

#[test]
fn watchdog_ends_unmasked_routines_with_a_note() {
    const NAME: &str = "watchdog_ends_unmasked_routines_with_a_note";
    let Some(lab) = Lab::new(NAME) else { return };
    let core = picnic_machine::topology::cores()[0];
    let keys = format!("target_cores = [{core}, {core}]\nring_size = 4096\nwatchdog_ms = 3");
    // As much as the kernel can take, and the limit of masked routines does not apply.
    let flood = "[[wire]]\nport = \"generator\"\n[[rx]]\nfunction = \"rss\"\n";
    let beside = Beside::start(core);
    let running =
        run(&format!("{flood}{}[interrupt]\ngate = \"none\"\n", lab.host(&keys))).unwrap();
    let of_core = || running.monitor().report().target_cores[0].clone();
    wait_until("its thread is there", || of_core().thread.is_some());
    if of_core().priority != "real-time" {
        let notes = stop(running).notes.join("\n");
        assert!(notes.contains("CAP_SYS_NICE"), "{notes}");
        return skip(NAME, "real-time priority is not permitted here");
    }
    wait_until("the watchdog has ended it", || of_core().priority_yields != 0);
    wait_until("it is an ordinary thread", || scheduling(&*running) == Some(ORDINARY));
    let (delivered, before) = (running.view().ledger.read().delivered, beside.count());
    wait_until("the thread beside it gets on", || beside.count() > before + 1_000_000);
    wait_until("so does it", || running.view().ledger.read().delivered > delivered + 1000);
    let report = stop(running);
    assert_eq!(report.target_cores[0].priority_yields, 1, "for good: {report:#?}");
    let told = |note: &&String| note.contains("preempted its core for 3 ms without a pause");
    assert_eq!(report.notes.iter().filter(told).count(), 1, "{:?}", report.notes);
}

#[test]
fn large_packets_pass() {
    let Some(lab) = Lab::new("large_packets_pass") else { return };
    lab.join();
    lab.ip("client", "link set c0 mtu 9000");
    lab.ip("card", "link set w0 mtu 9000");
    let keys = "mtu = 9000\naddresses = [\"10.88.0.1/24\"]\n[pool]\nbuffer_size = 9018";
    let running = run(&format!("{}{}", lab.wire(), lab.host(keys))).unwrap();
    lab.pings("client", 10, "-M do -s 8972 10.88.0.1");
    assert_eq!(stop(running).ledger.dropped, 0);
}

#[test]
fn packets_for_missing_interfaces_are_counted() {
    let Some(lab) = Lab::new("the_kernel_takes_no_packets_of_an_interface") else { return };
    let wire = "[[wire]]\nport = \"generator\"\nrate_pps = 20000\n";
    let running = run(&format!("{wire}{}", lab.host("up = false"))).unwrap();
    let refused = || running.view().ledger.read().drops.get("host_refused").copied().unwrap_or(0);
    wait_until("down", || refused() > 10);
    lab.ip("server", "link set h0 up");
    wait_until("up", || running.view().ledger.read().delivered > 1000);
    let before = refused();
    lab.ip("server", "link delete h0");
    wait_until("gone", || refused() > before + 1000);
    stop(running);
}

/// A card between a TAP in `client` and one in `server`.
fn between_taps(lab: &Lab, wire: &str, host: &str) -> String {
    let client = lab.netns("client");
    format!(
        "[[wire]]\nport = \"tap\"\ninterface = \"c0\"\nnamespace = \"{client}\"\n\
         addresses = [\"10.88.0.2/24\", \"fd88::2/64\"]\n{wire}\n[[rx]]\nfunction = \"rss\"\n{}",
        lab.host(&format!("addresses = [\"10.88.0.1/24\", \"fd88::1/64\"]\n{host}"))
    )
}

#[test]
fn tap_works_as_a_wire_with_super_frames() {
    let Some(lab) = Lab::new("tap_works_as_a_wire_with_super_frames") else { return };
    let running = run(&between_taps(&lab, "mac = \"02:00:00:00:88:02\"", "")).unwrap();
    assert!(lab.ip("client", "address show dev c0").contains("02:00:00:00:88:02"));
    for address in ["10.88.0.1", "fd88::1"] {
        lab.pings("client", 20, address);
    }
    let received = || running.view().ledger.read().r#in;
    for options in ["-c 10.88.0.1 -n 32M", "-c 10.88.0.1 -n 32M -R", "-c fd88::1 -n 32M -P 4"] {
        let before = received();
        let bytes = lab.iperf(options);
        // Segments of 1448 bytes, each acknowledged, would average some 1000 bytes per packet.
        let packets = received() - before;
        assert!(bytes > 5_000_000 && bytes / packets > 3000, "{options}: {bytes} in {packets}");
    }
    let report = stop(running);
    assert_eq!((report.ledger.dropped, &report.notes), (0, &Vec::new()), "{report:#?}");
    lab.loses("client", "c0");
    lab.loses("server", "h0");
}

#[test]
fn wires_without_super_frames_get_none() {
    let Some(lab) = Lab::new("wires_without_super_frames_get_none") else { return };
    let running = run(&between_taps(&lab, "super_frames = false", "super_frames = false")).unwrap();
    for options in ["-c 10.88.0.1 -n 32M", "-c 10.88.0.1 -n 32M -R"] {
        assert!(lab.iperf(options) > 1_000_000);
    }
    for wire in &running.view().wires {
        let (packets, bytes) = (wire.counters.rx_packets.get(), wire.counters.rx_bytes.get());
        assert!(bytes / packets <= 1514, "{bytes} in {packets}");
    }
    stop(running);
}

/// A program that makes a persistent TAP device and keeps its own queue of it, without headers
/// before packets: TUNSETIFF with IFF_TAP, IFF_NO_PI and IFF_MULTI_QUEUE, TUNSETPERSIST.
fn hold(name: &str) -> String {
    format!(
        "import fcntl, struct, time\n\
         queue = open('/dev/net/tun', 'r+b', buffering=0)\n\
         fcntl.ioctl(queue, 0x400454ca, struct.pack('16sH', b'{name}', 0x1102))\n\
         fcntl.ioctl(queue, 0x400454cb, 1)\n\
         time.sleep(60)\n"
    )
}

#[test]
fn tap_interfaces_deleted_under_load_are_reopened() {
    const NAME: &str = "tap_interfaces_deleted_under_load_are_reopened";
    let Some(lab) = Lab::new(NAME) else { return };
    // With its own MAC, the other side still knows each when it returns.
    let (wire, host) = ("mac = \"02:00:00:00:88:02\"", "mac = \"02:00:00:00:88:01\"");
    let running = run(&between_taps(&lab, wire, host)).unwrap();
    let pings = || lab.within("client", "ping -q -c 1 -W 1 10.88.0.1").is_ok();
    wait_until("the host answers", pings);
    for (place, name) in [("client", "c0"), ("server", "h0")] {
        let load = lab.0.start("client", &["ping", "-q", "-f", "10.88.0.1"], &[]).unwrap();
        let sent = running.view().ledger.read().transmitted;
        wait_until("under load", || running.view().ledger.read().transmitted > sent + 100);
        lab.ip(place, &format!("link delete {name}"));
        let polls = |running: &dyn Running| {
            running.view().queues.iter().map(|queue| queue.target.polls.get()).sum::<u64>()
        };
        drop(load);
        wait_until("a queue whose interface is gone rests", || {
            let before = polls(&*running);
            let_pass(300);
            polls(&*running) - before < 1000
        });
        assert!(!pings());
        // A device of the same name, made by another program, becomes the card's, with the card
        // file's settings, once its maker releases it.
        let maker = lab.0.start(place, &["python3", "-c", &hold(name)], &[]).unwrap();
        wait_until("it is there", || lab.within(place, &format!("ip link show {name}")).is_ok());
        let_pass(200);
        drop(maker);
        wait_until(&format!("{name} is reattached"), pings);
    }
    let report = stop(running);
    let notes = report.notes.join("\n");
    for part in
        ["c0: was deleted 1 times", "c0: reappeared", "h0: was deleted 1 times", "h0: reappeared"]
    {
        assert!(notes.contains(part), "{notes}");
    }
}

/// The MAC address that `client` has for an address, if any.
fn neighbour(lab: &Lab, address: &str) -> Option<String> {
    let text = lab.ip("client", &format!("neigh show {address} dev c0"));
    let mut words = text.split_whitespace();
    words.find(|word| *word == "lladdr")?;
    words.next().map(str::to_owned)
}

#[test]
fn starting_cards_announce_their_address() {
    let Some(lab) = Lab::new("starting_cards_announce_their_address") else { return };
    lab.join();
    let card = lab.wire() + &lab.host("addresses = [\"10.88.0.1/24\", \"fd88::1/64\"]");
    let mut seen = Vec::new();
    for _ in 0..2 {
        // The entry that an earlier card left in a neighbour's table.
        for address in ["10.88.0.1", "fd88::1"] {
            let known =
                format!("neigh replace {address} lladdr 02:00:00:00:00:99 dev c0 nud stale");
            lab.ip("client", &known);
        }
        let running = run(&card).unwrap();
        let link = lab.ip("server", "link show h0");
        let mut words = link.split_whitespace();
        words.find(|word| *word == "link/ether");
        let mac = words.next().unwrap().to_owned();
        for address in ["10.88.0.1", "fd88::1"] {
            wait_until("the neighbour knows", || neighbour(&lab, address) == Some(mac.clone()));
        }
        seen.push(mac);
        stop(running);
        lab.loses("server", "h0");
    }
    assert_eq!(seen[0], seen[1], "started again, it has the address it had");
}

#[test]
fn persistent_interfaces_stay_and_are_reopened() {
    let Some(lab) = Lab::new("a_persistent_interface_stays") else { return };
    let wire = "[[wire]]\nport = \"generator\"\npackets = 10\n";
    let card = format!("{wire}{}", lab.host("persistent = true\naddresses = [\"10.88.0.1/24\"]"));
    for _ in 0..2 {
        let running = run(&card).unwrap();
        // The second card finds it in use.
        let error = refused(&card);
        assert!(error.contains("host.name: found \"h0\"") && error.contains("in use"), "{error}");
        stop(running);
        assert!(lab.ip("server", "address show h0").contains("10.88.0.1/24"));
    }
}

/// The kernel's receive packet steering mask of the first queue.
fn steering(lab: &Lab) -> u64 {
    // `ip netns exec` shows the attributes of the namespace's own interfaces.
    let text = lab.within("server", "cat /sys/class/net/h0/queues/rx-0/rps_cpus").unwrap();
    u64::from_str_radix(&text.trim().replace(',', ""), 16).unwrap()
}

#[test]
fn kernel_steering_uses_the_given_cores() {
    let Some(lab) = Lab::new("kernel_steering_uses_the_given_cores") else {
        return;
    };
    lab.join();
    let cores = picnic_machine::topology::cores();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let wire = format!("{}[pool]\nbuffers = 4096\nbuffer_size = 16384\n", lab.wire());
    let keys = "addresses = [\"10.88.0.1/24\"]\n";
    let host = lab.host(&format!("{keys}rps_cores = [{last}]")).replace("queues = 2", "queues = 1");
    let running = run(&format!("{wire}{host}")).unwrap();
    assert_eq!(steering(&lab), 1 << last);
    // The kernel counts packets handed to other cores.
    let handed = || {
        let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
        let columns = text.lines().map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            u64::from_str_radix(words.get(9).unwrap_or(&"0"), 16).unwrap()
        });
        columns.sum::<u64>()
    };
    let before = handed();
    lab.pings("client", 20, "10.88.0.1");
    // More than the sockets of both ends hold: the server does not count packets still in flight
    // when the client is done.
    assert!(lab.iperf("-c 10.88.0.1 -n 128M -P 4") > 4_000_000);
    if first != last {
        assert!(handed() > before, "no core was handed anything");
    }
    let report = stop(running);
    assert!(report.queues[0].packets > 100, "{report:#?}");
    lab.loses("server", "h0");
}

#[test]
fn steering_of_persistent_interfaces_is_undone() {
    let Some(lab) = Lab::new("steering_of_persistent_interfaces_is_undone") else {
        return;
    };
    let core = picnic_machine::topology::cores()[0];
    let wire = "[[wire]]\nport = \"generator\"\npackets = 10\n";
    for (keys, wanted) in [(format!("rps_cores = [{core}]"), 1 << core), (String::new(), 0)] {
        let running = run(&format!("{wire}{}", lab.host(&format!("persistent = true\n{keys}"))));
        let running = running.unwrap();
        assert_eq!(steering(&lab), wanted);
        stop(running);
        assert!(lab.ip("server", "link").contains("h0"));
    }
}

#[test]
fn missing_resource_error_names_its_key() {
    let Some(lab) = Lab::new("missing_resource_error_names_its_key") else { return };
    let wire = "[[wire]]\nport = \"generator\"\npackets = 10\n";
    lab.ip("server", "link add h0 type veth peer name h1");
    let error = refused(&format!("{wire}{}", lab.host("")));
    assert!(error.contains("host.name: found \"h0\""), "{error}");
    lab.ip("server", "link delete h0");
    let error = refused(&format!("{wire}{}", lab.host("").replace("-server", "-nowhere")));
    assert!(error.contains("host.namespace: found") && error.contains("does not exist"), "{error}");
    let running = run(&format!("{wire}{}", lab.host(""))).unwrap();
    let error = refused(&format!("{wire}{}", lab.host("")));
    assert!(error.contains("host.name: found \"h0\"") && error.contains("in use"), "{error}");
    stop(running);
    lab.loses("server", "h0");
}
