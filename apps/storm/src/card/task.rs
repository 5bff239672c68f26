//! storm: a member of a group, on the card.
//!
//! ```toml
//! [[task]]
//! task = "storm"
//! members = ["a=10.0.0.1:7001", "b=10.0.0.2:7001", "c=10.0.0.3:7001"]
//! me = "a"
//! ```
//!
//! Filters hand the group's frames to the task, so the host never gets them. Messages of the host
//! arrive through its tx queue, ordered messages leave through a target queue; [`super::records`]
//! describes both. A segment takes up to [`FRAMES`] frames, delivers, and sends as much as fits
//! into the buffers that NIC OS gives a segment. If the window is full, the host's messages wait in
//! the mailbox.
//!
//! While it runs, `picnic ctl storm` shows the member's counts.
//!
//! Guarantees: it allocates nothing after the start; a frame of another group is
//! counted, and nothing else happens.
//!
//! Source: NICOS 4.7.

use super::carrier::{Arrived, Carrier, HEAD};
use super::installs::{Common, filters};
use super::records::{self, Filling, Record};
use crate::member::{Counts, Member, State, SubmitError};
use crate::settings::{Fault, Settings};
use picnic_core::command::{CommandEntry, Get, Inspect};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_filter::{Filter, FilterCode, Handover};
use picnic_os::config::Setup;
use picnic_os::context::Nic;
use picnic_os::mailbox::{Mailbox, Packet};
use picnic_os::memory::{Charge, Kind, MemoryError};
use picnic_os::net::FRAMES_PER_SEGMENT;
use picnic_os::task::{Bounds, TaskSpec, program};
use picnic_wcet::{CostProfile, task, wcet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, PoisonError};

/// Frames of the group that a segment takes.
pub const FRAMES: usize = 8;
/// Most messages that a segment delivers, and most that it submits.
const MESSAGES: usize = 64;
/// Frames of the group that wait for the task.
const WAITING: usize = 512;
/// Frames of the host that wait for the task.
const SUBMISSIONS: usize = 64;

/// The task, as card files name it.
#[derive(Debug)]
pub struct Storm;

/// Its keys.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// All members; the same list for every member: all as `NAME`, or all as `NAME=ADDRESS:PORT`
    /// for UDP over IPv4.
    pub members: Vec<String>,
    /// This member's name.
    pub me: String,
    /// Number of the group.
    pub group: u16,
    /// The wire to each member, in the order of `members`; empty: wire 0 to all.
    pub wires: Vec<u8>,
    /// The target queue that gets ordered messages.
    pub queue: u16,
    /// The wire to the host's program, instead of the target queue; for a program at the other end
    /// of a cable.
    pub host_wire: Option<u8>,
    /// Most bytes of a sender's messages that some member has not delivered; the same for every
    /// member.
    pub window_bytes: u32,
    /// Longest payload in bytes; the same for every member.
    pub payload_bytes: u16,
    /// Microseconds that a silent member waits before it announces its clock.
    pub announce_us: u64,
    /// Microseconds until a request is repeated.
    pub repeat_us: u64,
    /// Microseconds of silence after which a member is excluded; 0: the group is fixed.
    pub suspect_us: u64,
    /// Number that distinguishes this run of the member from earlier ones.
    pub incarnation: u32,
    /// Modelled nanoseconds per frame of the group, in addition to the code's own time; sim only.
    pub frame_ns: u64,
    /// Modelled nanoseconds per ordered message, in addition to the code's own time; sim only.
    pub message_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        let Settings { window_bytes, payload_bytes, .. } = Settings::default();
        Config {
            members: vec!["a".into()],
            me: "a".into(),
            group: 0,
            wires: Vec::new(),
            queue: 0,
            host_wire: None,
            window_bytes,
            payload_bytes,
            announce_us: 0,
            repeat_us: 500,
            suspect_us: 0,
            incarnation: 0,
            frame_ns: 0,
            message_ns: 0,
        }
    }
}

