//! The control thread: accepts clients, serves metrics, watches files.
//!
//! Each client has a thread, see [`crate::client`]. With all places taken, one more client can
//! still read the card's state and stop it.

use crate::client::{Board, Client, LOOK};
use crate::http::Site;
use crate::methods::Methods;
use crate::protocol::{LIMIT, NOT_PERMITTED, RpcError, answer};
use crate::server::{Doors, Shared};
use crate::watch::{self, Watcher};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    SendFlags, Shutdown, SocketFlags, accept_with, send, shutdown, sockopt::socket_peercred,
};
use serde_json::Value;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest sleep, so that hanging readers of metrics are noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// How old the live page's figures may be.
const LIVE: Duration = Duration::from_millis(250);
/// Longest wait for captures after the card has ended.
const LAST_CAPTURES: Duration = Duration::from_secs(3);

/// The thread's own state.
pub(super) struct Service {
    doors: Doors,
    board: Arc<Board>,
    shared: Arc<Shared>,
    /// The clients' connections and threads.
    clients: Vec<(Arc<OwnedFd>, JoinHandle<()>)>,
    next_client: u64,
    watcher: Option<Watcher>,
    live: Live,
}

/// The live page's figures, made once for all its readers.
#[derive(Default)]
struct Live {
    made: Option<Instant>,
    text: String,
}

impl Live {
    /// The figures, at most [`LIVE`] old: however many ask, the card is asked no more often.
    fn text(&mut self, now: Instant, board: &Board, is_stopping: bool) -> String {
        let is_fresh = |made| now.saturating_duration_since(made) < LIVE;
        if !self.made.is_some_and(is_fresh) {
            self.text = board.methods().live(is_stopping).to_string();
            self.made = Some(now);
        }
        self.text.clone()
    }
}

impl Service {
    pub(super) fn new(
        doors: Doors,
        methods: Methods,
        shared: Arc<Shared>,
        watcher: Option<Watcher>,
    ) -> Self {
        let board = Board::new(methods, doors.limits, shared.clone());
        Service {
            doors,
            board,
            shared,
            clients: Vec::new(),
            next_client: 1,
            watcher,
            live: Live::default(),
        }
    }

    /// Serves until the thread shall end.
    pub(super) fn run(mut self) {
        while !self.shared.end.load(Ordering::Acquire) {
            self.wait();
            self.turn();
        }
        let captures = self.board.captures.clone();
        captures.stop_all();
        let give_up = Instant::now() + LAST_CAPTURES;
        while captures.are_any() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(2));
            captures.tick();
        }
        self.board.is_closed.store(true, Ordering::Release);
        for (stream, _) in &self.clients {
            // Received calls are answered, others are ignored.
            let _ = shutdown(stream, Shutdown::Read);
        }
        for (_, thread) in self.clients {
            // A panic there prints its own message.
            let _ = thread.join();
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        self.clients.retain(|(_, thread)| !thread.is_finished());
        self.accept();
        self.board.captures.tick();
        self.board.channels.tick();
        let is_stopping = self.shared.stopping.load(Ordering::Acquire);
        if let Some(watcher) = self.watcher.as_mut().filter(|_| !is_stopping) {
            let said = watcher.turn(now, &mut self.board.methods());
            self.shared.said.lock().unwrap_or_else(PoisonError::into_inner).extend(said);
        }
        for http in &mut self.doors.http {
            match http.site() {
                Site::Metrics => http.turn(now, || self.board.methods().metrics(is_stopping)),
                Site::Page => http.turn(now, || self.live.text(now, &self.board, is_stopping)),
            }
        }
    }

    /// Descriptors to wait for.
    fn sources(&self) -> Vec<PollFd<'_>> {
        let mut sources = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        if let Some(socket) = &self.doors.socket {
            sources.push(PollFd::new(&socket.listener, PollFlags::IN));
        }
        for http in &self.doors.http {
            sources.extend(http.sources().map(|(source, writes)| {
                let wants = if writes { PollFlags::OUT } else { PollFlags::IN };
                PollFd::from_borrowed_fd(source, wants)
            }));
        }
        sources
    }

    /// Sleeps until there is something to do.
    fn wait(&self) {
        let longest = match self.board.captures.are_any() {
            true => LOOK,
            false if self.watcher.is_some() => watch::LOOK,
            false => LONGEST_SLEEP,
        };
        let timeout = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        // An error means "check again", as after a signal.
        let _ = poll(&mut self.sources(), Some(&timeout));
    }

    /// Accepts waiting clients; those beyond the limit get an error.
    fn accept(&mut self) {
        while let Some(socket) = &self.doors.socket
            && let Ok(stream) = accept_with(&socket.listener, SocketFlags::CLOEXEC)
        {
            let stream = Arc::new(stream);
            let placed = permitted(&*stream).and_then(|()| self.board.place());
            let started = placed.and_then(|place| {
                let client = Client::new(self.next_client, stream.clone(), place);
                let thread = std::thread::Builder::new().name("control".into());
                let serve = move || {
                    // Functions begin and end here while the card should answer.
                    picnic_plugin::guard::hurry();
                    client.run();
                };
                thread.spawn(serve).map_err(|error| {
                    RpcError::new(LIMIT, format!("no thread for one more client: {error}"))
                })
            });
            self.next_client += 1;
            match started {
                Ok(thread) => self.clients.push((stream, thread)),
                Err(error) => {
                    let told = format!("{}\n", answer(&Value::Null, &Err(error)));
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    let _ = send(&stream, told.as_bytes(), flags);
                }
            }
        }
    }
}

