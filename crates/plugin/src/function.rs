//! `plugin`: a function from a shared object.
//!
//! The object sees the burst as an array of views and returns a number for each packet's fate.
//! Changes of the views are then applied to the packets: bytes are added or removed in front, and
//! packets that do not fit are dropped.
//!
//! Guarantees: no allocation per packet; every packet leaves through one door, stays in the burst
//! or is held, for any return value of the object; packets with the same destination keep their
//! order.

use crate::call::Call;
use crate::counts::Counts;
use crate::object::{Instance, Object, Says, Surroundings};
use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::config::{KeyHelp, Section};
use picnic_core::error::ConfigError;
use picnic_core::function::{Function, Verdict};
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::Layers;
use picnic_core::registry::{BuildContext, Component, Entry};
use picnic_core::stop::Stop;
use picnic_core::time::Time;
use picnic_sdk::Exported;
use picnic_sdk::abi::{self, Packet, Target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Its entry in a registry of functions.
pub const ENTRY: Entry<Box<dyn Function>> = Entry::of::<Plugin>().loading(build);

/// A function from a shared object.
pub struct Plugin {
    /// Held back, oldest first.
    held: VecDeque<Descriptor>,
    wants_layers: bool,
    instance: Instance,
}

/// The keys of `plugin`; the object's keys are in the same section.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Config {
    /// The shared object, relative to the card file; mandatory. The object's own keys are in the
    /// same section: `picnic functions PATH` lists them.
    pub plugin: Option<PathBuf>,
}

impl Component for Plugin {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "plugin";
    const HELP: &'static str = "load your own function from a shared object";
    const COMMANDS: &'static [CommandEntry] =
        &[CommandEntry::of::<Counts>(), CommandEntry::of::<Call>()];

    fn example(_: &Path) -> Option<String> {
        // An object must be compiled first.
        None
    }

    fn build(config: Config, context: &BuildContext) -> Result<Self::Product, ConfigError> {
        Self::load(config.plugin, Map::new(), context)
    }
}

impl Plugin {
    fn load(
        path: Option<PathBuf>,
        keys: Map<String, Value>,
        context: &BuildContext,
    ) -> Result<Box<dyn Function>, ConfigError> {
        let path = path.ok_or_else(|| {
            ConfigError::new("plugin", "missing, expected the path of a shared object")
        })?;
        let path = context.directory.join(path);
        context.files.read("plugin", &path)?;
        let object =
            Object::load(&path, &context.stop).map_err(|message| in_file(&path, &message))?;
        Self::start(object, &path, keys, context)
    }

    fn start(
        object: Object,
        path: &Path,
        keys: Map<String, Value>,
        context: &BuildContext,
    ) -> Result<Box<dyn Function>, ConfigError> {
        let known = object.says.schema.keys();
        let config = Value::Object(object.says.schema.complete(keys)?).to_string();
        let wants_layers = object.wants_layers();
        let instance = object
            .start(Surroundings {
                queues: context.queues.into(),
                wires: context.wires.into(),
                position: context.position as u32,
                buffer_size: context.buffer_size as u32,
                seed: context.seed,
                directory: &context.directory.to_string_lossy(),
                config: &config,
            })
            .map_err(|failed| {
                // `KEY: MESSAGE`, for a key of the object.
                let of_key = failed.said().split_once(": ").and_then(|(key, message)| {
                    let name = key.split(['[', '.']).next()?;
                    known
                        .iter()
                        .any(|known| known.name == name)
                        .then(|| ConfigError::new(key, message))
                });
                of_key.unwrap_or_else(|| in_file(path, &failed.to_string()))
            })?;
        // Held packets are bounded; their memory is allocated now.
        let held = if instance.can_hold() { abi::HOLD_MAX } else { 0 };
        Ok(Box::new(Plugin { held: VecDeque::with_capacity(held), wants_layers, instance }))
    }

    pub(crate) fn instance(&mut self) -> &mut Instance {
        &mut self.instance
    }

