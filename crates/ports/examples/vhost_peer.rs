//! One core that serves a guest without pause: the peer of DPDK's `rte_vhost` in
//! `bench/peers/compare_vhost.py`.
//!
//! ```text
//! vhost_peer SOCKET to-driver SIZE     fills headers of 42 bytes, sends packets of SIZE bytes
//! vhost_peer SOCKET to-device SIZE     takes packets of up to SIZE bytes, and frees them
//! ```
//!
//! It is the target core of a card alone: no wire, no chain, no borrowed core. The driver counts
//! the packets. It ends with its standard input.

use picnic_core::attachment::QueueOut;
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
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// As testpmd's.
const BURST: usize = 32;
/// Ethernet, IPv4 and UDP, which testpmd also writes to each packet.
const HEADERS: usize = 42;
/// About as many as testpmd keeps for one core: both then work in the same caches.
const BUFFERS: u32 = 512;
/// Bytes of a buffer for packets, and for super-frames: as testpmd's in `compare_vhost.py`.
const BUFFER_BYTES: [u32; 2] = [2048, 8192];
/// Bytes of the largest packet in buffers of the former size.
const LARGE: usize = 9000;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [socket, way, size] = &arguments[..] else { usage() };
    let size: usize =
        size.parse().ok().filter(|size| (60..=65_000).contains(size)).unwrap_or_else(|| usage());
    let is_to_driver = match &**way {
        "to-driver" => true,
        "to-device" => false,
        _ => usage(),
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let flag = is_over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });
    if let Err(error) = serve(socket, is_to_driver, size, &is_over) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn usage() -> ! {
    eprintln!("usage: vhost_peer SOCKET to-driver|to-device SIZE, of 60 to 65000 bytes");
    std::process::exit(2);
}

fn serve(
    socket: &str,
    is_to_driver: bool,
    size: usize,
    is_over: &AtomicBool,
) -> Result<(), Box<dyn std::error::Error>> {
    let text = format!(
        "attachment = \"vhost-user\"\n[[guest]]\nsocket = {socket:?}\npacked = true\n\
         mtu = 65535\noffloads = []"
    );
    let section = Section::from_text("attachment", &text)?;
    let buffer_bytes = BUFFER_BYTES[usize::from(size > LARGE)];
    let buffer_size = buffer_bytes as usize;
    let context = BuildContext { queues: 1, buffer_size, ..BuildContext::default() };
    let mut attachment = VhostUser::build(section.parse()?, &context)?;
    let mut queue = attachment.open_queue(0)?;
    let config =
        PoolConfig { buffers: BUFFERS, buffer_size: buffer_bytes, ..PoolConfig::default() };
    let (mut pool, mut returns) = Pool::new(&config, 1)?;
    let (mut sender, mut receiver) = fill::channel(attachment.wants_buffers());
    let (mut tx, mut sent) = spsc::channel(1024);
    let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
    let mut burst = Burst::new();
    while !is_over.load(Ordering::Relaxed) {
        let out = QueueOut::new(&mut returns[0], &mut tx, &counters, &ledger.queues[0]);
        if is_to_driver {
            pool.ensure(BURST * size.div_ceil(buffer_size));
            pool.prefetch_for_write(BURST);
            while burst.len() < BURST {
                let made = match size <= buffer_size {
                    true => pool.allocate(size),
                    false => pool.gather(size, std::iter::once(&[2; HEADERS][..])),
                };
                let Some(mut packet) = made else { break };
                packet.data_mut()[..HEADERS].copy_from_slice(&[2; HEADERS]);
                if burst.push(packet).is_err() {
                    break;
                }
            }
            let mut out = out;
            queue.deliver(Time::ZERO, &mut burst, &mut out);
        } else {
            sender.top_up(&mut pool);
            queue.transmit(Time::ZERO, &mut out.with_fill(&mut receiver));
            sent.refresh();
            while let Some(packet) = sent.pop() {
                pool.free(packet);
            }
            sent.release();
        }
    }
    Ok(())
}
