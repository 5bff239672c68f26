//! A card on a bench: the test drives wires, hosts and time.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod functions;

use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::config::{self, CardFile};
use picnic_core::direction::Direction;
use picnic_core::doorbell::Doorbell;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::guard::Guard;
use picnic_core::hook::Hooks;
use picnic_core::ledger::{DropReason, LedgerTotals};
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, GsoType};
use picnic_core::packet::lend::Loans;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{
    Arrivals, Capabilities, Clocks, Description, Receiver, Status, Transmitter, WirePort,
};
use picnic_core::registry::{BuildContext, Component, Entry, NoKeys};
use picnic_core::resident::Resident;
use picnic_core::stop::Stop;
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::build::{BuildError, Components, Parts};
use picnic_engine::chain::ChainFunction;
use picnic_engine::poll::{Activity, Card};
use picnic_engine::swap::Controller;
use picnic_engine::target::{Target, TargetQueue};
use picnic_engine::view::View;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

thread_local! {
    /// The resident of the next card that this thread makes.
    pub static RESIDENT: Cell<Option<Box<dyn Resident>>> = const { Cell::new(None) };
    /// The targets of the next card are one, of all queues.
    pub static TOGETHER: Cell<bool> = const { Cell::new(false) };
    /// Whether the part that was made last may be sent super-frames.
    pub static SUPER_FRAMES: Cell<bool> = const { Cell::new(false) };
    static NEXT: RefCell<NextCard> = RefCell::default();
}

// ---------------------------------------------------------------- parts named in card files

/// The parts of the next card of this thread, in the order of the card file.
#[derive(Default)]
struct NextCard {
    wires: VecDeque<Wire>,
    functions: VecDeque<Box<dyn Function>>,
    host: Host,
}

macro_rules! part {
    ($name:ident, $product:ty, $text:literal, $make:expr) => {
        pub struct $name;
        impl Component for $name {
            type Product = $product;
            type Config = NoKeys;
            const NAME: &'static str = $text;
            const HELP: &'static str = "as the bench has it";
            fn build(_: NoKeys, context: &BuildContext) -> Result<$product, ConfigError> {
                SUPER_FRAMES.set(context.super_frames);
                let make: fn(&mut NextCard) -> $product = $make;
                Ok(NEXT.with_borrow_mut(make))
            }
        }
    };
}

part!(Wires, Box<dyn WirePort>, "generator", |bench| {
    Box::new(ScriptWire(bench.wires.pop_front().unwrap_or_default(), None))
});
part!(Slots, Box<dyn Function>, "slot", |bench| {
    bench.functions.pop_front().unwrap_or(Box::new(NullFunction))
});
part!(Hosts, Box<dyn HostAttachment>, "app", |bench| {
    Box::new(ScriptAttachment { host: bench.host.clone(), sends: false })
});
part!(SendingHosts, Box<dyn HostAttachment>, "sends", |bench| {
    Box::new(ScriptAttachment { host: bench.host.clone(), sends: true })
});

struct NullFunction;

impl Function for NullFunction {
    fn process(&mut self, _: Time, _: &mut Burst, _: &mut Out<'_>) {}
}

struct ScriptAttachment {
    host: Host,
    sends: bool,
}

impl HostAttachment for ScriptAttachment {
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        let file = File::open("/dev/null").unwrap();
        lock(&self.host).files.insert(file.as_raw_fd(), queue);
        Ok(Box::new(ScriptHost(queue, self.host.clone(), file)))
    }
    fn wants_buffers(&self) -> usize {
        if self.sends { 64 } else { 0 }
    }
    fn wants_real_time(&self) -> bool {
        self.sends
    }
}

static WIRES: &[Entry<Box<dyn WirePort>>] = &[Entry::of::<Wires>()];
static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[Entry::of::<Slots>()];
static ATTACHMENTS: &[Entry<Box<dyn HostAttachment>>] =
    &[Entry::of::<Hosts>(), Entry::of::<SendingHosts>()];

