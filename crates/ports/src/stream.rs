//! A file of any kind, written to without ever blocking for long.
//!
//! A regular file is written directly. For anything else (a pipe, a socket, a terminal) the kernel
//! is first asked whether it takes more, and gets no more than it must then take, so that a slow
//! reader blocks this thread for at most 50 ms at a time. The reader is waited for until a stop is
//! requested, plus one second. The same limit applies to a FIFO without a reader.
//!
//! Source: pipe(7): a writable pipe takes PIPE_BUF bytes at once; fifo(7): opening for writing
//! without waiting gives ENXIO until there is a reader.

use picnic_core::stop::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Bytes that a writable pipe takes at once (PIPE_BUF).
const CHUNK: usize = 4096;
/// Interval for checking whether a stop was requested.
const LOOK: Duration = Duration::from_millis(50);
/// Interval for checking whether a FIFO has a reader.
const READER_PAUSE: Duration = Duration::from_millis(2);
/// Time for a slow reader after a stop request.
pub const PATIENCE: Duration = LOOK.saturating_mul(LAST_LOOKS);
const LAST_LOOKS: u32 = 20;

/// Whether it is a FIFO, whose reader is waited for.
pub(crate) fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

/// Opens a file for writing, like [`File::create`]. Waits until a FIFO has a reader, or it
/// `is_over`.
///
/// # Errors
/// It cannot be opened, or no process reads it.
pub fn create(path: &Path, is_over: impl Fn() -> bool) -> io::Result<File> {
    if !is_fifo(path) {
        return File::create(path);
    }
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    loop {
        match options.open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                if is_over() {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no process reads it"));
                }
                std::thread::park_timeout(READER_PAUSE);
            }
            file => {
                let file = file?;
                fcntl_setfl(&file, OFlags::empty())?;
                return Ok(file);
            }
        }
    }
}

/// A file being written.
#[derive(Debug)]
pub struct Stream {
    file: File,
    kind: Kind,
    stop: Stop,
    /// Failed attempts since a stop was requested, without progress.
    in_vain: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    Socket,
    Stream,
}

impl Stream {
    /// An open file.
    ///
    /// # Errors
    /// It is not open for writing; a message about the file.
    pub fn new(file: OwnedFd, stop: Stop) -> Result<Self, String> {
        let stat =
            rustix::fs::fstat(&file).map_err(|error| format!("cannot be written to: {error}"))?;
        let flags = rustix::fs::fcntl_getfl(&file)
            .map_err(|error| format!("cannot be written to: {error}"))?;
        let mode = flags & rustix::fs::OFlags::RWMODE;
        if mode == rustix::fs::OFlags::RDONLY {
            return Err("is open for reading only".into());
        }
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::Regular,
            FileType::Socket => Kind::Socket,
            _ => Kind::Stream,
        };
        Ok(Stream { file: file.into(), kind, stop, in_vain: 0 })
    }

    /// Waits until more is taken.
    fn wait(&mut self) -> io::Result<()> {
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        loop {
            let mut source = [PollFd::new(&self.file, PollFlags::OUT)];
            match poll(&mut source, Some(&look)) {
                // It has waited for so long.
                Ok(0) if self.stop.is_asked() => self.in_vain += 1,
                Ok(0) | Err(Errno::INTR) => {}
                // Errors and hang-ups are reported by the following write.
                _ => return Ok(()),
            }
            if self.in_vain >= LAST_LOOKS {
                let message = "no process reads it: unread data is lost";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        }
    }
}

impl Write for Stream {
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
                    self.in_vain = 0;
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

    /// Two ends of a pipe and of a socket: data written to the second is read from the first.
    fn ends() -> [(File, OwnedFd); 2] {
        let (reader, writer) = io::pipe().unwrap();
        let (theirs, ours) = UnixStream::pair().unwrap();
        [(OwnedFd::from(reader).into(), writer.into()), (OwnedFd::from(theirs).into(), ours.into())]
    }

    #[test]
    fn slow_readers_do_not_block_the_end() {
        for (mut reader, writer) in ends() {
            let stop = Stop::default();
            stop.ask();
            let mut sink = Stream::new(writer, stop).unwrap();
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
    fn lost_readers_are_an_error() {
        for (reader, writer) in ends() {
            let mut sink = Stream::new(writer, Stop::default()).unwrap();
            drop(reader);
            assert_eq!(sink.write(&[0; 100]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[test]
    fn read_only_files_are_refused() {
        let [(reader, _writer), _] = ends();
        let told = Stream::new(reader.into(), Stop::default()).unwrap_err();
        assert_eq!(told, "is open for reading only");
    }

    #[test]
    fn fifos_wait_for_a_reader_or_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let looks = std::cell::Cell::new(0);
        let error = create(&path, || looks.replace(looks.get() + 1) == 3).unwrap_err();
        assert_eq!((error.to_string(), looks.get()), ("no process reads it".into(), 4));
        let for_reader = path.clone();
        let reader = std::thread::spawn(move || std::fs::read(for_reader).unwrap());
        create(&path, || false).unwrap().write_all(b"all of it").unwrap();
        assert_eq!(reader.join().unwrap(), b"all of it");
    }
}
