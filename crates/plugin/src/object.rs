//! A shared object in memory, and one instance of its function.
//!
//! This module alone reads memory that an object shares. It checks the object's interface version,
//! its mandatory parts and everything it returns. It trusts the object to follow
//! `picnic_function.h` otherwise.
//!
//! Guarantees: `exit` is called once, when the instance is dropped, and the object is unloaded
//! afterwards, unless one of its functions has not returned. No object can leave a file behind.

#![allow(unsafe_code)]

use crate::elf;
use crate::guard::{Call, Helper, Record, enter, is_data_path};
use crate::schema::Schema;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use picnic_core::packet::burst::BURST;
use picnic_core::stop::Stop;
use picnic_core::time::Time;
use picnic_sdk::abi::{self, Packet};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::io::{Read, Write};
use std::mem::{self, MaybeUninit};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest accepted object, in bytes.
const LARGEST: u64 = 256 << 20;
/// Buffer for an object's error or answer, in bytes.
pub(crate) const REPLY_BYTES: usize = 16 << 10;

/// A loaded shared object and its description.
pub(crate) struct Object {
    pub(crate) says: Says,
    record: Arc<Record>,
    helper: Helper,
    /// None if the object is linked into the program, or stays loaded because one of its functions
    /// has not returned.
    library: Option<Library>,
}

/// An object's description of itself.
pub(crate) struct Says {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) schema: Schema,
    /// Names and help of the counters.
    pub(crate) counters: Arc<[(String, String)]>,
    table: abi::Function,
}

/// Data of the object's own thread, or lent to it.
struct Sent<T>(T);

// SAFETY: the pointers belong to the object, which promises that an instance is used by one thread
// at a time, not always the same; the sender waits, or never uses them again.
unsafe impl<T> Send for Sent<T> {}

impl<T> Sent<T> {
    fn get(self) -> T {
        self.0
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let Some(library) = self.library.take() else { return };
        if !self.helper.is_there() {
            // A thread is stuck in it.
            return mem::forget(library);
        }
        if let Err(why) = self.helper.run(Call::Unload, move || drop(library)) {
            self.record.fail(&why);
        }
    }
}

impl Object {
    /// Loads a copy of a file.
    ///
    /// # Errors
    /// The reason, in words.
    pub(crate) fn load(path: &Path, stop: &Stop) -> Result<Self, String> {
        let unreadable = |error| format!("cannot be read: {error}");
        let file = picnic_core::files::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > LARGEST {
            return Err(format!("found more than {LARGEST} bytes, allowed: up to {LARGEST}"));
        }
        elf::check(&bytes)?;
        let record = Record::new(path);
        let mut helper = Helper::start(record.clone(), stop.clone())?;
        let load = move || {
            let library = load_copy(&bytes)?;
            let says = Says::open(&library)?;
            Ok::<_, String>(Sent((library, says)))
        };
        let (library, says) = helper.run(Call::Load, load)??.get();
        Ok(Object { says, record, helper, library: Some(library) })
    }

    /// A function whose table is linked into the program.
    ///
    /// # Errors
    /// The reason, in words.
    pub(crate) fn linked(path: &Path, table: &abi::Function) -> Result<Self, String> {
        let record = Record::new(path);
        let helper = Helper::start(record.clone(), Stop::default())?;
        Ok(Object { says: Says::of(*table)?, record, helper, library: None })
    }

    pub(crate) fn wants_layers(&self) -> bool {
        self.says.table.flags & abi::WANTS_LAYERS != 0
    }

    /// Makes an instance.
    ///
    /// # Errors
    /// The reason given by the object's `init`.
    pub(crate) fn start(mut self, card: Surroundings<'_>) -> Result<Instance, InitFailed> {
        let mut state = ptr::null_mut();
        if let Some(init) = self.says.table.init {
            let directory = c_text(card.directory);
            let config = c_text(card.config);
            let context = Sent(abi::Context {
                queues: card.queues,
                wires: card.wires,
                position: card.position,
                buffer_size: card.buffer_size,
                seed: card.seed,
                directory: ptr::null(),
            });
            let body = move || {
                let context = abi::Context { directory: directory.as_ptr(), ..context.get() };
                let (mut state, mut error) = (ptr::null_mut(), vec![0; REPLY_BYTES]);
                // SAFETY: all pointers are valid during the call, and the size is that of `error`.
                let status = unsafe {
                    let error: *mut c_char = error.as_mut_ptr();
                    init(&raw const context, config.as_ptr(), &raw mut state, error, REPLY_BYTES)
                };
                Sent((status, state, error))
            };
            let returned = self.helper.run(Call::Init, body).map_err(InitFailed::Left)?;
            let (status, made, error) = returned.get();
            if status != 0 {
                return Err(InitFailed::Refused(status, written(&error)));
            }
            state = made;
        }
        self.helper.confine();
        Ok(Instance {
            state,
            packets: Box::new([NOTHING; BURST]),
            targets: Box::new([abi::NEXT; BURST]),
            object: self,
        })
    }
}

