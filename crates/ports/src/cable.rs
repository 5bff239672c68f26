//! Wire port `cable`: joins two cards of one process.
//!
//! ```toml
//! [[wire]]
//! port = "cable"
//! cable = "a-b"      # the other card has a cable of the same name
//! ```
//!
//! A frame that one card sends arrives at the other. Each direction is a ring of frames. The cards
//! have separate buffer pools, so a frame is copied into the ring and out of it.
//!
//! In the simulator, all cables of one name meet at a switch (`picnic_sim::Cluster`).
//!
//! Guarantees: frames arrive in order; a frame that finds the ring full is dropped as `wire_full`
//! by its sender, and a packet without a card at the other end as `wire_down`; nothing is allocated
//! once the card has started; no system call, unless the other card sleeps.

use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{Arrivals, Description, Receiver, Status, Transmitter, WirePort};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::ring::gate::Gate;
use picnic_core::ring::spsc::{self, Consumer, Producer};
use picnic_core::time::Time;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The keys of `port = "cable"`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CableConfig {
    /// Name of the cable: two cards of this process with the same one are joined.
    pub cable: String,
    /// Frames that may wait in each direction; the same at both ends.
    #[schemars(range(min = 16, max = 65_536))]
    pub frames: usize,
}

impl Default for CableConfig {
    fn default() -> Self {
        CableConfig { cable: "cable".into(), frames: 256 }
    }
}

/// A frame under way, or an empty one.
#[derive(Debug)]
struct Frame {
    length: usize,
    bytes: Box<[u8]>,
}

/// Wakes the card at one end.
#[derive(Debug)]
struct Bell {
    gate: Gate,
    /// None in virtual time.
    event: Option<OwnedFd>,
}

