//! For tests: a card in which only the control thread acts.

use crate::captures::Captures;
use crate::launch::Registries;
use crate::methods::Methods;
use crate::monitor::{LatencySlot, Monitor, Notes, TargetTimes};
use crate::report::{RunInfo, Times};
use crate::server::Access;
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::command::{Command, CommandEntry, CommandError, Order, Prepared};
use picnic_core::config::{CardFile, Sections};
use picnic_core::doorbell::Doorbell;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::hook::Hooks;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::registry::{BuildContext, Component, Entry, NoKeys};
use picnic_core::stop::Stop;
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::build;
use picnic_engine::poll::Card;
use picnic_engine::swap::Controller;
use picnic_engine::target::Target;
use picnic_filter::Filters;
use picnic_machine::config::IsolationLevel;
use picnic_machine::facts::MachineFacts;
use picnic_machine::topology::Placement;
use picnic_os::config::{Factory, Setup, Surroundings};
use picnic_os::schedulers::registry::SCHEDULERS;
use picnic_os::task::{TaskSpec, program};
use rustix::thread::CapabilitySet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// A wire that takes everything and gives nothing, a function that does nothing, and a host that
/// sends a packet per poll.
struct Quiet;

impl WirePort for Quiet {
    fn receive(&mut self, _: Time, _: &mut Receiver<'_>) {}
    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
    fn transmit(&mut self, _: Time, tx: &mut Transmitter<'_>) {
        while let Some(packet) = tx.next() {
            tx.sent(packet);
        }
    }
}

impl Function for Quiet {
    fn process(&mut self, _: Time, _: &mut Burst, _: &mut Out<'_>) {}
    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

impl HostQueue for Quiet {
    fn deliver(&mut self, _: Time, _: &mut Burst, _: &mut QueueOut<'_>) -> u64 {
        0
    }
    fn transmit(&mut self, _: Time, out: &mut QueueOut<'_>) -> usize {
        out.buffer().map(|packet| out.submit(packet)).iter().count()
    }
}

impl HostAttachment for Quiet {
    fn open_queue(&mut self, _: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        Ok(Box::new(Quiet))
    }
    fn wants_buffers(&self) -> usize {
        64
    }
    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

/// A command that returns its place.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Where {}

#[derive(Serialize, Deserialize, JsonSchema)]
struct There {
    /// Its place among components of its kind.
    place: usize,
}

struct Asking(usize);

impl Order for Asking {
    type Target = Quiet;
    fn apply(&mut self, _: &mut Quiet, _: Time) -> bool {
        true
    }
}

impl Command for Where {
    const NAME: &'static str = "where";
    const HELP: &'static str = "return its place";
    type Order = Asking;
    type Reply = There;
    fn prepare(self, context: &BuildContext) -> Result<Asking, CommandError> {
        Ok(Asking(context.position))
    }
    fn reply(order: Asking) -> Result<There, CommandError> {
        Ok(There { place: order.0 })
    }
}

macro_rules! part {
    ($name:ident, $product:ty, $text:literal, $commands:expr, $make:expr) => {
        struct $name;
        impl Component for $name {
            type Product = $product;
            type Config = NoKeys;
            const NAME: &'static str = $text;
            const HELP: &'static str = "for tests";
            const COMMANDS: &'static [CommandEntry] = $commands;
            fn build(_: NoKeys, _: &BuildContext) -> Result<$product, ConfigError> {
                Ok($make)
            }
        }
    };
}

part!(Wires, Box<dyn WirePort>, "generator", &[CommandEntry::of::<Where>()], Box::new(Quiet));
part!(Slots, Box<dyn Function>, "slot", &[CommandEntry::of::<Where>()], Box::new(Quiet));
part!(Others, Box<dyn Function>, "other", &[], Box::new(Quiet));
part!(Hosts, Box<dyn HostAttachment>, "app", &[CommandEntry::of::<Where>()], Box::new(Quiet));
part!(Tasks, Setup, "idle", &[], {
    let body = program(|nic| async move { nic.sleep_until(Time::MAX).await });
    Setup { spec: TaskSpec::new("idle").wcet_ns(1_000), program: body }
});

fn registries() -> Registries {
    Registries {
        executors: &[],
        functions: const {
            let other = Entry::of::<Others>().loading(|_, _| Ok(Box::new(Quiet)));
            &[Entry::of::<Slots>(), other]
        },
        wires: const { &[Entry::of::<Wires>()] },
        attachments: const { &[Entry::of::<Hosts>()] },
        middleware: |port, _, _| Ok(port),
        schedulers: SCHEDULERS,
        tasks: const { &[Entry::of::<Tasks>()] },
        filters: &[],
    }
}

#[derive(Default)]
pub(crate) struct Bell(AtomicUsize);

impl Bell {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Doorbell for Bell {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn sections() -> Sections {
    Sections::core().with(crate::config::SECTIONS).with(picnic_os::keys::SECTIONS)
}

/// A card of two queues and two wires; `text` is the rest of its file.
pub(crate) fn card(text: &str) -> CardFile {
    card_at(text, None)
}

pub(crate) fn card_at(text: &str, path: Option<&Path>) -> CardFile {
    let wires = "[[wire]]\nport = \"generator\"\n".repeat(2);
    let rx = if text.contains("[[rx]]") { "" } else { "rx = []\n" };
    let text = format!("{rx}[host]\nqueues = 2\n{text}\n{wires}");
    sections().parse(&text, path).unwrap()
}

pub(crate) struct Parts {
    pub(crate) card: Card,
    /// Of both queues.
    pub(crate) target: Target,
    pub(crate) controller: Controller,
    pub(crate) monitor: Monitor,
    /// The target's.
    pub(crate) bell: Arc<Bell>,
    pub(crate) tasks: Option<Factory>,
}

pub(crate) fn parts(file: &CardFile) -> Parts {
    let (components, kinds) = (registries().components(), registries().kinds());
    let mut parts =
        build::Parts::build(file, &components, &Hooks::none(), &Stop::default()).unwrap();
    let os = picnic_os::config::build(file, kinds, Filters::new(2), &Surroundings::default());
    let tasks = os.unwrap().map(|os| {
        parts.house(os.resident);
        os.handle.factory
    });
    let bell = Arc::new(Bell::default());
    let bells = [bell.clone() as Arc<dyn Doorbell>, bell.clone()];
    let Assembled { card, queues, controller, view } =
        assemble(file, parts, &bells, Arc::new(Bell::default())).unwrap();
    let target = Target::new(5, queues);
    let notes = Notes {
        clock: Arc::new(|| Time::from_nanos(1_000)),
        core: Arc::default(),
        targets: vec![Arc::new(TargetTimes { core: 5, ..TargetTimes::default() })],
        latencies: vec![Arc::new(LatencySlot::new(&target, bell.clone()))],
    };
    let placement = Placement {
        borrowed_core: 4,
        target_cores: vec![5, 5],
        level: IsolationLevel::default(),
        left_out: Vec::new(),
        warnings: Vec::new(),
    };
    let times = Times::Measured;
    let monitor = Monitor { engine: "poll", times, view, placement, notes };
    Parts { card, target, controller, monitor, bell, tasks }
}

pub(crate) fn access(monitor: Monitor, controller: Controller, tasks: Option<Factory>) -> Access {
    Access {
        monitor,
        controller,
        registries: registries(),
        hooks: Hooks::none(),
        filters: Filters::new(2),
        tasks,
        fixed: None,
        swap_rx: None,
        beside: None,
        keeps: CapabilitySet::empty(),
    }
}

pub(crate) fn about(file: &CardFile) -> RunInfo {
    RunInfo {
        card: file.card.name.clone(),
        file: None,
        version: "0".into(),
        revision: "none".into(),
        machine: MachineFacts::read(),
    }
}

/// The methods of a card whose borrowed core runs in a thread.
pub(crate) struct Bench {
    pub(crate) methods: Option<Methods>,
    pub(crate) target: Target,
    /// Set when a client requests the end.
    pub(crate) stop: Stop,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bench {
    pub(crate) fn new(file: &CardFile) -> Self {
        let Parts { mut card, target, controller, monitor, tasks, .. } = parts(file);
        let access = access(monitor, controller, tasks);
        let (about, stop) = (about(file), Stop::default());
        let methods =
            Methods::new(file, about, [None; 2], access, Captures::default(), stop.clone());
        let ends = Arc::<AtomicBool>::default();
        let is_over = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut now = Time::ZERO;
            while !is_over.load(Ordering::Acquire) {
                now = now + 1_000;
                card.poll(now);
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        });
        Bench { methods: Some(methods), target, stop, ends, thread: Some(thread) }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
