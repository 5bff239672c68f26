//! Channels between a task and host processes: on real cores, also by force, and in virtual time.

use picnic_channel::{Awaits, Channel, ChannelError, SendError};
use picnic_control::{Launch, Registries, ServedCard};
use picnic_core::time::Time;
use picnic_os::channel::HostEnd;
use picnic_sim::{CostModel, Simulation};
use picnic_tasks::registry::TASKS;
use picnic_testing::{machine, wait_for, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const PATIENCE: Option<Duration> = Some(picnic_testing::PATIENCE);
const ECHO: &str = "[host]\nqueues = 1\n[[wire]]\nport = \"generator\"\nrate_pps = 1000\n\
                    [[task]]\ntask = \"echo\"\nmessages = 64\n";

struct Served {
    card: ServedCard,
    socket: PathBuf,
    _folder: TempDir,
    _machine: picnic_testing::Machine,
}

impl Served {
    fn start(text: &str) -> Self {
        let machine = machine();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("card.sock");
        let text = format!("{text}\n[control]\nsocket = \"{}\"\n", socket.display());
        let file = picnic_host::sections().parse(&text, None).unwrap();
        let registries = Registries { tasks: TASKS, ..picnic_host::registries() };
        let card = Launch::new(&file, registries).start().unwrap();
        let served = Served { card, socket, _folder: folder, _machine: machine };
        wait_until("the task has its channel", || !served.channels().is_empty());
        served
    }

    fn call(&self, method: &str, params: Value) -> Value {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        stream.write_all(format!("{call}\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn channels(&self) -> Vec<Value> {
        let answer = self.call("channel.list", json!({}));
        answer["result"]["channels"].as_array().cloned().unwrap_or_default()
    }

    fn figure(&self, key: &str) -> u64 {
        self.channels()[0][key].as_u64().unwrap_or_default()
    }

    fn open(&self) -> Channel {
        Channel::open(&self.socket, "echo").unwrap()
    }
}

#[test]
fn messages_return_under_each_idle_policy() {
    for idle in ["spin", "adaptive", "block"] {
        let served = Served::start(&format!("[card]\nidle = \"{idle}\"\n{ECHO}"));
        let mut channel = served.open();
        assert_eq!((channel.message_bytes(), channel.messages()), (64, 64));
        let mut into = [0; 64];
        // One at a time, so that both sides sleep and are woken; then in bursts.
        for number in 0..200_u32 {
            channel.send_within(&number.to_le_bytes(), PATIENCE).unwrap();
            assert_eq!(channel.receive_within(&mut into, PATIENCE).unwrap(), 4);
            assert_eq!(into[..4], number.to_le_bytes());
            if number % 50 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        for burst in 0..50_u32 {
            for number in 0..60_u32 {
                channel.stage(&(burst * 60 + number).to_le_bytes()).unwrap();
            }
            channel.flush();
            for number in 0..60_u32 {
                assert_eq!(channel.receive_within(&mut into, PATIENCE).unwrap(), 4);
                assert_eq!(into[..4], (burst * 60 + number).to_le_bytes());
            }
        }
        let channels = served.channels();
        assert_eq!(channels[0]["pid"], std::process::id());
        assert_eq!(channels[0]["sent_messages"], 3_200);
        assert_eq!(channels[0]["received_messages"], 3_200);
        assert!(channels[0]["host_wakeups"].as_u64().unwrap() <= 3_200);
        let report = served.card.stop().unwrap();
        assert!(matches!(channel.receive(&mut into), Err(ChannelError::Closed)));
        assert!(report.ledger.balanced());
        let os = report.os.unwrap();
        assert_eq!((os.channels[0].openings, os.channels[0].lost_messages), (1, 0));
        assert!(!os.channels[0].is_alive);
    }
}

#[test]
fn refusals_name_the_fault() {
    let served = Served::start(ECHO);
    let refused = |name: &str| match Channel::open(&served.socket, name) {
        Err(ChannelError::Refused(message)) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused("ehco"), "name: found \"ehco\", allowed: echo; did you mean \"echo\"?");
    let mut channel = served.open();
    let own = std::process::id();
    assert_eq!(refused("echo"), format!("name: found \"echo\", which process {own} has open"));
    match channel.send(&[0; 65]) {
        Err(ChannelError::Send(SendError::TooLong { found: 65, most: 64 })) => {}
        other => panic!("{other:?}"),
    }
    let mut stream = UnixStream::connect(&served.socket).unwrap();
    let call = json!([{ "jsonrpc": "2.0", "id": 1, "method": "channel.open", "params": { "name": "echo" } }]);
    stream.write_all(format!("{call}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.contains("not in a batch"), "{line}");
    let killed = served.call("task.kill", json!({ "task": "echo" }));
    assert_eq!(killed["result"]["state"], "killed");
    assert!(matches!(channel.receive_within(&mut [0; 64], PATIENCE), Err(ChannelError::Closed)));
    assert_eq!(refused("echo"), "name: found \"echo\", but no task of this card has a channel");
    assert_eq!(served.channels()[0]["is_alive"], false);
    // Another task takes the name.
    served.call("task.create", json!({ "task": "echo" }));
    wait_until("a new channel", || served.channels().len() == 2);
    let mut channel = served.open();
    channel.send(b"again").unwrap();
    assert_eq!(channel.receive_within(&mut [0; 64], PATIENCE).unwrap(), 5);
    served.card.stop().unwrap();
}

/// More processes than the control socket has places for clients.
#[test]
fn open_channels_are_no_clients() {
    let channels: String = (0..9)
        .map(|number| {
            format!("[[task]]\ntask = \"echo\"\nname = \"t{number}\"\nchannel = \"c{number}\"\n")
        })
        .collect();
    let text =
        format!("[host]\nqueues = 1\n[[wire]]\nport = \"generator\"\nrate_pps = 1\n{channels}");
    let served = Served::start(&text);
    wait_until("all channels", || served.channels().len() == 9);
    let mut open: Vec<_> = (0..9)
        .map(|number| Channel::open(&served.socket, &format!("c{number}")).unwrap())
        .collect();
    for channel in &mut open {
        channel.send(b"x").unwrap();
        assert_eq!(channel.receive_within(&mut [0; 64], PATIENCE).unwrap(), 1);
    }
    assert_eq!(served.channels().len(), 9, "the socket still serves others");
    served.card.stop().unwrap();
}

/// The name of the variable that makes [`host_process`] a separate process.
const SOCKET: &str = "PICNIC_CHANNEL_TEST_SOCKET";

/// Not a separate test: sends and receives as fast as it can, until it is killed.
#[test]
fn host_process() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    // The card may not have noticed yet that the last process is gone.
    let mut channel = wait_for("the channel is free", || Channel::open(&socket, "echo").ok());
    println!("open");
    let mut into = [0; 64];
    loop {
        for number in 0..7 {
            let _ = channel.stage(&[number; 48]);
        }
        channel.flush();
        if channel.receive_within(&mut into, PATIENCE).is_err() {
            return;
        }
        while let Ok(Some(_)) = channel.receive(&mut into) {}
    }
}

fn spawn(served: &Served) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["channel::host_process", "--exact", "--nocapture"])
        .env(SOCKET, &served.socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("open")));
    child
}

/// Mappings of channels in this process, which is the card's.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:picnic-channel")).count()
}

#[test]
fn killed_host_processes_harm_no_others() {
    let served = Served::start(ECHO);
    let mut random = picnic_core::random::Random::new(41, 0);
    for round in 1..=12_u64 {
        let mut child = spawn(&served);
        let before = served.figure("received_messages");
        wait_until("traffic", || served.figure("received_messages") > before);
        std::thread::sleep(Duration::from_micros(random.next() % 5_000));
        child.kill().unwrap();
        child.wait().unwrap();
        // The next one opens as soon as the card has noticed.
        let mut channel =
            wait_for("the channel is free", || Channel::open(&served.socket, "echo").ok());
        channel.send(b"alive").unwrap();
        let mut into = [0; 64];
        let bytes = channel.receive_within(&mut into, PATIENCE).unwrap();
        assert_eq!(&into[..bytes], b"alive", "a message of an earlier process");
        assert_eq!(served.figure("openings"), 2 * round);
    }
    wait_until("the memory is given back", || mappings() == 0);
    let report = served.card.stop().unwrap();
    assert!(report.ledger.balanced());
    let os = report.os.unwrap();
    assert_eq!((os.panics, os.channels[0].broken_hosts), (0, 0));
}

/// Messages of a sending task while the chain and the process change.
#[test]
fn traffic_survives_swaps() {
    let served = Served::start(ECHO);
    let mut channel = served.open();
    let mut into = [0; 64];
    for round in 0..10_u8 {
        (0..5).for_each(|_| channel.send(&[round; 30]).unwrap());
        let swapped = served.call("chain.swap", json!({ "chain": "rx", "functions": [] }));
        assert!(swapped["error"].is_null(), "{swapped}");
        for _ in 0..5 {
            assert_eq!(channel.receive_within(&mut into, PATIENCE).unwrap(), 30);
            assert_eq!(into[..30], [round; 30]);
        }
    }
    served.card.stop().unwrap();
}

/// A process in virtual time, woken by the card and waking it: the same twice.
#[test]
fn virtual_processes_talk_to_tasks() {
    for idle in ["spin", "adaptive", "block"] {
        let text = format!(
            "[card]\nidle = \"{idle}\"\n[host]\nqueues = 1\n\
            [[wire]]\nport = \"generator\"\nrate_pps = 1000\n[[task]]\ntask = \"echo\"\n"
        );
        let file = picnic_host::sections().parse(&text, None).unwrap();
        let registries = Registries { tasks: TASKS, ..picnic_sim::registries() };
        let run = || {
            let launch = Launch::new(&file, registries);
            let mut simulation = Simulation::new(launch, 7, CostModel::default()).unwrap();
            let trips = Arc::new(Mutex::new(Vec::new()));
            let told = trips.clone();
            simulation.add_process(Time::from_nanos(100_000), move |channels, bell| {
                let mut end = None::<HostEnd>;
                let mut sent_at = None;
                Box::new(move |now| {
                    if end.is_none() {
                        // The task may not have made its channel yet.
                        end = channels.open_here("echo", bell.clone()).ok();
                    }
                    let Some(end) = &mut end else { return Some(now + 10_000) };
                    end.wake();
                    let mut into = [0; 64];
                    if let Some(bytes) = end.receive(&mut into) {
                        let since = sent_at.take().map(|at| now.since(at));
                        told.lock().unwrap().push((into[..bytes].to_vec(), since));
                    }
                    if sent_at.is_none() {
                        end.send(&now.as_nanos().to_le_bytes()).unwrap();
                        sent_at = Some(now);
                    }
                    assert!(end.rest(Awaits::Message));
                    None
                })
            });
            simulation.run_until(Time::from_nanos(50_000_000));
            let (report, trace) = simulation.finish();
            let trips = std::mem::take(&mut *trips.lock().unwrap());
            (report, trace, trips)
        };
        let ((report, trace, trips), (_, again, trips_again)) = (run(), run());
        assert_eq!((trace, &trips), (again, &trips_again));
        assert!(report.ledger.balanced());
        assert!(trips.len() >= 50, "{idle}: {} round trips", trips.len());
        assert!(trips.iter().all(|(bytes, since)| bytes.len() == 8 && since.is_some()));
        let figures = &report.os.unwrap().channels[0];
        assert!(figures.host_wakeups >= trips.len() as u64 - 1, "{figures:?}");
        // The last message may not have arrived yet.
        assert!(figures.sent_messages - trips.len() as u64 <= 1, "{figures:?}");
    }
}

/// A task whose channel's name is taken says so as it ends.
#[test]
fn a_task_that_finds_its_channel_taken_says_why_it_ends() {
    let text = "[host]\nqueues = 1\n[[wire]]\nport = \"generator\"\nrate_pps = 1000\n\
                [[task]]\ntask = \"echo\"\n[[task]]\ntask = \"echo\"\nname = \"second\"\n";
    let file = picnic_host::sections().parse(text, None).unwrap();
    let registries = Registries { tasks: TASKS, ..picnic_sim::registries() };
    let launch = Launch::new(&file, registries);
    let mut simulation = Simulation::new(launch, 7, CostModel::default()).unwrap();
    simulation.run_until(Time::from_nanos(5_000_000));
    let os = simulation.finish().0.os.unwrap();
    let said = |note: &&String| note.contains("second: channel \"echo\" exists already");
    assert_eq!(os.notes.iter().filter(said).count(), 1, "{:?}", os.notes);
}