impl Bell {
    fn new(is_real: bool) -> std::io::Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = is_real.then(|| eventfd(0, flags)).transpose()?;
        Ok(Arc::new(Bell { gate: Gate::new(), event }))
    }

    /// Frames have been published: wakes the card if it sleeps.
    fn ring(&self) {
        Gate::order_publish();
        if self.gate.interrupt()
            && let Some(event) = &self.event
        {
            // A full counter has been rung often enough.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    /// The card is awake.
    fn quiet(&self) {
        if !self.gate.resume()
            && self.gate.begin()
            && let Some(event) = &self.event
        {
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }
}

/// One end of a cable. Dropping it unplugs it: another card may take it.
#[derive(Debug)]
pub struct Plug {
    /// None once it is unplugged.
    end: Option<End>,
    cables: Cables,
    name: String,
}

#[derive(Debug)]
struct End {
    sent: Producer<Frame>,
    /// Empty frames: those at hand, and those that the other end has returned.
    empty: Vec<Frame>,
    returned: Consumer<Frame>,
    arrived: Consumer<Frame>,
    given_back: Producer<Frame>,
    bell: Arc<Bell>,
    others_bell: Arc<Bell>,
    is_armed: bool,
    longest: usize,
    /// Ends that are plugged in.
    plugged: Arc<AtomicUsize>,
}

impl End {
    /// Both ends of a new cable.
    fn pair(frames: usize, longest: usize, is_real: bool) -> std::io::Result<[End; 2]> {
        let (sent, arrived) = spsc::channel(frames);
        let (back_sent, back_arrived) = spsc::channel(frames);
        let (given_back, returned) = spsc::channel(frames);
        let (back_given_back, back_returned) = spsc::channel(frames);
        let bells = [Bell::new(is_real)?, Bell::new(is_real)?];
        let plugged = Arc::new(AtomicUsize::new(0));
        let end = |sent, returned, arrived, given_back, place: usize| End {
            sent,
            empty: (0..frames)
                .map(|_| Frame { length: 0, bytes: vec![0; longest].into() })
                .collect(),
            returned,
            arrived,
            given_back,
            bell: bells[place].clone(),
            others_bell: bells[1 - place].clone(),
            is_armed: false,
            longest,
            plugged: plugged.clone(),
        };
        Ok([
            end(sent, returned, back_arrived, back_given_back, 0),
            end(back_sent, back_returned, arrived, given_back, 1),
        ])
    }

    fn frames(&self) -> usize {
        self.sent.capacity()
    }

    /// An empty frame, the one used last if possible: it is still in the cache.
    fn take_empty(&mut self) -> Option<Frame> {
        if self.returned.available() != 0 {
            while let Some(frame) = self.returned.pop() {
                self.empty.push(frame);
            }
            self.returned.release();
        }
        self.empty.pop()
    }

    /// The reason if it is not sent.
    fn stage<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        length: usize,
    ) -> Result<(), DropReason> {
        if self.plugged.load(Ordering::Relaxed) < 2 {
            return Err(DropReason::WireDown);
        }
        let Some(mut frame) = self.take_empty() else { return Err(DropReason::WireFull) };
        let mut at = 0;
        for piece in pieces {
            let Some(room) = frame.bytes.get_mut(at..at + piece.len()) else { break };
            room.copy_from_slice(piece);
            at += piece.len();
        }
        frame.length = at;
        if at < length {
            self.empty.push(frame);
            return Err(DropReason::Oversize);
        }
        match self.sent.stage(frame) {
            Ok(()) => Ok(()),
            Err(frame) => {
                self.empty.push(frame);
                Err(DropReason::WireFull)
            }
        }
    }

    fn publish(&mut self) {
        if self.sent.publish() != 0 {
            self.others_bell.ring();
        }
    }

    /// Calls `take` with up to `most` frames that have arrived; how many there were.
    fn receive(&mut self, most: usize, mut take: impl FnMut(&[u8])) -> usize {
        if std::mem::take(&mut self.is_armed) {
            self.bell.quiet();
        }
        let mut count = 0;
        self.arrived.refresh();
        while count < most
            && let Some(frame) = self.arrived.pop()
        {
            take(&frame.bytes[..frame.length]);
            // Both rings have room for all frames of a direction.
            let _ = self.given_back.stage(frame);
            count += 1;
        }
        if count != 0 {
            self.arrived.release();
            self.given_back.publish();
        }
        count
    }

    /// Asks to be woken by the next frame; false if there is one.
    fn arm(&mut self) -> bool {
        self.bell.gate.rearm();
        self.is_armed = true;
        if self.arrived.refresh() == 0 {
            return true;
        }
        self.is_armed = false;
        self.bell.quiet();
        false
    }
}

impl Plug {
    /// Sends a frame; false if the ring is full, no card is at the other end, or it is too long.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let Some(end) = &mut self.end else { return false };
        let sent = end.stage(std::iter::once(frame), frame.len()).is_ok();
        end.publish();
        sent
    }

    /// Calls `take` with each frame that has arrived; how many there were.
    pub fn receive(&mut self, take: impl FnMut(&[u8])) -> usize {
        self.end.as_mut().map_or(0, |end| end.receive(usize::MAX, take))
    }

    /// Has the next frame make [`Plug::readiness`] readable; false if one is there.
    pub fn arm(&mut self) -> bool {
        self.end.as_mut().is_none_or(End::arm)
    }

    /// A descriptor to sleep on after [`Plug::arm`]; none in virtual time.
    pub fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().and_then(|end| end.bell.event.as_ref()).map(AsFd::as_fd)
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        let Some(mut end) = self.end.take() else { return };
        end.plugged.fetch_sub(1, Ordering::AcqRel);
        // Frames for the card that leaves are not for the next one.
        end.receive(usize::MAX, |_| {});
        let mut cables = self.cables.lock();
        let Some(place) = cables.iter().position(|cable| cable.name == self.name) else { return };
        cables[place].ends.push(end);
        if cables[place].ends.len() == 2 {
            cables.swap_remove(place);
        }
    }
}

/// A cable that has at least one end plugged in.
#[derive(Debug)]
struct Cable {
    name: String,
    /// Ends that are not plugged in.
    ends: Vec<End>,
}

/// The cables that cards can be joined by. Clones are the same.
///
/// All cards of a process share one set, unless [`Shared`](picnic_core::shared::Shared) of a card
/// file has another.
#[derive(Clone, Debug)]
pub struct Cables {
    cables: Arc<Mutex<Vec<Cable>>>,
    is_real: bool,
}

/// The set of this process.
impl Default for Cables {
    fn default() -> Self {
        static PROCESS: OnceLock<Cables> = OnceLock::new();
        PROCESS.get_or_init(|| Cables { cables: Arc::default(), is_real: true }).clone()
    }
}