fn components() -> Components {
    Components { functions: FUNCTIONS, wires: WIRES, attachments: ATTACHMENTS, middleware: none }
}

fn none(
    port: Box<dyn WirePort>,
    _: &config::Wire,
    _: &BuildContext,
) -> Result<Box<dyn WirePort>, ConfigError> {
    Ok(port)
}

// ---------------------------------------------------------------- scripted parts

/// A bench wire's packets to hand over, and those it took.
#[derive(Default)]
pub struct WireState {
    pub incoming: VecDeque<Vec<u8>>,
    /// Read when the card is built, like `super_frames`.
    pub patient: bool,
    pub finished: bool,
    /// Packets it still takes for transmission; `None` for no limit.
    pub tx_room: Option<usize>,
    pub sent: Vec<Vec<u8>>,
    /// Packets longer than this arrive as super-frames; 0 for none.
    pub large: usize,
    /// Whether super-frames may be sent.
    pub super_frames: bool,
    /// It lends the buffers of the packets it sends, and completes this many at each call.
    pub keeps: Option<usize>,
    /// Places out, oldest first.
    pub kept: VecDeque<u64>,
    /// Arrival time of its packets, if known; read when the card is built.
    pub arrival: Option<Time>,
    /// Gap between arrivals.
    pub apart_ns: u64,
    /// Arriving packets have partial checksums.
    pub partial: bool,
    /// Whether packets with partial checksums may be sent.
    pub takes_partial: bool,
    /// Checksum state of each packet sent.
    pub sent_checksums: Vec<ChecksumState>,
    /// Time at which it next has something, and arrival of the frame after that.
    pub due: Option<Time>,
    pub next_arrival: Option<Time>,
    /// Time at which it takes packets again.
    pub next_room: Option<Time>,
    /// Its problems; read when the card is built.
    pub warnings: Vec<String>,
    /// It cannot count waiting packets; read when the card is built.
    pub is_mute: bool,
    /// Opening it fails.
    pub fails: bool,
    /// Whether it is open.
    pub is_taken_up: bool,
    /// Readings of other clocks at the last poll.
    pub clocks: Option<Clocks>,
}

pub type Wire = Arc<Mutex<WireState>>;