/// Whether the process at the other end may use this card: its user's, or root's.
fn permitted(stream: impl AsFd) -> Result<(), RpcError> {
    let own = rustix::process::geteuid();
    match socket_peercred(&stream) {
        Ok(peer) if peer.uid == own || peer.uid.is_root() => Ok(()),
        Ok(peer) => {
            let (found, own) = (peer.uid.as_raw(), own.as_raw());
            let message = format!("found user {found}, allowed: user {own} or root");
            Err(RpcError::new(NOT_PERMITTED, message))
        }
        Err(error) => {
            let message = format!("the kernel does not identify the client: {error}");
            Err(RpcError::new(NOT_PERMITTED, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, card};
    use crate::captures::{CaptureRequest, Captures};
    use crate::http::{Http, Site};
    use crate::server::Limits;
    use crate::socket;
    use picnic_core::hook::{Hook, HookPoint};
    use picnic_testing::{PATIENCE, skip, wait_until};
    use rustix::process::Uid;
    use serde_json::json;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use tempfile::TempDir;

    /// The control thread's work for a running card.
    struct Served {
        captures: Captures,
        shared: Arc<Shared>,
        thread: Option<JoinHandle<()>>,
        bench: Bench,
        folder: TempDir,
    }

    struct Caller(BufReader<UnixStream>);

    /// A card's service without its thread, with two places.
    fn service(text: &str) -> (Service, Captures, Arc<Shared>, Bench, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let file = card(&format!("{text}\n[control]\nsocket = \"{}\"\n", path.display()));
        let mut bench = Bench::new(&file);
        let limits = Limits { clients: 2, ..Limits::default() };
        let doors = Doors { socket: socket::open(&file).unwrap(), http: Vec::new(), limits };
        let shared = Arc::new(Shared::new(bench.stop.clone()).unwrap());
        let methods = bench.methods.take().unwrap();
        let captures = methods.captures().clone();
        (Service::new(doors, methods, shared.clone(), None), captures, shared, bench, folder)
    }

    impl Served {
        fn new(text: &str) -> Self {
            let (service, captures, shared, bench, folder) = service(text);
            let thread = Some(std::thread::spawn(move || service.run()));
            Served { captures, shared, thread, bench, folder }
        }

        fn caller(&self) -> Caller {
            let stream = UnixStream::connect(self.folder.path().join("card.sock")).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Caller(BufReader::new(stream))
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.shared.end.store(true, Ordering::Release);
            let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
            self.thread.take().unwrap().join().unwrap();
        }
    }

    impl Caller {
        fn say(&mut self, text: &str) {
            self.0.get_mut().write_all(text.as_bytes()).unwrap();
        }

        /// The next line; none once its connection is closed.
        fn line(&mut self) -> Option<Value> {
            let mut line = String::new();
            let bytes = self.0.read_line(&mut line).expect("no answer");
            (bytes != 0).then(|| serde_json::from_str(&line).unwrap())
        }

        /// A call's result, or its error message.
        fn call(&mut self, method: &str, params: Value) -> Result<Value, String> {
            let call = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
            self.say(&format!("{call}\n"));
            let mut answer = self.line().expect("the connection is closed");
            assert_eq!(answer["id"], 7);
            match answer["error"]["message"].as_str() {
                Some(message) => Err(message.to_owned()),
                None => Ok(answer["result"].take()),
            }
        }
    }

    const CHAINS: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"chain.list\"}\n";

    #[test]
    fn reserved_place_may_stop_a_full_card() {
        let served = Served::new("");
        let (mut first, mut second) = (served.caller(), served.caller());
        for caller in [&mut first, &mut second] {
            assert!(caller.call("chain.list", json!({})).is_ok());
        }
        let (mut extra, mut none) = (served.caller(), served.caller());
        let full = "2 clients are connected, which is the limit";
        assert_eq!(none.line().unwrap()["error"]["message"], full);
        assert_eq!(none.line(), None, "and closed");
        let refused = extra.call("chain.list", json!({})).unwrap_err();
        assert_eq!(refused, format!("{full}: this one may call card.info and card.stop only"));
        assert!(extra.call("card.info", json!({})).is_ok());
        // It gets the next free place, and the reserved one is free again.
        drop(first);
        wait_until("the place is free", || extra.call("chain.list", json!({})).is_ok());
        let mut next = served.caller();
        assert!(!served.bench.stop.is_asked());
        assert!(next.call("card.stop", json!({})).is_ok());
        assert!(served.bench.stop.is_asked());
    }

    #[test]
    fn places_of_closed_connections_are_free_again() {
        let served = Served::new("");
        for _ in 0..60 {
            wait_until("there is a place", || {
                let Caller(mut stream) = served.caller();
                // A client without a place may be disconnected before it has spoken.
                let _ = stream.get_mut().write_all(CHAINS.as_bytes());
                let mut answer = String::new();
                stream.read_line(&mut answer).is_ok() && answer.contains("\"result\"")
            });
        }
    }

    #[test]
    fn busy_clients_do_not_block_others() {
        let served = Served::new("");
        let (mut busy, mut other) = (served.caller(), served.caller());
        let calls = 5_000;
        let mut writer = busy.0.get_ref().try_clone().unwrap();
        let asks = std::thread::spawn(move || {
            writer.write_all(CHAINS.repeat(calls).as_bytes()).unwrap();
        });
        assert_eq!(busy.line().unwrap()["id"], 1);
        assert!(other.call("card.info", json!({})).is_ok());
        (1..calls).for_each(|_| assert_eq!(busy.line().unwrap()["id"], 1));
        asks.join().unwrap();
    }

    #[test]
    fn stopping_cards_refuse_changes() {
        let served = Served::new("");
        let mut caller = served.caller();
        let empty = json!({ "chain": "rx", "functions": [] });
        assert!(caller.call("chain.swap", empty.clone()).is_ok());
        served.shared.stopping.store(true, Ordering::Release);
        let refused = caller.call("chain.swap", empty);
        assert_eq!(refused, Err("the card is stopping".into()));
        assert!(caller.call("card.info", json!({})).is_ok());
    }

    /// Any connection, to the socket or the metrics, ends its sleep.
    #[test]
    fn every_service_wakes_the_thread() {
        let (mut service, _, _, _bench, folder) = service("");
        let http = Http::bind(([127, 0, 0, 1], 0).into(), Site::Metrics).unwrap();
        let address = http.address().unwrap();
        service.doors.http = vec![http];
        let ready = |service: &Service| {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut service.sources(), Some(&now)).unwrap()
        };
        assert_eq!(ready(&service), 0);
        let _caller = UnixStream::connect(folder.path().join("card.sock")).unwrap();
        wait_until("it sees who connects", || ready(&service) == 1);
        let _reader = std::net::TcpStream::connect(address).unwrap();
        wait_until("it sees who wants the metrics", || ready(&service) == 2);
        service.turn();
        assert_eq!(ready(&service), 0);
    }

    #[test]
    fn unknown_commands_list_the_components() {
        let served = Served::new("");
        let mut caller = served.caller();
        let told = caller.call("app.wherr", json!({})).unwrap_err();
        assert!(told.contains("did you mean \"app.where\"?"), "{told}");
    }

    /// A single component is at position zero.
    #[test]
    fn commands_reach_the_place_of_their_component() {
        let served = Served::new("[[rx]]\nfunction = \"slot\"\n".repeat(2).as_str());
        let mut caller = served.caller();
        for (method, params, place) in [
            ("app.where", json!({}), 0),
            ("generator.where", json!({}), 0),
            ("generator.where", json!({ "position": 1 }), 1),
            ("slot.where", json!({}), 0),
            ("slot.where", json!({ "position": 1 }), 1),
        ] {
            let reply = caller.call(method, params).unwrap();
            assert_eq!(reply["place"], place, "{method}");
        }
    }

    #[test]
    fn several_calls_are_answered_in_order_and_notifications_are_not() {
        let served = Served::new("");
        let mut caller = served.caller();
        let call =
            |id: usize| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"chain.list\"}}");
        let note = "{\"jsonrpc\":\"2.0\",\"method\":\"chain.list\"}";
        // More than fit in a turn, including blank lines and a batch.
        let lines: Vec<_> = (0..20).map(|id| format!("{}\n\n{note}\n", call(id))).collect();
        let text = format!("{}[{},{note}]\n[{note}]\n{}\n", lines.concat(), call(20), call(21));
        caller.say(&text);
        for id in 0..20 {
            assert_eq!(caller.line().unwrap()["id"], id);
        }
        let batch = caller.line().unwrap();
        assert_eq!((batch.as_array().unwrap().len(), &batch[0]["id"]), (1, &json!(20)));
        assert_eq!(caller.line().unwrap()["id"], 21);
    }

    #[test]
    fn moderation_changes_key_by_key() {
        let mut served = Served::new("[interrupt]\ntx_usecs = 9\n");
        let mut caller = served.caller();
        let set = |caller: &mut Caller, change: Value| caller.call("moderation.set", change);
        let changed = set(&mut caller, json!({ "tx_complete": "interrupt" })).unwrap();
        assert_eq!(
            (&changed["moderation"]["tx_complete"], &changed["replaced"]["tx_complete"]),
            (&json!("interrupt"), &json!("off"))
        );
        // An unchanged value is no change.
        assert!(set(&mut caller, json!({ "wire_usecs": 0 })).is_ok());
        // After its hosts have had buffers to send with.
        let pause = |served: &mut Served| {
            let start = Instant::now();
            loop {
                served.bench.target.poll(picnic_core::time::Time::from_nanos(5));
                let pause = served.bench.target.tx_pause_ns();
                if pause.is_some() || start.elapsed() > Duration::from_secs(30) {
                    return pause;
                }
                std::thread::yield_now();
            }
        };
        assert_eq!(pause(&mut served), Some(9_000));
        let changed = set(&mut caller, json!({ "tx_usecs": 7, "rx_usecs": 3 }));
        let changed = changed.unwrap();
        assert_eq!(changed["moderation"]["tx_usecs"], 7);
        assert_eq!(changed["replaced"]["tx_usecs"], 9);
        assert_eq!(pause(&mut served), Some(7_000));
        let found = caller.call("moderation.get", json!({})).unwrap();
        assert_eq!((found["tx_usecs"].clone(), found["rx_usecs"].clone()), (7.into(), 3.into()));
        assert!(set(&mut caller, json!({ "poll_usecs": 1 })).is_ok());
        assert_eq!(caller.call("moderation.get", json!({})).unwrap()["poll_usecs"], 1);
    }

    #[test]
    fn filters_are_listed_by_group() {
        let served = Served::new("");
        let mut caller = served.caller();
        for (name, group) in [("a", "one"), ("b", "two"), ("c", "one")] {
            let keys = json!({ "name": name, "group": group, "action": "count" });
            caller.call("filter.add", json!({ "keys": keys })).unwrap();
        }
        let names = |caller: &mut Caller, params: Value| -> Vec<String> {
            let found = caller.call("filter.list", params).unwrap();
            let filters = found["filters"].as_array().unwrap().iter();
            filters.map(|filter| filter["name"].as_str().unwrap().into()).collect()
        };
        assert_eq!(names(&mut caller, json!({ "group": "one" })), ["a", "c"]);
        assert_eq!(names(&mut caller, json!({})), ["a", "c", "b"]);
    }

    #[test]
    fn tasks_are_created_and_killed() {
        let served = Served::new("[os]\n");
        let mut caller = served.caller();
        let create = json!({ "task": "idle", "keys": { "name": "x", "period_us": 500 } });
        let made = caller.call("task.create", create).unwrap();
        assert_eq!((made["name"].clone(), made["period_ns"].clone()), ("x".into(), 500_000.into()));
        assert!(made["response_ns"].is_object() && made["jitter_ns"].is_object(), "{made}");
        let twice = json!({ "task": "idle", "keys": { "task": "idle" } });
        let refused = caller.call("task.create", twice);
        assert_eq!(refused, Err("keys: found task, which belongs next to keys".into()));
        let listed = caller.call("task.list", json!({})).unwrap();
        assert!(listed["tasks"][0].get("response_ns").is_none(), "{listed}");
        let killed = caller.call("task.kill", json!({ "task": "x" })).unwrap();
        assert_eq!(killed["state"], "killed");
        let again = caller.call("task.kill", json!({ "task": "x" }));
        assert_eq!(again, Err("task: found \"x\", which has ended (killed)".into()));
    }

    #[test]
    fn schedulers_are_replaced_while_tasks_run() {
        let served = Served::new("[os]\n[[task]]\ntask = \"idle\"\n");
        let mut caller = served.caller();
        let mut call = |params: Value| caller.call("os.scheduler", params);
        assert_eq!(call(json!({})).unwrap(), json!({ "scheduler": "edf-plus", "next": null }));
        let best = json!({ "scheduler": "edf-plus", "keys": { "slack": "best-fit" } });
        assert_eq!(call(best).unwrap()["scheduler"], "edf-plus");
        call(json!({ "scheduler": "cyclic" })).unwrap();
        wait_until("it decides", || call(json!({})).unwrap()["scheduler"] == "cyclic");
        for (params, wanted) in [
            (json!({ "scheduler": "edff" }), "scheduler: found \"edff\", allowed: edf-plus, edf"),
            (
                json!({ "scheduler": "edf", "keys": { "slack": "best-fit" } }),
                "keys: found key \"slack\", allowed: none",
            ),
            (
                json!({ "scheduler": "edf-plus", "keys": { "tasks": 3 } }),
                "keys: found key \"tasks\", allowed: slack",
            ),
            (
                json!({ "scheduler": "edf-plus", "keys": { "slack": "worst" } }),
                "slack: found \"worst\"",
            ),
            (json!({ "keys": { "slack": "best-fit" } }), "keys: found keys without a scheduler"),
            (json!({ "scheduler": 3 }), "scheduler: found 3"),
        ] {
            let refused = call(params).unwrap_err();
            assert!(refused.contains(wanted), "{refused}");
        }
        assert_eq!(call(json!({})).unwrap()["scheduler"], "cyclic");
        served.shared.stopping.store(true, Ordering::Release);
        let refused = call(json!({ "scheduler": "edf" }));
        assert_eq!(refused, Err("the card is stopping".into()));
        let without = Served::new("");
        let refused = without.caller().call("os.scheduler", json!({})).unwrap_err();
        assert!(refused.starts_with("this card has no NIC OS"), "{refused}");
    }

    #[test]
    fn silent_clients_waiting_for_a_capture_are_kept() {
        let served = Served::new("");
        let _probe = served.captures.observer(&HookPoint::Wire { index: 0, name: "wire0" });
        let file = Some(tempfile::tempfile().unwrap().into());
        let started = served.captures.start(CaptureRequest::default(), file, Duration::ZERO, 99);
        let number = started.unwrap()["capture"].clone();
        let (mut waits, mut silent) = (served.caller(), served.caller());
        let params = json!({ "capture": number });
        let call = json!({ "jsonrpc": "2.0", "id": 3, "method": "capture.wait", "params": params });
        waits.say(&format!("{call}\n"));
        for caller in [&waits, &silent] {
            caller.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert_eq!(silent.line(), None, "it is let go");
        served.captures.stop(number.as_u64().unwrap() as u32).unwrap();
        assert_eq!(waits.line().unwrap()["id"], 3);
        assert_eq!(waits.line(), None);
    }

    #[test]
    fn ending_cards_answer_waiting_capture_calls() {
        let served = Served::new("");
        let _probe = served.captures.observer(&HookPoint::Wire { index: 0, name: "wire0" });
        let file = Some(tempfile::tempfile().unwrap().into());
        let started = served.captures.start(CaptureRequest::default(), file, Duration::ZERO, 99);
        let params = json!({ "capture": started.unwrap()["capture"] });
        let mut waits = served.caller();
        let call = json!({ "jsonrpc": "2.0", "id": 3, "method": "capture.wait", "params": params });
        waits.say(&format!("{call}\n{CHAINS}"));
        assert_eq!(waits.line().unwrap()["id"], 1, "it waits");
        drop(served);
        assert_eq!(waits.line().unwrap()["id"], 3);
        assert_eq!(waits.line(), None);
    }

    #[test]
    fn only_the_user_and_root_are_served() {
        let (own, _other) = UnixStream::pair().unwrap();
        assert!(permitted(&own).is_ok());
        if !rustix::process::geteuid().is_root() {
            return skip("only_the_user_and_root_are_served", "only root can be another");
        }
        let of_nobody = || {
            let nobody = Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            assert!(permitted(&own).is_ok(), "root is its peer");
            let (of_nobody, _other) = UnixStream::pair().unwrap();
            assert!(permitted(&of_nobody).is_ok());
            of_nobody
        };
        let of_nobody = std::thread::scope(|scope| scope.spawn(of_nobody).join().unwrap());
        let refused = permitted(&of_nobody).unwrap_err();
        assert_eq!(refused.message, "found user 65534, allowed: user 0 or root");
    }
}
