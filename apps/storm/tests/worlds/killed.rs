//! A host process of a member on a card, killed while messages are under way.

use picnic_channel::{Channel, ChannelError};
use picnic_control::Launch;
use picnic_core::random::Random;
use picnic_storm::card::records::Record;
use picnic_storm::card::task::CHANNEL;
use picnic_storm::cards;
use picnic_testing::{machine, wait_for};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Option<Duration> = Some(picnic_testing::PATIENCE);
/// The name of the variable that makes [`host_process`] a process of its own.
const SOCKET: &str = "PICNIC_STORM_TEST_SOCKET";

/// Not a test by itself: submits and receives as fast as it can, until it is killed.
#[test]
fn host_process() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let open = || Channel::open(&socket, CHANNEL).ok();
    let mut channel = wait_for("the channel is free", open);
    let mut message = [0; 2048];
    for number in 0_u64.. {
        let _ = channel.send(&number.to_le_bytes());
        if number == 100 {
            println!("at work");
        }
        while let Ok(Some(_)) = channel.receive(&mut message) {}
    }
}

/// The process, once it has the channel that an earlier one may still have.
fn spawn(socket: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["killed::host_process", "--exact", "--nocapture"])
        .env(SOCKET, socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("at work")));
    child
}

#[test]
fn the_next_program_gets_the_rest_of_the_order() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("card.sock");
    let text = format!(
        "[host]\nqueues = 1\n[[wire]]\nport = \"generator\"\nrate_pps = 1000\n[os]\n\
         admission = \"override\"\narena_bytes = 8388608\n[[task]]\ntask = \"storm\"\n\
         [control]\nsocket = \"{}\"\n",
        socket.display()
    );
    let file = picnic_host::sections().parse(&text, None).unwrap();
    let card = Launch::new(&file, cards::registries()).start().unwrap();
    drop(wait_for("the member has its channel", || Channel::open(&socket, CHANNEL).ok()));
    let mut random = Random::new(41, 1);
    let mut last = (0, 0);
    for round in 0..6 {
        let free = || Channel::open(&socket, CHANNEL).ok();
        let mut child = spawn(&socket);
        std::thread::sleep(Duration::from_micros(random.next() % 5_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut channel = wait_for("the channel is free", free);
        channel.send(b"alive").unwrap();
        let mut message = [0; 2048];
        let mut is_first = true;
        loop {
            let bytes = channel.receive_within(&mut message, PATIENCE).unwrap();
            let record = Record::read(&message[..bytes]).unwrap();
            if std::mem::take(&mut is_first) {
                assert!(matches!(record, Record::View { joined: true, .. }), "{round}: {record:?}");
            }
            if let Record::Delivered(delivery) = record {
                let place = (delivery.timestamp, delivery.position);
                assert!(place > last, "round {round}: {place:?} behind {last:?}");
                last = place;
                if delivery.payload == b"alive" {
                    break;
                }
            }
        }
    }
    let mut channel = wait_for("the channel is free", || Channel::open(&socket, CHANNEL).ok());
    let report = card.stop().unwrap();
    let end = loop {
        match channel.receive(&mut [0; 2048]) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(end, ChannelError::Closed));
    assert!(report.ledger.balanced());
    let os = report.os.unwrap();
    assert_eq!((os.panics, os.channels[0].broken_hosts), (0, 0));
}