impl Config {
    /// Names, and addresses if every member has one.
    fn read_members(&self) -> Result<(Vec<String>, Vec<SocketAddrV4>), ConfigError> {
        let (mut names, mut addresses) = (Vec::new(), Vec::new());
        for member in &self.members {
            let (name, address) = match member.split_once('=') {
                None => (member.as_str(), None),
                Some((name, address)) => {
                    let address = address.parse::<SocketAddrV4>().map_err(|_| {
                        let message = format!("found \"{member}\", allowed: NAME=ADDRESS:PORT");
                        ConfigError::new("members", message)
                    })?;
                    (name, Some(address))
                }
            };
            names.push(name.to_owned());
            addresses.extend(address);
        }
        if addresses.is_empty() || addresses.len() == names.len() {
            return Ok((names, addresses));
        }
        let message = format!(
            "found {} members with an address and {} without, allowed: all with one or none",
            addresses.len(),
            names.len() - addresses.len()
        );
        Err(ConfigError::new("members", message))
    }

    fn settings(&self, names: &[String]) -> Result<Settings, ConfigError> {
        let Some(me) = names.iter().position(|name| *name == self.me) else {
            let message = format!("found \"{}\", allowed: {}", self.me, names.join(", "));
            return Err(ConfigError::new("me", message));
        };
        Ok(Settings {
            group: self.group,
            members: names.to_vec(),
            me: me.min(usize::from(u8::MAX)) as u8,
            window_bytes: self.window_bytes,
            payload_bytes: self.payload_bytes,
            announce_after_ns: self.announce_us * 1_000,
            repeat_after_ns: self.repeat_us * 1_000,
            suspect_after_ns: self.suspect_us * 1_000,
            incarnation: self.incarnation,
            ..Settings::default()
        })
    }
}

/// A fault of the settings, with the key of the card file.
fn fault(Fault { key, found, allowed }: Fault) -> ConfigError {
    let key = match key {
        "repeat_after_ns" => "repeat_us",
        "packet_bytes" => "payload_bytes",
        key => key,
    };
    ConfigError::new(key, format!("found {found}, allowed: {allowed}"))
}

impl Component for Storm {
    type Product = Setup;
    type Config = Config;
    const NAME: &'static str = "storm";
    const HELP: &'static str = "order the messages of a group of cards and processes";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<Arc<Shown>>>()];

    fn build(config: Config, context: &BuildContext) -> Result<Setup, ConfigError> {
        let (names, addresses) = config.read_members()?;
        let settings = config.settings(&names)?;
        let member = Member::new(settings)
            .map_err(|faults| ConfigError::all(faults.into_iter().map(fault)).unwrap_err())?;
        if let Some(wire) = config.host_wire.filter(|wire| *wire >= context.wires) {
            let message =
                format!("found {wire}, allowed: 0 to {}", context.wires.saturating_sub(1));
            return Err(ConfigError::new("host_wire", message));
        }
        if let Some(wire) = config.wires.iter().find(|wire| **wire >= context.wires) {
            let message =
                format!("found {wire}, allowed: 0 to {}", context.wires.saturating_sub(1));
            return Err(ConfigError::new("wires", message));
        }
        if !config.wires.is_empty() && config.wires.len() != names.len() {
            let (found, allowed) = (config.wires.len(), names.len());
            let message = format!("found {found} wires, allowed: {allowed}, one for each member");
            return Err(ConfigError::new("wires", message));
        }
        if config.queue >= context.queues {
            let message = format!("found {}, allowed: 0 to {}", config.queue, context.queues - 1);
            return Err(ConfigError::new("queue", message));
        }
        let me = usize::from(member.settings().me);
        let carrier = Carrier::new(config.group, me, names.len(), &config.wires, &addresses);
        let profile = match &context.cost_profile {
            None => CostProfile::built_in(),
            Some(path) => CostProfile::load(path)?,
        };
        let bounds = picnic_wcet::bounds(&storm::GRAPH, &profile)
            .map_err(|error| ConfigError::new("task", error.to_string()))?;
        let bounds = Bounds { segments: bounds.segments, remaining: bounds.remaining };
        let spec = TaskSpec::new(Self::NAME).bounds(bounds).bounds_from(profile.name);
        let shown = Arc::new(Shown::default());
        let filters = filters(&carrier, &config)?;
        let plan = Plan { member, carrier, config, filters, shown: shown.clone() };
        Ok(Setup { spec, program: program(move |nic| storm(nic, plan)).obeying(shown) })
    }
}

