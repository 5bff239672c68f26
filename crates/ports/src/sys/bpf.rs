//! The program that hands an interface's packets to sockets, and its attachment.
//!
//! The program is assembled here from a few instructions. It looks up the packet's queue in a map
//! of sockets, and passes the packet to the socket, or without a socket to the kernel. If
//! requested, a stamp precedes each packet to a socket: the time, and a mark that identifies
//! stamps. The attachment is a BPF link: it ends with the process, even after SIGKILL, and nothing
//! can replace it before.
//!
//! Guarantees: everything here is undone when its value is dropped.
//!
//! Source: bpf(2); RFC 9669 (BPF instruction set); Documentation/bpf/map_xskmap.rst;
//! Documentation/networking/xdp-rx-metadata.rst.

use picnic_core::packet::desc::Descriptor;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::hash::{BuildHasher, RandomState};
use std::io;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const LINK_DETACH: libc::c_long = 34;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The program copes with packets in several pieces.
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// Of a link: where in the kernel's receive path the program runs.
const SKB_MODE: u32 = 1 << 1;
const DRV_MODE: u32 = 1 << 2;

const KTIME_GET_NS: i32 = 5;
const REDIRECT_MAP: i32 = 51;
const ADJUST_META: i32 = 54;
const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;
/// Fields of the program's packet: the start of its bytes, the start of the metadata before
/// them, and the receiving queue.
const DATA: i16 = 0;
const DATA_META: i16 = 8;
const RX_QUEUE_INDEX: i16 = 16;

/// Bytes of a stamp, before its packet.
const STAMP_BYTES: u16 = 16;

/// The mark of a program's stamps; no other program's stamps have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Mark {
    /// A mark that was never used before. It is positive as an instruction's immediate value.
    pub(crate) fn new() -> Self {
        Mark(RandomState::new().hash_one(()) & 0x7fff_ffff)
    }

    /// Its value before packets.
    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// When the program saw this packet, in nanoseconds of the monotonic clock; none if there is no
    /// stamp before it.
    #[inline]
    pub(crate) fn stamp_of(self, packet: &Descriptor) -> Option<u64> {
        let (words, _) = packet.in_front(STAMP_BYTES)?.as_chunks();
        let [ns, mark] = [*words.first()?, *words.last()?].map(u64::from_ne_bytes);
        (mark == self.0).then_some(ns)
    }
}

/// Asks the kernel; `attributes` is one of the layouts of `union bpf_attr`.
///
/// # Safety
/// Addresses in `attributes` are those of memory that lives during the call, as large as the
/// command says.
pub(super) unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads as many bytes as are said to be there, and follows addresses as
    // the caller has answered for.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

/// As [`bpf`], for commands that make a descriptor.
///
/// # Safety
/// As `bpf`.
unsafe fn make<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; the kernel has just made the descriptor for us.
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// A name as the kernel keeps it.
const fn name(text: &[u8]) -> [u8; 16] {
    let mut name = [0; 16];
    let mut at = 0;
    while at < text.len() && at < 15 {
        name[at] = text[at];
        at += 1;
    }
    name
}