/// A patient wire.
pub fn patient() -> Wire {
    Wire::new(Mutex::new(WireState { patient: true, ..WireState::default() }))
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct ScriptWire(Wire, Option<Loans>);

impl WirePort for ScriptWire {
    fn receive(&mut self, _now: Time, rx: &mut Receiver<'_>) {
        let mut state = lock(&self.0);
        state.clocks = rx.clocks();
        let mut arrival = state.arrival;
        while rx.room() != 0
            && let Some(frame) = state.incoming.pop_front()
        {
            if let Some(arrival) = &mut arrival {
                rx.arrived_at(*arrival);
                *arrival = *arrival + state.apart_ns;
            }
            if state.patient && !rx.pool().ensure(1) {
                state.incoming.push_front(frame);
                return;
            }
            if state.partial
                && let Some(mut packet) = rx.pool().packet(&frame)
            {
                packet.set_checksum(ChecksumState::Partial);
                rx.push(packet);
            } else if state.large == 0 || frame.len() <= state.large {
                rx.push_bytes(&frame);
            } else if let Some(mut packet) = rx.pool().packet(&frame) {
                packet.set_gso(GsoType::Tcp4, 1448);
                rx.push(packet);
            }
        }
    }

    fn start(&mut self, pool: &mut Pool) -> Result<(), ConfigError> {
        if lock(&self.0).fails {
            return Err(ConfigError::new("port", "cannot be taken up"));
        }
        lock(&self.0).is_taken_up = true;
        self.1 = Some(Loans::new(pool));
        Ok(())
    }

    fn stop(&mut self, tx: &mut Transmitter<'_>) -> Vec<String> {
        lock(&self.0).is_taken_up = false;
        if let Some(lost) = self.1.as_mut().and_then(|loans| loans.end(tx.pool())) {
            tx.lose(lost as u64, DropReason::Stopped);
        }
        Vec::new()
    }

    fn transmit(&mut self, _now: Time, tx: &mut Transmitter<'_>) {
        let mut state = lock(&self.0);
        let loans = self.1.as_mut().unwrap();
        for _ in 0..state.keeps.unwrap_or(0) {
            let back = state.kept.pop_front().and_then(|place| loans.put_back(tx.pool(), place));
            back.into_iter().for_each(|bytes| tx.left(bytes));
        }
        while state.keeps.is_some()
            && state.tx_room != Some(0)
            && let Some(packet) = tx.next()
        {
            tx.keep(&packet);
            loans.lend_packet(tx.pool(), packet, 4096, |place, _, _| state.kept.push_back(place));
            state.tx_room = state.tx_room.map(|room| room - 1);
        }
        while state.tx_room != Some(0)
            && let Some(packet) = tx.next()
        {
            let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
            state.sent.push(bytes);
            state.sent_checksums.push(packet.checksum());
            state.tx_room = state.tx_room.map(|room| room - 1);
            tx.sent(packet);
        }
    }

    fn describe(&self) -> Description {
        let state = lock(&self.0);
        let capabilities = Capabilities {
            patient: state.patient,
            super_frames: state.super_frames,
            partial_checksums: state.takes_partial,
            arrival: state.arrival.is_some(),
            tells_waiting: !state.is_mute,
        };
        let warnings = state.warnings.clone();
        Description { capabilities, warnings, ..Description::default() }
    }

    fn holds(&mut self, _now: Time, frames: usize) -> bool {
        let state = lock(&self.0);
        !state.is_mute && state.incoming.len() >= frames
    }

    fn status(&self) -> Status<'_> {
        let state = lock(&self.0);
        Status {
            next_deadline: state.due,
            next_arrival: state.next_arrival,
            next_room: state.next_room,
            is_finished: state.finished && state.incoming.is_empty(),
            ..Status::default()
        }
    }
}

/// Script and record of the bench's hosts.
#[derive(Default)]
pub struct HostState {
    pub echo: bool,
    pub refuse: bool,
    pub work_ns: u64,
    /// The stack's part of it.
    pub stack_ns: u64,
    /// Packets that a host sends on its own, if its attachment is "sends".
    pub sends: usize,
    /// It then returns a surplus buffer.
    pub gives_back: bool,
    /// Its work is an application's.
    pub application: bool,
    /// It reads packets and leaves them in place.
    pub leaves: bool,
    /// The queues by the descriptors that say when their hosts have something to send.
    pub files: BTreeMap<RawFd, u16>,
    /// Queue and bytes of every packet, in order.
    pub seen: Vec<(u16, Vec<u8>)>,
}

pub type Host = Arc<Mutex<HostState>>;

struct ScriptHost(u16, Host, File);

impl HostQueue for ScriptHost {
    fn deliver(&mut self, _now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        let mut state = lock(&self.1);
        let work_ns = burst.len() as u64 * state.work_ns;
        if state.leaves {
            return work_ns;
        }
        for packet in burst.drain() {
            let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
            state.seen.push((self.0, bytes));
            match (state.echo, state.refuse) {
                (true, _) => out.echo(packet),
                (_, true) => out.drop(packet, DropReason::HostRefused),
                _ => out.deliver(packet),
            }
        }
        work_ns
    }

    fn transmit(&mut self, _now: Time, out: &mut QueueOut<'_>) -> usize {
        let (sends, gives_back) = {
            let mut state = lock(&self.1);
            (std::mem::take(&mut state.sends), state.gives_back)
        };
        let spare = if gives_back { out.buffer() } else { None };
        let mut sent = 0;
        while sent < sends {
            let Some(packet) = out.buffer() else { break };
            out.submit(packet);
            sent += 1;
        }
        spare.into_iter().for_each(|spare| out.unused(spare));
        sent
    }

    fn is_application(&self) -> bool {
        lock(&self.1).application
    }

    fn stack_ns(&self) -> u64 {
        lock(&self.1).stack_ns
    }

