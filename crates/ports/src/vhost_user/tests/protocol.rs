//! The socket: a front end in this process, a target core in a thread.

use super::super::memory::GuestMemoryMmap;
use super::super::pair::bits;
use super::super::ring::Layout;
use super::super::{VhostUser, VhostUserConfig};
use super::driver::Driver;
use super::{Card, Shared, bytes, packet};
use picnic_confine::Role;
use picnic_core::attachment::{self, GuestState, HostAttachment, HostQueue};
use picnic_core::config::Section;
use picnic_core::ledger::DropReason;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_testing::wait_until;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::thread::CapabilitySet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend};
use vmm_sys_util::eventfd::EventFd;

/// An event descriptor.
pub(super) fn event() -> File {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap().into()
}

pub(super) const MEMORY: usize = 0x40_0000;
/// Where the front end says that it has the guest's memory.
pub(super) const USER: u64 = 0x7f00_0000_0000;

/// Packets for the guest, or a question for those of it.
enum Order {
    Deliver(Vec<Vec<u8>>),
    End,
}

/// What the target core saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) sent: Vec<Vec<u8>>,
    pub(super) delivered: u64,
    pub(super) disabled: u64,
    pub(super) no_descriptor: u64,
    /// Of the second queue.
    pub(super) bad_beside: u64,
    pub(super) disabled_beside: u64,
    pub(super) state: GuestState,
    /// Of the second guest.
    pub(super) beside: GuestState,
}

/// An attachment with two queues, of one guest or two, and a target core that polls both. What the
/// second queue's guest gets and sends is its own affair.
pub(super) struct Machine {
    attachment: Box<dyn HostAttachment>,
    guests: Vec<Arc<dyn attachment::Guest>>,
    pub(super) socket: PathBuf,
    orders: mpsc::Sender<Order>,
    seen: mpsc::Receiver<Seen>,
    core: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Machine {
    pub(super) fn new(keys: &str) -> Self {
        // The threads of guests and target cores may do what they may in a card.
        picnic_confine::ask_for();
        let folder = tempfile::tempdir().unwrap();
        let text = format!("attachment = \"vhost-user\"\n[[guest]]\nsocket = \"vm\"\n{keys}");
        let section = Section::from_text("attachment", &text).unwrap();
        let config = section.parse::<VhostUserConfig>().unwrap();
        let directory = folder.path().to_owned();
        let context = BuildContext { directory, queues: 2, ..BuildContext::default() };
        let mut attachment = VhostUser::build(config, &context).unwrap();
        let queues = [0, 1].map(|queue| attachment.open_queue(queue).unwrap());
        let guests = attachment.guests();
        let ((orders, received), (answers, seen)) = (mpsc::channel(), mpsc::channel());
        let core = std::thread::spawn(move || run(queues, &received, &answers));
        let socket = folder.path().join("vm");
        Machine { attachment, guests, socket, orders, seen, core, _folder: folder }
    }

    pub(super) fn deliver(&self, packets: &[Vec<u8>]) -> Seen {
        self.orders.send(Order::Deliver(packets.to_vec())).unwrap();
        with_states(&self.guests, self.seen.recv().unwrap())
    }

    /// What the target core has seen so far.
    pub(super) fn look(&self) -> Seen {
        self.deliver(&[])
    }

    pub(super) fn end(self) -> Seen {
        self.orders.send(Order::End).unwrap();
        let seen = self.seen.recv().unwrap();
        let Machine { attachment, guests, socket, core, .. } = self;
        core.join().unwrap();
        drop(attachment);
        assert_eq!(picnic_confine::notes(), [""; 0]);
        assert!(!socket.exists());
        with_states(&guests, seen)
    }
}

fn with_states(guests: &[Arc<dyn attachment::Guest>], seen: Seen) -> Seen {
    let state = |guest: usize| guests.get(guest).map(|guest| guest.state()).unwrap_or_default();
    Seen { state: state(0), beside: state(1), ..seen }
}

/// The target core's routine.
fn run(
    [mut queue, mut second]: [Box<dyn HostQueue>; 2],
    orders: &mpsc::Receiver<Order>,
    answers: &mpsc::Sender<Seen>,
) {
    let (mut card, mut beside, mut sent) = (Card::new(2048), Card::new(2048), Vec::new());
    let mut given = [0; 2];
    picnic_confine::set_up(Role::Target, CapabilitySet::empty());
    loop {
        let mut burst = beside.burst(&[packet(1, 700)], |_| {});
        given[1] += 1;
        beside.with(|out| {
            second.deliver(Time::ZERO, &mut burst, out);
            second.transmit(Time::ZERO, out)
        });
        beside.sent(|_| ());
        card.with(|out| queue.transmit(Time::ZERO, out));
        sent.extend(card.sent(bytes));
        let order = match orders.try_recv() {
            Ok(order) => order,
            Err(mpsc::TryRecvError::Empty) => {
                std::thread::yield_now();
                continue;
            }
            Err(mpsc::TryRecvError::Disconnected) => return,
        };
        let is_end = matches!(order, Order::End);
        if let Order::Deliver(packets) = order {
            let mut burst = card.burst(&packets, |_| {});
            given[0] += packets.len() as u64;
            card.with(|out| queue.deliver(Time::ZERO, &mut burst, out));
        }
        let seen = Seen {
            sent: std::mem::take(&mut sent),
            delivered: card.delivered(),
            disabled: card.dropped(DropReason::RingDisabled),
            no_descriptor: card.dropped(DropReason::NoDescriptor),
            bad_beside: beside.dropped(DropReason::BadDescriptor),
            disabled_beside: beside.dropped(DropReason::RingDisabled),
            ..Seen::default()
        };
        answers.send(seen).unwrap();
        if is_end {
            card.assert_conserved(given[0]);
            beside.assert_conserved(given[1]);
            return;
        }
    }
}

/// A guest: its memory, and a driver for each ring of a pair.
pub(super) struct Guest {
    pub(super) memory: Shared,
    pub(super) file: Arc<File>,
    pub(super) rx: Driver,
    pub(super) tx: Driver,
    pub(super) kicks: [EventFd; 2],
}

impl Guest {
    pub(super) fn new() -> Self {
        Guest::with(false)
    }

