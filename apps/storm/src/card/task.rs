//! storm: a member of a group, on the card.
//!
//! ```toml
//! [[task]]
//! task = "storm"
//! members = ["a=10.0.0.1:7001", "b=10.0.0.2:7001", "c=10.0.0.3:7001"]
//! me = "a"
//! ```
//!
//! Filters hand the group's frames to the task, so the host never gets them. The host's program
//! opens the task's channel: what it sends is submitted, and it receives ordered messages; see
//! [`super::records`]. A segment takes up to [`FRAMES`] frames, delivers, and sends what fits into
//! the buffers that NIC OS gives a segment. The host is woken for ordered messages and views, once
//! a segment at most. If the window is full, the host's messages wait in the channel; if the host
//! is slow, ordered messages wait in the member's queues, and the window holds the senders back.
//!
//! Until a first program opens the channel, ordered messages wait for it. Once it has gone, they
//! are counted and left out, so that the group goes on; the next program gets a record of it.
//!
//! While it runs, `picnic ctl storm` shows the member's counts.
//!
//! Guarantees: it allocates nothing after the start; a frame of another group is
//! counted, and nothing else happens.
//!
//! Source: NICOS 4.7.

pub use super::keys::{CHANNEL, Config};

use super::carrier::{Arrived, Carrier, HEAD};
use super::installs::{Common, filters};
use super::keys::fault;
use super::records::{Record, is_delivery};
use crate::member::{Counts, Member, State, SubmitError};
use picnic_channel::Awaits;
use picnic_core::command::{CommandEntry, Get, Inspect};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_filter::{Filter, FilterCode, Handover};
use picnic_os::channel::{Channel, ChannelError, ChannelSendError, HostGone};
use picnic_os::config::Setup;
use picnic_os::context::Nic;
use picnic_os::mailbox::{AnyMail, Mailbox};
use picnic_os::memory::{Charge, Kind, MemoryError};
use picnic_os::net::FRAMES_PER_SEGMENT;
use picnic_os::task::{Bounds, TaskSpec, program};
use picnic_wcet::{CostProfile, task, wcet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};

/// Frames of the group that a segment takes.
pub const FRAMES: usize = 8;
/// Most messages that a segment delivers, and most that it submits.
const MESSAGES: usize = 64;
/// Frames of the group that wait for the task.
const WAITING: usize = 512;
/// Messages that wait in the channel, each way.
const IN_CHANNEL: usize = 256;

/// The task, as card files name it.
#[derive(Debug)]
pub struct Storm;

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
        let filters = filters(&carrier)?;
        let plan = Plan { member, carrier, config, filters, shown: shown.clone() };
        Ok(Setup { spec, program: program(move |nic| storm(nic, plan)).obeying(shown) })
    }
}

/// The initial state of the task.
struct Plan {
    member: Member,
    carrier: Carrier,
    config: Config,
    filters: Vec<Filter>,
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
    /// Ordered messages that no program of the host got: the last one had gone.
    pub unread: u64,
    /// Whether card memory had no room for the member's queues (`os.arena_bytes`): it is not at work.
    pub out_of_memory: bool,
    /// Why the member is not at work; null if it is.
    pub failed: Option<Failure>,
}

/// Why a member on a card is not at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "StormFailure")]
pub enum Failure {
    /// Another task has a channel of its name.
    ChannelTaken,
    /// The channel's name or size is not allowed.
    Channel,
    /// Card or host memory has no room.
    Memory,
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
    channel: Channel,
    /// The member's messages are in card memory.
    _queues: Charge,
    /// [`HEAD`] bytes and the packet that is being sent.
    buffer: Vec<u8>,
    /// The host's last message, and its bytes if it waits for the window.
    submission: Vec<u8>,
    waiting: Option<usize>,
    /// The host's last record, and whether it waits for room in the channel.
    record: Vec<u8>,
    is_pending: bool,
    /// Whether a program has the channel open, and knows the view or gets it next.
    is_open: bool,
    /// A program has had the channel open; one has gone, and messages were left out.
    had_host: bool,
    left_out: bool,
    /// The view that the host knows.
    view: u32,
    was_outside: bool,
    figures: Figures,
}