    fn report(&self) -> Vec<String> {
        vec![format!("the host of queue {}", self.0)]
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.2.as_fd())
    }
}

#[derive(Default)]
pub struct Bell(AtomicUsize);

impl Bell {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Doorbell for Bell {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// ---------------------------------------------------------------- the bench

pub type Functions = Vec<Box<dyn Function>>;

/// A card, its targets (one core each) and its scripted parts.
pub struct Bench {
    pub card: Card,
    pub targets: Vec<Target>,
    pub bells: Vec<Arc<Bell>>,
    pub card_bell: Arc<Bell>,
    pub controller: Controller,
    pub view: View,
    pub wires: Vec<Wire>,
    pub host: Host,
    /// Whether its host sends on its own, and whether its targets preempt other work.
    pub asks: (bool, bool),
    /// Arrival rates of its wires, and whether they know arrival times.
    pub brings: (Vec<Arrivals>, Vec<bool>),
    pub now: Time,
}

impl Bench {
    /// A card with `wires` wires and these chains; `text` is the rest of the card file.
    pub fn new(text: &str, wires: usize, rx: Functions, tx: Functions) -> Self {
        Bench::with_wires(text, (0..wires).map(|_| Wire::default()).collect(), rx, tx)
    }

    /// The same, with these wires.
    pub fn with_wires(text: &str, wires: Vec<Wire>, rx: Functions, tx: Functions) -> Self {
        Bench::with_hooks(text, wires, (rx, tx), &Hooks::none(), None)
    }

    /// The same, with observers and a guard.
    pub fn with_hooks(
        text: &str,
        wires: Vec<Wire>,
        functions: (Functions, Functions),
        hooks: &Hooks,
        guard: Option<Box<dyn Guard>>,
    ) -> Self {
        Bench::build(text, wires, functions, hooks, guard).unwrap()
    }

    /// The same, or the reason why it cannot be built.
    pub fn build(
        text: &str,
        wires: Vec<Wire>,
        (rx, tx): (Functions, Functions),
        hooks: &Hooks,
        guard: Option<Box<dyn Guard>>,
    ) -> Result<Self, BuildError> {
        let mut card = String::from(text);
        card.push_str(&"\n[[wire]]\nport = \"generator\"\n".repeat(wires.len()));
        card.push_str(&"\n[[rx]]\nfunction = \"slot\"\n".repeat(rx.len().max(1)));
        card.push_str(&"\n[[tx]]\nfunction = \"slot\"\n".repeat(tx.len()));
        let file = CardFile::parse(&card, None).unwrap();
        let host = Host::default();
        let mut functions = VecDeque::from(rx);
        if functions.is_empty() {
            functions.push_back(Box::new(NullFunction));
        }
        functions.extend(tx);
        let next = NextCard { wires: wires.clone().into(), functions, host: host.clone() };
        NEXT.set(next);
        let mut parts = Parts::build(&file, &components(), hooks, &Stop::default()).unwrap();
        if let Some(resident) = RESIDENT.take() {
            parts.house(resident);
        }
        if let Some(guard) = guard {
            parts.guard(guard);
        }
        let bells: Vec<_> = (0..file.host.queues).map(|_| Arc::new(Bell::default())).collect();
        let doorbells: Vec<_> =
            bells.iter().map(|bell| bell.clone() as Arc<dyn Doorbell>).collect();
        let card_bell = Arc::new(Bell::default());
        let asks = (parts.host_transmits(), parts.wants_real_time());
        let brings = (parts.arrivals(), parts.know_arrival());
        let Assembled { card, queues, controller, view } =
            assemble(&file, parts, &doorbells, card_bell.clone())?;
        let targets = if TOGETHER.take() {
            vec![Target::new(0, queues)]
        } else {
            let alone = |queue: TargetQueue| Target::new(usize::from(queue.index()), vec![queue]);
            queues.into_iter().map(alone).collect()
        };
        let now = Time::ZERO;
        Ok(Bench {
            card,
            targets,
            bells,
            card_bell,
            controller,
            view,
            wires,
            host,
            asks,
            brings,
            now,
        })
    }