    /// Holds a packet back, if there is room.
    fn hold(&mut self, packet: Descriptor, out: &mut Out<'_>) {
        match () {
            () if !self.instance.can_hold() => out.drop(packet, DropReason::InvalidTarget),
            () if self.held.len() == abi::HOLD_MAX => out.drop(packet, DropReason::HoldFull),
            () => self.held.push_back(packet),
        }
    }
}

fn in_file(path: &Path, message: &str) -> ConfigError {
    ConfigError::new("plugin", format!("{}: {message}", path.display()))
}

/// A function linked into the program, as if loaded from an object; for tests.
///
/// # Errors
/// As for a card file whose section has these keys, the first of them in its second line.
pub fn linked(
    exported: &Exported,
    keys: &str,
    context: &BuildContext,
) -> Result<Box<dyn Function>, ConfigError> {
    let section = Section::from_text("function", &format!("plugin = \"linked\"\n{keys}"))?;
    let mut keys = section.parse::<Map<String, Value>>()?;
    keys.remove("plugin");
    let path = Path::new("linked");
    let object =
        Object::linked(path, exported.table()).map_err(|message| in_file(path, &message))?;
    Plugin::start(object, path, keys, context).map_err(|error| section.locate(error))
}

/// Builds the object in `plugin = ...` with the keys of its section.
fn build(section: &Section, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
    let mut keys = section.parse::<Map<String, Value>>()?;
    let path = match keys.remove("plugin") {
        None => None,
        Some(Value::String(path)) => Some(path.into()),
        Some(other) => {
            let message = format!("found {other}, allowed: a path in quotes");
            return Err(section.locate(ConfigError::new("plugin", message)));
        }
    };
    let context = BuildContext { files: section.files(), ..context.clone() };
    Plugin::load(path, keys, &context).map_err(|error| section.locate(error))
}

/// An object's description of itself.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Its line of help.
    pub help: String,
    /// Its keys in a card file.
    pub keys: Vec<KeyHelp>,
    /// Its counters.
    pub counters: Vec<DescribedCounter>,
}

/// A counter of an object.
#[derive(Clone, Debug, Serialize)]
pub struct DescribedCounter {
    /// Its name.
    pub name: String,
    /// Help for the counter.
    pub help: String,
}

/// Reads an object's description of itself.
///
/// # Errors
/// The object cannot be loaded.
pub fn describe(path: &Path) -> Result<Description, ConfigError> {
    let object = Object::load(path, &Stop::default()).map_err(|message| ConfigError {
        file: Some(path.into()),
        message,
        ..ConfigError::default()
    })?;
    let Says { name, help, schema, counters, .. } = &object.says;
    let described = |(name, help): &(String, String)| DescribedCounter {
        name: name.clone(),
        help: help.clone(),
    };
    Ok(Description {
        name: name.clone(),
        help: help.clone(),
        keys: schema.keys(),
        counters: counters.iter().map(described).collect(),
    })
}

/// Fills in a packet's view.
#[inline(always)]
fn show(packet: &mut Descriptor, view: &mut Packet, wants_layers: bool) {
    let mut found = Layers::default();
    packet.gather_headers();
    if wants_layers {
        found = packet.parse();
    } else if packet.layers() != found {
        // The object may change headers, so parsed layers become invalid.
        packet.set_layers(&found);
    }
    *view = Packet {
        length: packet.data().len() as u32,
        total_length: packet.length(),
        received_ns: packet.received_at().as_nanos(),
        mark: packet.mark,
        rss_hash: packet.rss_hash,
        headroom: packet.headroom(),
        tailroom: packet.tailroom(),
        l3_offset: found.l3_offset.into(),
        l4_offset: found.l4_offset,
        protocol: found.protocol,
        wire: packet.wire,
        reserved: [0; 6],
        data: packet.data_mut().as_mut_ptr(),
    };
}

/// Replaces the target of a packet that the object spoiled; it has no meaning.
const NONSENSE: i32 = i32::MIN;

