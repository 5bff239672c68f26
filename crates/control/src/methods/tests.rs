//! Commands to the borrowed core, and matching answers to callers.

use super::*;
use crate::bench;
use crate::captures::CaptureRequest;
use crate::error::RunError;
use crate::protocol::INVALID_PARAMS;
use crate::request::Reference;
use picnic_core::command::Prepared;
use picnic_core::config::Section;
use picnic_core::doorbell::NoDoorbell;
use picnic_core::function::Function;
use picnic_core::hook::{Hook, HookPoint};
use picnic_core::kernel::KernelCounts;
use picnic_core::port::Capabilities;
use picnic_core::registry::find;
use picnic_core::ring::gate::Gate;
use picnic_core::time::Time;
use picnic_engine::chain::ChainFunction;
use picnic_engine::swap::{self, Mailbox};
use picnic_engine::view::FunctionView;
use picnic_forms::KernelForm;
use picnic_machine::error::MachineError;
use picnic_testing::{PATIENCE, wait_until};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

/// The methods of a card whose borrowed core is this test.
fn methods() -> (Methods, Mailbox) {
    methods_of("")
}

fn methods_of(text: &str) -> (Methods, Mailbox) {
    let file = bench::card(text);
    let mut methods = bench::Bench::new(&file).methods.take().unwrap();
    let functions = methods.monitor.view.functions.clone();
    let (controller, mailbox) =
        swap::channel(Arc::new(Gate::new()), Arc::new(NoDoorbell), functions);
    methods.line.controller = controller;
    (methods.patience, methods.line.again) = (PATIENCE, PATIENCE);
    (methods, mailbox)
}

fn told(command: &Command) -> String {
    match command {
        Command::Poll(ns) => format!("poll {ns}"),
        Command::TxPause(ns) => format!("pause {ns}"),
        Command::Throttle(usecs, frames) => format!("throttle {usecs} {frames}"),
        Command::Complete(mode) => format!("complete {mode:?}"),
        Command::Unmask(is_unmasked) => format!("unmask {is_unmasked}"),
        Command::Moderate(mode) => format!("{mode:?}"),
        _ => "another".into(),
    }
}

/// The borrowed core: a thread that looks again and again, until it is ended.
struct Core<T> {
    end: Sender<()>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Core<T> {
    fn new(mut state: T, mut look: impl FnMut(&mut T) + Send + 'static) -> Self {
        let (end, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            while told.recv_timeout(Duration::ZERO) != Err(mpsc::RecvTimeoutError::Disconnected) {
                look(&mut state);
                std::thread::sleep(Duration::from_micros(50));
            }
            state
        });
        Core { end, thread }
    }

    fn ended(self) -> T {
        drop(self.end);
        self.thread.join().unwrap()
    }
}

/// Answers a number of commands; returns the commands.
fn answering(mut mailbox: Mailbox, first: usize) -> (Core<()>, Receiver<String>) {
    let (sender, heard) = mpsc::channel();
    let (mut waiting, mut are_enough) = (Vec::new(), false);
    let core = Core::new((), move |()| {
        while let Some(command) = mailbox.next_command() {
            sender.send(told(&command)).unwrap();
            waiting.push(command);
        }
        are_enough |= waiting.len() >= first;
        if are_enough {
            for command in waiting.drain(..) {
                mailbox.answer(Answer { done: true, replaced: command });
            }
        }
    });
    (core, heard)
}

/// Has a function obey the next command, if there is one and it does; whether there was.
fn obey(mailbox: &mut Mailbox, function: &mut Box<dyn Function>, does: bool) -> bool {
    let Some(command) = mailbox.next_command() else { return false };
    let Command::Function(direction, position, mut order) = command else {
        panic!("another command")
    };
    let done = does && function.obey(&mut order, Time::ZERO);
    mailbox.answer(Answer { done, replaced: Command::Function(direction, position, order) });
    true
}

/// The request of a method with these parameters.
fn request(method: &str, params: Value) -> Request {
    crate::request::read(method, params.as_object().unwrap().clone()).unwrap()
}

