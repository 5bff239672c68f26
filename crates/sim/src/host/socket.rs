//! A TCP connection of the host, in the stack.
//!
//! Guarantees: every second segment with data is acknowledged; acknowledgements free buffers and
//! send waiting data, on the core that handles them; the receive window is honoured.

use super::process::Stage;
use super::{Host, ModelConfig};
use crate::frame::{DISCARD, Segment};
use crate::machine::{Component, Cost, Lines};
use std::collections::VecDeque;

/// Data in a buffer: the place of its lines, its bytes.
type Data = (Lines, u16);

/// A connection.
#[derive(Debug)]
pub(super) struct Socket {
    wire: u8,
    peer: u16,
    port: u16,
    host_port: u16,
    /// The size of a file that answers a request.
    pub(super) file_bytes: u32,
    /// Its state's lines.
    pub(super) lines: Lines,
    /// Next byte expected from the peer.
    expected: u32,
    /// Segments with data since the last acknowledgement.
    unacknowledged: u32,
    /// Data waiting to be read, and its bytes.
    pub(super) readable: VecDeque<Data>,
    readable_bytes: u32,
    /// The last window sent to the peer.
    told_window: u32,
    /// Requests waiting to be answered.
    pub(super) requests: u32,
    /// Next byte to send.
    next: u32,
    /// Segments waiting for the window, and those in flight.
    pub(super) unsent: VecDeque<Data>,
    under_way: VecDeque<Data>,
    /// Segments that may be in flight.
    window: u32,
    /// Its process waits for room to send.
    pub(super) is_blocked: bool,
    pub(super) stage: Stage,
    /// The core its process last ran on.
    pub(super) process_core: usize,
    /// The place of its process's lines.
    pub(super) process_lines: Lines,
}

impl Socket {
    pub(super) fn new(segment: &Segment, config: &ModelConfig, file_bytes: u32) -> Self {
        Socket {
            wire: segment.wire,
            peer: segment.peer,
            port: segment.port,
            host_port: segment.host_port,
            file_bytes,
            lines: Lines::default(),
            expected: segment.sequence,
            unacknowledged: 0,
            readable: VecDeque::new(),
            readable_bytes: 0,
            told_window: config.receive_buffer,
            requests: 0,
            next: 0,
            unsent: VecDeque::new(),
            under_way: VecDeque::new(),
            window: config.first_window,
            is_blocked: false,
            stage: Stage::Idle,
            process_core: 0,
            process_lines: Lines::default(),
        }
    }

    /// Whether its process reads all that comes, rather than to answer it.
    pub(super) fn is_read(&self) -> bool {
        self.host_port == DISCARD
    }

    /// Segments that it buffers for sending.
    pub(super) fn kept(&self) -> u32 {
        (self.unsent.len() + self.under_way.len()) as u32
    }
}

impl Host {
    /// A segment of the peer: `socket` is its connection.
    pub(super) fn take_in(&mut self, place: usize, segment: &Segment) {
        let socket = &mut self.sockets[place];
        if segment.syn && socket.port != segment.port {
            // A new connection of the same client. Data of the previous one is dropped.
            socket.port = segment.port;
            (socket.expected, socket.next) = (segment.sequence, 0);
            (socket.window, socket.unacknowledged) = (self.config.first_window, 0);
            socket.under_way.clear();
            socket.unsent.clear();
        }
        let lines = socket.lines;
        self.sockets[place].lines = self.touch(Component::Stack, lines, Cost::SocketLines);
        if segment.payload == 0 {
            self.spend(Component::Stack, Cost::StackAck);
        } else {
            self.spend(Component::Stack, Cost::StackReceive);
            self.take_data(place, segment);
        }
        self.take_acknowledgement(place, segment.acknowledged);
    }

    fn take_data(&mut self, place: usize, segment: &Segment) {
        let socket = &mut self.sockets[place];
        if segment.sequence != socket.expected {
            // A duplicate, or after a gap: the peer is sent the expected number.
            return self.acknowledge(place);
        }
        if !socket.is_read() {
            socket.expected = segment.sequence.wrapping_add(segment.payload.into());
            socket.requests += 1;
            self.work.wakes.push(place);
            return self.spend(Component::Kernel, Cost::Wake);
        }
        if socket.readable_bytes + u32::from(segment.payload) > self.config.receive_buffer {
            return;
        }
        socket.expected = segment.sequence.wrapping_add(segment.payload.into());
        socket.readable_bytes += u32::from(segment.payload);
        socket.unacknowledged += 1;
        let (acknowledges, was_empty) = (socket.unacknowledged == 2, socket.readable.is_empty());
        let lines = self.allocate();
        self.sockets[place].readable.push_back((lines, segment.payload));
        if acknowledges {
            self.acknowledge(place);
        }
        if was_empty {
            self.work.wakes.push(place);
            self.spend(Component::Kernel, Cost::Wake);
        }
    }