    pub(super) fn with(is_packed: bool) -> Self {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, MEMORY as u64).unwrap();
        let file = Arc::new(file);
        let offset = Some(FileOffset::from_arc(file.clone(), 0));
        let ranges = [(GuestAddress(0), MEMORY, offset)];
        let memory = Arc::new(GuestMemoryMmap::from_ranges_with_files(ranges).unwrap());
        let layout = |at| Layout {
            is_packed,
            size: if is_packed { 60 } else { 64 },
            descriptors: at,
            available: at + 0x1000,
            used: at + 0x2000,
            base: if is_packed { 0x8000 } else { 0 },
            event_idx: false,
            indirect: true,
            in_order: false,
        };
        let rx = Driver::over(memory.clone(), layout(0));
        let tx = Driver::over(memory.clone(), layout(0x4000));
        let kicks = [EventFd::new(0).unwrap(), EventFd::new(0).unwrap()];
        Guest { memory, file, rx, tx, kicks }
    }

    pub(super) fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    pub(super) fn ring(&self, index: usize) -> VringConfigData {
        let layout = if index == 0 { self.rx.layout } else { self.tx.layout };
        VringConfigData {
            queue_max_size: layout.size,
            queue_size: layout.size,
            flags: 0,
            desc_table_addr: USER + layout.descriptors,
            used_ring_addr: USER + layout.used,
            avail_ring_addr: USER + layout.available,
            log_addr: None,
        }
    }

    pub(super) fn send(&mut self, seed: u64) {
        let whole = [vec![0; 12], packet(seed, 100)].concat();
        self.tx.send(&whole, 2, false).unwrap();
        self.kicks[1].write(1).unwrap();
    }
}

pub(super) const WANTED: u64 = bits::VERSION_1 | bits::MRG_RXBUF | bits::RING_INDIRECT;

pub(super) fn connect(socket: &Path) -> Frontend {
    connect_with(socket, WANTED)
}

pub(super) fn connect_with(socket: &Path, wanted: u64) -> Frontend {
    let mut front = Frontend::connect(socket, 8).unwrap();
    front.set_owner().unwrap();
    let features = front.get_features().unwrap();
    assert_eq!(features & (wanted | bits::RING_PACKED), wanted);
    front.set_features(wanted | bits::PROTOCOL_FEATURES).unwrap();
    let offered = front.get_protocol_features().unwrap();
    let known = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::MTU
        | VhostUserProtocolFeatures::STATUS
        | VhostUserProtocolFeatures::RARP;
    assert_eq!(offered, known);
    front.set_protocol_features(known).unwrap();
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front
}