/// The result of a call.
fn call(methods: &mut Methods, method: &str, params: Value) -> Result<Value, RpcError> {
    match methods.call(request(method, params), Caller::default(), || None)? {
        CallResult::Now(result) => Ok(result),
        other => panic!("{other:?}"),
    }
}

fn all(heard: &Receiver<String>) -> Vec<String> {
    heard.try_iter().collect()
}

#[test]
fn only_changes_are_sent_to_the_card() {
    let (mut methods, mailbox) = methods();
    let (core, heard) = answering(mailbox, 1);
    let mut set = |change: Value| {
        let done = methods.moderate(change.as_object().unwrap()).unwrap();
        (all(&heard), done)
    };
    let (commands, done) = set(json!({ "tx_usecs": 50 }));
    assert!(commands.is_empty());
    assert_eq!(done["moderation"], done["replaced"]);
    assert_eq!(set(json!({ "poll_usecs": 3 })).0, ["poll 3000"]);
    assert_eq!(set(json!({ "poll_usecs": 0 })).0, ["poll 0"]);
    assert_eq!(set(json!({ "tx_usecs": 7 })).0, ["pause 7000"]);
    assert_eq!(set(json!({ "gate": "none" })).0, ["unmask true"]);
    assert_eq!(set(json!({ "gate": "queue" })).0, ["unmask false"]);
    assert_eq!(set(json!({ "tx_complete": "moderated" })).0, ["complete Moderated"]);
    assert_eq!(set(json!({ "tx_complete": "off" })).0, ["complete Off"]);
    let (commands, done) = set(json!({ "rx_usecs": 0 }));
    assert_eq!(commands, ["None"]);
    assert_eq!(
        (&done["moderation"]["rx_usecs"], &done["replaced"]["tx_usecs"]),
        (&json!(0), &json!(7))
    );
    // An unchanged value is no change; several changes are sent in turn.
    let same = json!({ "poll_usecs": 0, "tx_usecs": 7, "gate": "queue", "rx_usecs": 0 });
    assert!(set(same).0.is_empty());
    let several = json!({ "tx_usecs": 0, "gate": "none", "per_packet": true });
    assert_eq!(set(several).0, ["pause 0", "unmask true", "PerPacket"]);
    core.ended();
}

/// If a change is impossible as a whole, no part is sent.
#[test]
fn conflicting_changes_are_refused_while_running() {
    for (card, change, wanted) in [
        (
            "",
            json!({ "tx_usecs": 9, "per_packet": true, "rx_frames": 8 }),
            "rx_frames: found 8 with per_packet = true, allowed: 0 or no key",
        ),
        (
            "rx_frames = 8",
            json!({ "tx_usecs": 9, "per_packet": true }),
            "rx_frames: found 8 with per_packet = true, allowed: 0 or no key",
        ),
        (
            "per_packet = true",
            json!({ "tx_usecs": 9, "adaptive": true }),
            "adaptive: found true with per_packet = true, allowed: false",
        ),
        (
            "poll_usecs = 3",
            json!({ "tx_usecs": 9, "gate": "none" }),
            "poll_usecs: found 3 with gate = \"none\", allowed: 0",
        ),
        (
            "gate = \"none\"",
            json!({ "tx_usecs": 9, "poll_usecs": 5 }),
            "poll_usecs: found 5 with gate = \"none\", allowed: 0",
        ),
        (
            "",
            json!({ "tx_usecs": 9, "wire_frames": 5 }),
            "wire_frames: found 5 without wire_usecs, allowed: 0, or a time",
        ),
    ] {
        let (mut methods, mut mailbox) = methods_of(&format!("[interrupt]\n{card}\n"));
        let before = value(&methods.interrupt).unwrap();
        let refused = methods.moderate(change.as_object().unwrap()).unwrap_err().message;
        assert_eq!(refused, wanted);
        assert!(mailbox.next_command().is_none(), "{wanted}");
        assert_eq!(value(&methods.interrupt).unwrap(), before);
    }
}

