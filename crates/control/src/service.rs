//! What the control thread does: takes clients, reads their calls, answers.
//!
//! One poll, and nothing in it waits for a client. Few calls are served from one client at a
//! time, so that none keeps the others waiting. With all places taken, the client that has been
//! silent for the longest makes way, and one more has a place from which the card can be stopped.

use crate::client::Client;
use crate::methods::{CallResult, Methods};
use crate::protocol::{
    Call, INVALID_REQUEST, LIMIT, Message, NOT_PERMITTED, REFUSED, RpcError, answer, parse,
};
use crate::request::Request;
use crate::server::{Doors, Shared};
use crate::watch::{self, Watcher};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};
use serde_json::Value;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Calls served from one client before the next has its turn.
const TURN: usize = 8;
/// The longest sleep, so that idle clients are noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// While captures run: between two looks whether they have ended.
const CAPTURE_LOOK: Duration = Duration::from_millis(20);
/// How long captures may take to end when the card has ended.
const LAST_CAPTURES: Duration = Duration::from_secs(3);
/// Calls of one client that may wait for captures at a time.
const MOST_WAITING: usize = 64;

/// The thread's own.
pub(super) struct Service {
    doors: Doors,
    methods: Methods,
    shared: Arc<Shared>,
    clients: Vec<Client>,
    next_client: u64,
    /// Calls that are answered when a capture has ended: by connection and call.
    deferred: Vec<(u64, Value, u32)>,
    watcher: Option<Watcher>,
}

impl Service {
    pub(super) fn new(
        doors: Doors,
        methods: Methods,
        shared: Arc<Shared>,
        watcher: Option<Watcher>,
    ) -> Self {
        let (clients, deferred) = (Vec::new(), Vec::new());
        Service { doors, methods, shared, clients, next_client: 1, deferred, watcher }
    }

