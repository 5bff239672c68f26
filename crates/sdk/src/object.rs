//! The C interface around a [`Function`]: all of this crate's `unsafe`.
//!
//! Every call comes from picnic, which follows `picnic_function.h`: pointers are valid during the
//! call, an instance is used by one thread at a time, and `exit` comes last.

#![allow(unsafe_code)]

use crate::abi::{self, Counter};
use crate::{Context, Function, Packet, Verdict};
use picnic_core::json::typed;
use picnic_core::time::Time;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null;
use std::slice;

/// The exported symbol `picnic_function`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Exported(abi::Function);

// SAFETY: it is never changed; it holds function pointers and no data pointers.
unsafe impl Sync for Exported {}

impl Exported {
    /// The table, for callers that run the function without loading an object.
    pub fn table(&self) -> &abi::Function {
        &self.0
    }
}

/// The table of a function. [`abi::Function::describe`] fills in fields known only at run time.
pub const fn table<F: Function>() -> Exported {
    Exported(abi::Function {
        abi_version: abi::ABI_VERSION,
        size: size_of::<abi::Function>() as u32,
        packet_size: size_of::<abi::Packet>() as u32,
        flags: 0,
        name: null(),
        help: null(),
        config_schema: null(),
        init: Some(init::<F>),
        process_packet: None,
        process_burst: Some(process_burst::<F>),
        next_deadline: if F::HOLDS { Some(next_deadline::<F>) } else { None },
        flush: if F::HOLDS { Some(flush::<F>) } else { None },
        command: None,
        exit: Some(exit::<F>),
        counters: null(),
        count: None,
        describe: Some(describe::<F>),
    })
}

/// The bytes of a packet in its first buffer.
#[inline(always)]
pub(crate) fn bytes(packet: &abi::Packet) -> &[u8] {
    if packet.length == 0 {
        return &[];
    }
    // SAFETY: picnic lends `length` bytes at `data`; the methods of `Packet` keep them within the
    // buffer.
    unsafe { slice::from_raw_parts(packet.data, packet.length as usize) }
}

/// Like `bytes`, mutable.
#[inline(always)]
pub(crate) fn bytes_mut(packet: &mut abi::Packet) -> &mut [u8] {
    if packet.length == 0 {
        return &mut [];
    }
    // SAFETY: as in `bytes`, and picnic has lent them to this call alone.
    unsafe { slice::from_raw_parts_mut(packet.data, packet.length as usize) }
}

/// A text that lives as long as the object.
fn kept(text: &str) -> *const c_char {
    let text: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
    CString::new(text).unwrap_or_default().into_raw()
}

unsafe extern "C" fn describe<F: Function>(table: *mut abi::Function) {
    // SAFETY: picnic passes its own copy of the table for the call.
    let table = unsafe { &mut *table };
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<F::Config>();
    table.name = kept(F::NAME);
    table.help = kept(F::HELP);
    table.config_schema = kept(&schema.to_value().to_string());
    if !F::COUNTERS.is_empty() {
        let end = Counter { name: null(), help: null() };
        let counters = F::COUNTERS.iter();
        let counters = counters.map(|(name, help)| Counter { name: kept(name), help: kept(help) });
        table.counters = counters.chain([end]).collect::<Vec<_>>().leak().as_ptr();
        table.count = Some(count::<F>);
    }
}

unsafe extern "C" fn init<F: Function>(
    context: *const abi::Context,
    config: *const c_char,
    state: *mut *mut c_void,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: picnic lends both for the call; texts are zero-terminated.
    let (given, directory, config) =
        unsafe { (*context, CStr::from_ptr((*context).directory), CStr::from_ptr(config)) };
    let context = Context {
        queues: given.queues.try_into().unwrap_or(u16::MAX),
        wires: given.wires.try_into().unwrap_or(u8::MAX),
        position: given.position as usize,
        buffer_size: given.buffer_size as usize,
        seed: given.seed,
        directory: Path::new(&*directory.to_string_lossy()).to_owned(),
    };
    let message = match make::<F>(&config.to_string_lossy(), &context) {
        Ok(function) => {
            // SAFETY: picnic provides a place for the state.
            unsafe { *state = Box::into_raw(Box::new(function)).cast() };
            return 0;
        }
        Err(message) => message,
    };
    let length = message.len().min(error_size.saturating_sub(1));
    if error_size > 0 {
        // SAFETY: `error` has room for `error_size` bytes, of which these are fewer.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr().cast(), error, length);
            *error.add(length) = 0;
        }
    }
    -1
}

fn make<F: Function>(config: &str, context: &Context) -> Result<F, String> {
    let config = serde_json::from_str(config).map_err(|error| error.to_string())?;
    let config = typed(&config).map_err(|error| error.to_string())?;
    F::new(config, context).map_err(|error| match error.key.as_str() {
        "" => error.message,
        key => format!("{key}: {}", error.message),
    })
}

unsafe extern "C" fn process_burst<F: Function>(
    state: *mut c_void,
    now_ns: u64,
    packets: *mut abi::Packet,
    count: u32,
    targets: *mut i32,
) {
    // SAFETY: `picnic_function.h` promises these arguments.
    unsafe { judge_each(state, now_ns, packets, count, targets, F::process_packet) }
}

unsafe extern "C" fn flush<F: Function>(
    state: *mut c_void,
    now_ns: u64,
    packets: *mut abi::Packet,
    count: u32,
    targets: *mut i32,
) {
    // SAFETY: as in `process_burst`.
    unsafe { judge_each(state, now_ns, packets, count, targets, F::flush) }
}

/// Writes the target of each packet.
///
/// # Safety
/// The state comes from `init`; only this call uses it, with `count` valid packets and targets.
#[inline(always)]
unsafe fn judge_each<F: Function>(
    state: *mut c_void,
    now_ns: u64,
    packets: *mut abi::Packet,
    count: u32,
    targets: *mut i32,
    judge: impl Fn(&mut F, Time, &mut Packet<'_>) -> Verdict,
) {
    // SAFETY: the caller's promise.
    let (function, packets, targets) = unsafe {
        (
            &mut *state.cast::<F>(),
            slice::from_raw_parts_mut(packets, count as usize),
            slice::from_raw_parts_mut(targets, count as usize),
        )
    };
    let now = Time::from_nanos(now_ns);
    for (packet, target) in packets.iter_mut().zip(targets) {
        *target = judge(function, now, &mut Packet(packet)).number();
    }
}

unsafe extern "C" fn next_deadline<F: Function>(state: *mut c_void) -> u64 {
    // SAFETY: the state comes from `init`.
    let function = unsafe { &*state.cast::<F>() };
    function.next_deadline().map_or(abi::NEVER, Time::as_nanos)
}

unsafe extern "C" fn count<F: Function>(state: *mut c_void, values: *mut u64) {
    // SAFETY: the state comes from `init`, and `values` has room for each declared counter.
    let (function, values) =
        unsafe { (&*state.cast::<F>(), slice::from_raw_parts_mut(values, F::COUNTERS.len())) };
    function.count(values);
}

unsafe extern "C" fn exit<F: Function>(state: *mut c_void) {
    // SAFETY: the state comes from `init`, and nothing uses it afterwards.
    drop(unsafe { Box::from_raw(state.cast::<F>()) });
}
