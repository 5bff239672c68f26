//! Calls into shared objects, on record: the object and the function at fault are named if one
//! crashes, ends the process or its thread, or does not return.
//!
//! * Around each call, `enter` notes it in the object's `Record` and for the thread: three stores.
//! * A signal by which the process ends (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT) is
//!   named first, then takes its course.
//! * `exit` and `_exit` do not end the process. Where somebody waits for the call, the thread is
//!   stopped for good and its record says so; elsewhere the process ends with status 1.
//! * Code that may take long (constructors, `init`, `exit`, destructors) runs on the object's own
//!   thread (`Helper`), so that the caller need not wait for ever.
//!
//! Guarantees: no clock is read, nothing allocated and no system call made for a call on the data
//! path, except for a thread's first.
//!
//! Source: sigaction(2), signal-safety(7), exit(3), atexit(3).

#![allow(unsafe_code)]

use picnic_confine::{Role, set_up, watch_exits};
use picnic_core::stop::Stop;
use rustix::thread::CapabilitySet;
use std::cell::Cell;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The functions of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Call {
    Load = 1,
    Init,
    ProcessPacket,
    ProcessBurst,
    NextDeadline,
    Flush,
    Command,
    Count,
    Exit,
    Unload,
}

impl Call {
    const NAMES: [&str; 11] = [
        "none",
        "loading (a constructor)",
        "init",
        "process_packet",
        "process_burst",
        "next_deadline",
        "flush",
        "command",
        "count",
        "exit",
        "unloading (a destructor)",
    ];

    fn name(number: u8) -> &'static str {
        Call::NAMES.get(usize::from(number)).copied().unwrap_or("none")
    }
}

/// The current call of an object.
#[derive(Debug)]
pub(crate) struct Record {
    /// Its path, without control characters.
    object: String,
    /// The function that has not returned; 0 if none.
    call: AtomicU8,
    /// Calls so far.
    number: AtomicU64,
    /// The thread of the call.
    thread: AtomicU32,
    /// The object tried to end the process in this call.
    has_ended: AtomicBool,
    /// Another thread waits for this call.
    is_helped: AtomicBool,
}

/// All objects.
static RECORDS: Mutex<Vec<Weak<Record>>> = Mutex::new(Vec::new());
/// Errors of objects that no caller could receive.
static FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// A thread is stuck in an object.
static IS_ABANDONED: AtomicBool = AtomicBool::new(false);
/// An object tried to end the process.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// Number of cards whose threads are watched.
static WATCHERS: AtomicUsize = AtomicUsize::new(0);
/// Whether [`install`] was called.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
/// The process ID; a forked child differs.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The object that this thread has called. No destructor: signal handlers read it.
    static CURRENT: Cell<*const Record> = const { Cell::new(ptr::null()) };
    /// This thread's number; 0 until its first call.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// See [`hurry`].
    static HURRIES: Cell<bool> = const { Cell::new(false) };
}

impl Record {
    pub(crate) fn new(path: &Path) -> Arc<Self> {
        install();
        let shown = path.to_string_lossy();
        let object: String = shown
            .chars()
            .flat_map(|letter| match letter.is_control() {
                true => letter.escape_default().collect::<Vec<_>>(),
                false => vec![letter],
            })
            .collect();
        let record = Arc::new(Record {
            object,
            call: AtomicU8::new(0),
            number: AtomicU64::new(0),
            thread: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
            is_helped: AtomicBool::new(false),
        });
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        records.retain(|record| record.strong_count() != 0);
        records.push(Arc::downgrade(&record));
        record
    }

    /// The reason why a call will never return, if known.
    fn fault(&self) -> Option<&'static str> {
        match self.call.load(Ordering::Acquire) {
            _ if self.has_ended.load(Ordering::Acquire) => Some("tried to end the process"),
            0 => None,
            _ if has_ended(self.thread.load(Ordering::Relaxed)) => Some("ended its thread"),
            _ => None,
        }
    }
}

/// Whether the thread has ended.
fn has_ended(thread: u32) -> bool {
    // SAFETY: no signal is sent.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) };
    sent == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// A call in progress, until dropped.
pub(crate) struct Entered<'r>(&'r Record);