/// What the task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// There is more to do.
    GoOn,
    /// It waits for frames of the group, and for this from the host.
    Wait(Time, Awaits),
    /// It waits for frames of the group: the host's messages wait for the window.
    WaitForGroup(Time),
    /// Its filters have been removed.
    End,
}

/// Filters with the code that fills the mailboxes.
type Installs = Vec<(Filter, FilterCode)>;

/// Name and message size of its channel.
#[wcet(ns = 1_000)]
fn channel_of(plan: &Plan) -> (String, usize) {
    (plan.config.channel.clone(), plan.config.message_bytes())
}

/// Opens the mailbox; the filters with their ends of it.
#[wcet(ns = 100_000)]
fn open(
    nic: &Nic,
    plan: Plan,
    made: Result<Channel, ChannelError>,
) -> Option<(Box<Order>, Installs)> {
    let shown = plan.shown.clone();
    let opened = made.and_then(|channel| Ok(try_open(nic, plan, channel)?));
    opened
        .map_err(|error| {
            let mut shown = shown.0.lock().unwrap_or_else(PoisonError::into_inner);
            let failure = match error {
                ChannelError::Taken { .. } => Failure::ChannelTaken,
                ChannelError::Name(_) | ChannelError::Shape { .. } => Failure::Channel,
                ChannelError::Memory(_) => Failure::Memory,
            };
            shown.out_of_memory = failure == Failure::Memory;
            shown.failed = Some(failure);
        })
        .ok()
}

