//! The thread of a capture: empties the rings of all points into one file.

use super::{
    CELL, CaptureOptions, Cell, HASHED, NAP, Open, PointCounters, RECORD_HEADER, Shared, Sink, lock,
};
use crate::pcapng::{Packet, Writer, direction_of};
use picnic_confine::{Role, set_up};
use picnic_core::ring::spsc::Consumer;
use std::collections::VecDeque;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most records taken from one point in its turn.
const TURN: usize = 256;
/// Most packets between two flushes of the file.
const MOST_UNDERWAY: usize = 16_384;

/// A point, as seen by the writer.
struct Source {
    ring: Consumer<Cell>,
    counters: Arc<PointCounters>,
    interface: u32,
    latest_ns: u64,
}

/// Ends of packets in the unflushed part of the file, with the source of each.
type UnwrittenPackets = VecDeque<(u64, usize)>;

/// A writer that counts bytes.
struct Counted {
    sink: Sink,
    taken: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sink.write(bytes).inspect(|taken| self.taken += *taken as u64)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// The writer thread.
pub(super) fn write(shared: &Shared, open: Open, options: CaptureOptions) {
    while !shared.in_use.load(Ordering::Acquire) {
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        shared.flushed(shared.flush_wanted.load(Ordering::Acquire));
        std::thread::park_timeout(NAP);
    }
    let opened = open(shared).inspect(|sink| {
        // With the file open, this thread needs few privileges, whoever started it.
        set_up(Role::Capture, sink.needs());
    });
    if let Err(error) = opened.and_then(|sink| write_all(shared, sink, options)) {
        shared.fail(error.to_string());
    }
    shared.flushed(u64::MAX);
}

fn write_all(shared: &Shared, sink: Sink, options: CaptureOptions) -> io::Result<()> {
    let mut counted = Counted { sink, taken: 0 };
    let (mut sources, mut underway) = (Vec::new(), VecDeque::new());
    let written = write_packets(shared, &mut counted, &mut sources, &mut underway, options);
    let Counted { sink, taken } = counted;
    if written.is_err() {
        // Bytes that the file has not taken are not in it.
        for (_, source) in underway.into_iter().filter(|(end, _)| *end > taken) {
            let written = &sources[source].counters.written;
            written.set(written.get().saturating_sub(1));
        }
    }
    let Sink::File(file) = sink else { return written };
    match shared.abandoned.load(Ordering::Acquire) {
        true => file.abandon(),
        // Everything that could be written is there, even after a later error.
        false => file.finish().and(written),
    }
}

fn write_packets(
    shared: &Shared,
    sink: &mut Counted,
    sources: &mut Vec<Source>,
    underway: &mut UnwrittenPackets,
    options: CaptureOptions,
) -> io::Result<()> {
    let sink = BufWriter::with_capacity(256 << 10, sink);
    let mut writer = Writer::new(sink, concat!("picnic ", env!("CARGO_PKG_VERSION")))?;
    let mut data = Vec::new();
    let mut left = match options.packets {
        0 => u64::MAX,
        packets => packets,
    };
    let most_bytes = if options.bytes == 0 { u64::MAX } else { options.bytes };
    loop {
        // Read first: requests from before this round are done by its end.
        let stop = shared.stop.load(Ordering::Acquire);
        let flush = shared.flush_wanted.load(Ordering::Acquire);
        for (counters, ring) in lock(&shared.fresh).drain(..) {
            let interface = writer.add_interface(&counters.name, options.snaplen)?;
            sources.push(Source { ring, counters, interface, latest_ns: options.epoch_ns });
        }
        let mut taken = 0;
        for (index, source) in sources.iter_mut().enumerate() {
            let mut turn = Turn { writer: &mut writer, data: &mut data, underway, index };
            taken += turn.take(source, &mut left, most_bytes)?;
        }
        if left == 0 || writer.written() >= most_bytes {
            shared.closed.store(true, Ordering::Release);
            shared.full.store(true, Ordering::Release);
            break;
        }
        if taken != 0 {
            if underway.len() >= MOST_UNDERWAY {
                writer.flush()?;
                underway.clear();
            }
            continue;
        }
        if stop {
            break;
        }
        writer.flush()?;
        underway.clear();
        shared.flushed(flush);
        std::thread::park_timeout(NAP);
    }
    for source in sources.iter() {
        let counters = &source.counters;
        let written = counters.written.get();
        let (seen, lost) = match shared.full.load(Ordering::Acquire) {
            // Packets seen after the last one do not belong to the capture.
            true => (written + counters.lost.get(), counters.lost.get()),
            false => (counters.seen.get(), counters.seen.get().saturating_sub(written)),
        };
        if shared.full.load(Ordering::Acquire) {
            let _ = counters.at_end.set((seen, lost));
        }
        writer.statistics(source.interface, source.latest_ns, seen, lost)?;
    }
    writer.flush()
}

/// A point's turn at the file.
struct Turn<'a, 'b> {
    writer: &'a mut Writer<BufWriter<&'b mut Counted>>,
    data: &'a mut Vec<u8>,
    underway: &'a mut UnwrittenPackets,
    index: usize,
}

impl Turn<'_, '_> {
    /// Writes the point's records, up to [`TURN`] packets and at most the remaining number; returns
    /// the count.
    fn take(&mut self, source: &mut Source, left: &mut u64, most_bytes: u64) -> io::Result<usize> {
        let mut taken = 0;
        let written = self.write(source, &mut taken, left, most_bytes);
        // Also after an error: everything written before it.
        source.ring.release();
        source.counters.written.add(taken as u64);
        written.map(|()| taken)
    }

    fn write(
        &mut self,
        source: &mut Source,
        taken: &mut usize,
        left: &mut u64,
        most_bytes: u64,
    ) -> io::Result<()> {
        let Turn { writer, data, underway, index } = self;
        while *taken < TURN && *left != 0 && writer.written() < most_bytes {
            let Some(Cell(first)) = source.ring.pop() else { break };
            let number = |at: usize| {
                u32::from_le_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]])
            };
            let timestamp = u64::from(number(4)) << 32 | u64::from(number(0));
            let captured = number(8) as usize;
            data.clear();
            data.extend_from_slice(&first[RECORD_HEADER..CELL.min(RECORD_HEADER + captured)]);
            while data.len() < captured {
                // Records are published whole, so the next cell is there.
                let Some(Cell(next)) = source.ring.pop() else { break };
                data.extend_from_slice(&next[..CELL.min(captured - data.len())]);
            }
            let packet = Packet {
                timestamp_ns: timestamp,
                data,
                original_length: number(12),
                direction: direction_of(number(16)),
                toeplitz: (number(16) & HASHED != 0).then(|| number(20)),
            };
            writer.packet(source.interface, &packet)?;
            underway.push_back((writer.written(), *index));
            source.latest_ns = source.latest_ns.max(timestamp);
            *left -= 1;
            *taken += 1;
        }
        Ok(())
    }
}