/// Sockets by queue.
#[derive(Debug)]
pub(crate) struct SocketMap(OwnedFd);

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl SocketMap {
    /// An empty map for queues 0 up to `queues`.
    pub(crate) fn new(queues: u32) -> io::Result<Self> {
        let attributes = MapCreate {
            map_type: MAP_TYPE_XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: queues,
            map_flags: 0,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: name(b"picnic_sockets"),
        };
        // SAFETY: no addresses.
        unsafe { make(MAP_CREATE, &attributes).map(SocketMap) }
    }

    /// Packets of `queue` are this socket's from now on.
    pub(crate) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd() as u32;
        let attributes = MapUpdate {
            map_fd: self.0.as_raw_fd() as u32,
            padding: 0,
            key: (&raw const queue) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        // SAFETY: key and value are four bytes each, as the map was made for.
        unsafe { bpf(MAP_UPDATE_ELEM, &attributes).map(drop) }
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One instruction: operation, registers (destination low), offset, immediate value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    operation: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(operation: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { operation, registers, offset, immediate }
}

/// ```c
/// int action = bpf_redirect_map(map, packet->rx_queue_index, XDP_PASS);
/// // If there is a mark:
/// if (action == XDP_REDIRECT && bpf_xdp_adjust_meta(packet, -16) == 0) {
///     u64 ns = bpf_ktime_get_ns();
///     u64 *stamp = packet->data_meta;
///     if (stamp + 2 <= packet->data)
///         stamp[0] = ns, stamp[1] = mark;
/// }
/// return action;
/// ```
fn redirect(map: i32, mark: Option<Mark>) -> Vec<Instruction> {
    const LOAD_WORD: u8 = 0x61;
    const STORE: u8 = 0x7b;
    const LOAD_IMMEDIATE: u8 = 0x18;
    const MOVE_IMMEDIATE: u8 = 0xb7;
    const MOVE: u8 = 0xbf;
    const ADD_IMMEDIATE: u8 = 0x07;
    const JUMP_IF_NOT_IMMEDIATE: u8 = 0x55;
    const JUMP_IF_GREATER: u8 = 0x2d;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// Source register of a 64-bit immediate that is a map's descriptor.
    const MAP_DESCRIPTOR: u8 = 1 << 4;
    let bytes = i32::from(STAMP_BYTES);
    let mut program = vec![
        instruction(MOVE, 6 | 1 << 4, 0, 0),
        instruction(LOAD_WORD, 2 | 1 << 4, RX_QUEUE_INDEX, 0),
        instruction(LOAD_IMMEDIATE, 1 | MAP_DESCRIPTOR, 0, map),
        // Its upper half.
        instruction(0, 0, 0, 0),
        instruction(MOVE_IMMEDIATE, 3, 0, XDP_PASS),
        instruction(CALL, 0, 0, REDIRECT_MAP),
    ];
    if let Some(Mark(mark)) = mark {
        // Packets for the kernel are left unchanged: two with different metadata in front are never
        // merged.
        program.extend([
            instruction(MOVE, 7, 0, 0),
            instruction(JUMP_IF_NOT_IMMEDIATE, 0, 13, XDP_REDIRECT),
            instruction(MOVE, 1 | 6 << 4, 0, 0),
            instruction(MOVE_IMMEDIATE, 2, 0, -bytes),
            instruction(CALL, 0, 0, ADJUST_META),
            instruction(JUMP_IF_NOT_IMMEDIATE, 0, 9, 0),
            instruction(CALL, 0, 0, KTIME_GET_NS),
            instruction(LOAD_WORD, 1 | 6 << 4, DATA_META, 0),
            instruction(LOAD_WORD, 2 | 6 << 4, DATA, 0),
            instruction(MOVE, 3 | 1 << 4, 0, 0),
            instruction(ADD_IMMEDIATE, 3, 0, bytes),
            instruction(JUMP_IF_GREATER, 3 | 2 << 4, 3, 0),
            instruction(STORE, 1, 0, 0),
            instruction(MOVE_IMMEDIATE, 2, 0, mark as i32),
            instruction(STORE, 1 | 2 << 4, 8, 0),
            instruction(MOVE, 7 << 4, 0, 0),
        ]);
    }
    program.push(instruction(EXIT, 0, 0, 0));
    program
}

#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instructions: u32,
    instructions_at: u64,
    license_at: u64,
    log_level: u32,
    log_size: u32,
    log_at: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
    more: [u64; 4],
}

/// The program, loaded.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Program {
    /// The program that hands packets to the sockets of `map`; with the mark of its stamps, if
    /// those are wanted and this kernel can.
    pub(super) fn redirect_to(map: &SocketMap, stamps: bool) -> io::Result<(Self, Option<Mark>)> {
        if stamps {
            let mark = Mark::new();
            if let Ok(program) = Program::load(map, Some(mark)) {
                return Ok((program, Some(mark)));
            }
        }
        Program::load(map, None).map(|program| (program, None))
    }

    fn load(map: &SocketMap, mark: Option<Mark>) -> io::Result<Self> {
        let load = |flags| {
            let instructions = redirect(map.0.as_raw_fd(), mark);
            let attributes = ProgramLoad {
                program_type: PROG_TYPE_XDP,
                instructions: instructions.len() as u32,
                instructions_at: instructions.as_ptr() as u64,
                license_at: c"Apache-2.0".as_ptr() as u64,
                log_level: 0,
                log_size: 0,
                log_at: 0,
                kernel_version: 0,
                flags,
                name: name(b"picnic_wire"),
                interface: 0,
                attach_type: ATTACH_XDP,
            };
            // SAFETY: the instructions are as many as said, the license ends in a zero, and
            // both live until the end of this closure.
            unsafe { make(PROG_LOAD, &attributes).map(Program) }
        };
        // Kernels before 5.18 know nothing of packets in pieces, and have none.
        load(XDP_HAS_FRAGS).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => load(0),
            _ => Err(error),
        })
    }

    /// Attaches the program to the receive path of interface `index` of this namespace: in its
    /// driver (`native`), or in the kernel's own path after it.
    pub(super) fn attach(&self, index: u32, native: bool) -> io::Result<Attachment> {
        let attributes = LinkCreate {
            program: self.0.as_raw_fd() as u32,
            interface: index,
            attach_type: ATTACH_XDP,
            flags: if native { DRV_MODE } else { SKB_MODE },
            more: [0; 4],
        };
        // SAFETY: no addresses.
        unsafe { make(LINK_CREATE, &attributes).map(Attachment) }
    }
}