/// The initial state of the task.
struct Plan {
    member: Member,
    carrier: Carrier,
    config: Config,
    filters: Vec<(Filter, usize)>,
    shown: Arc<Shown>,
}

/// The counts that the task shows.
#[derive(Debug, Default)]
pub struct Shown(Mutex<Figures>);

/// State of a member.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Figures {
    /// Number of its view.
    pub view: u32,
    /// Whether it is in a view and delivers.
    pub running: bool,
    /// Messages submitted.
    pub submitted: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Submissions refused because the payload was too long.
    pub too_long: u64,
    /// Packets taken.
    pub packets_received: u64,
    /// Packets made; a packet to all members counts once.
    pub packets_sent: u64,
    /// Frames that could not be sent; the protocol repeats their messages.
    pub frames_unsent: u64,
    /// Packets with repeats sent.
    pub repeats_sent: u64,
    /// Packets refused: not of this protocol, of another group, or out of bounds.
    pub refused: u64,
    /// Packets refused: with this member's own number.
    pub twins: u64,
    /// Whether card memory had no room for the member's queues (`os.arena_bytes`), so that it
    /// cannot work.
    pub out_of_memory: bool,
}

impl Inspect for Shown {
    type State = Figures;
    const HELP: &'static str = "the member's view and its counts";