impl Says {
    fn open(library: &Library) -> Result<Self, String> {
        let symbol = library_symbol(library)?;
        // SAFETY: by the contract of the header, the symbol is `const struct picnic_function`, or
        // another version with the same start: version and sizes.
        let [version, size, packet_size] = unsafe { symbol.cast::<[u32; 3]>().read_unaligned() };
        let (own, own_packet) = (abi::ABI_VERSION, size_of::<Packet>());
        let known_size = abi::SIZES.into_iter().find(|&known| known == size as usize);
        let Some(known_size) =
            known_size.filter(|_| (version, packet_size as usize) == (own, own_packet))
        else {
            let [.., own_size] = abi::SIZES;
            return Err(format!(
                "found picnic_function.h version {version} ({size} and {packet_size} bytes), \
                 allowed: {own} ({own_size} and {own_packet} bytes): compile it against the \
                 header of this picnic"
            ));
        };
        let mut table = MaybeUninit::<abi::Function>::zeroed();
        // SAFETY: the handshake states this number of bytes, which fits. Fields that an earlier
        // header lacks stay zero: pointers and functions that are unset.
        let table = unsafe {
            ptr::copy_nonoverlapping(symbol, table.as_mut_ptr().cast(), known_size);
            table.assume_init()
        };
        Self::of(table)
    }

    fn of(mut table: abi::Function) -> Result<Self, String> {
        if let Some(describe) = table.describe {
            // SAFETY: it fills in the copy of its table that is passed to it.
            unsafe { describe(&raw mut table) };
        }
        if table.process_packet.is_some() == table.process_burst.is_some() {
            let found = if table.process_burst.is_some() { "both" } else { "neither" };
            return Err(format!(
                "found {found} of process_packet and process_burst, allowed: one of them"
            ));
        }
        let name = text(table.name, "name")?.unwrap_or_default();
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > 32 || !name.bytes().all(is_good) {
            let name: String = name.chars().take(40).collect();
            return Err(format!("found the name \"{name}\", allowed: 1 to 32 of a-z, 0-9 and -"));
        }
        let help = text(table.help, "help")?.unwrap_or_default();
        let schema = Schema::parse(text(table.config_schema, "config_schema")?.as_deref())?;
        let counters = counters(&table)?;
        Ok(Says { name, help, schema, counters, table })
    }
}

/// The reason why there is no instance.
pub(crate) enum InitFailed {
    /// `init` returned this status and wrote this text.
    Refused(i32, String),
    /// `init` has not returned, for this reason.
    Left(String),
}

impl InitFailed {
    /// The text that `init` wrote.
    pub(crate) fn said(&self) -> &str {
        match self {
            InitFailed::Refused(_, said) => said,
            InitFailed::Left(_) => "",
        }
    }
}

impl fmt::Display for InitFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitFailed::Refused(status, said) => {
                let said = if said.is_empty() { "no reason given" } else { said };
                write!(f, "its init failed ({status}): {said}")
            }
            InitFailed::Left(why) => f.write_str(why),
        }
    }
}

/// A view without a packet.
const NOTHING: Packet = Packet {
    data: ptr::null_mut(),
    length: 0,
    total_length: 0,
    received_ns: 0,
    mark: 0,
    rss_hash: 0,
    headroom: 0,
    tailroom: 0,
    l3_offset: 0,
    l4_offset: 0,
    protocol: 0,
    wire: 0,
    reserved: [0; 6],
};

/// The card, as passed to an instance.
pub(crate) struct Surroundings<'a> {
    pub(crate) queues: u32,
    pub(crate) wires: u32,
    pub(crate) position: u32,
    pub(crate) buffer_size: u32,
    pub(crate) seed: u64,
    pub(crate) directory: &'a str,
    pub(crate) config: &'a str,
}