    pub(super) fn run(mut self) {
        while !self.shared.end.load(Ordering::Acquire) {
            self.wait();
            self.turn();
        }
        self.methods.captures().stop_all();
        let give_up = Instant::now() + LAST_CAPTURES;
        while self.methods.captures().are_any() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(2));
            self.end_captures();
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        self.accept(now);
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            client.write(Some(now));
            client.read(now);
            self.serve(index);
        }
        self.end_captures();
        if let Some(watcher) = &mut self.watcher
            && !self.shared.stopping.load(Ordering::Acquire)
        {
            let said = watcher.turn(now, &mut self.methods);
            self.shared.said.lock().unwrap_or_else(PoisonError::into_inner).extend(said);
        }
        if let Some(http) = &mut self.doors.http {
            let is_stopping = self.shared.stopping.load(Ordering::Acquire);
            http.turn(now, || self.methods.metrics(is_stopping));
        }
        let (limits, deferred) = (&self.doors.limits, &mut self.deferred);
        let captures = self.methods.captures();
        self.clients.retain_mut(|client| {
            let is_awaiting = deferred.iter().any(|(number, ..)| *number == client.number);
            let is_kept =
                !client.is_done(is_awaiting) && !client.is_overdue(now, limits, is_awaiting);
            if !is_kept {
                deferred.retain(|(number, ..)| *number != client.number);
                captures.client_has_gone(client.number);
            }
            is_kept
        });
    }

    /// Takes in captures that have ended, and tells those who wait for it.
    fn end_captures(&mut self) {
        let captures = self.methods.captures();
        captures.tick();
        let clients = &mut self.clients;
        self.deferred.retain(|(number, id, capture)| {
            let Some(outcome) = captures.outcome(*capture) else { return true };
            if let Some(client) = clients.iter_mut().find(|client| client.number == *number) {
                client.answer(&answer(id, &Ok(outcome)));
            }
            false
        });
    }

    /// What it sleeps on; clients stand last.
    fn sources(&self) -> Vec<PollFd<'_>> {
        let mut sources = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        if let Some(socket) = &self.doors.socket {
            sources.push(PollFd::new(&socket.listener, PollFlags::IN));
        }
        if let Some(http) = &self.doors.http {
            sources.extend(http.sources().map(|(source, writes)| {
                let wants = if writes { PollFlags::OUT } else { PollFlags::IN };
                PollFd::from_borrowed_fd(source, wants)
            }));
        }
        let limits = &self.doors.limits;
        sources.extend(
            self.clients
                .iter()
                .map(|client| PollFd::from_borrowed_fd(client.as_fd(), client.wants(limits))),
        );
        sources
    }

    /// How long it may sleep if nobody wakes it.
    fn longest_sleep(&self) -> Duration {
        let limits = &self.doors.limits;
        match () {
            () if self.clients.iter().any(|client| client.has_line(limits)) => Duration::ZERO,
            () if self.methods.captures().are_any() => CAPTURE_LOOK,
            () if self.watcher.is_some() => watch::LOOK,
            () => LONGEST_SLEEP.min(limits.stalled),
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self) {
        let mut sources = self.sources();
        let longest = self.longest_sleep();
        let timeout = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        // An error means "look again", as a signal does.
        let _ = poll(&mut sources, Some(&timeout));
        let first = sources.len() - self.clients.len();
        let gone =
            |source: &PollFd<'_>| source.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let gone: Vec<_> = sources[first..].iter().map(gone).collect();
        for (client, _) in self.clients.iter_mut().zip(gone).filter(|(_, gone)| *gone) {
            client.hung_up();
        }
    }

    /// Takes the clients that wait.
    fn accept(&mut self, now: Instant) {
        let most = self.doors.limits.clients;
        // A place that has become free is one for whoever had none.
        let taken = self.clients.iter().filter(|client| has_place(client)).count();
        let extra = self.clients.iter_mut().filter(|client| client.is_extra);
        extra.take(most - taken).for_each(|client| client.is_extra = false);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Any number may wait; those beyond the limit are told so.
        while let Some(socket) = &self.doors.socket
            && let Ok(stream) = accept_with(&socket.listener, flags)
        {
            let mut client = Client::new(self.next_client, stream, now);
            self.next_client += 1;
            if let Err(error) = permitted(client.as_fd()) {
                client.refuse(error);
                continue;
            }
            let taken = self.clients.iter().filter(|client| has_place(client)).count();
            if taken >= most && !self.make_way(now, has_place) {
                // One more, which may stop the card and no more.
                let is_extra = |client: &Client| client.is_extra && !client.is_closing();
                if self.clients.iter().any(is_extra) && !self.make_way(now, is_extra) {
                    client.refuse(full(most));
                    continue;
                }
                client.is_extra = true;
            }
            self.clients.push(client);
        }
    }

    /// Ends the one that has been silent for the longest, if that is long; false if none has.
    fn make_way(&mut self, now: Instant, may_go: fn(&Client) -> bool) -> bool {
        let (deferred, yields) = (&self.deferred, self.doors.limits.yields);
        let silent = self.clients.iter_mut().filter_map(|client| {
            let is_awaiting = deferred.iter().any(|(number, ..)| *number == client.number);
            let silence = client.silence(now).filter(|silence| *silence >= yields)?;
            (!is_awaiting && may_go(client)).then_some((silence, client))
        });
        let Some((_, client)) = silent.max_by_key(|(silence, _)| *silence) else { return false };
        let most = self.doors.limits.clients;
        let message = format!("{}: the one silent for the longest makes way", full(most).message);
        client.refuse(RpcError::new(LIMIT, message));
        true
    }

    /// Serves some calls of one client.
    fn serve(&mut self, index: usize) {
        for _ in 0..TURN {
            let client = &mut self.clients[index];
            match client.line(&self.doors.limits) {
                None => return,
                Some(Err(error)) => return client.refuse(error),
                Some(Ok(line)) if line.trim_ascii().is_empty() => {}
                Some(Ok(line)) => self.answer(index, parse(&line)),
            }
        }
    }

    fn answer(&mut self, index: usize, message: Message) {
        match message {
            Message::One(call) => {
                let (id, outcome) = self.call(index, *call);
                let client = &mut self.clients[index];
                let waiting = self.deferred.iter().filter(|(number, ..)| *number == client.number);
                let is_full = waiting.count() >= MOST_WAITING;
                match (id, outcome) {
                    (None, _) => {}
                    (Some(id), Ok(CallResult::WhenEnded(_))) if is_full => {
                        let message =
                            format!("{MOST_WAITING} calls wait for captures, which is the limit");
                        client.answer(&answer(&id, &Err(RpcError::new(LIMIT, message))));
                    }
                    (Some(id), Ok(CallResult::WhenEnded(capture))) => {
                        self.deferred.push((client.number, id, capture));
                    }
                    (Some(id), Ok(CallResult::Now(result))) => {
                        client.answer(&answer(&id, &Ok(result)))
                    }
                    (Some(id), Err(error)) => client.answer(&answer(&id, &Err(error))),
                }
            }
            Message::Many(calls) => {
                let answers = calls.into_iter().filter_map(|call| {
                    let (id, outcome) = self.call(index, call);
                    let outcome = outcome.and_then(|outcome| match outcome {
                        CallResult::Now(result) => Ok(result),
                        CallResult::WhenEnded(_) => {
                            let message = "this method is answered later: not in a batch";
                            Err(RpcError::new(INVALID_REQUEST, message))
                        }
                    });
                    id.map(|id| answer(&id, &outcome))
                });
                let answers: Vec<_> = answers.collect();
                // To notifications alone there is no answer, not even an empty list.
                if !answers.is_empty() {
                    self.clients[index].answer(&Value::Array(answers));
                }
            }
        }
    }

    fn call(&mut self, index: usize, call: Call) -> (Option<Value>, Result<CallResult, RpcError>) {
        let outcome = call.request.and_then(|request| {
            if self.shared.stopping.load(Ordering::Acquire) && request.needs_the_card() {
                return Err(RpcError::new(REFUSED, "the card is stopping"));
            }
            let client = &mut self.clients[index];
            if client.is_extra && !matches!(request, Request::Info {} | Request::Stop {}) {
                let full = full(self.doors.limits.clients).message;
                let message = format!("{full}: this one may call card.info and card.stop only");
                return Err(RpcError::new(LIMIT, message));
            }
            let number = client.number;
            self.methods.call(request, number, || client.take_file())
        });
        (call.id, outcome)
    }
}