    fn inspect(&self) -> Figures {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A member at work.
struct Order {
    member: Member,
    carrier: Carrier,
    config: Config,
    shown: Arc<Shown>,
    frames: Mailbox,
    submissions: Mailbox,
    /// The member's messages are in card memory.
    _queues: Charge,
    /// Messages of the host that wait for the window.
    waiting: Option<Submission>,
    /// [`HEAD`] bytes and the packet that is being sent.
    buffer: Vec<u8>,
    to_host: Filling,
    view: u32,
    was_outside: bool,
    figures: Figures,
}

/// A frame from the host with `left` messages from byte `at` on that are not submitted yet.
struct Submission {
    packet: Packet,
    at: usize,
    left: usize,
}

/// The next step of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// There is more to do.
    GoOn,
    /// It waits for frames of the group or of the host.
    Wait(Time),
    /// It waits for frames of the group: the host's messages wait for the window.
    WaitForGroup(Time),
    /// Its filters have been removed.
    End,
}

/// Filters with the code that fills the mailboxes.
type Installs = Vec<(Filter, FilterCode)>;

/// Opens the mailboxes. Returns the filters with their ends of the mailboxes.
#[wcet(ns = 100_000)]
fn open(nic: &Nic, plan: Plan) -> Option<(Box<Order>, Installs)> {
    let shown = plan.shown.clone();
    let opened = try_open(nic, plan);
    if opened.is_err() {
        shown.0.lock().unwrap_or_else(PoisonError::into_inner).out_of_memory = true;
    }
    opened.ok()
}

fn try_open(nic: &Nic, plan: Plan) -> Result<(Box<Order>, Installs), MemoryError> {
    let Plan { member, carrier, config, filters, shown } = plan;
    let queues = nic.charge(Kind::Task, member.bytes())?;
    let (to_frames, frames) = nic.mailbox(WAITING)?;
    let (to_submissions, submissions) = nic.mailbox(SUBMISSIONS)?;
    let to_frames = Arc::new(Mutex::new(to_frames));
    let mut to_submissions = Some(to_submissions);
    let install = |(filter, mailbox): (Filter, usize)| {
        let code = match (mailbox, to_submissions.take()) {
            (1, Some(sender)) => FilterCode::from(sender),
            (_, unused) => {
                to_submissions = unused;
                FilterCode::from(Box::new(Common(to_frames.clone())) as Box<dyn Handover>)
            }
        };
        (filter, code)
    };
    let installs = filters.into_iter().map(install).collect();
    let order = Order {
        buffer: vec![0; HEAD + usize::from(member.settings().packet_bytes)],
        member,
        carrier,
        config,
        shown,
        frames,
        submissions,
        _queues: queues,
        waiting: None,
        to_host: Filling::default(),
        view: 0,
        was_outside: false,
        figures: Figures::default(),
    };
    Ok((Box::new(order), installs))
}

/// One segment: takes frames, delivers, submits, sends.
#[wcet(ns = 30_000)]
fn serve(nic: &Nic, order: &mut Order) -> Next {
    order.serve(nic)
}

impl Order {
    fn serve(&mut self, nic: &Nic) -> Next {
        let now = nic.now();
        let mut room = FRAMES_PER_SEGMENT;
        let before = *self.member.counts();
        let mut frames = 0;
        while frames < FRAMES
            && let Some(packet) = self.frames.try_receive()
        {
            frames += 1;
            match self.carrier.arrived(packet.data()) {
                // A refusal is counted.
                Arrived::Packet(bytes) => drop(self.member.receive(now, bytes)),
                Arrived::Answer(answer) => {
                    self.sent(nic.post(packet.wire, &answer).is_ok());
                    room = room.saturating_sub(1);
                }
                Arrived::Other => {}
            }
        }
        let mut is_done = frames < FRAMES;
        self.note_view();
        is_done &= self.deliver(nic, &mut room);
        is_done &= self.submit(nic, &mut room);
        is_done &= self.transmit(nic, now, &mut room);
        is_done &= !self.to_host.is_urgent() || self.flush(nic, &mut room);
        self.show();
        self.represent(nic, frames, &before);
        if self.frames.is_closed() {
            Next::End
        } else if !is_done {
            Next::GoOn
        } else if self.waiting.is_some() {
            Next::WaitForGroup(self.member.next_deadline())
        } else {
            Next::Wait(self.member.next_deadline())
        }
    }

    /// The virtual time of the segment, if the card file states it.
    fn represent(&self, nic: &Nic, frames: usize, before: &Counts) {
        let Config { frame_ns, message_ns, .. } = self.config;
        if frame_ns + message_ns == 0 {
            return;
        }
        let after = self.member.counts();
        let packets = frames as u64 + after.packets_sent - before.packets_sent;
        let messages = after.delivered + after.submitted - before.delivered - before.submitted;
        nic.work((packets * frame_ns + messages * message_ns).max(1));
    }

    /// Tells the host of a new view.
    fn note_view(&mut self) {
        self.was_outside |= self.member.state() == State::Outside;
        let number = self.member.view();
        if number == self.view || self.member.state() != State::Running || !self.to_host.fits(0) {
            return;
        }
        let joined = self.was_outside || number > self.view + 1;
        let members = self.member.members().fold(0, |set, member| set | 1 << member);
        self.to_host.push(&Record::View { number, members, joined });
        (self.view, self.was_outside) = (number, false);
    }

    /// Delivers due messages; false if other work comes first.
    fn deliver(&mut self, nic: &Nic, room: &mut usize) -> bool {
        let longest = usize::from(self.config.payload_bytes);
        for _ in 0..MESSAGES {
            if !self.to_host.fits(longest) && !self.flush(nic, room) {
                return false;
            }
            let Some(delivery) = self.member.deliver() else { return true };
            self.to_host.push(&Record::Delivered(delivery));
        }
        false
    }