/// Records a call by this thread.
#[inline(always)]
pub(crate) fn enter(record: &Record, call: Call) -> Entered<'_> {
    let thread = match THREAD.get() {
        0 => this_thread(),
        thread => thread,
    };
    record.thread.store(thread, Ordering::Relaxed);
    record.number.store(record.number.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    record.call.store(call as u8, Ordering::Release);
    CURRENT.set(record);
    Entered(record)
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        CURRENT.set(ptr::null());
        self.0.call.store(0, Ordering::Release);
    }
}

/// Prepares the calling thread to run functions of objects: they cannot end the process. If the
/// thread gives up system calls, call this first. Returns the thread's number.
#[cold]
pub fn this_thread() -> u32 {
    if !IS_INSTALLED.load(Ordering::Acquire) {
        return 0;
    }
    // Without filters, `exit` is detected but `_exit` is not.
    let _ = watch_exits(judge_exit);
    let number = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    THREAD.set(number);
    number
}

/// Whether the calling thread runs functions of objects on the data path.
pub(crate) fn is_data_path() -> bool {
    THREAD.get() != 0
}

/// While it exists, a card's data path runs on a watched thread.
#[derive(Debug)]
pub struct Watched(());

/// See [`Watched`].
pub fn watch() -> Watched {
    WATCHERS.fetch_add(1, Ordering::AcqRel);
    Watched(())
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHERS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A call that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The object and the number of the call: another call has another number.
    pub call: (usize, u64),
    /// The object and its function.
    pub name: String,
    /// The reason why it will never return, if known.
    pub fault: Option<&'static str>,
}

/// The unfinished call of a thread.
pub fn pending(thread: u64) -> Option<Pending> {
    let records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut records = records.iter().filter_map(Weak::upgrade);
    records.find_map(|record| {
        let call = record.call.load(Ordering::Acquire);
        if call == 0 || u64::from(record.thread.load(Ordering::Relaxed)) != thread {
            return None;
        }
        Some(Pending {
            call: (Arc::as_ptr(&record) as usize, record.number.load(Ordering::Relaxed)),
            name: format!("{}: {}", record.object, Call::name(call)),
            fault: record.fault(),
        })
    })
}

/// Records that a thread is stuck in an object: the process must neither wait for it nor run the
/// exit handlers of objects.
pub fn abandon() {
    IS_ABANDONED.store(true, Ordering::Release);
}

/// Whether a thread is stuck in an object.
pub fn is_abandoned() -> bool {
    IS_ABANDONED.load(Ordering::Acquire)
}

/// Ends the process at once, without exit handlers.
pub fn end_process(status: u8) -> ! {
    picnic_confine::end_process(status)
}

/// Whether an object has tried to end the process.
pub fn has_tried_to_end() -> bool {
    HAS_ENDED.load(Ordering::Acquire)
}

/// Errors of ending objects since the last call.
pub fn failures() -> Vec<String> {
    std::mem::take(&mut FAILURES.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Record {
    pub(crate) fn fail(&self, why: &str) {
        let message = format!("{}: {why}", self.object);
        FAILURES.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }
}

// ---------------------------------------------------------------- signals and exits

const SIGNALS: [(i32, &str); 6] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGABRT, "SIGABRT"),
];
/// The previous handlers; 0 for none.
static BEFORE: [AtomicUsize; SIGNALS.len()] = [const { AtomicUsize::new(0) }; SIGNALS.len()];

