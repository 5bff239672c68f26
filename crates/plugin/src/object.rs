//! A shared object in memory, and one instance of what it offers.
//!
//! All of this crate's `unsafe` is here. What no check can show is the object's own conduct: it
//! is trusted to keep to `picnic_function.h`. What can be checked is: that it is for this
//! interface, that it has what it must have, and all that it returns.
//!
//! Guarantees: `exit` is called once, when the instance is dropped, and the object unloaded after.

#![allow(unsafe_code)]

use crate::elf;
use crate::schema::Schema;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use picnic_core::packet::burst::BURST;
use picnic_core::time::Time;
use picnic_sdk::abi::{self, Packet};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the largest object.
const LARGEST: u64 = 256 << 20;
/// Bytes of what an object writes: an error, the answer to a command.
pub(crate) const REPLY_BYTES: usize = 16 << 10;

/// A shared object that was loaded, and what it says of itself.
pub(crate) struct Object {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) schema: Schema,
    /// The names and the help of what it counts.
    pub(crate) counters: Arc<[(String, String)]>,
    table: abi::Function,
    // Last: unloaded when all else is gone. None: the program has it.
    _library: Option<Library>,
}

impl Object {
    /// Loads a copy of a file.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let unreadable = |error| format!("cannot be read: {error}");
        let file = picnic_core::files::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > LARGEST {
            return Err(format!("found more than {LARGEST} bytes, allowed: up to {LARGEST}"));
        }
        elf::check(&bytes)?;
        let library = load_copy(&bytes)?;
        let symbol = library_symbol(&library)?;
        // SAFETY: the symbol is `const struct picnic_function`, by the contract of the header, or
        // begins as one of another version does: with version and sizes.
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
        // SAFETY: the handshake says that so many bytes are there, which fit. What an earlier
        // header did not have stays zero: pointers and functions that are left out.
        let table = unsafe {
            ptr::copy_nonoverlapping(symbol, table.as_mut_ptr().cast(), known_size);
            table.assume_init()
        };
        Self::of(table, Some(library))
    }

    /// A function whose table the program has itself.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn linked(table: &abi::Function) -> Result<Self, String> {
        Self::of(*table, None)
    }

    fn of(mut table: abi::Function, library: Option<Library>) -> Result<Self, String> {
        if let Some(describe) = table.describe {
            // SAFETY: it fills in the copy of its table that is lent to it.
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
        Ok(Object { name, help, schema, counters, table, _library: library })
    }

    pub(crate) fn wants_layers(&self) -> bool {
        self.table.flags & abi::WANTS_LAYERS != 0
    }

    /// Makes an instance.
    ///
    /// # Errors
    /// What the object's `init` says.
    pub(crate) fn start(self, card: Surroundings<'_>) -> Result<Instance, InitFailed> {
        let mut state = ptr::null_mut();
        if let Some(init) = self.table.init {
            let directory = c_text(card.directory);
            let context = abi::Context {
                queues: card.queues,
                wires: card.wires,
                position: card.position,
                buffer_size: card.buffer_size,
                seed: card.seed,
                directory: directory.as_ptr(),
            };
            let config = c_text(card.config);
            let mut error = vec![0; REPLY_BYTES];
            // SAFETY: all pointers are good for the call, and the size is that of `error`.
            let status = unsafe {
                let error: *mut c_char = error.as_mut_ptr();
                init(&raw const context, config.as_ptr(), &raw mut state, error, REPLY_BYTES)
            };
            if status != 0 {
                return Err(InitFailed { status, said: written(&error) });
            }
        }
        Ok(Instance {
            state,
            packets: Box::new([NOTHING; BURST]),
            targets: Box::new([abi::NEXT; BURST]),
            object: self,
        })
    }
}

/// What an object's `init` returned and wrote.
pub(crate) struct InitFailed {
    status: i32,
    pub(crate) said: String,
}

impl fmt::Display for InitFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = if self.said.is_empty() { "it gives no reason" } else { &self.said };
        write!(f, "its init failed ({}): {said}", self.status)
    }
}

/// A view of no packet.
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

/// What an instance is told of its card.
pub(crate) struct Surroundings<'a> {
    pub(crate) queues: u32,
    pub(crate) wires: u32,
    pub(crate) position: u32,
    pub(crate) buffer_size: u32,
    pub(crate) seed: u64,
    pub(crate) directory: &'a str,
    pub(crate) config: &'a str,
}

/// Loads a private copy, under a name that this process has never loaded: the loader gives back
/// what it has for a name or file that it knows, be it replaced meanwhile.
fn load_copy(bytes: &[u8]) -> Result<Library, String> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let failed = |error: &dyn std::fmt::Display| {
        let folder = std::env::temp_dir();
        format!("cannot be copied to {}: {error} (TMPDIR names another folder)", folder.display())
    };
    let mut copy = tempfile::Builder::new()
        .prefix(&format!("picnic-{}-{number}-", std::process::id()))
        .suffix(".so")
        .tempfile()
        .map_err(|error| failed(&error))?;
    copy.write_all(bytes).map_err(|error| failed(&error))?;
    // A file that is open for writing may not be executed, so it is closed before; dropping the
    // path removes it, loaded or not.
    let path = copy.into_temp_path();
    // SAFETY: constructors of the object run now. It is trusted code, as the documents say.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    library.map_err(|error| {
        let said = match std::error::Error::source(&error) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        };
        let said = said.replace(&format!("{}: ", path.display()), "");
        format!("cannot be loaded: {said}")
    })
}