/// Applies the changes of a view to its packet; false if they are impossible.
#[inline(always)]
fn settle(packet: &mut Descriptor, view: &Packet, wants_layers: bool) -> bool {
    if packet.mark != view.mark {
        packet.mark = view.mark;
    }
    if packet.rss_hash != view.rss_hash {
        packet.set_rss_hash(view.rss_hash);
    }
    if wants_layers {
        packet.set_layers(&Layers::default());
    }
    let data = packet.data();
    if data.as_ptr() == view.data.cast_const() && data.len() == view.length as usize {
        return true;
    }
    resize(packet, view)
}

#[cold]
fn resize(packet: &mut Descriptor, view: &Packet) -> bool {
    let moved = (view.data as usize).wrapping_sub(packet.data().as_ptr() as usize) as isize;
    let Ok(steps) = u16::try_from(moved.unsigned_abs()) else { return false };
    let is_moved = if moved < 0 { packet.push_front(steps) } else { packet.pull_front(steps) };
    let (length, wanted) = (packet.data().len(), view.length as usize);
    if !is_moved || wanted == 0 {
        return false;
    }
    match wanted {
        _ if wanted == length => true,
        // Only the last of several buffers has a movable end.
        _ if packet.is_chained() => false,
        _ if wanted < length => {
            packet.truncate(wanted as u16);
            true
        }
        _ => u16::try_from(wanted - length).is_ok_and(|more| packet.push_back(more)),
    }
}

impl Function for Plugin {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let count = burst.len();
        if count == 0 {
            return;
        }
        let wants_layers = self.wants_layers;
        for (packet, view) in burst.as_mut_slice().iter_mut().zip(self.instance.packets.iter_mut())
        {
            show(packet, view, wants_layers);
        }
        self.instance.process(now, count);
        // All packets are settled in place and moved later: a descriptor that was just written is
        // slow to move.
        let mut queues = [0; BURST];
        let (mut is_steered, mut stays) = (true, true);
        {
            let Instance { packets, targets, .. } = &mut self.instance;
            let views = packets.iter().zip(targets.iter_mut());
            for ((packet, (view, target)), queue) in
                burst.as_mut_slice().iter_mut().zip(views).zip(&mut queues)
            {
                if !settle(packet, view, wants_layers) {
                    *target = NONSENSE;
                }
                *queue = *target as u16;
                is_steered &= (0..=i32::from(u16::MAX)).contains(target);
                stays &= *target == abi::NEXT;
            }
        }
        if stays {
            return;
        }
        if is_steered {
            return out.steer_burst(burst, &queues);
        }
        let mut index = 0;
        burst.retain(|packet| {
            // A burst has at most as many packets as targets.
            let target = self.instance.targets[index % BURST];
            index += 1;
            match Target::of(target) {
                Some(Target::Verdict(Verdict::Next)) => return Some(packet),
                Some(Target::Verdict(verdict)) => out.dispose(packet, verdict),
                Some(Target::Hold) => self.hold(packet, out),
                None => out.drop(packet, DropReason::InvalidTarget),
            }
            None
        });
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.held.is_empty() { None } else { self.instance.next_deadline() }
    }

    fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        let mut left = self.held.len();
        while left != 0 {
            let count = left.min(BURST);
            left -= count;
            for (packet, view) in
                self.held.iter_mut().zip(self.instance.packets[..count].iter_mut())
            {
                show(packet, view, self.wants_layers);
            }
            self.instance.flush(now, count);
            for index in 0..count {
                let Some(mut packet) = self.held.pop_front() else { return };
                let is_settled =
                    settle(&mut packet, &self.instance.packets[index], self.wants_layers);
                match Target::of(self.instance.targets[index]) {
                    Some(Target::Verdict(verdict)) if is_settled => out.dispose(packet, verdict),
                    // After the packets not yet examined, to keep order.
                    Some(Target::Hold) if is_settled && now != Time::MAX => {
                        self.held.push_back(packet);
                    }
                    _ => out.drop(packet, DropReason::InvalidTarget),
                }
            }
        }
    }

    fn held(&self) -> usize {
        self.held.len()
    }

    fn name(&self) -> Option<&str> {
        Some(self.instance.name())
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