/// Starts to detect crashes and ends of the process. If a card may load objects later, call this
/// before its threads start.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PROCESS.store(std::process::id(), Ordering::Release);
        for ((signal, _), before) in SIGNALS.into_iter().zip(&BEFORE) {
            // SAFETY: all zeros is a sigaction without flags and with an empty mask; the handler
            // has the type that SA_SIGINFO requires and is async-signal-safe.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut old: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as libc::sighandler_t;
                // On the thread's signal stack, if it has one: its own stack may be full.
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
                libc::sigaction(signal, &raw const action, &raw mut old);
                let is_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&old.sa_sigaction)
                    && old.sa_flags & libc::SA_SIGINFO != 0;
                before.store(if is_handler { old.sa_sigaction } else { 0 }, Ordering::Release);
            }
        }
        // SAFETY: the function takes and returns nothing, and is safe in an exit handler.
        unsafe { libc::atexit(at_exit) };
        IS_INSTALLED.store(true, Ordering::Release);
    });
}

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let at = SIGNALS.iter().position(|(number, _)| *number == signal).unwrap_or(0);
    say(&[" raised ", SIGNALS[at].1, ", which ends the process"]);
    let before = BEFORE[at].load(Ordering::Acquire);
    if before != 0 {
        // SAFETY: it was installed with SA_SIGINFO, which defines its type.
        let before: Handler = unsafe { std::mem::transmute(before) };
        before(signal, info, context);
    }
    // SAFETY: the kernel passes the signal's data. A signal that was sent, rather than raised by an
    // instruction that runs again, is sent again: the default handler is in place now.
    unsafe {
        if (*info).si_code <= 0 {
            let thread = libc::syscall(libc::SYS_gettid);
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal);
        }
    }
}

/// Prints once the fault of the called object. For signal handlers.
fn say(words: &[&str; 3]) {
    static HAS_SAID: AtomicBool = AtomicBool::new(false);
    // SAFETY: set by `enter` to a record that lives as long as the call.
    let Some(record) = (unsafe { CURRENT.get().as_ref() }) else { return };
    if HAS_SAID.swap(true, Ordering::AcqRel) {
        return;
    }
    let call = Call::name(record.call.load(Ordering::Relaxed));
    let [first, second, third] = *words;
    let parts = ["picnic: ", &record.object, ": ", call, first, second, third, "\n"];
    let parts = parts
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: the parts are texts, and `parts.len()` is their number.
    unsafe { libc::writev(2, parts.as_ptr(), parts.len() as libc::c_int) };
}

extern "C" fn at_exit() {
    judge_exit();
}

/// Runs before this thread ends the process; does not return if an object caused it.
fn judge_exit() {
    // SAFETY: as in `say`.
    let Some(record) = (unsafe { CURRENT.get().as_ref() }) else { return };
    // A forked child may end freely.
    if std::process::id() != PROCESS.load(Ordering::Acquire) {
        return;
    }
    let is_first = rustix::thread::gettid() == rustix::process::getpid();
    let is_watched = record.is_helped.load(Ordering::Acquire)
        || WATCHERS.load(Ordering::Acquire) != 0 && !is_first;
    if !is_watched {
        say(&[" tried to end the process", "", ", which ends with status 1"]);
        picnic_confine::end_process(1);
    }
    HAS_ENDED.store(true, Ordering::Release);
    abandon();
    record.has_ended.store(true, Ordering::Release);
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

// ---------------------------------------------------------------- calls that may take long

/// Longest wait for a call after a stop was requested, or on a thread that serves others.
pub const PATIENCE: Duration = Duration::from_millis(1500);
/// Interval between checks whether a call has returned.
pub const LOOK: Duration = Duration::from_millis(25);

/// Declares that the calling thread serves others: it waits at most [`PATIENCE`] for a call.
pub fn hurry() {
    HURRIES.set(true);
}

type Job = Box<dyn FnOnce() + Send>;

/// The place of a call's result. Not a channel: a thread's first wait on a channel takes the
/// loader's lock, which the thread that runs a constructor holds.
#[derive(Debug)]
struct Answer<R> {
    result: Mutex<Slot<R>>,
    is_there: Condvar,
}

#[derive(Debug)]
enum Slot<R> {
    Empty,
    Full(R),
    /// No result will come.
    Gone,
}

impl<R> Answer<R> {
    fn tell(&self, told: Slot<R>) {
        let mut slot = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*slot, Slot::Empty) {
            *slot = told;
        }
        self.is_there.notify_all();
    }

    /// The result, waiting for at most `time`.
    fn wait(&self, time: Duration) -> Slot<R> {
        let slot = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let is_empty = |slot: &mut Slot<R>| matches!(slot, Slot::Empty);
        let waited = self.is_there.wait_timeout_while(slot, time, is_empty);
        let (mut slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut slot, Slot::Empty)
    }
}

