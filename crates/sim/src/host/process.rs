//! The processes of the host: a server of files, and a reader.
//!
//! Guarantee: a step is at most `chunk_ns` and one packet, plus a read or write.

use super::{Done, Host};
use crate::frame::MSS;
use crate::machine::{Component, Cost, Lines};

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for a request.
    Idle,
    /// The application works for this many more nanoseconds.
    Application(u64),
    /// This many bytes of the file remain to be written.
    Write(u32),
}

impl Host {
    /// A process continues on `core`.
    pub(crate) fn step(&mut self, process: usize, core: usize) -> Done {
        self.begin(core, Lines::default());
        if process >= self.sockets.len() {
            self.work.sleeps = true;
            return self.take_work();
        }
        self.sockets[process].process_core = core;
        let lines = self.sockets[process].process_lines;
        self.sockets[process].process_lines =
            self.touch(Component::Kernel, lines_of(lines, core), Cost::ProcessLines);
        let chunk_ns = self.costs.ns(Cost::Chunk).max(1);
        while !self.work.sleeps && self.work.parts.total() < chunk_ns {
            match self.sockets[process].is_read() {
                false => self.serve(process),
                true => self.read(process),
            }
        }
        self.take_work()
    }

    fn serve(&mut self, process: usize) {
        match self.sockets[process].stage {
            Stage::Idle if self.sockets[process].requests == 0 => self.work.sleeps = true,
            Stage::Idle => {
                self.sockets[process].requests -= 1;
                self.touch_socket(process);
                self.spend(Component::Socket, Cost::SystemCall);
                // Requests differ: uniformly within half of the mean in either direction.
                let mean = self.costs.ns(Cost::Application);
                let work = self.random.between(&(mean / 2..=mean + mean / 2));
                self.sockets[process].stage = Stage::Application(work);
            }
            Stage::Application(left) => {
                let room = self.costs.ns(Cost::Chunk).saturating_sub(self.work.parts.total());
                let step = left.min(room.max(1));
                self.work.parts.add(Component::Application, step);
                self.sockets[process].stage = match left - step {
                    0 => Stage::Write(self.sockets[process].file_bytes),
                    left => Stage::Application(left),
                };
            }
            Stage::Write(0) => {
                self.answers += 1;
                self.sockets[process].stage = Stage::Idle;
            }
            Stage::Write(left) => {
                if self.sockets[process].kept() >= self.config.send_buffer {
                    self.sockets[process].is_blocked = true;
                    self.work.sleeps = true;
                    return;
                }
                // Small writes fill one segment.
                let bytes = left.min(self.config.io_bytes.max(MSS.into()));
                self.sockets[process].stage = Stage::Write(left - bytes);
                self.write(process, bytes);
            }
        }
    }

    /// Writes `bytes`, by one system call or by several small ones.
    fn write(&mut self, process: usize, bytes: u32) {
        self.touch_socket(process);
        self.call(bytes);
        let mut left = bytes;
        while left != 0 {
            let segment = left.min(MSS.into());
            left -= segment;
            let lines = self.allocate();
            self.copy(segment);
            if self.may_send(process) && self.sockets[process].unsent.is_empty() {
                self.send(process, (lines, segment as u16));
            } else {
                self.sockets[process].unsent.push_back((lines, segment as u16));
            }
        }
    }

    /// System calls for `bytes`, as many as their size requires.
    fn call(&mut self, bytes: u32) {
        for _ in 0..bytes.div_ceil(self.config.io_bytes).max(1) {
            self.spend(Component::Socket, Cost::SystemCall);
        }
    }

    /// One system call that reads; several small ones for each segment.
    fn read(&mut self, process: usize) {
        if self.sockets[process].readable.is_empty() {
            self.work.sleeps = true;
            return;
        }
        self.touch_socket(process);
        let first = self.sockets[process].readable[0].1;
        self.call(first.into());
        let mut left = self.config.io_bytes;
        while left != 0
            && let Some((lines, bytes)) = self.sockets[process].readable.pop_front()
        {
            left = left.saturating_sub(bytes.into());
            let from = self.dma();
            let Host { distances, moved, core, .. } = self;
            let stalls_ns = distances.stream(*core, from, bytes.into(), moved);
            self.work.parts.stall(Component::Copy, stalls_ns);
            self.copy(bytes.into());
            self.free(lines);
            self.was_read(process, bytes);
        }
    }

    fn copy(&mut self, bytes: u32) {
        self.spend(Component::Copy, Cost::CopySegment);
        let ns = (f64::from(bytes) * self.costs.get(Cost::CopyByte)).round() as u64;
        self.work.parts.add(Component::Copy, ns);
    }

    fn touch_socket(&mut self, process: usize) {
        let lines = self.sockets[process].lines;
        self.sockets[process].lines = self.touch(Component::Socket, lines, Cost::SocketLines);
    }
}

/// The lines of a process that has not run yet are on its first core.
fn lines_of(lines: Lines, core: usize) -> Lines {
    if lines.owner().is_none() { Lines::at(core) } else { lines }
}