    /// Submits the host's messages until the window is full; false if other work comes first.
    fn submit(&mut self, nic: &Nic, room: &mut usize) -> bool {
        for _ in 0..MESSAGES {
            if !self.to_host.fits(0) && !self.flush(nic, room) {
                return false;
            }
            let next = self.waiting.take().or_else(|| {
                let packet = self.submissions.try_receive()?;
                // Other wires are not the host's.
                let is_hosts = self.config.host_wire.is_none_or(|wire| wire == packet.wire);
                let left = if is_hosts { records::messages(packet.data()) } else { 0 };
                Some(Submission { left, packet, at: 0 })
            });
            let Some(Submission { packet, at, left }) = next else { return true };
            let message = if left == 0 { None } else { records::message(packet.data(), at) };
            let Some((payload, next)) = message else { continue };
            match self.member.submit(payload) {
                Ok(position) => self.to_host.push(&Record::Submitted(position)),
                Err(SubmitError::TooLong { .. }) => self.figures.too_long += 1,
                Err(SubmitError::Full | SubmitError::NoView) => {
                    self.waiting = Some(Submission { packet, at, left });
                    return true;
                }
            }
            self.waiting = Some(Submission { packet, at: next, left: left - 1 });
        }
        false
    }

    /// Sends the member's packets; false if buffers ran out first.
    fn transmit(&mut self, nic: &Nic, now: Time, room: &mut usize) -> bool {
        let copies = self.carrier.copies().max(1);
        // If a segment has fewer buffers than a packet has receivers, as many copies as possible
        // leave.
        while *room >= copies.min(FRAMES_PER_SEGMENT) {
            let made = self.member.transmit(now, &mut self.buffer[HEAD..]);
            let Some((to, length)) = made else { return true };
            let (mut frames, mut unsent) = (0, 0);
            self.carrier.send(to, &mut self.buffer, length, |wire, frame| {
                frames += 1;
                unsent += u64::from(nic.post(wire, frame).is_err());
            });
            self.figures.frames_unsent += unsent;
            *room = room.saturating_sub(frames);
        }
        false
    }

    /// Sends the records to the host; false if there is no buffer.
    fn flush(&mut self, nic: &Nic, room: &mut usize) -> bool {
        let Config { queue, host_wire, .. } = self.config;
        let post = |frame: &[u8]| match host_wire {
            Some(wire) => nic.post(wire, frame),
            None => nic.post_to_host(queue, frame),
        };
        if *room == 0 || post(self.to_host.frame()).is_err() {
            *room = 0;
            return false;
        }
        *room -= 1;
        self.to_host.sent();
        true
    }

    fn sent(&mut self, is_sent: bool) {
        self.figures.frames_unsent += u64::from(!is_sent);
    }

    fn show(&mut self) {
        let Counts { submitted, delivered, packets_received, packets_sent, repeats_sent, .. } =
            *self.member.counts();
        let counts = self.member.counts();
        self.figures = Figures {
            view: self.member.view(),
            running: self.member.state() == State::Running,
            submitted,
            delivered,
            packets_received,
            packets_sent,
            repeats_sent,
            refused: counts.malformed + counts.foreign + counts.out_of_range,
            twins: counts.twins,
            ..self.figures
        };
        *self.shown.0.lock().unwrap_or_else(PoisonError::into_inner) = self.figures;
    }
}

/// Installs the filters, then serves the member, a segment at a time.
#[task]
async fn storm(nic: Nic, plan: Plan) {
    let Some((mut order, installs)) = open(&nic, plan) else { return };
    #[bound(4)]
    for (filter, code) in installs {
        let added = nic.add_filter(filter, code).await;
        // The segment after the yield changes the filter list, which is cheap with few filters.
        #[wcet(ns = 50_000)]
        let is_refused = added.is_err();
        if is_refused {
            // Without filters, the task has nothing to do; its end reports this.
            return;
        }
    }
    loop {
        match serve(&nic, &mut order) {
            Next::GoOn => nic.yield_now().await,
            Next::Wait(until) => {
                nic.any_mail([&mut order.frames, &mut order.submissions], until).await;
            }
            Next::WaitForGroup(until) => nic.any_mail([&mut order.frames], until).await,
            Next::End => return,
        }
    }
}