#[test]
fn wire_moderation_changes_where_supported() {
    let able = Capabilities { tells_waiting: true, ..Capabilities::default() };
    let are = |methods: &mut Methods, capabilities: Capabilities| {
        let wires = methods.monitor.view.wires.iter_mut();
        wires.for_each(|wire| wire.capabilities = capabilities);
    };
    let (mut methods, mailbox) = methods();
    are(&mut methods, able);
    let (core, heard) = answering(mailbox, 1);
    let set = |methods: &mut Methods, change: Value| methods.moderate(change.as_object().unwrap());
    // Both are sent together if either has changed.
    for (change, told) in [
        (json!({ "wire_usecs": 5 }), "throttle 5 0"),
        (json!({ "wire_frames": 8 }), "throttle 5 8"),
        (json!({ "wire_usecs": 6 }), "throttle 6 8"),
        (json!({ "wire_usecs": 0, "wire_frames": 0 }), "throttle 0 0"),
    ] {
        let done = set(&mut methods, change).unwrap();
        assert_eq!(all(&heard), [told]);
        assert_eq!(done["moderation"], value(&methods.interrupt).unwrap());
    }
    // Obeyed commands count even if the next gets no answer. A busy machine may need longer.
    let half_obeyed = [20, 200, 2_000, 20_000].into_iter().any(|patience_ms| {
        let (mut methods, mut mailbox) = self::methods();
        are(&mut methods, able);
        methods.patience = Duration::from_millis(patience_ms);
        let thread = std::thread::spawn(move || {
            let replaced = loop {
                if let Some(command) = mailbox.next_command() {
                    break command;
                }
                std::thread::sleep(Duration::from_micros(50));
            };
            mailbox.answer(Answer { done: true, replaced });
            mailbox
        });
        let error = set(&mut methods, json!({ "wire_usecs": 5, "gate": "none" })).unwrap_err();
        drop(thread.join().unwrap());
        assert_eq!((error.code, methods.interrupt.gate), (NO_ANSWER, GateMode::Queue));
        methods.interrupt.wire_usecs == 5
    });
    assert!(half_obeyed);
    // Values that a card file could not have are refused before anything is sent.
    let patient = Capabilities { patient: true, ..able };
    for (wire, change, wanted) in [
        (
            able,
            json!({ "tx_usecs": 9, "wire_frames": 5 }),
            "wire_frames: found 5 without wire_usecs",
        ),
        (
            patient,
            json!({ "tx_usecs": 9, "wire_usecs": 5 }),
            "wire_usecs: found 5 with a wire that waits until it is polled",
        ),
        (
            Capabilities::default(),
            json!({ "tx_usecs": 9, "wire_usecs": 5, "wire_frames": 7 }),
            "wire_frames: found 7 with a wire that cannot tell how many frames wait",
        ),
    ] {
        are(&mut methods, wire);
        let refused = set(&mut methods, change).unwrap_err().message;
        assert!(refused.starts_with(wanted), "{refused}");
        assert!(all(&heard).is_empty());
    }
    core.ended();
}

#[test]
fn shared_wires_are_not_moderated() {
    let (mut methods, mut kernel, mut poll) = shared();
    for usecs in [1, 5] {
        let change = json!({ "wire_usecs": usecs });
        let refused = methods.moderate(change.as_object().unwrap()).unwrap_err().message;
        let told = format!("wire_usecs: found {usecs}, allowed with engine = \"hybrid\": 0, as");
        assert!(refused.starts_with(&told), "{refused}");
    }
    assert!(kernel.next_command().is_none() && poll.next_command().is_none());
}

#[test]
fn changes_before_a_timeout_are_remembered() {
    let (mut methods, mut mailbox) = methods();
    methods.patience = Duration::ZERO;
    // Two parts change; none is answered, so the first ends the attempt.
    let change = json!({ "poll_usecs": 3, "tx_usecs": 7 });
    let error = methods.moderate(change.as_object().unwrap()).unwrap_err();
    assert_eq!(error.code, NO_ANSWER);
    let now = (methods.interrupt.poll_usecs, methods.interrupt.tx_usecs);
    assert_eq!(now, (0, 50));
    assert_eq!(mailbox.next_command().map(|command| told(&command)).as_deref(), Some("poll 3000"));
    assert!(mailbox.next_command().is_none());
    // Two parts are answered, and the last is not: the two hold.
    for change in [
        json!({ "tx_usecs": 7, "gate": "none", "per_packet": true }),
        json!({ "poll_usecs": 3, "tx_complete": "interrupt", "per_packet": true }),
    ] {
        let (mut methods, mut mailbox) = self::methods();
        methods.patience = Duration::ZERO;
        (0..2).for_each(|_| mailbox.answer(Answer { done: true, replaced: Command::Poll(0) }));
        let before = methods.interrupt.clone();
        let mut change = change.as_object().unwrap().clone();
        assert_eq!(methods.moderate(&change).unwrap_err().code, NO_ANSWER);
        change.remove("per_packet");
        assert_eq!(methods.interrupt, before.changed(&change).unwrap());
    }
}