    pub fn wire(&self, index: usize) -> MutexGuard<'_, WireState> {
        lock(&self.wires[index])
    }

    pub fn host(&self) -> MutexGuard<'_, HostState> {
        lock(&self.host)
    }

    /// By target, the queues whose hosts it would wait for.
    pub fn slept_on(&self) -> Vec<Vec<u16>> {
        let files = &self.host().files;
        let queues = |target: &Target| {
            target.readiness().map(|file| files[&file.as_raw_fd()]).collect::<Vec<_>>()
        };
        self.targets.iter().map(queues).collect()
    }

    pub fn ledger(&self) -> LedgerTotals {
        self.view.ledger.read()
    }

    #[track_caller]
    pub fn balanced(&self) -> LedgerTotals {
        let ledger = self.ledger();
        assert!(ledger.balanced(), "{ledger:?}");
        ledger
    }

    /// One turn of the card, 100 ns after the last; checks the ledger afterwards.
    #[track_caller]
    pub fn turn(&mut self) -> Activity {
        self.now = self.now + 100;
        let activity = self.card.poll(self.now);
        self.balanced();
        activity
    }

    /// One poll of every target; returns packets handed to hosts.
    #[track_caller]
    pub fn look(&mut self) -> usize {
        let now = self.now;
        let packets = self.targets.iter_mut().map(|target| target.poll(now).packets).sum();
        self.balanced();
        packets
    }

    /// Turns and polls until nothing moves, now or at any deadline.
    #[track_caller]
    pub fn settle(&mut self) {
        self.wires.iter().for_each(|wire| lock(wire).finished = true);
        for _ in 0..1_000_000 {
            let card = !self.turn().is_idle();
            let targets = self.look() != 0;
            if !card && !targets && self.card.arm() {
                let deadline = self.card.next_deadline(self.now);
                self.card.disarm();
                match deadline {
                    Some(deadline) => self.now = self.now.max(deadline),
                    None => return,
                }
            }
        }
        panic!("the card never comes to rest");
    }

    /// Stops the card in the middle of its work: everything is accounted for.
    #[track_caller]
    pub fn end(&mut self) -> LedgerTotals {
        self.card.stop_receiving(self.now);
        self.balanced();
        for target in &mut self.targets {
            target.stop_transmitting();
            for _ in 0..10_000 {
                if target.poll(self.now).packets == 0 && target.is_empty() {
                    break;
                }
            }
            assert!(target.is_empty());
        }
        let missing = self.card.finish(self.now);
        assert_eq!(missing, 0, "buffers missing: {:?}", self.ledger());
        let ledger = self.balanced();
        assert_eq!(ledger.in_flight, 0, "{ledger:?}");
        ledger
    }
}

/// A frame of `length` bytes for a queue: queue, flow, number, then zeroes.
pub fn frame(queue: u8, flow: u8, number: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![queue, flow];
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.resize(length.max(6), 0);
    bytes
}

/// The number in a frame.
pub fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]])
}

/// Steers frames to the queue they are for.
pub fn by_first_byte() -> Box<dyn Function> {
    Box::new(functions::SteerBy(|bytes| u16::from(bytes[0])))
}

pub fn links(functions: Functions) -> Vec<ChainFunction> {
    functions.into_iter().map(|function| ChainFunction::new("test", function)).collect()
}

/// The functions of a card file's tx chain, built from the registries as for a swap.
pub fn build_links(text: &str, functions: Functions, hooks: &Hooks) -> Vec<ChainFunction> {
    try_links(text, functions, hooks).unwrap()
}

pub fn try_links(
    text: &str,
    functions: Functions,
    hooks: &Hooks,
) -> Result<Vec<ChainFunction>, ConfigError> {
    NEXT.set(NextCard { functions: functions.into(), ..NextCard::default() });
    let file = CardFile::parse(text, None).unwrap();
    let context = picnic_engine::build::context(&file);
    picnic_engine::build::links(&file.tx, Direction::Tx, &components(), &context, hooks)
}