/// A program at an interface, while this value lives.
#[derive(Debug)]
pub(super) struct Attachment(OwnedFd);

impl Drop for Attachment {
    fn drop(&mut self) {
        // Closing it would suffice, except if another thread is just starting a child, which has a
        // copy of each descriptor until it has become another program.
        // SAFETY: no addresses.
        let _ = unsafe { bpf(LINK_DETACH, &[self.0.as_raw_fd() as u32]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_has_its_name_in_the_kernel() {
        let bytes: Vec<u8> = redirect(7, None)
            .iter()
            .flat_map(|one| {
                let mut bytes = vec![one.operation, one.registers];
                bytes.extend(one.offset.to_le_bytes());
                bytes.extend(one.immediate.to_le_bytes());
                bytes
            })
            .collect();
        let expected = [
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],  // r6 = r1
            [0x61, 0x12, 16, 0, 0, 0, 0, 0], // r2 = *(u32 *)(r1 + 16)
            [0x18, 0x11, 0, 0, 7, 0, 0, 0],  // r1 = map 7
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0], // r3 = XDP_PASS
            [0x85, 0, 0, 0, 51, 0, 0, 0],   // call bpf_redirect_map
            [0x95, 0, 0, 0, 0, 0, 0, 0],    // exit
        ];
        assert_eq!(bytes, expected.concat());
        // Jumps of the stamp's part all lead to where the action is returned.
        let program = redirect(7, Some(Mark(3)));
        let jumps =
            program.iter().enumerate().filter(|(_, one)| [0x55, 0x2d].contains(&one.operation));
        let targets: Vec<_> = jumps.map(|(place, one)| place + 1 + one.offset as usize).collect();
        assert_eq!(targets, [program.len() - 2; 3]);
        assert_eq!(program[program.len() - 2], instruction(0xbf, 0x70, 0, 0));
        assert_eq!(name(b"a-name-that-is-too-long"), *b"a-name-that-is-\0");
    }
}