    fn take_acknowledgement(&mut self, place: usize, acknowledged: u32) {
        let limit = self.config.send_window;
        let socket = &mut self.sockets[place];
        let under_way = socket.under_way.iter().map(|(_, bytes)| u32::from(*bytes)).sum::<u32>();
        let mut left = under_way.wrapping_sub(socket.next.wrapping_sub(acknowledged));
        if left == 0 || left > under_way {
            return;
        }
        self.acknowledgements += 1;
        self.colocated += u64::from(socket.process_core == self.core);
        while let Some(&(lines, bytes)) = self.sockets[place].under_way.front()
            && u32::from(bytes) <= left
        {
            left -= u32::from(bytes);
            self.sockets[place].under_way.pop_front();
            self.sockets[place].window = (self.sockets[place].window + 1).min(limit);
            self.free(lines);
        }
        while (self.sockets[place].under_way.len() as u32) < self.sockets[place].window
            && let Some(data) = self.sockets[place].unsent.pop_front()
        {
            self.send(place, data);
        }
        let socket = &mut self.sockets[place];
        if socket.is_blocked && socket.kept() * 3 < self.config.send_buffer * 2 {
            socket.is_blocked = false;
            self.work.wakes.push(place);
            self.spend(Component::Kernel, Cost::Wake);
        }
    }

    /// A buffer that this core can write: one that it freed, otherwise one that another core freed.
    pub(super) fn allocate(&mut self) -> Lines {
        self.spend(Component::Buffers, Cost::Allocate);
        let own = self.buffers.get_mut(self.core).and_then(Vec::pop);
        let lines = own.or_else(|| {
            let most = self.buffers.iter_mut().max_by_key(|list| list.len());
            most.and_then(Vec::pop)
        });
        let lines = lines.unwrap_or(Lines::at(self.core));
        self.touch(Component::Buffers, lines, Cost::BufferLines)
    }

    /// A buffer is no longer needed.
    pub(super) fn free(&mut self, lines: Lines) {
        let lines = self.touch(Component::Buffers, lines, Cost::BufferLines);
        self.spend(Component::Buffers, Cost::Free);
        if let Some(list) = self.buffers.get_mut(self.core) {
            list.push(lines);
        }
    }

    /// Whether the window allows another segment.
    pub(super) fn may_send(&self, place: usize) -> bool {
        let socket = &self.sockets[place];
        (socket.under_way.len() as u32) < socket.window
    }

    /// Sends a segment with data.
    pub(super) fn send(&mut self, place: usize, (lines, bytes): Data) {
        let lines = self.touch(Component::Buffers, lines, Cost::BufferLines);
        self.spend(Component::Stack, Cost::StackSend);
        let socket = &mut self.sockets[place];
        let sequence = socket.next;
        socket.next = sequence.wrapping_add(bytes.into());
        socket.under_way.push_back((lines, bytes));
        self.emit(place, sequence, bytes);
    }

    /// Acknowledges received data.
    pub(super) fn acknowledge(&mut self, place: usize) {
        self.spend(Component::Stack, Cost::StackSendAck);
        let sequence = self.sockets[place].next;
        self.emit(place, sequence, 0);
    }

    fn emit(&mut self, place: usize, sequence: u32, payload: u16) {
        self.spend(Component::Driver, Cost::DriverSend);
        let (buffer, queues) = (self.config.receive_buffer, self.out.len().max(1));
        let socket = &mut self.sockets[place];
        socket.unacknowledged = 0;
        socket.told_window = buffer - socket.readable_bytes.min(buffer);
        let segment = Segment {
            wire: socket.wire,
            peer: socket.peer,
            port: socket.port,
            host_port: socket.host_port,
            sequence,
            acknowledged: socket.expected,
            window: socket.told_window,
            payload,
            syn: false,
        };
        // One tx ring per connection keeps its frames in order.
        self.work.frames.push(((place % queues) as u16, segment));
    }

    /// Data was read: notifies the peer if it waits for a window.
    pub(super) fn was_read(&mut self, place: usize, bytes: u16) {
        self.bytes_read += u64::from(bytes);
        let buffer = self.config.receive_buffer;
        let socket = &mut self.sockets[place];
        socket.readable_bytes -= u32::from(bytes);
        let is_waited_for = socket.told_window < buffer / 4;
        if is_waited_for && socket.readable_bytes < buffer / 2 {
            self.acknowledge(place);
        }
    }
}
