//! A front end of vhost-user: whatever it sends ends its own connection at most, and soon.
//!
//! One card serves all inputs; its thread for the guest is another than this one.

use picnic_core::attachment::{HostQueue, QueueOut};
use picnic_core::config::Section;
use picnic_core::fill;
use picnic_core::ledger::Ledger;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::ring::spsc;
use picnic_core::stats::TargetCounters;
use picnic_core::time::Time;
use picnic_ports::vhost_user::VhostUser;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// The longest that the card may take to end a connection, or to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the memory that is shared.
const MEMORY: u64 = 0x1_0000;
/// A message's head in the input: request, flags, files, bytes declared, bytes sent.
const HEAD: usize = 5;
const GET_FEATURES: u8 = 1;
const VERSION: u8 = 1;

struct Card {
    socket: PathBuf,
    memory: OwnedFd,
    event: OwnedFd,
    pipe: std::io::PipeReader,
}

static CARD: LazyLock<Card> = LazyLock::new(|| {
    let folder = Box::leak(Box::new(tempfile::tempdir().expect("a folder")));
    let text = "attachment = \"vhost-user\"\n[[guest]]\nsocket = \"vm\"\npacked = true\n";
    let section = Section::from_text("attachment", text).expect("a section");
    let directory = folder.path().to_owned();
    let context = BuildContext { directory, queues: 2, ..BuildContext::default() };
    let config = section.parse().expect("keys");
    let attachment =
        Box::leak(Box::new(VhostUser::build(config, &context).expect("an attachment")));
    let queues = [0, 1].map(|queue| attachment.open_queue(queue).expect("a queue"));
    std::thread::spawn(|| poll(queues));
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&memory, MEMORY).expect("memory of this length");
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let (pipe, _) = std::io::pipe().expect("a pipe");
    Card { socket: folder.path().join("vm"), memory, event, pipe }
});

/// The target core of both queues: rings change hands only while it looks at them.
fn poll(mut queues: [Box<dyn HostQueue>; 2]) {
    let config = PoolConfig { buffers: 512, buffer_size: 2048, ..PoolConfig::default() };
    let (mut pool, mut returns) = Pool::new(&config, 1).expect("a pool");
    let (mut sender, mut receiver) = fill::channel(64);
    let (mut tx, mut sent) = spsc::channel(256);
    let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
    loop {
        for queue in &mut queues {
            sender.top_up(&mut pool);
            let part = &ledger.queues[0];
            let out = QueueOut::new(&mut returns[0], &mut tx, &counters, part);
            queue.transmit(Time::ZERO, &mut out.with_fill(&mut receiver));
            let mut burst = Burst::new();
            let _ = pool.packet(&[7; 60]).map(|packet| burst.push(packet));
            let mut out = QueueOut::new(&mut returns[0], &mut tx, &counters, part);
            queue.deliver(Time::ZERO, &mut burst, &mut out);
        }
        sent.refresh();
        while let Some(packet) = sent.pop() {
            pool.free(packet);
        }
        sent.release();
        std::thread::yield_now();
    }
}

/// Bytes: messages, each with its head.
pub fn run(data: &[u8]) {
    let mut stream = connect();
    let mut messages = data;
    while let Some(([request, flags, files, declared, length], rest)) =
        messages.split_first_chunk::<HEAD>()
    {
        let (body, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        messages = rest;
        let header = [*request, *flags, *declared].map(|byte| u32::from(byte).to_le_bytes());
        let bytes = [header.as_flattened(), body].concat();
        if send(&stream, &bytes, *files).is_none() {
            break;
        }
    }
    // The card answers what it can, and sees the end.
    let _ = stream.shutdown(Shutdown::Write);
    let mut answers = [0; 4096];
    loop {
        match stream.read(&mut answers) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // With messages that it did not read.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("the card does not end the connection: {error}"),
        }
    }
    let mut next = connect();
    next.write_all(&header_of(GET_FEATURES)).expect("the card takes a message");
    next.read_exact(&mut [0; 20]).expect("the card answers the next front end");
}

fn connect() -> UnixStream {
    let stream = loop {
        match UnixStream::connect(&CARD.socket) {
            Ok(stream) => break stream,
            // By the fuzzer's timer.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("the card does not listen: {error}"),
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream.set_write_timeout(Some(PATIENCE)).expect("a limit");
    stream
}

fn header_of(request: u8) -> Vec<u8> {
    [request, VERSION, 0].map(|byte| u32::from(byte).to_le_bytes()).as_flattened().to_vec()
}

/// Sends bytes with descriptors, two bits of `files` for each; `None` if the card has had enough.
fn send(stream: &UnixStream, bytes: &[u8], files: u8) -> Option<()> {
    let kinds = [0, 2, 4, 6].map(|shift| files >> shift & 3);
    let files: Vec<BorrowedFd<'_>> = kinds
        .into_iter()
        .filter_map(|kind| match kind {
            1 => Some(CARD.memory.as_fd()),
            2 => Some(CARD.event.as_fd()),
            3 => Some(CARD.pipe.as_fd()),
            _ => None,
        })
        .collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(along.push(SendAncillaryMessage::ScmRights(&files)));
    }
    sendmsg(stream, &[IoSlice::new(bytes)], &mut along, SendFlags::NOSIGNAL).ok().map(drop)
}

/// A message with descriptors and a body of words.
fn message(request: u8, files: u8, words: &[u64]) -> Vec<u8> {
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let length = body.len() as u8;
    [&[request, VERSION, files, length, length][..], &body].concat()
}

/// A front end that starts a ring, one that migrates, and one that restarts.
pub fn seeds() -> Vec<Vec<u8>> {
    const MEMORY_FILE: u8 = 1;
    const EVENT: u8 = 2;
    let features = 1 << 32 | 1 << 30 | 1 << 15;
    let user = 0x7000_0000;
    let agree = [message(3, 0, &[]), message(2, 0, &[features]), message(16, 0, &[0x1_b01f])];
    let memory = message(37, MEMORY_FILE, &[0, 0, MEMORY, user, 0]);
    let ring = |index: u64| {
        [
            message(8, 0, &[index | 64 << 32]),
            message(9, 0, &[index, user, user + 0x2000, user + 0x1000, 0]),
            message(10, 0, &[index]),
            message(13, EVENT, &[index]),
            message(12, EVENT, &[index]),
            message(18, 0, &[index | 1 << 32]),
        ]
        .concat()
    };
    let start = [agree.concat(), memory, ring(0), ring(1)].concat();
    let log = [message(6, MEMORY_FILE, &[4096, 0]), message(2, 0, &[features | 1 << 26])].concat();
    let stop = [message(11, 0, &[0]), message(11, 0, &[1]), message(34, 0, &[])].concat();
    let table = [agree.concat(), message(5, MEMORY_FILE, &[1, 0, MEMORY, user, 0])].concat();
    vec![
        start.clone(),
        [&start[..], &log].concat(),
        [&start[..], &stop, &ring(0)].concat(),
        table,
        message(200, 0xff, &[u64::MAX]),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_hold() {
        super::seeds().iter().for_each(|seed| super::run(seed));
    }
}