/// Reports on drop that no result will come.
struct Tells<R>(Arc<Answer<R>>);

impl<R> Drop for Tells<R> {
    fn drop(&mut self) {
        self.0.tell(Slot::Gone);
    }
}

/// The thread of an object, for calls that may take long.
#[derive(Debug)]
pub(crate) struct Helper {
    record: Arc<Record>,
    stop: Stop,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot start, in words.
    pub(crate) fn start(record: Arc<Record>, stop: Stop) -> Result<Self, String> {
        let (jobs, receiver) = mpsc::channel::<Job>();
        let body = move || {
            this_thread();
            while let Ok(job) = receiver.recv() {
                job();
            }
        };
        let thread = std::thread::Builder::new().name("plugin".into()).spawn(body);
        let thread = thread.map_err(|error| format!("cannot start its thread: {error}"))?;
        Ok(Helper { record, stop, jobs: Some(jobs), thread: Some(thread) })
    }

    /// Confines the thread to the privileges and system calls of a thread that ends a card.
    pub(crate) fn confine(&self) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Box::new(|| set_up(Role::Main, CapabilitySet::empty())));
        }
    }

    /// Whether the thread can make calls.
    pub(crate) fn is_there(&self) -> bool {
        self.jobs.is_some()
    }

    /// Calls a function on the thread and waits until it returns, a stop is requested, or the
    /// caller [serves others](hurry) and runs out of patience.
    ///
    /// # Errors
    /// The reason why it did not return. The thread is then abandoned: no other call can be made.
    pub(crate) fn run<R: Send + 'static>(
        &mut self,
        call: Call,
        body: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, String> {
        let answer = Arc::new(Answer { result: Mutex::new(Slot::Empty), is_there: Condvar::new() });
        let tells = Tells(answer.clone());
        let record = self.record.clone();
        let job = move || {
            record.is_helped.store(true, Ordering::Release);
            let entered = enter(&record, call);
            let returned = body();
            drop(entered);
            record.is_helped.store(false, Ordering::Release);
            tells.0.tell(Slot::Full(returned));
        };
        let is_sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(Box::new(job)).is_ok());
        let returned = if is_sent { self.wait(&answer) } else { Err("has no thread".into()) };
        returned.map_err(|why| {
            self.jobs = None;
            self.thread = None;
            abandon();
            format!("{} {why}", Call::name(call as u8))
        })
    }

    fn wait<R>(&self, answer: &Answer<R>) -> Result<R, String> {
        // Count checks, not time: a suspended process sees no time pass. A thread that has not begun
        // the call has no core yet.
        let most = PATIENCE.as_millis() / LOOK.as_millis();
        let mut looks = 0;
        while looks < most {
            match answer.wait(LOOK) {
                Slot::Full(returned) => return Ok(returned),
                Slot::Gone => return Err("has panicked".into()),
                Slot::Empty => {}
            }
            if let Some(fault) = self.record.fault() {
                return Err(fault.into());
            }
            let has_begun = self.record.is_helped.load(Ordering::Acquire);
            looks += u128::from(has_begun && (HURRIES.get() || self.stop.is_asked()));
        }
        Err(format!("has not returned for {} s", PATIENCE.as_secs_f64()))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_for_calls_that_have_begun() {
        let late = Duration::from_millis(100) + PATIENCE;
        let helper = || Helper::start(Record::new(Path::new("a.so")), Stop::default()).unwrap();
        let hurried = |mut helper: Helper, body: fn()| {
            let waits = move || {
                hurry();
                helper.run(Call::Init, body)
            };
            std::thread::spawn(waits).join().unwrap()
        };
        let busy = helper();
        busy.jobs.as_ref().unwrap().send(Box::new(move || std::thread::sleep(late))).unwrap();
        assert_eq!(hurried(busy, || {}), Ok(()));
        let stuck = hurried(helper(), || std::thread::sleep(Duration::from_secs(3600)));
        assert!(stuck.unwrap_err().contains("has not returned for 1.5 s"));
    }
}