/// A message about the first pair of rings.
type Step = fn(&mut Frontend, &Guest, usize);

const STEPS: [Step; 6] = [
    |front, guest, _| {
        // Once is enough.
        let _ = front.set_mem_table(&[guest.region()]);
    },
    |front, guest, ring| front.set_vring_num(ring, guest.ring(ring).queue_size).unwrap(),
    |front, guest, ring| front.set_vring_addr(ring, &guest.ring(ring)).unwrap(),
    |front, guest, ring| front.set_vring_base(ring, guest.tx.layout.base).unwrap(),
    |front, guest, ring| front.set_vring_kick(ring, &guest.kicks[ring]).unwrap(),
    |front, _, ring| front.set_vring_enable(ring, true).unwrap(),
];

pub(super) fn start(front: &mut Frontend, guest: &Guest, order: &[usize]) {
    for ring in [0, 1] {
        order.iter().for_each(|&step| STEPS[step](front, guest, ring));
    }
}

pub(super) fn assert_passes(machine: &Machine, guest: &mut Guest, seed: u64) {
    guest.send(seed);
    wait_until("a packet of the guest", || machine.look().sent == [packet(seed, 100)]);
    guest.rx.post(2000, 1, false).unwrap();
    let before = machine.look().delivered;
    assert_eq!(machine.deliver(&[packet(seed + 1, 300)]).delivered, before + 1);
    assert_eq!(guest.rx.received(true), [packet(seed + 1, 300)]);
    assert_eq!(guest.tx.reclaim().len(), 1);
}

