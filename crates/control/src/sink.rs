//! The file of a capture: whatever a client has passed, written to without ever being stuck.
//!
//! A regular file is written to as such. Of anything else (a pipe, a socket, a terminal) the
//! kernel is asked first whether it takes more, and given no more than it must take then, so
//! that a reader that does not read holds up this thread for 50 ms at a time. When the capture
//! is to end it gets one more second.
//!
//! Source: pipe(7): a pipe that is writable takes PIPE_BUF bytes at once.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::net::SendFlags;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a writable pipe takes at once (PIPE_BUF).
const CHUNK: usize = 4096;
/// Between two looks whether the capture is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// What a reader gets that does not read when the capture is to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// A capture's file.
#[derive(Debug)]
pub(super) struct Sink {
    file: File,
    kind: Kind,
    /// The capture is to end.
    stop: Arc<AtomicBool>,
    /// When it was first seen to be so.
    stopped: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    Socket,
    Stream,
}

impl Sink {
    /// A file that was passed over a socket.
    ///
    /// # Errors
    /// It is not open for writing, or is a folder.
    pub(super) fn new(file: OwnedFd, stop: Arc<AtomicBool>) -> Result<Self, String> {
        let stat = rustix::fs::fstat(&file).map_err(|error| format!("the file: {error}"))?;
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|error| format!("the file: {error}"))?;
        let mode = flags & rustix::fs::OFlags::RWMODE;
        if mode == rustix::fs::OFlags::RDONLY {
            return Err("the file that came along is open for reading only".into());
        }
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::Regular,
            FileType::Socket => Kind::Socket,
            _ => Kind::Stream,
        };
        Ok(Sink { file: file.into(), kind, stop, stopped: None })
    }

    /// Waits until more is taken.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            let mut source = [PollFd::new(&self.file, PollFlags::OUT)];
            if poll(&mut source, Some(&LOOK)).is_ok_and(|ready| ready != 0) {
                // Errors and hang-ups are told by the write that follows.
                return Ok(());
            }
            if self.stop.load(Ordering::Acquire)
                && self.stopped.get_or_insert_with(Instant::now).elapsed() >= PATIENCE
            {
                let message = "nobody reads it: what had not been read is lost";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        }
    }
}

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.kind == Kind::Regular {
            return self.file.write(data);
        }
        let chunk = &data[..data.len().min(CHUNK)];
        loop {
            self.wait()?;
            let written = match self.kind {
                Kind::Socket => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    Ok(rustix::net::send(&self.file, chunk, flags)?)
                }
                _ => self.file.write(chunk),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                written => {
                    self.stopped = None;
                    return written;
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Two ends of a pipe and of a socket: what is written to the second is read from the first.
    fn ends() -> [(File, OwnedFd); 2] {
        let (reader, writer) = io::pipe().unwrap();
        let (theirs, ours) = UnixStream::pair().unwrap();
        [(OwnedFd::from(reader).into(), writer.into()), (OwnedFd::from(theirs).into(), ours.into())]
    }

    #[test]
    fn a_reader_that_does_not_read_holds_up_no_end() {
        for (mut reader, writer) in ends() {
            let mut sink = Sink::new(writer, Arc::new(AtomicBool::new(true))).unwrap();
            let data: Vec<_> = (0..4 << 20).map(|place| (place / 251) as u8).collect();
            let mut taken = 0;
            let error = loop {
                match sink.write(&data[taken..]) {
                    Ok(bytes) => taken += bytes,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(taken >= CHUNK);
            drop(sink);
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            assert!(read == data[..taken], "{} of {taken}", read.len());
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_an_error() {
        for (reader, writer) in ends() {
            let mut sink = Sink::new(writer, Arc::default()).unwrap();
            drop(reader);
            assert_eq!(sink.write(&[0; 100]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_to_is_refused() {
        let [(reader, _writer), _] = ends();
        let told = Sink::new(reader.into(), Arc::default()).unwrap_err();
        assert_eq!(told, "the file that came along is open for reading only");
    }
}