/// Whether a client has one of the places.
fn has_place(client: &Client) -> bool {
    !client.is_extra && !client.is_closing()
}

/// All places are taken.
fn full(most: usize) -> RpcError {
    RpcError::new(LIMIT, format!("{most} clients are connected, which is the limit"))
}

/// Whether the process at the other end may speak to this card: its user's, or root's.
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
    use crate::captures::CaptureRequest;
    use crate::http::Http;
    use crate::server::Limits;
    use crate::socket;
    use crate::watch::Watch;
    use picnic_core::hook::{Hook, HookPoint};
    use picnic_testing::{skip, wait_until};
    use rustix::process::Uid;
    use serde_json::json;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use tempfile::TempDir;

    /// The control thread's work, turn by turn, for a card that runs.
    struct Served {
        service: Service,
        bench: Bench,
        folder: TempDir,
    }

    /// A client, and what it has heard of its next line.
    struct Caller(UnixStream, Vec<u8>);

    const HOUR: Duration = Duration::from_secs(3600);

    impl Served {
        /// `yields` is how long the silent have before they make way.
        fn new(text: &str, yields: Duration) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("card.sock");
            let file = card(&format!("{text}\n[control]\nsocket = \"{}\"\n", path.display()));
            let mut bench = Bench::new(&file);
            let limits = Limits { clients: 2, idle: HOUR, yields, ..Limits::default() };
            let doors = Doors { socket: socket::open(&file).unwrap(), http: None, limits };
            let shared = Shared::new(bench.stop.clone()).unwrap();
            let methods = bench.methods.take().unwrap();
            let service = Service::new(doors, methods, shared.into(), None);
            Served { service, bench, folder }
        }

        fn caller(&mut self) -> Caller {
            let stream = UnixStream::connect(self.folder.path().join("card.sock")).unwrap();
            stream.set_nonblocking(true).unwrap();
            self.service.turn();
            Caller(stream, Vec::new())
        }

        /// Turns until a client has a line; none once its connection is closed.
        fn line(&mut self, Caller(stream, heard): &mut Caller) -> Option<Value> {
            for _ in 0..10_000 {
                if let Some(end) = heard.iter().position(|&byte| byte == b'\n') {
                    let line: Vec<_> = heard.drain(..=end).collect();
                    return Some(serde_json::from_slice(&line).unwrap());
                }
                let mut part = [0; 4096];
                match stream.read(&mut part) {
                    Ok(0) => return None,
                    Ok(bytes) => heard.extend(&part[..bytes]),
                    Err(_) => self.service.turn(),
                }
            }
            panic!("no answer");
        }

        /// A call's result, or what its error says.
        fn call(
            &mut self,
            caller: &mut Caller,
            method: &str,
            params: Value,
        ) -> Result<Value, String> {
            let call = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
            caller.0.write_all(format!("{call}\n").as_bytes()).unwrap();
            let mut answer = self.line(caller).expect("the connection is closed");
            assert_eq!(answer["id"], 7);
            match answer["error"]["message"].as_str() {
                Some(message) => Err(message.to_owned()),
                None => Ok(answer["result"].take()),
            }
        }
    }

    #[test]
    fn with_all_places_taken_one_more_may_stop_the_card_and_no_more() {
        let mut served = Served::new("", HOUR);
        let (mut first, mut second) = (served.caller(), served.caller());
        let (mut extra, mut none) = (served.caller(), served.caller());
        let full = "2 clients are connected, which is the limit";
        let told = served.line(&mut none).unwrap();
        assert_eq!(told["error"]["message"], full);
        assert_eq!(served.line(&mut none), None, "and closed");
        for caller in [&mut first, &mut second] {
            assert!(served.call(caller, "chain.list", json!({})).is_ok());
        }
        let refused = served.call(&mut extra, "chain.list", json!({})).unwrap_err();
        assert_eq!(refused, format!("{full}: this one may call card.info and card.stop only"));
        assert!(served.call(&mut extra, "card.info", json!({})).is_ok());
        // A place that has become free is its own.
        drop(first);
        served.service.turn();
        served.service.turn();
        assert!(served.call(&mut extra, "chain.list", json!({})).is_ok());
        let mut next = served.caller();
        assert!(!served.bench.stop.is_asked());
        assert!(served.call(&mut next, "card.stop", json!({})).is_ok());
        assert!(served.bench.stop.is_asked());
    }

    #[test]
    fn calls_that_have_come_are_not_slept_on() {
        let mut served = Served::new("", HOUR);
        let (mut caller, _idle) = (served.caller(), served.caller());
        let (calls, mut answers) = (50 * TURN, 0);
        let call = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"chain.list\"}\n";
        caller.0.write_all(call.repeat(calls).as_bytes()).unwrap();
        let mut part = [0; 65_536];
        while answers < calls {
            served.service.wait();
            served.service.turn();
            while let Ok(bytes) = caller.0.read(&mut part) {
                assert_ne!(bytes, 0, "the connection is closed");
                answers += part[..bytes].iter().filter(|&&byte| byte == b'\n').count();
            }
        }
    }

    #[test]
    fn so_many_calls_of_a_client_are_served_before_the_next_has_its_turn() {
        let mut served = Served::new("", HOUR);
        let mut caller = served.caller();
        let call = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"chain.list\"}\n";
        caller.0.write_all(call.repeat(2 * TURN).as_bytes()).unwrap();
        served.service.turn();
        let mut answers = Vec::new();
        let _ = caller.0.read_to_end(&mut answers);
        assert_eq!(answers.iter().filter(|&&byte| byte == b'\n').count(), TURN);
    }

    #[test]
    fn it_sleeps_no_longer_than_to_its_next_look() {
        let mut served = Served::new("", HOUR);
        assert_eq!(served.service.longest_sleep(), LONGEST_SLEEP);
        let stalled = Duration::from_millis(900);
        served.service.doors.limits.stalled = stalled;
        assert_eq!(served.service.longest_sleep(), stalled);
        let watch = Watch::new(|| unreachable!());
        served.service.watcher = Some(Watcher::new(watch, &card("")));
        assert_eq!(served.service.longest_sleep(), watch::LOOK);
        let captures = served.service.methods.captures().clone();
        let _probe = captures.observer(&HookPoint::Wire { index: 0, name: "wire0" });
        let file = Some(tempfile::tempfile().unwrap().into());
        captures.start(CaptureRequest::default(), file, Duration::ZERO, 1).unwrap();
        assert_eq!(served.service.longest_sleep(), CAPTURE_LOOK);
        let mut caller = served.caller();
        caller.0.write_all(b"\n").unwrap();
        served.service.clients[0].read(Instant::now());
        assert_eq!(served.service.longest_sleep(), Duration::ZERO);
    }

    #[test]
    fn who_comes_and_who_goes_ends_the_sleep() {
        let mut served = Served::new("", HOUR);
        for _ in 0..60 {
            let stream = UnixStream::connect(served.folder.path().join("card.sock")).unwrap();
            served.service.wait();
            served.service.turn();
            assert_eq!(served.service.clients.len(), 1);
            drop(stream);
            while !served.service.clients.is_empty() {
                served.service.wait();
                served.service.turn();
            }
        }
    }

    #[test]
    fn the_one_silent_for_the_longest_makes_way_once_it_may() {
        let mut served = Served::new("", Duration::ZERO);
        let (mut first, mut second) = (served.caller(), served.caller());
        assert!(served.call(&mut first, "card.info", json!({})).is_ok());
        let mut third = served.caller();
        let told = served.line(&mut second).unwrap();
        let expected = "2 clients are connected, which is the limit: the one silent for the \
                        longest makes way";
        assert_eq!(told["error"]["message"], expected);
        assert_eq!(served.line(&mut second), None);
        for caller in [&mut first, &mut third] {
            assert!(served.call(caller, "chain.list", json!({})).is_ok());
        }
    }

    #[test]
    fn one_has_its_time_before_it_makes_way() {
        let mut served = Served::new("", HOUR);
        let _caller = served.caller();
        let now = Instant::now();
        let last = now - served.service.clients[0].silence(now).unwrap();
        assert!(!served.service.make_way(last + HOUR - Duration::from_nanos(1), has_place));
        assert!(served.service.make_way(last + HOUR, has_place));
    }

    #[test]
    fn one_that_waits_for_an_answer_makes_no_way() {
        let mut served = Served::new("", Duration::ZERO);
        let (mut first, mut second) = (served.caller(), served.caller());
        // A capture that does not end.
        let number = served.service.clients[0].number;
        served.service.deferred.push((number, json!(1), u32::MAX));
        assert!(served.call(&mut second, "card.info", json!({})).is_ok());
        let mut third = served.caller();
        let told = served.line(&mut second).unwrap();
        let told = told["error"]["message"].as_str().unwrap();
        assert!(told.ends_with("the one silent for the longest makes way"), "{told}");
        for caller in [&mut first, &mut third] {
            assert!(served.call(caller, "card.info", json!({})).is_ok());
        }
    }

    /// What it has asked before it was taken in is answered as all else.
    #[test]
    fn who_has_got_a_place_has_it_from_the_first_call_on() {
        let mut served = Served::new("", Duration::ZERO);
        let (mut first, _second) = (served.caller(), served.caller());
        assert!(served.call(&mut first, "card.info", json!({})).is_ok());
        let stream = UnixStream::connect(served.folder.path().join("card.sock")).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut third = Caller(stream, Vec::new());
        assert!(served.call(&mut third, "chain.list", json!({})).is_ok());
    }

    #[test]
    fn a_card_that_stops_is_changed_no_more() {
        let mut served = Served::new("", HOUR);
        let mut caller = served.caller();
        let empty = json!({ "chain": "rx", "functions": [] });
        assert!(served.call(&mut caller, "chain.swap", empty.clone()).is_ok());
        served.service.shared.stopping.store(true, Ordering::Release);
        let refused = served.call(&mut caller, "chain.swap", empty);
        assert_eq!(refused, Err("the card is stopping".into()));
        assert!(served.call(&mut caller, "card.info", json!({})).is_ok());
    }

    /// Somebody who connects, to the socket or for the metrics, ends its sleep, and so does a call.
    #[test]
    fn it_wakes_for_all_that_it_serves() {
        let mut served = Served::new("", HOUR);
        let http = Http::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = http.address().unwrap();
        served.service.doors.http = Some(http);
        let ready = |service: &Service| {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut service.sources(), Some(&now)).unwrap()
        };
        assert_eq!(ready(&served.service), 0);
        let caller = UnixStream::connect(served.folder.path().join("card.sock")).unwrap();
        wait_until("it sees who connects", || ready(&served.service) == 1);
        let _reader = std::net::TcpStream::connect(address).unwrap();
        wait_until("it sees who wants the metrics", || ready(&served.service) == 2);
        served.service.turn();
        assert_eq!(ready(&served.service), 0);
        (&caller).write_all(b"\n").unwrap();
        wait_until("it sees a call", || ready(&served.service) == 1);
    }

    #[test]
    fn a_command_that_is_none_is_told_those_of_components() {
        let mut served = Served::new("", HOUR);
        let mut caller = served.caller();
        let told = served.call(&mut caller, "app.wherr", json!({})).unwrap_err();
        assert!(told.contains("did you mean \"app.where\"?"), "{told}");
    }

    /// What stands alone is at its first place.
    #[test]
    fn a_command_is_made_for_the_place_of_its_component() {
        let mut served = Served::new("[[rx]]\nfunction = \"slot\"\n".repeat(2).as_str(), HOUR);
        let mut caller = served.caller();
        for (method, params, place) in [
            ("app.where", json!({}), 0),
            ("generator.where", json!({}), 0),
            ("generator.where", json!({ "position": 1 }), 1),
            ("slot.where", json!({}), 0),
            ("slot.where", json!({ "position": 1 }), 1),
        ] {
            let reply = served.call(&mut caller, method, params).unwrap();
            assert_eq!(reply["place"], place, "{method}");
        }
    }

    #[test]
    fn several_calls_are_answered_in_order_and_notifications_are_not() {
        let mut served = Served::new("", HOUR);
        let mut caller = served.caller();
        let call =
            |id: usize| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"chain.list\"}}");
        let note = "{\"jsonrpc\":\"2.0\",\"method\":\"chain.list\"}";
        // More than are served in a turn, blank lines and a batch among them.
        let lines: Vec<_> = (0..20).map(|id| format!("{}\n\n{note}\n", call(id))).collect();
        let text = format!("{}[{},{note}]\n[{note}]\n{}\n", lines.concat(), call(20), call(21));
        caller.0.write_all(text.as_bytes()).unwrap();
        for id in 0..20 {
            assert_eq!(served.line(&mut caller).unwrap()["id"], id);
        }
        let batch = served.line(&mut caller).unwrap();
        assert_eq!((batch.as_array().unwrap().len(), &batch[0]["id"]), (1, &json!(20)));
        assert_eq!(served.line(&mut caller).unwrap()["id"], 21);
    }

    #[test]
    fn moderation_is_changed_key_by_key_as_the_card_can() {
        let mut served = Served::new("[interrupt]\ntx_usecs = 9\n", HOUR);
        let mut caller = served.caller();
        let set = |served: &mut Served, caller: &mut Caller, change: Value| {
            served.call(caller, "moderation.set", change)
        };
        let changed = set(&mut served, &mut caller, json!({ "tx_complete": "interrupt" })).unwrap();
        assert_eq!(
            (&changed["moderation"]["tx_complete"], &changed["replaced"]["tx_complete"]),
            (&json!("interrupt"), &json!("off"))
        );
        // The same as it is is no change.
        assert!(set(&mut served, &mut caller, json!({ "wire_usecs": 0 })).is_ok());
        // Once its hosts have had buffers to send with.
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
        let changed = set(&mut served, &mut caller, json!({ "tx_usecs": 7, "rx_usecs": 3 }));
        let changed = changed.unwrap();
        assert_eq!(changed["moderation"]["tx_usecs"], 7);
        assert_eq!(changed["replaced"]["tx_usecs"], 9);
        assert_eq!(pause(&mut served), Some(7_000));
        let found = served.call(&mut caller, "moderation.get", json!({})).unwrap();
        assert_eq!((found["tx_usecs"].clone(), found["rx_usecs"].clone()), (7.into(), 3.into()));
        assert!(set(&mut served, &mut caller, json!({ "poll_usecs": 1 })).is_ok());
        assert_eq!(served.call(&mut caller, "moderation.get", json!({})).unwrap()["poll_usecs"], 1);
    }

    #[test]
    fn filters_are_listed_by_group() {
        let mut served = Served::new("", HOUR);
        let mut caller = served.caller();
        for (name, group) in [("a", "one"), ("b", "two"), ("c", "one")] {
            let keys = json!({ "name": name, "group": group, "action": "count" });
            served.call(&mut caller, "filter.add", json!({ "keys": keys })).unwrap();
        }
        let names = |served: &mut Served, caller: &mut Caller, params: Value| -> Vec<String> {
            let found = served.call(caller, "filter.list", params).unwrap();
            let filters = found["filters"].as_array().unwrap().iter();
            filters.map(|filter| filter["name"].as_str().unwrap().into()).collect()
        };
        assert_eq!(names(&mut served, &mut caller, json!({ "group": "one" })), ["a", "c"]);
        assert_eq!(names(&mut served, &mut caller, json!({})), ["a", "c", "b"]);
    }

    #[test]
    fn tasks_come_and_go() {
        let mut served = Served::new("[os]\n", HOUR);
        let mut caller = served.caller();
        let create = json!({ "task": "idle", "keys": { "name": "x", "period_us": 500 } });
        let made = served.call(&mut caller, "task.create", create).unwrap();
        assert_eq!((made["name"].clone(), made["period_ns"].clone()), ("x".into(), 500_000.into()));
        assert!(made["response_ns"].is_object() && made["jitter_ns"].is_object(), "{made}");
        let twice = json!({ "task": "idle", "keys": { "task": "idle" } });
        let refused = served.call(&mut caller, "task.create", twice);
        assert_eq!(refused, Err("keys: found task, allowed beside keys".into()));
        let listed = served.call(&mut caller, "task.list", json!({})).unwrap();
        assert!(listed["tasks"][0].get("response_ns").is_none(), "{listed}");
        let killed = served.call(&mut caller, "task.kill", json!({ "task": "x" })).unwrap();
        assert_eq!(killed["state"], "killed");
        let again = served.call(&mut caller, "task.kill", json!({ "task": "x" }));
        assert_eq!(again, Err("task: found \"x\", which has ended (killed)".into()));
    }

    #[test]
    fn a_client_that_says_nothing_more_is_let_go() {
        let mut served = Served::new("", HOUR);
        let caller = served.caller();
        assert_eq!(served.service.clients.len(), 1);
        caller.0.shutdown(std::net::Shutdown::Write).unwrap();
        served.service.turn();
        served.service.turn();
        assert!(served.service.clients.is_empty());
    }

    #[test]
    fn who_waits_for_a_capture_is_kept_though_it_says_nothing_more() {
        let mut served = Served::new("", HOUR);
        let callers = [served.caller(), served.caller()];
        let number = served.service.clients[0].number;
        served.service.deferred.push((number, json!(1), u32::MAX));
        for caller in &callers {
            caller.0.shutdown(std::net::Shutdown::Write).unwrap();
        }
        served.service.turn();
        served.service.turn();
        let kept: Vec<_> = served.service.clients.iter().map(|client| client.number).collect();
        assert_eq!(kept, [number]);
    }

    #[test]
    fn a_card_listens_to_its_user_and_to_root() {
        let (own, _other) = UnixStream::pair().unwrap();
        assert!(permitted(&own).is_ok());
        if !rustix::process::geteuid().is_root() {
            return skip("a_card_listens_to_its_user_and_to_root", "only root can be another");
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