/// A card with `rss` shared by the kernel and the poll engine, both simulated by this test.
fn shared() -> (Methods, Mailbox, Mailbox) {
    let (mut methods, kernel) = methods();
    let functions = methods.monitor.view.functions.clone();
    let rss = FunctionView { name: "rss".into(), counters: Arc::default() };
    functions.replace(Direction::Rx, vec![rss]);
    let (controller, poll) =
        swap::channel(Arc::new(Gate::new()), Arc::new(NoDoorbell), functions.clone());
    let line = Line::new(controller);
    methods.beside = Some(Part { line, alone: Vec::new(), functions });
    methods.registries.functions = picnic_functions::registry::FUNCTIONS;
    (methods, kernel, poll)
}

/// The recipient of each command on a shared card.
#[test]
fn commands_reach_the_right_part_of_a_shared_card() {
    let (mut methods, mut kernel, mut poll) = shared();
    methods.patience = Duration::ZERO;
    let order = || methods_order(&methods.registries);
    let (first, second, third) = (order(), order(), order());
    // For a function in both, the kernel's comes first; everything else is the poll engine's.
    let _ = methods.command(Command::Function(Direction::Rx, 0, first));
    assert!(kernel.next_command().is_some() && poll.next_command().is_none());
    let _ = methods.command(Command::Function(Direction::Tx, 0, second));
    let _ = methods.command(Command::Poll(1));
    assert!(kernel.next_command().is_none());
    assert_eq!(std::iter::from_fn(|| poll.next_command()).count(), 2);
    // A function only in the poll engine is not requested from the kernel.
    methods.beside.as_mut().unwrap().alone = vec![0];
    let _ = methods.command(Command::Function(Direction::Rx, 0, third));
    assert!(kernel.next_command().is_none() && poll.next_command().is_some());
    // Moderation changes there, too.
    call(&mut methods, "moderation.get", json!({})).unwrap();
}

/// An `rss` that has found `unhashed` packets without a hash.
fn rss_of(unhashed: u64) -> Box<dyn Function> {
    let mut function = real_function();
    function.note_kernel(&KernelCounts { unhashed, ..KernelCounts::default() });
    function
}

/// The first function's counters in `card.stats`, or in the metrics.
fn own(methods: &mut Methods) -> (Value, String) {
    let stats = call(methods, "card.stats", json!({ "counters": true })).unwrap();
    let function = &stats["functions"][0];
    (json!([function["counters"], function["gauges"]]), methods.metrics(false))
}

/// Counts of both parts are included once each.
#[test]
fn function_figures_cover_both_parts() {
    for (alone, unhashed) in [(vec![], 12), (vec![0], 7)] {
        let (mut methods, mut kernel, mut poll) = shared();
        methods.beside.as_mut().unwrap().alone = alone;
        methods.scrape_patience = PATIENCE;
        let core = Core::new((rss_of(5), rss_of(7)), move |(first, second)| {
            let _ = (obey(&mut kernel, first, true), obey(&mut poll, second, true));
        });
        let (figures, page) = own(&mut methods);
        core.ended();
        let counters = json!({ "unhashed": unhashed, "moved_entries": 0, "rebalanced_entries": 0 });
        assert_eq!(figures, json!([counters, { "queues": 2 }]));
        let labels = "card=\"picnic0\",chain=\"rx\",position=\"0\",function=\"rss\"";
        let counter =
            format!("picnic_function_counter_total{{{labels},counter=\"unhashed\"}} {unhashed}\n");
        assert!(page.contains(&counter), "{page}");
        let gauge = format!("picnic_function_gauge{{{labels},gauge=\"queues\"}} 2.0\n");
        assert!(page.contains(&gauge), "{page}");
    }
}