#[test]
fn rings_start_by_messages_in_any_order() {
    let machine = Machine::new("");
    let mode = std::fs::metadata(&machine.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let rotations = (0..6).map(|first| (0..6).map(move |step| (first + step) % 6).collect());
    let mut orders: Vec<Vec<usize>> = rotations.collect();
    orders.push((0..6).rev().collect());
    for (seed, order) in orders.into_iter().enumerate() {
        let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
        assert_eq!(front.get_queue_num().unwrap(), 2);
        start(&mut front, &guest, &order);
        assert_passes(&machine, &mut guest, 10 * seed as u64);
        assert_eq!(front.get_vring_base(1).unwrap(), 1, "{order:?}");
        drop(front);
        wait_until("the guest is gone", || !machine.look().state.is_connected);
    }
    let seen = machine.end();
    assert_eq!((seen.state.connections, &seen.state.faults[..]), (7, &[][..]));
}

#[test]
fn rings_are_enabled_before_features_are_negotiated() {
    use std::io::{Read, Write};
    let machine = Machine::new("");
    let mut stream = UnixStream::connect(&machine.socket).unwrap();
    for ring in [0, 1] {
        let message: [u32; 5] = [18, 1, 8, ring, 1];
        stream.write_all(message.map(u32::to_le_bytes).as_flattened()).unwrap();
    }
    let mut front = Frontend::from_stream(stream.try_clone().unwrap(), 8);
    front.get_features().unwrap();
    front.set_features(WANTED | bits::PROTOCOL_FEATURES).unwrap();
    let mut guest = Guest::new();
    start(&mut front, &guest, &[0, 1, 2, 3, 4]);
    front.get_features().unwrap();
    assert_passes(&machine, &mut guest, 1);
    // With an answer, once it was negotiated.
    front.get_protocol_features().unwrap();
    front.set_protocol_features(VhostUserProtocolFeatures::REPLY_ACK).unwrap();
    for (ring, answer) in [(0, 0), (9, 1)] {
        let message: [u32; 5] = [18, 9, 8, ring, 1];
        stream.write_all(message.map(u32::to_le_bytes).as_flattened()).unwrap();
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        let expected: [u32; 5] = [18, 5, 8, answer, 0];
        assert_eq!(reply, expected.map(u32::to_le_bytes).as_flattened());
    }
    machine.end();
}

#[test]
fn rings_stop_and_go_on_where_they_were() {
    let machine = Machine::new("");
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    for round in 0..20 {
        assert_passes(&machine, &mut guest, 2 * round);
        let disabled = machine.look().disabled;
        front.set_vring_enable(0, false).unwrap();
        assert_eq!(machine.deliver(&[packet(0, 60)]).disabled, disabled + 1);
        front.set_vring_enable(0, true).unwrap();
        assert_eq!(machine.deliver(&[packet(0, 60)]).no_descriptor, round + 1);
        // A stop, and another address for the same memory.
        for ring in [0, 1] {
            let base = front.get_vring_base(ring).unwrap();
            assert_eq!(base, round as u32 + 1);
            // DPDK's virtio-user gives 0 to a back end that was restarted.
            let base = if round % 2 == 0 { base as u16 } else { 0 };
            front.set_vring_base(ring, base).unwrap();
            front.set_vring_kick(ring, &guest.kicks[ring]).unwrap();
            front.set_vring_enable(ring, true).unwrap();
        }
        front.set_mem_table(&[guest.region()]).unwrap();
    }
    // A driver that starts again, with rings that are empty.
    front.reset_device().unwrap();
    assert_eq!(machine.deliver(&[packet(0, 60)]).disabled, 21);
    let mut again = Guest::new();
    front.set_features(WANTED | bits::PROTOCOL_FEATURES).unwrap();
    start(&mut front, &again, &[0, 1, 2, 3, 4, 5]);
    assert_passes(&machine, &mut again, 99);
    drop(guest.memory);
    machine.end();
}

#[test]
fn packed_rings_go_on_with_their_wrap_counters() {
    let machine = Machine::new("packed = true");
    let mut front = connect_with(&machine.socket, WANTED | bits::RING_PACKED);
    let mut guest = Guest::with(true);
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    for round in 0..130 {
        assert_passes(&machine, &mut guest, 2 * round);
        // One descriptor of 60 per packet for the guest, two of its own.
        for (ring, passed) in [(0, round as u32 + 1), (1, 2 * (round as u32 + 1))] {
            let place = (passed % 60) | if passed / 60 % 2 == 0 { 0x8000 } else { 0 };
            let base = front.get_vring_base(ring).unwrap();
            assert_eq!(base, place | place << 16);
            front.set_vring_num(ring, 60).unwrap();
            front.set_vring_addr(ring, &guest.ring(ring)).unwrap();
            front.set_vring_base(ring, base as u16).unwrap();
            front.set_vring_kick(ring, &guest.kicks[ring]).unwrap();
            front.set_vring_enable(ring, true).unwrap();
        }
    }
    // A stopped ring forgets where it was.
    front.get_vring_base(0).unwrap();
    front.reset_device().unwrap();
    front.set_features(WANTED | bits::RING_PACKED | bits::PROTOCOL_FEATURES).unwrap();
    let mut again = Guest::with(true);
    start(&mut front, &again, &[0, 1, 2, 4, 5]);
    assert_passes(&machine, &mut again, 1);
    machine.end();
}

#[test]
fn memory_comes_and_goes_by_slots() {
    let machine = Machine::new("");
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    assert_eq!(front.get_max_mem_slots().unwrap(), 256);
    front.add_mem_region(&guest.region()).unwrap();
    start(&mut front, &guest, &[1, 2, 3, 4, 5]);
    assert_passes(&machine, &mut guest, 1);
    // Many more than eight.
    let extra = |slot: u64| VhostUserMemoryRegionInfo {
        guest_phys_addr: (slot + 1) * MEMORY as u64,
        userspace_addr: USER + (slot + 1) * MEMORY as u64,
        ..guest.region()
    };
    let extras: Vec<_> = (0..30).map(extra).collect();
    for slot in &extras {
        front.add_mem_region(slot).unwrap();
    }
    for slot in &extras {
        front.remove_mem_region(slot).unwrap();
    }
    let region = guest.region();
    assert_passes(&machine, &mut guest, 3);
    // As QEMU 7.2: once per pair of rings.
    for _ in 0..3 {
        front.add_mem_region(&region).unwrap();
    }
    assert_passes(&machine, &mut guest, 5);
    (0..4).for_each(|_| front.remove_mem_region(&region).unwrap());
    assert_eq!(machine.deliver(&[packet(0, 60)]).disabled, 1);
    front.remove_mem_region(&region).unwrap_err_any();
    let (mut front, guest) = (connect(&machine.socket), Guest::new());
    front.add_mem_region(&guest.region()).unwrap();
    front.add_mem_region(&Guest::new().region()).unwrap_err_any();
    machine.end();
}

#[test]
fn wrong_messages_end_only_their_connection() {
    let machine = Machine::new("");
    let pipe = std::io::pipe().unwrap();
    type Wrong<'w> = (&'w str, &'w dyn Fn(&mut Frontend, &Guest));
    let wrong: [Wrong<'_>; 8] = [
        ("a size that is no power of two", &|front, _| {
            front.set_vring_num(0, 100).unwrap_err_any()
        }),
        ("features that are not offered", &|front, _| {
            front.set_features(1 << 57).unwrap_err_any();
        }),
        ("a ring that the guest lacks", &|front, _| front.set_vring_num(4, 64).unwrap_err_any()),
        ("memory that is a pipe", &|front, guest| {
            let mmap_handle = pipe.0.as_raw_fd();
            let region = VhostUserMemoryRegionInfo { mmap_handle, ..guest.region() };
            front.set_mem_table(&[region]).unwrap_err_any();
        }),
        ("memory longer than its file", &|front, guest| {
            let memory_size = 2 * MEMORY as u64;
            let region = VhostUserMemoryRegionInfo { memory_size, ..guest.region() };
            front.set_mem_table(&[region]).unwrap_err_any();
        }),
        ("memory twice", &|front, guest| {
            front.set_mem_table(&[guest.region(), guest.region()]).unwrap_err_any();
        }),
        ("a ring of no descriptors", &|front, _| front.set_vring_num(0, 0).unwrap_err_any()),
        ("memory that is not there", &|front, guest| {
            front.remove_mem_region(&guest.region()).unwrap_err_any();
        }),
    ];
    for (what, message) in wrong {
        let (mut front, guest) = (connect(&machine.socket), Guest::new());
        message(&mut front, &guest);
        drop(front);
        // The next one is served.
        let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
        start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
        assert_passes(&machine, &mut guest, 7);
        assert!(machine.look().state.faults.len() < 20, "{what}");
    }
    // Bytes that are no message, and a connection that ends within one.
    for bytes in [&[0xff; 64][..], &[1, 0, 0]] {
        use std::io::Write;
        let mut stream = UnixStream::connect(&machine.socket).unwrap();
        stream.write_all(bytes).unwrap();
    }
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    assert_passes(&machine, &mut guest, 7);
    let faults = machine.end().state.faults.join("\n");
    assert!(faults.contains("the connection was ended at an unknown message: "), "{faults}");
}

/// An error of any kind.
trait AnyError {
    fn unwrap_err_any(self);
}

impl<T, E> AnyError for Result<T, E> {
    #[track_caller]
    fn unwrap_err_any(self) {
        assert!(self.is_err());
    }
}

#[test]
fn a_ring_outside_the_memory_does_not_start() {
    let machine = Machine::new("");
    let (mut front, guest) = (connect(&machine.socket), Guest::new());
    let ring = VringConfigData { used_ring_addr: USER + MEMORY as u64, ..guest.ring(0) };
    front.set_mem_table(&[guest.region()]).unwrap();
    front.set_vring_num(0, 64).unwrap();
    front.set_vring_addr(0, &ring).unwrap();
    front.set_vring_kick(0, &guest.kicks[0]).unwrap();
    front.set_vring_enable(0, true).unwrap();
    assert_eq!(machine.deliver(&[packet(0, 60)]).disabled, 1);
    drop(front);
    let faults = machine.end().state.faults;
    assert_eq!(faults, ["ring 0: its addresses are not in the guest's memory"]);
}

#[test]
fn a_client_connects_again_and_again() {
    let machine = Machine::new("mode = \"client\"");
    for round in 0..3 {
        let listener = UnixListener::bind(&machine.socket).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut front = Frontend::from_stream(stream, 4);
        front.set_owner().unwrap();
        front.get_features().unwrap();
        front.set_features(WANTED | bits::PROTOCOL_FEATURES).unwrap();
        let mut guest = Guest::new();
        start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
        // An answer: the messages before it have been handled.
        front.get_features().unwrap();
        assert_passes(&machine, &mut guest, round);
        drop((front, listener));
        std::fs::remove_file(&machine.socket).unwrap();
        wait_until("the guest is gone", || !machine.look().state.is_connected);
    }
    machine.end();
}

#[test]
fn a_card_that_stops_leaves_no_front_end_waiting() {
    let machine = Machine::new("");
    let (mut front, guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    machine.end();
    let is_over = Arc::new(AtomicBool::new(false));
    let flag = is_over.clone();
    let asking = std::thread::spawn(move || {
        // An answer, or the end of the connection.
        let _ = front.get_vring_base(0);
        flag.store(true, Ordering::Release);
    });
    wait_until("the front end goes on", || is_over.load(Ordering::Acquire));
    asking.join().unwrap();
    assert!(guest.memory.num_regions() == 1);
}