fn try_open(
    nic: &Nic,
    plan: Plan,
    channel: Channel,
) -> Result<(Box<Order>, Installs), MemoryError> {
    let Plan { member, carrier, config, filters, shown } = plan;
    let queues = nic.charge(Kind::Task, member.bytes())?;
    let (to_frames, frames) = nic.mailbox(WAITING)?;
    let to_frames = Arc::new(Mutex::new(to_frames));
    let code = || FilterCode::from(Box::new(Common(to_frames.clone())) as Box<dyn Handover>);
    let installs = filters.into_iter().map(|filter| (filter, code())).collect();
    let message_bytes = config.message_bytes();
    let order = Order {
        buffer: vec![0; HEAD + usize::from(member.settings().packet_bytes)],
        member,
        carrier,
        config,
        shown,
        frames,
        channel,
        _queues: queues,
        submission: vec![0; message_bytes],
        waiting: None,
        record: Vec::with_capacity(message_bytes),
        is_pending: false,
        is_open: false,
        had_host: false,
        left_out: false,
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
        self.look_at_host();
        is_done &= self.deliver();
        is_done &= self.submit();
        is_done &= self.transmit(nic, now, &mut room);
        self.show();
        self.represent(nic, frames, &before);
        if self.frames.is_closed() {
            Next::End
        } else if !is_done {
            Next::GoOn
        } else {
            let until = self.member.next_deadline();
            match (self.is_pending, self.waiting.is_some()) {
                (false, false) => Next::Wait(until, Awaits::Message),
                (true, false) => Next::Wait(until, Awaits::Any),
                (true, true) => Next::Wait(until, Awaits::Room),
                (false, true) => Next::WaitForGroup(until),
            }
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

    /// Notices a program that has come or gone, and tells it of a new view.
    fn look_at_host(&mut self) {
        self.is_open = self.channel.is_open();
        self.had_host |= self.is_open;
        if !self.is_open && self.had_host {
            self.host_has_gone();
        }
        self.was_outside |= self.member.state() == State::Outside;
        let number = self.member.view();
        let is_news = number != self.view && self.member.state() == State::Running;
        if !self.is_open || !is_news || !self.is_host_ready() {
            return;
        }
        let joined = self.was_outside || self.left_out || number > self.view + 1;
        let members = self.member.members().fold(0, |set, member| set | 1 << member);
        Record::View { number, members, joined }.write(&mut self.record);
        self.tell(false);
        (self.view, self.was_outside, self.left_out) = (number, false, false);
    }

    /// The record that waits for room is not read, either. Nothing goes to the next program in this
    /// segment, as it must learn of the view first.
    fn host_has_gone(&mut self) {
        let is_unread = std::mem::take(&mut self.is_pending) && is_delivery(&self.record);
        self.figures.unread += u64::from(is_unread);
        (self.is_open, self.view, self.left_out) = (false, 0, true);
    }

    /// Whether the next record can be made; sends the one that waits for room first.
    fn is_host_ready(&mut self) -> bool {
        if std::mem::take(&mut self.is_pending) {
            self.tell(false);
        }
        !self.is_pending
    }

    /// Sends the record to the host, which is not woken if `quietly`.
    fn tell(&mut self, quietly: bool) {
        if !self.is_open {
            return;
        }
        let sent = match quietly {
            true => self.channel.try_send_quietly(&self.record),
            false => self.channel.try_send(&self.record),
        };
        match sent {
            Ok(()) => {}
            Err(ChannelSendError::Full) => self.is_pending = true,
            Err(_) => {
                self.is_pending = true;
                self.host_has_gone();
            }
        }
    }

    /// Delivers what is due; false if there is more to do first.
    fn deliver(&mut self) -> bool {
        if !self.had_host {
            return true;
        }
        for _ in 0..MESSAGES {
            if !self.is_host_ready() {
                return true;
            }
            let Some(delivery) = self.member.deliver() else { return true };
            if self.is_open {
                Record::Delivered(delivery).write(&mut self.record);
                self.tell(false);
            } else {
                self.figures.unread += 1;
            }
        }
        false
    }

    /// Submits the host's messages until the window is full; false if there is more to do first.
    fn submit(&mut self) -> bool {
        for _ in 0..MESSAGES {
            if !self.is_host_ready() {
                return true;
            }
            let bytes = match self.waiting.take() {
                Some(bytes) => bytes,
                None => match self.channel.try_receive(&mut self.submission) {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => return true,
                    // Its messages have all been taken.
                    Err(HostGone) => {
                        self.host_has_gone();
                        return false;
                    }
                },
            };
            match self.member.submit(&self.submission[..bytes]) {
                Ok(position) => {
                    Record::Submitted(position).write(&mut self.record);
                    self.tell(true);
                }
                Err(SubmitError::TooLong { .. }) => self.figures.too_long += 1,
                Err(SubmitError::Full | SubmitError::NoView) => {
                    self.waiting = Some(bytes);
                    return true;
                }
            }
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

    fn sent(&mut self, is_sent: bool) {
        self.figures.frames_unsent += u64::from(!is_sent);
    }

    fn show(&mut self) {
        let Counts { submitted, delivered, packets_received, packets_sent, repeats_sent, .. } =
            *self.member.counts();
        let counts = self.member.counts();
        let mut shown = self.shown.0.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = Figures {
            view: self.member.view(),
            running: self.member.state() == State::Running,
            submitted,
            delivered,
            packets_received,
            packets_sent,
            repeats_sent,
            refused: counts.malformed + counts.foreign + counts.out_of_range,
            twins: counts.twins,
            frames_unsent: self.figures.frames_unsent,
            too_long: self.figures.too_long,
            unread: self.figures.unread,
            ..Figures::default()
        };
    }
}

/// The wait for the group and the host.
fn wait<'a>(nic: &'a Nic, order: &'a mut Order, until: Time, awaits: Awaits) -> AnyMail<'a, 1> {
    nic.any_mail([&mut order.frames], until).or_channel(&mut order.channel, awaits)
}

/// Installs the filters, then serves the member, a segment at a time.
#[task]
async fn storm(nic: Nic, plan: Plan) {
    let (name, bytes) = channel_of(&plan);
    let made = nic.channel(&name, bytes, IN_CHANNEL).await;
    let Some((mut order, installs)) = open(&nic, plan, made) else {
        // It stays, so that its figures say what is wrong.
        nic.sleep_until(Time::MAX).await;
        return;
    };
    #[bound(2)]
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
            Next::Wait(until, awaits) => {
                // It looks at a mailbox and a channel.
                #[wcet(ns = 1_000)]
                wait(&nic, &mut order, until, awaits).await;
            }
            Next::WaitForGroup(until) => nic.any_mail([&mut order.frames], until).await,
            Next::End => return,
        }
    }
}