/// Readers of metrics wait for functions only for a limited time, or not if the card stops.
/// Figures of one part alone are omitted.
#[test]
fn metrics_omit_figures_of_unresponsive_functions() {
    // The kernel's part answers in time; a busy machine may need longer.
    let was_asked = [1, 10, 100].into_iter().any(|times| {
        let (mut methods, mut kernel, mut poll) = shared();
        methods.scrape_patience = times * SCRAPE_PATIENCE;
        let core = Core::new((rss_of(5), 0), move |(function, asked)| {
            *asked += u32::from(obey(&mut kernel, function, true));
        });
        let stopping = methods.metrics(true);
        let start = Instant::now();
        let silent = methods.metrics(false);
        let waited = start.elapsed();
        let asked = core.ended().1;
        assert!(asked <= 1, "not of the card that stops");
        assert!((methods.scrape_patience..methods.patience).contains(&waited), "{waited:?}");
        for page in [stopping, silent] {
            assert!(page.contains("picnic_function_received_packets_total{"), "{page}");
            assert!(!page.contains("picnic_function_counter_total{"), "{page}");
            assert!(!page.contains("picnic_function_gauge{"), "{page}");
        }
        asked == 1 && poll.next_command().is_some()
    });
    assert!(was_asked);
}

/// A capture sees the poll engine's packets, and says so if others exist.
#[test]
fn partial_captures_say_so() {
    let start = |mut methods: Methods| {
        let _probe = methods.captures().observer(&HookPoint::Wire { index: 0, name: "wire0" });
        let file = || Some(tempfile::tempfile().unwrap().into());
        match methods.call(
            Request::CaptureStart(CaptureRequest::default()),
            Caller::default(),
            file,
        ) {
            Ok(CallResult::Now(started)) => started,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(start(methods().0)["note"], Value::Null);
    assert_eq!(start(shared().0)["note"], IN_PART);
}

/// Changes that an engine excludes are refused with its reason, the rest is not.
#[test]
fn fixed_settings_are_refused() {
    let (mut methods, _mailbox) = methods();
    methods.fixed = Some("the kernel has it");
    let swap = ("chain.swap", json!({ "chain": "rx", "functions": [] }));
    for (method, params) in
        [("capture.start", json!({})), ("moderation.get", json!({})), swap.clone()]
    {
        let refusal = call(&mut methods, method, params).unwrap_err();
        assert_eq!((refusal.code, &*refusal.message), (REFUSED, "the kernel has it"));
    }
    call(&mut methods, "capture.list", json!({})).unwrap();
    // An engine with its own swap has not excluded its chain.
    methods.swap_rx = Some(Box::new(Swaps { is_able: true }));
    call(&mut methods, swap.0, swap.1).unwrap();
}

/// For a function in both parts, the kernel's form decides which commands work.
#[test]
fn poll_engine_only_commands_skip_the_kernel() {
    let (mut methods, _kernel, _poll) = shared();
    methods.patience = Duration::ZERO;
    let director = FunctionView { name: "flow-director".into(), counters: Arc::default() };
    methods.monitor.view.functions.replace(Direction::Rx, vec![director]);
    for (alone, code) in [(vec![], INVALID_PARAMS), (vec![0], NO_ANSWER)] {
        methods.beside.as_mut().unwrap().alone = alone;
        let error = call(&mut methods, "flow-director.add", json!({ "mark": 5 })).unwrap_err();
        assert_eq!(error.code, code, "{error:?}");
    }
}

/// A command for both parts reaches the second only after the first has succeeded.
#[test]
fn commands_refused_by_the_kernel_stop_there() {
    for is_done in [true, false] {
        let (mut methods, mut kernel, mut poll) = shared();
        let both = [real_function(), real_function()];
        let core = Core::new(both, move |[first, second]| {
            let _ = (obey(&mut kernel, first, is_done), obey(&mut poll, second, true));
        });
        let result = call(&mut methods, "rss.set", json!({ "table": [1, 1, 1, 1] }));
        let after = core.ended().map(|function| form_of(&*function));
        let before = form_of(&*real_function());
        assert_eq!(result.is_ok(), is_done, "{result:?}");
        assert_eq!(after.map(|form| form != before), [is_done; 2]);
    }
}

/// An engine that swaps its chain itself, next to the poll engine.
struct Swaps {
    is_able: bool,
}

impl SwapRx for Swaps {
    fn swap(
        &mut self,
        _sections: &[Section],
        _base: &BuildContext,
        exchange: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<Vec<usize>, RunError> {
        exchange()?;
        if self.is_able {
            return Ok(vec![1]);
        }
        exchange()?;
        Err(MachineError::Refused("it cannot".into()).into())
    }
}

/// A swap of both parts: the poll engine gets the new functions, or its old ones back.
#[test]
fn failed_kernel_swaps_restore_the_poll_engine() {
    for is_able in [true, false] {
        let (mut methods, _kernel, mut poll) = shared();
        methods.swap_rx = Some(Box::new(Swaps { is_able }));
        let mut there = vec![ChainFunction::new("rss", real_function())];
        let core = Core::new(vec!["rss".to_owned()], move |chain| {
            if let Some(Command::Swap(Direction::Rx, links)) = poll.next_command() {
                chain.push(links.iter().map(|link| &*link.name).collect());
                let replaced = Command::Swap(Direction::Rx, std::mem::replace(&mut there, links));
                poll.answer(Answer { done: true, replaced });
            }
        });
        let params = json!({ "chain": "rx", "toml": "[[rx]]\nfunction = \"pass\"" });
        let result = call(&mut methods, "chain.swap", params);
        let chain = core.ended();
        let alone = methods.beside.unwrap().alone;
        if is_able {
            assert!(result.is_ok(), "{result:?}");
            assert_eq!((chain, alone), (["rss", "pass"].map(String::from).into(), vec![1]));
        } else {
            assert_eq!(result.unwrap_err().message, "it cannot");
            assert_eq!((chain, alone), (["rss", "pass", "rss"].map(String::from).into(), vec![]));
        }
    }
}

/// The tx chain is the poll engine's, whose functions are not those that the card shows.
#[test]
fn another_tx_chain_of_a_shared_card_is_shown() {
    let (mut methods, _kernel, _) = shared();
    let functions = Functions::fixed(Vec::new());
    let (controller, poll) =
        swap::channel(Arc::new(Gate::new()), Arc::new(NoDoorbell), functions.clone());
    methods.beside = Some(Part { line: Line::new(controller), alone: Vec::new(), functions });
    let (core, _heard) = answering(poll, 1);
    let params = json!({ "chain": "tx", "functions": [{ "function": "pass" }] });
    let swapped = call(&mut methods, "chain.swap", params).unwrap();
    assert_eq!(swapped["functions"], json!(["pass"]));
    assert_eq!(methods.chains()["tx"][0]["function"], "pass");
    core.ended();
}

/// If the poll engine does not answer, the kernel keeps its chain, and the poll engine gets its own
/// back before any other command, however late it swapped.
#[test]
fn unanswered_swaps_leave_the_kernel_alone() {
    let (mut methods, _kernel, mut poll) = shared();
    methods.patience = Duration::ZERO;
    methods.swap_rx = Some(Box::new(Swaps { is_able: true }));
    let params = json!({ "chain": "rx", "toml": "rx = []" });
    let error = call(&mut methods, "chain.swap", params).unwrap_err();
    assert_eq!(error.code, NO_ANSWER);
    let message = "the borrowed core has not answered for 0 s: swap again when it does";
    assert!(error.message.starts_with(message), "{}", error.message);
    // While it is silent, it gets no other command.
    let Err(error) = methods.command(Command::Poll(1)) else { panic!("no answer") };
    assert_eq!(error.code, NO_ANSWER);
    let Some(Command::Swap(Direction::Rx, links)) = poll.next_command() else {
        panic!("another command")
    };
    assert!(links.is_empty() && poll.next_command().is_none());
    let before = vec![ChainFunction::new("rss", real_function())];
    poll.answer(Answer { done: true, replaced: Command::Swap(Direction::Rx, before) });
    let _ = methods.command(Command::Poll(1));
    let Some(Command::Swap(Direction::Rx, links)) = poll.next_command() else {
        panic!("another command")
    };
    assert_eq!(links.iter().map(|link| &*link.name).collect::<Vec<_>>(), ["rss"]);
    assert!(matches!(poll.next_command(), Some(Command::Poll(1))));
}

fn form_of(function: &dyn Function) -> Option<KernelForm> {
    function.kernel_form()?.open()
}

fn real_function() -> Box<dyn Function> {
    let section = Section::from_text("function", "function = \"rss\"").unwrap();
    let entry = find(picnic_functions::registry::FUNCTIONS, &section).unwrap();
    // As many queues as the card of these tests.
    entry.build(&section, &BuildContext { queues: 2, ..BuildContext::default() }).unwrap()
}

fn methods_order(registries: &Registries) -> Prepared {
    let entry = registries.functions.iter().find(|entry| entry.name == "rss").unwrap();
    let get = entry.commands.iter().find(|command| command.name == "get").unwrap();
    get.prepare(&json!({}), &BuildContext::default()).unwrap()
}

fn pause_of(answer: Result<Answer, RpcError>) -> u64 {
    match answer.map(|answer| answer.replaced) {
        Ok(Command::TxPause(ns)) => ns,
        Ok(other) => panic!("{}", told(&other)),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn late_answers_are_discarded() {
    let (mut methods, mut mailbox) = methods();
    methods.patience = Duration::from_millis(1);
    let late = |methods: &mut Methods, ns| {
        let Err(error) = methods.command(Command::TxPause(ns)) else { panic!("no answer") };
        assert_eq!(error.code, NO_ANSWER);
    };
    late(&mut methods, 1);
    late(&mut methods, 2);
    assert_eq!(methods.line.abandoned, 2);
    // Both arrive before the next command.
    while let Some(command) = mailbox.next_command() {
        mailbox.answer(Answer { done: true, replaced: command });
    }
    late(&mut methods, 3);
    assert_eq!(methods.line.abandoned, 1);
    late(&mut methods, 4);
    // Both arrive while the next command waits.
    methods.patience = PATIENCE;
    let (core, heard) = answering(mailbox, 3);
    assert_eq!(pause_of(methods.command(Command::TxPause(5))), 5);
    assert_eq!(
        (methods.line.abandoned, all(&heard)),
        (0, ["pause 3", "pause 4", "pause 5"].map(String::from).into())
    );
    assert_eq!(pause_of(methods.command(Command::TxPause(6))), 6);
    core.ended();
}

/// A command after a scrape that was given up has its whole time; only after a command that had it
/// does the next one get less.
#[test]
fn only_long_silence_shortens_the_next_wait() {
    let (mut methods, mut mailbox) = methods();
    methods.line.again = Duration::ZERO;
    assert!(methods.command_within(Command::TxPause(1), Duration::ZERO).is_err());
    let waiting = mailbox.next_command().unwrap();
    let core = Core::new((mailbox, Some(waiting)), |(mailbox, waiting)| {
        let Some(command) = mailbox.next_command() else { return };
        for replaced in waiting.take().into_iter().chain([command]) {
            mailbox.answer(Answer { done: true, replaced });
        }
    });
    assert_eq!(pause_of(methods.command(Command::TxPause(2))), 2);
    let (mailbox, _) = core.ended();
    assert!(methods.command_within(Command::TxPause(3), Duration::from_millis(1)).is_err());
    let Err(error) = methods.command(Command::TxPause(4)) else { panic!("no answer") };
    assert_eq!(error.message, "the borrowed core has not answered for 0 s");
    let (core, _heard) = answering(mailbox, 2);
    wait_until("it has answered", || methods.command(Command::TxPause(5)).is_ok());
    assert_eq!(pause_of(methods.command(Command::TxPause(6))), 6);
    core.ended();
}

/// Undoing a late half of a swap gets an answer, too.
#[test]
fn answers_to_undone_swaps_are_discarded() {
    let (mut methods, mut mailbox) = methods();
    let Err(error) = methods.line.half_of_swap(Vec::new(), Duration::ZERO) else {
        panic!("no answer")
    };
    assert_eq!(error.code, NO_ANSWER);
    let late = mailbox.next_command().unwrap();
    mailbox.answer(Answer { done: true, replaced: late });
    let (core, heard) = answering(mailbox, 1);
    assert_eq!(pause_of(methods.command(Command::TxPause(7))), 7);
    assert_eq!(all(&heard), ["another", "pause 7"]);
    assert_eq!(methods.line.abandoned, 0);
    core.ended();
}

/// No other late command is undone, nor a refused half.
#[test]
fn late_swap_halves_are_undone() {
    for (done, expected) in [(true, &["another", "pause 3"][..]), (false, &["pause 3"])] {
        let (mut methods, mut mailbox) = methods();
        methods.patience = Duration::ZERO;
        assert!(methods.command(Command::TxPause(1)).is_err());
        assert!(methods.line.half_of_swap(Vec::new(), Duration::ZERO).is_err());
        while let Some(replaced) = mailbox.next_command() {
            mailbox.answer(Answer { done, replaced });
        }
        assert!(methods.command(Command::TxPause(3)).is_err());
        let commands = std::iter::from_fn(|| mailbox.next_command());
        assert_eq!(commands.map(|command| told(&command)).collect::<Vec<_>>(), expected);
    }
}

/// It holds in the kernel, too.
#[test]
fn late_restored_chains_stay() {
    let (mut methods, _kernel, mut poll) = shared();
    methods.patience = Duration::ZERO;
    methods.swap_rx = Some(Box::new(Swaps { is_able: false }));
    poll.answer(Answer { done: true, replaced: Command::Swap(Direction::Rx, Vec::new()) });
    let params = json!({ "chain": "rx", "toml": "rx = []" });
    assert_eq!(call(&mut methods, "chain.swap", params).unwrap_err().code, NO_ANSWER);
    let put_back = std::iter::from_fn(|| poll.next_command()).last().unwrap();
    poll.answer(Answer { done: true, replaced: put_back });
    assert!(methods.command(Command::Poll(1)).is_err());
    assert!(matches!(poll.next_command(), Some(Command::Poll(1))));
}

#[test]
fn full_command_rings_are_reported() {
    let (mut methods, _mailbox) = methods();
    methods.patience = Duration::ZERO;
    for _ in 0..100 {
        let Err(error) = methods.command(Command::Poll(1)) else { panic!("no answer") };
        assert_eq!(error.code, NO_ANSWER);
        assert_eq!(error.message, "the borrowed core has not answered for 0 s");
    }
    // As many as may be in progress.
    assert_eq!(methods.line.abandoned, 64);
}

#[test]
fn filters_are_found_by_number_or_unique_name() {
    let (methods, _mailbox) = methods();
    let add = |name: &str| {
        let keys = serde_json::from_value(json!({ "name": name, "action": "count" })).unwrap();
        methods.filter_add(&keys).unwrap()["id"].as_u64().unwrap()
    };
    let (web, first, second) = (add("web"), add("dns"), add("dns"));
    let shown = |reference: Reference| match methods.filter_show(&reference) {
        Ok(filter) => Ok(filter["id"].as_u64().unwrap()),
        Err(error) => Err((error.code, error.message)),
    };
    let named = |name: &str| shown(Reference::Name(name.into()));
    assert_eq!(named("web"), Ok(web));
    assert_eq!(shown(Reference::Number(second)), Ok(second));
    let told = "found filter \"wbe\", allowed: dns, web; did you mean \"web\"?";
    assert_eq!(named("wbe"), Err((REFUSED, told.into())));
    let (code, told) = named("dns").unwrap_err();
    assert_eq!(code, REFUSED);
    assert!(told.ends_with(&format!("use a number: {first}, {second}")), "{told}");
    let (code, told) = shown(Reference::Number(99)).unwrap_err();
    assert_eq!((code, &*told), (REFUSED, "found no filter 99"));
}
