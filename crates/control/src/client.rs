//! One client of the control socket: lines in, answers out, never waiting for it.
//!
//! A file descriptor that comes along (SCM_RIGHTS) is kept for the next call that wants
//! one; of several, the last one is.

use crate::protocol::{LIMIT, LONGEST_LINE, RpcError, answer};
use crate::server::Limits;
use rustix::cmsg_space;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use serde_json::Value;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes read at a time.
const READ: usize = 64 << 10;
/// Descriptors looked at in one message; the kernel closes those beyond.
const FILES: usize = 4;

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    /// Tells clients apart.
    pub(super) number: u64,
    stream: OwnedFd,
    input: Vec<u8>,
    /// Bytes of the input known to hold no line end.
    scanned: usize,
    output: Vec<u8>,
    sent: usize,
    file: Option<OwnedFd>,
    /// When it last sent a byte or took one.
    last: Instant,
    /// It will send nothing more.
    is_read: bool,
    /// It is to be closed when it has taken its answers.
    is_closing: bool,
    /// It is gone.
    is_broken: bool,
    /// It came when all places were taken, so there is little that it may ask for.
    pub(super) is_extra: bool,
}

impl Client {
    pub(super) fn new(number: u64, stream: OwnedFd, now: Instant) -> Self {
        Client {
            number,
            is_extra: false,
            stream,
            input: Vec::new(),
            scanned: 0,
            output: Vec::new(),
            sent: 0,
            file: None,
            last: now,
            is_read: false,
            is_closing: false,
            is_broken: false,
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether calls are taken from it: not while it leaves its answers unread.
    fn may_speak(&self, limits: &Limits) -> bool {
        !self.is_closing && self.output.len() - self.sent < limits.output_bytes
    }

    /// What to wait for.
    pub(super) fn wants(&self, limits: &Limits) -> PollFlags {
        let mut wants = PollFlags::empty();
        if !self.output.is_empty() {
            wants |= PollFlags::OUT;
        }
        if !self.is_read && self.may_speak(limits) {
            wants |= PollFlags::IN;
        }
        wants
    }

    /// Both its directions are shut.
    pub(super) fn hung_up(&mut self) {
        // What it said before it went is still listened to.
        self.is_broken |= self.is_read;
    }

    /// Takes in what has arrived.
    pub(super) fn read(&mut self, now: Instant) {
        if self.is_read || self.is_closing {
            return;
        }
        let start = self.input.len();
        self.input.resize(start + READ, 0);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.input[start..])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut parts, &mut control, flags);
        let bytes = received.as_ref().map_or(0, |received| received.bytes);
        self.input.truncate(start + bytes);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                for file in files {
                    // One that nobody wanted makes way.
                    self.file = Some(file);
                }
            }
        }
        match received {
            Ok(received) if received.bytes == 0 => {
                self.is_read = true;
                // A last line needs no end.
                if !self.input.is_empty() {
                    self.input.push(b'\n');
                }
            }
            Ok(_) => self.last = now,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.is_broken = true,
        }
    }

    /// The next whole line; an error if it is too long.
    pub(super) fn line(&mut self, limits: &Limits) -> Option<Result<Vec<u8>, RpcError>> {
        if !self.may_speak(limits) {
            return None;
        }
        let end = self.input[self.scanned..].iter().position(|&byte| byte == b'\n');
        let length = end.map_or(self.input.len(), |end| self.scanned + end);
        if length > LONGEST_LINE {
            let message =
                format!("found a line of more than {LONGEST_LINE} bytes, which is the limit");
            return Some(Err(RpcError::new(LIMIT, message)));
        }
        if end.is_none() {
            self.scanned = length;
            return None;
        }
        let line = self.input.drain(..=length).collect::<Vec<_>>();
        self.scanned = 0;
        Some(Ok(line))
    }

    /// Whether a line waits to be taken.
    pub(super) fn has_line(&self, limits: &Limits) -> bool {
        self.may_speak(limits) && self.has_unread()
    }

    fn has_unread(&self) -> bool {
        self.scanned < self.input.len()
    }

    /// The file that came along, for the call that wants it.
    pub(super) fn take_file(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }

    /// Queues an answer and sends what goes at once.
    pub(super) fn answer(&mut self, value: &Value) {
        if self.is_broken {
            return;
        }
        // A value made of maps, lists and text is always written.
        self.output.extend(serde_json::to_vec(value).unwrap_or_default());
        self.output.push(b'\n');
        self.write(None);
    }

    /// Queues an error that no call is known for, then closes.
    pub(super) fn refuse(&mut self, error: RpcError) {
        self.answer(&answer(&Value::Null, &Err(error)));
        self.is_closing = true;
    }

    /// Sends what it takes now.
    pub(super) fn write(&mut self, now: Option<Instant>) {
        while self.sent < self.output.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.stream, &self.output[self.sent..], flags) {
                Ok(bytes) => {
                    self.sent += bytes;
                    self.last = now.unwrap_or(self.last);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.is_broken = true;
                    return;
                }
            }
        }
        self.output.clear();
        self.sent = 0;
    }

    /// Whether it can be let go. `is_awaiting`: it will get an answer later.
    pub(super) fn is_done(&self, is_awaiting: bool) -> bool {
        let is_heard = self.is_read && !self.has_unread() && !is_awaiting;
        self.is_broken || self.output.is_empty() && (self.is_closing || is_heard)
    }

    /// Whether it is to be closed, having been told why.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// How long it has been silent, with nothing begun on either side.
    pub(super) fn silence(&self, now: Instant) -> Option<Duration> {
        let is_amid = !self.input.is_empty() || !self.output.is_empty();
        (!is_amid && !self.is_closing).then(|| now.saturating_duration_since(self.last))
    }

    /// Whether its patience is at an end: what it began it has not finished, or it has been
    /// silent for too long. One that reads is told so before it is closed.
    pub(super) fn is_overdue(&mut self, now: Instant, limits: &Limits, is_awaiting: bool) -> bool {
        let is_deaf = !self.output.is_empty();
        let is_amid = is_deaf || !self.input.is_empty();
        let most = match is_amid {
            true => limits.stalled,
            false if is_awaiting => return false,
            false if self.is_extra => limits.stalled,
            false => limits.idle,
        };
        if now.saturating_duration_since(self.last) < most {
            return false;
        }
        if !self.is_closing && !is_deaf {
            let found = if is_amid { "a line that does not end" } else { "no word" };
            let message = format!("found {found} for {} s, which is the limit", most.as_secs());
            self.refuse(RpcError::new(LIMIT, message));
            self.last = now;
            // It has its time to take this in; one that reads needs none.
            return self.output.is_empty();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    const LIMITS: Limits = Limits {
        clients: 2,
        idle: Duration::from_secs(100),
        yields: Duration::from_secs(1),
        stalled: Duration::from_secs(10),
        output_bytes: 64 << 10,
    };

    fn client() -> (Client, UnixStream, Instant) {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let now = Instant::now();
        (Client::new(1, here.into(), now), there, now)
    }

    fn text(client: &mut Client) -> Option<String> {
        client.line(&LIMITS).map(|line| String::from_utf8(line.unwrap()).unwrap())
    }

    /// What is there to be read.
    fn heard(stream: &mut UnixStream) -> String {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_are_taken_one_by_one_and_the_last_needs_no_end() {
        let (mut client, mut there, now) = client();
        assert!(!client.has_line(&LIMITS));
        client.read(now);
        assert_eq!((text(&mut client), client.wants(&LIMITS)), (None, PollFlags::IN));
        there.write_all(b"one\ntwo\nth").unwrap();
        client.read(now);
        assert!(client.has_line(&LIMITS));
        assert_eq!(text(&mut client).as_deref(), Some("one\n"));
        assert_eq!(text(&mut client).as_deref(), Some("two\n"));
        assert_eq!((text(&mut client), client.has_line(&LIMITS)), (None, false));
        there.write_all(b"ree\n4").unwrap();
        there.shutdown(Shutdown::Write).unwrap();
        (0..3).for_each(|_| client.read(now));
        assert_eq!(text(&mut client).as_deref(), Some("three\n"));
        assert!(!client.is_done(false), "its last line is not taken");
        assert_eq!(text(&mut client).as_deref(), Some("4\n"));
        assert_eq!(text(&mut client), None);
        assert_eq!(client.wants(&LIMITS), PollFlags::empty());
        assert!(client.is_done(false) && !client.is_done(true), "an answer may be to come");
        client.hung_up();
        assert!(client.is_done(true), "nobody will take it");
    }

    #[test]
    fn one_that_says_nothing_and_goes_has_no_line() {
        let (mut client, there, now) = client();
        client.hung_up();
        assert!(!client.is_done(false), "what it has said is not read yet");
        there.shutdown(Shutdown::Write).unwrap();
        client.read(now);
        assert_eq!(text(&mut client), None);
        assert!(client.is_done(false));
    }

    #[test]
    fn a_line_has_so_many_bytes_and_no_more() {
        for (bytes, fits) in [(LONGEST_LINE, true), (LONGEST_LINE + 1, false)] {
            let (mut client, ..) = client();
            client.input = vec![b'x'; bytes];
            client.input.push(b'\n');
            assert_eq!(client.line(&LIMITS).unwrap().is_ok(), fits);
        }
    }

    #[test]
    fn one_that_is_told_why_it_ends_has_its_time_to_take_it_in() {
        let (mut client, mut there, now) = client();
        // What it has not read yet leaves no room for a word.
        while send(client.as_fd(), &[b' '; 4096], SendFlags::DONTWAIT).is_ok() {}
        there.write_all(b"a line that does not e").unwrap();
        client.read(now);
        let later = now + LIMITS.stalled;
        assert!(!client.is_overdue(later, &LIMITS, false) && client.is_closing());
        let last = later + LIMITS.stalled;
        there.write_all(b"more, which gains it no time").unwrap();
        client.read(last);
        assert!(!client.is_overdue(last - Duration::from_nanos(1), &LIMITS, false));
        assert!(client.is_overdue(last, &LIMITS, false));
    }

    #[test]
    fn one_that_reads_no_answers_is_asked_nothing_more() {
        let (mut client, mut there, now) = client();
        there.write_all(b"more\n").unwrap();
        client.read(now);
        let answer = Value::String("x".repeat(16 << 10));
        while client.output.len() - client.sent < LIMITS.output_bytes {
            assert!(client.wants(&LIMITS).contains(PollFlags::IN));
            client.answer(&answer);
        }
        assert_eq!(client.wants(&LIMITS), PollFlags::OUT);
        assert!(!client.has_line(&LIMITS) && client.line(&LIMITS).is_none());
        assert_eq!(client.silence(now), None);
        // Deaf for as long as it may be: let go without another word.
        let most = now + LIMITS.stalled;
        assert!(!client.is_overdue(most - Duration::from_nanos(1), &LIMITS, false));
        assert!(client.is_overdue(most, &LIMITS, false));
        // It is listened to again once little enough is left, though not all is taken.
        let mut part = [0; 4 << 10];
        let mut was_left = false;
        while client.wants(&LIMITS).contains(PollFlags::OUT) {
            let _ = there.read(&mut part);
            client.write(Some(most));
            let left = client.output.len() - client.sent;
            was_left |= client.sent != 0 && left != 0 && left < LIMITS.output_bytes;
            let is_heard = client.wants(&LIMITS).contains(PollFlags::IN);
            assert_eq!(is_heard, left < LIMITS.output_bytes, "{left} left");
        }
        assert!(was_left);
        assert_eq!(text(&mut client).as_deref(), Some("more\n"));
        // What it has taken counts as a word of its own.
        assert_eq!(client.silence(most + Duration::from_secs(3)), Some(Duration::from_secs(3)));
    }

    #[test]
    fn so_many_bytes_may_wait_to_be_taken_and_no_more() {
        for (bytes, is_heard) in [(LIMITS.output_bytes - 1, true), (LIMITS.output_bytes, false)] {
            let (mut client, ..) = client();
            client.output = vec![b'x'; bytes + 1];
            client.sent = 1;
            assert_eq!(client.wants(&LIMITS).contains(PollFlags::IN), is_heard);
        }
    }

    #[test]
    fn one_that_is_gone_is_done_with_whatever_is_to_come() {
        let (mut client, there, _) = client();
        drop(there);
        client.answer(&Value::Bool(true));
        assert!(client.is_done(true));
    }

    /// Who goes without having read its answers resets the connection.
    #[test]
    fn one_that_went_without_its_answers_is_done_with() {
        let (mut client, there, now) = client();
        client.answer(&Value::Bool(true));
        drop(there);
        client.read(now);
        assert!(client.is_done(true));
    }

    #[test]
    fn each_has_its_time_and_is_told_why_it_is_over() {
        let second = Duration::from_secs(1);
        // What it sent last, whether it waits for an answer, whether it has a place of its own.
        for (said, is_awaiting, is_extra, most, found) in [
            ("", false, false, Some(100), "no word for 100 s"),
            ("", true, false, None, ""),
            ("", false, true, Some(10), "no word for 10 s"),
            ("begun", false, false, Some(10), "a line that does not end for 10 s"),
            ("begun", true, false, Some(10), "a line that does not end for 10 s"),
        ] {
            let (mut client, mut there, start) = client();
            client.is_extra = is_extra;
            there.write_all(said.as_bytes()).unwrap();
            client.read(start);
            assert_eq!(text(&mut client), None);
            let silence = said.is_empty().then_some(second);
            assert_eq!(client.silence(start + second), silence);
            let Some(most) = most else {
                assert!(!client.is_overdue(start + 1000 * second, &LIMITS, is_awaiting));
                continue;
            };
            let end = start + most * second;
            assert!(!client.is_overdue(end - Duration::from_nanos(1), &LIMITS, is_awaiting));
            assert_eq!(heard(&mut there), "");
            assert!(client.is_overdue(end, &LIMITS, is_awaiting));
            let told = heard(&mut there);
            assert!(told.contains(&format!("found {found}, which is the limit")), "{told}");
            assert!(client.is_closing() && client.is_done(is_awaiting));
            assert_eq!(client.silence(end), None);
        }
    }
}