fn library_symbol(library: &Library) -> Result<*const u8, String> {
    // SAFETY: the type is that of a pointer to data, which every symbol of data can be.
    let symbol = unsafe { library.get::<*const u8>(abi::SYMBOL.as_bytes()) };
    let missing = || format!("found no symbol {}, which it must export", abi::SYMBOL);
    let symbol = symbol.map_err(|_| missing())?.into_raw();
    if symbol.is_null() { Err(missing()) } else { Ok(symbol.cast()) }
}

/// A text of the object's.
fn text(pointer: *const c_char, what: &str) -> Result<Option<String>, String> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract of the header it is a text that ends, in the loaded object.
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
        // SAFETY: by the contract of the header the list ends with a counter without a name, and
        // none before this one was.
        let counter = unsafe { table.counters.add(found.len()).read() };
        let Some(name) = text(counter.name, "counter's name")? else { break };
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        // These say where the function stands.
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

/// What was written to a buffer, up to its end.
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
    /// What it is shown of a burst, and what it says of each packet.
    pub(crate) packets: Box<[Packet; BURST]>,
    pub(crate) targets: Box<[i32; BURST]>,
    object: Object,
}

// SAFETY: the header says that an instance is used by one thread at a time, not always the same.
unsafe impl Send for Instance {}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(exit) = self.object.table.exit {
            // SAFETY: `init` has succeeded, or there is none; nothing is called after this.
            unsafe { exit(self.state) };
        }
    }
}

impl Instance {
    pub(crate) fn name(&self) -> &str {
        &self.object.name
    }

    pub(crate) fn can_hold(&self) -> bool {
        self.object.table.flush.is_some()
    }

    /// Has it say in `targets` what becomes of the first `count` of `packets`.
    #[inline(always)]
    pub(crate) fn process(&mut self, now: Time, count: usize) {
        let (packets, targets) = (&mut self.packets[..count], &mut self.targets[..count]);
        let (state, now) = (self.state, now.as_nanos());
        if let Some(process_burst) = self.object.table.process_burst {
            targets.fill(abi::NEXT);
            let (count, packets) = (count as u32, packets.as_mut_ptr());
            // SAFETY: `count` packets and targets are there for the call, and each packet's `data`
            // is memory of a buffer that its caller has to itself.
            unsafe { process_burst(state, now, packets, count, targets.as_mut_ptr()) };
        } else if let Some(process_packet) = self.object.table.process_packet {
            for (packet, target) in packets.iter_mut().zip(targets) {
                // SAFETY: as above, for one packet.
                *target = unsafe { process_packet(state, now, packet) };
            }
        }
    }

    /// The same for packets that it has held back.
    pub(crate) fn flush(&mut self, now: Time, count: usize) {
        let (packets, targets) = (&mut self.packets[..count], &mut self.targets[..count]);
        targets.fill(abi::NEXT);
        let Some(flush) = self.object.table.flush else { return };
        let (count, packets) = (count as u32, packets.as_mut_ptr());
        // SAFETY: as in `process`.
        unsafe { flush(self.state, now.as_nanos(), packets, count, targets.as_mut_ptr()) };
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let next_deadline = self.object.table.next_deadline?;
        // SAFETY: the state is what `init` made; the caller has the instance to itself, as the
        // borrowed core asks for deadlines and processes packets in turn.
        match unsafe { next_deadline(self.state) } {
            abi::NEVER => None,
            due => Some(Time::from_nanos(due)),
        }
    }

    /// Has it write what it counts to `values`, if it does; the names.
    pub(crate) fn count(
        &mut self,
        values: &mut [u64; abi::COUNTERS_MAX],
    ) -> Option<Arc<[(String, String)]>> {
        let count = self.object.table.count?;
        // SAFETY: there is room for as many as it may declare, and no more were accepted.
        unsafe { count(self.state, values.as_mut_ptr()) };
        Some(self.object.counters.clone())
    }

    /// Has it obey a command; whether it did, and what it wrote to `reply`. None if it has none.
    pub(crate) fn command(
        &mut self,
        command: &CStr,
        arguments: &CStr,
        reply: &mut [c_char],
    ) -> Option<bool> {
        let call = self.object.table.command?;
        let (size, reply) = (reply.len(), reply.as_mut_ptr());
        // SAFETY: the texts end, and `size` is that of `reply`.
        Some(unsafe { call(self.state, command.as_ptr(), arguments.as_ptr(), reply, size) } == 0)
    }
}

/// What a command has written.
pub(crate) fn reply_text(reply: &[c_char]) -> String {
    written(reply)
}