impl Cables {
    /// A separate set, for cards in virtual time: no thread is woken.
    pub fn in_virtual_time() -> Self {
        Cables { cables: Arc::default(), is_real: false }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Cable>> {
        // A list of whole ends is complete, even if its last user panicked.
        self.cables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of cables with a free end.
    pub fn open(&self) -> Vec<String> {
        let cables = self.lock();
        let open = cables.iter().filter(|cable| !cable.ends.is_empty());
        open.map(|cable| cable.name.clone()).collect()
    }

    /// Plugs into the free end of a cable of any size.
    ///
    /// # Errors
    /// There is no such cable, or both ends are taken.
    pub fn plug_as_other(&self, name: &str) -> Result<Plug, ConfigError> {
        let cables = self.lock();
        let size = cables
            .iter()
            .find(|cable| cable.name == name)
            .and_then(|cable| cable.ends.first().map(|end| (end.frames(), end.longest)));
        drop(cables);
        let Some((frames, longest)) = size else {
            let message = format!("found \"{name}\", allowed: a cable with a free end");
            return Err(ConfigError::new("cable", message));
        };
        self.plug(name, frames, longest)
    }

    /// Plugs into a cable, which the first one makes. A cable carries frames of up to `longest`
    /// bytes, as its first end says.
    ///
    /// # Errors
    /// Both ends are taken, the number of frames differs, or the system has no descriptors left.
    pub fn plug(&self, name: &str, frames: usize, longest: usize) -> Result<Plug, ConfigError> {
        let mut cables = self.lock();
        let end = match cables.iter_mut().find(|cable| cable.name == name) {
            None => {
                let [mine, other] = End::pair(frames, longest, self.is_real)
                    .map_err(|error| ConfigError::new("cable", format!("{name}: {error}")))?;
                cables.push(Cable { name: name.into(), ends: vec![other] });
                mine
            }
            Some(cable) => {
                let Some(end) = cable.ends.pop() else {
                    let message =
                        format!("found \"{name}\", which joins two cards, allowed: other names");
                    return Err(ConfigError::new("cable", message));
                };
                if end.frames() != frames.next_power_of_two() {
                    let (there, here) = (end.frames(), frames);
                    cable.ends.push(end);
                    let message = format!(
                        "found {here}, allowed: {there}, as at the other end of \"{name}\""
                    );
                    return Err(ConfigError::new("frames", message));
                }
                end
            }
        };
        end.plugged.fetch_add(1, Ordering::AcqRel);
        Ok(Plug { end: Some(end), cables: self.clone(), name: name.into() })
    }
}

/// The wire; it is plugged in when the card starts.
#[derive(Debug)]
pub struct CablePort {
    config: CableConfig,
    longest: usize,
    cables: Arc<Cables>,
    plug: Option<Plug>,
}

impl Component for CablePort {
    type Product = Box<dyn WirePort>;
    type Config = CableConfig;
    const NAME: &'static str = "cable";
    const HELP: &'static str = "a cable to another card of this process";
    const IN_VIRTUAL_TIME: bool = true;

    fn example(_: &Path) -> Option<String> {
        Some(String::new())
    }

    fn build(config: CableConfig, context: &BuildContext) -> Result<Self::Product, ConfigError> {
        if config.cable.is_empty() {
            return Err(ConfigError::new("cable", "found \"\", allowed: a name"));
        }
        let cables = context.shared.get_or_make(Cables::default);
        Ok(Box::new(CablePort { config, longest: context.buffer_size, cables, plug: None }))
    }
}

impl CablePort {
    fn end(&mut self) -> Option<&mut End> {
        self.plug.as_mut().and_then(|plug| plug.end.as_mut())
    }
}

impl WirePort for CablePort {
    fn describe(&self) -> Description {
        Description {
            arrivals: Arrivals {
                room: Some(self.config.frames.next_power_of_two() as u64),
                origin: "nothing limits the other card's rate".into(),
                room_origin: "frames",
                ..Arrivals::default()
            },
            ..Description::default()
        }
    }

    fn start(&mut self, _pool: &mut Pool) -> Result<(), ConfigError> {
        let CableConfig { cable, frames } = &self.config;
        self.plug = Some(self.cables.plug(cable, *frames, self.longest)?);
        Ok(())
    }

    fn stop(&mut self, _tx: &mut Transmitter<'_>) -> Vec<String> {
        self.plug = None;
        Vec::new()
    }

    fn receive(&mut self, _now: Time, rx: &mut Receiver<'_>) {
        let Some(end) = self.end() else { return };
        end.receive(rx.room(), |frame| rx.push_bytes(frame));
    }

    fn transmit(&mut self, _now: Time, tx: &mut Transmitter<'_>) {
        let mut end = self.plug.as_mut().and_then(|plug| plug.end.as_mut());
        while let Some(packet) = tx.next() {
            let sent = match &mut end {
                Some(end) => end.stage(Descriptor::segments(&packet), packet.length() as usize),
                None => Err(DropReason::WireDown),
            };
            match sent {
                Ok(()) => tx.sent(packet),
                Err(reason) => tx.drop(packet, reason),
            }
        }
        if let Some(end) = end {
            end.publish();
        }
    }

    fn arm(&mut self) -> bool {
        self.end().is_none_or(End::arm)
    }

    fn status(&self) -> Status<'_> {
        let end = self.plug.as_ref().and_then(|plug| plug.end.as_ref());
        Status {
            is_up: end.is_some_and(|end| end.plugged.load(Ordering::Relaxed) == 2),
            readiness: self.plug.as_ref().and_then(Plug::readiness),
            ..Status::default()
        }
    }
}

#[cfg(test)]
mod tests;