/// Loads a private copy under a name that this process never used before: for a known name or file,
/// the loader returns the loaded object, even if the file was replaced. The copy has no name in any
/// folder, so nothing remains if a constructor ends the process.
fn load_copy(bytes: &[u8]) -> Result<Library, String> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir();
    let failed = |error| {
        let folder = folder.display();
        format!("cannot be copied to {folder}: {error} (TMPDIR names another folder)")
    };
    let mut copy = tempfile::tempfile_in(&folder).map_err(failed)?;
    copy.write_all(bytes).map_err(failed)?;
    let path = format!("/proc/self/fd/{}{}", spelling(number), copy.as_raw_fd());
    // SAFETY: constructors of the object run now. It is trusted code, as the documents say.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    library.map_err(|error| {
        let said = match std::error::Error::source(&error) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        };
        format!("cannot be loaded: {}", said.replace(&format!("{path}: "), ""))
    })
}

/// A unique spelling of the path for each number, since descriptor numbers repeat.
fn spelling(number: u64) -> String {
    let bits = (0..u64::BITS - number.leading_zeros()).map(|bit| number >> bit & 1);
    bits.map(|bit| if bit == 0 { "./" } else { ".//" }).collect()
}

fn library_symbol(library: &Library) -> Result<*const u8, String> {
    // SAFETY: the type is a pointer to data, which every data symbol can have.
    let symbol = unsafe { library.get::<*const u8>(abi::SYMBOL.as_bytes()) };
    let missing = || format!("found no symbol {}, which it must export", abi::SYMBOL);
    let symbol = symbol.map_err(|_| missing())?.into_raw();
    if symbol.is_null() { Err(missing()) } else { Ok(symbol.cast()) }
}

/// Reads a text of the object.
fn text(pointer: *const c_char, what: &str) -> Result<Option<String>, String> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract of the header it is a terminated text in the loaded object.
    let text = unsafe { CStr::from_ptr(pointer) };
    let text = text.to_str().map_err(|_| format!("its {what} is not UTF-8"))?;
    Ok(Some(text.to_owned()))
}

/// The counters that an object declares.
fn counters(table: &abi::Function) -> Result<Arc<[(String, String)]>, String> {
    let mut found: Vec<(String, String)> = Vec::new();
    if table.counters.is_null() != table.count.is_none() {
        let missing = if table.count.is_none() { "count" } else { "counters" };
        return Err(format!("found no {missing}, allowed: both of counters and count, or neither"));
    }
    while !table.counters.is_null() {
        // SAFETY: by the contract of the header the list ends with a counter without a name, and no
        // earlier counter was nameless.
        let counter = unsafe { table.counters.add(found.len()).read() };
        let Some(name) = text(counter.name, "counter's name")? else { break };
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        // Names of the function's place in the report.
        let is_taken = ["chain", "position"].contains(&&*name);
        if is_taken || name.is_empty() || name.len() > 48 || !name.bytes().all(is_good) {
            let name: String = name.chars().take(60).collect();
            return Err(format!(
                "found the counter \"{name}\", allowed: 1 to 48 of a-z, 0-9 and _, but not \
                 chain or position"
            ));
        }
        if found.iter().any(|(other, _)| *other == name) {
            return Err(format!("found the counter \"{name}\" twice, allowed: once"));
        }
        if found.len() == abi::COUNTERS_MAX {
            let most = abi::COUNTERS_MAX;
            return Err(format!("found more than {most} counters, allowed: up to {most}"));
        }
        found.push((name, text(counter.help, "counter's help")?.unwrap_or_default()));
    }
    Ok(found.into())
}

/// The text in a buffer, up to its end.
fn written(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> =
        buffer.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// A text for C, up to its first zero.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// One instance of an object.
pub(crate) struct Instance {
    state: *mut c_void,
    /// The views of a burst, and the object's answers.
    pub(crate) packets: Box<[Packet; BURST]>,
    pub(crate) targets: Box<[i32; BURST]>,
    object: Object,
}

// SAFETY: the header says that an instance is used by one thread at a time, not always the same.
unsafe impl Send for Instance {}

impl Drop for Instance {
    fn drop(&mut self) {
        let Object { says, record, helper, .. } = &mut self.object;
        let Some(exit) = says.table.exit.filter(|_| helper.is_there()) else { return };
        let state = Sent(self.state);
        // SAFETY: `init` succeeded or is absent; nothing is called after this.
        if let Err(why) = helper.run(Call::Exit, move || unsafe { exit(state.get()) }) {
            record.fail(&why);
        }
    }
}

impl Instance {
    pub(crate) fn name(&self) -> &str {
        &self.object.says.name
    }

    pub(crate) fn can_hold(&self) -> bool {
        self.object.says.table.flush.is_some()
    }

    /// Asks for the fates (`targets`) of the first `count` of `packets`.
    #[inline(always)]
    pub(crate) fn process(&mut self, now: Time, count: usize) {
        let Object { says: Says { table, .. }, record, .. } = &self.object;
        let (packets, targets) = (&mut self.packets[..count], &mut self.targets[..count]);
        let (state, now) = (self.state, now.as_nanos());
        if let Some(process_burst) = table.process_burst {
            targets.fill(abi::NEXT);
            let (count, packets) = (count as u32, packets.as_mut_ptr());
            let _entered = enter(record, Call::ProcessBurst);
            // SAFETY: `count` packets and targets are valid during the call, and each packet's
            // `data` is in a buffer that its caller owns.
            unsafe { process_burst(state, now, packets, count, targets.as_mut_ptr()) };
        } else if let Some(process_packet) = table.process_packet {
            let _entered = enter(record, Call::ProcessPacket);
            for (packet, target) in packets.iter_mut().zip(targets) {
                // SAFETY: as above, for one packet.
                *target = unsafe { process_packet(state, now, packet) };
            }
        }
    }

    /// Like `process`, for held packets.
    pub(crate) fn flush(&mut self, now: Time, count: usize) {
        let Object { says: Says { table, .. }, record, .. } = &self.object;
        let (packets, targets) = (&mut self.packets[..count], &mut self.targets[..count]);
        targets.fill(abi::NEXT);
        let Some(flush) = table.flush else { return };
        let (count, packets) = (count as u32, packets.as_mut_ptr());
        let _entered = enter(record, Call::Flush);
        // SAFETY: as in `process`.
        unsafe { flush(self.state, now.as_nanos(), packets, count, targets.as_mut_ptr()) };
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let next_deadline = self.object.says.table.next_deadline?;
        let _entered = enter(&self.object.record, Call::NextDeadline);
        // SAFETY: the state comes from `init`; the caller owns the instance, since the borrowed
        // core asks for deadlines and processes packets in turn.
        match unsafe { next_deadline(self.state) } {
            abi::NEVER => None,
            due => Some(Time::from_nanos(due)),
        }
    }

    /// Writes the object's counters to `values`, if it has any; returns their names.
    pub(crate) fn count(
        &mut self,
        values: &mut [u64; abi::COUNTERS_MAX],
    ) -> Option<Arc<[(String, String)]>> {
        let Object { says, record, helper, .. } = &mut self.object;
        let count = says.table.count?;
        if is_data_path() {
            let _entered = enter(record, Call::Count);
            // SAFETY: there is room for the declared counters; more were refused.
            unsafe { count(self.state, values.as_mut_ptr()) };
        } else {
            // After the last packet, on a thread that may wait for a while.
            let state = Sent(self.state);
            let body = move || {
                let mut values = [0; abi::COUNTERS_MAX];
                // SAFETY: as above.
                unsafe { count(state.get(), values.as_mut_ptr()) };
                values
            };
            match helper.run(Call::Count, body) {
                Ok(counted) => *values = counted,
                Err(why) => {
                    record.fail(&why);
                    return None;
                }
            }
        }
        Some(says.counters.clone())
    }

    /// Runs a command; returns whether it was accepted, and `reply`. None if the object has no
    /// commands.
    pub(crate) fn command(
        &mut self,
        command: &CStr,
        arguments: &CStr,
        reply: &mut [c_char],
    ) -> Option<bool> {
        let call = self.object.says.table.command?;
        let (size, reply) = (reply.len(), reply.as_mut_ptr());
        let _entered = enter(&self.object.record, Call::Command);
        // SAFETY: the texts are terminated, and `size` is that of `reply`.
        Some(unsafe { call(self.state, command.as_ptr(), arguments.as_ptr(), reply, size) } == 0)
    }
}

/// The text that a command wrote.
pub(crate) fn reply_text(reply: &[c_char]) -> String {
    written(reply)
}
