//! Capture files: any bytes give an error message, or packets inside the file.

use crate::frames;
use picnic_ports::pcap::CaptureFile;

/// Reads the bytes as a pcap or pcapng file.
pub fn run(data: &[u8]) {
    let file = match CaptureFile::parse(data.to_vec()) {
        Ok(file) => file,
        Err(message) => return assert!(!message.is_empty()),
    };
    let mut latest = 0;
    let mut bytes = 0;
    for index in 0..file.len() {
        let (packet, time_ns) = file.packet(index).expect("a packet that was counted");
        assert!(time_ns >= latest, "time runs backwards");
        latest = time_ns;
        bytes += packet.len();
    }
    assert!(bytes <= data.len(), "packets overlap, or lie outside the file");
    assert_eq!(file.duration_ns(), latest);
    assert!(file.packet(file.len()).is_none());
    assert!(file.cut_short() + file.back_in_time() <= 2 * file.len() as u64);
    if let Some(broken) = file.broken() {
        assert!(broken.offset <= data.len() && !broken.reason.is_empty());
    }
}

/// A pcap file; `words` encodes its numbers.
fn pcap(words: fn(u32) -> [u8; 4], halves: fn(u16) -> [u8; 2], nanoseconds: bool) -> Vec<u8> {
    let mut file = Vec::new();
    let mut put = |numbers: &[u32]| numbers.iter().for_each(|&number| file.extend(words(number)));
    put(&[if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }]);
    file.extend(halves(2));
    file.extend(halves(4));
    let mut put = |numbers: &[u32]| numbers.iter().for_each(|&number| file.extend(words(number)));
    put(&[0, 0, 65_535, 1]);
    for (second, frame) in frames::all().iter().enumerate() {
        let length = frame.len() as u32;
        for number in [second as u32, 5, length, length + 4] {
            file.extend(words(number));
        }
        file.extend(frame);
    }
    file
}

/// A pcapng block: type, body (padded), length on both sides.
fn block(block_type: u32, body: &[u8], words: fn(u32) -> [u8; 4]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = words(12 + padded as u32);
    let mut block = [words(block_type), length].concat();
    block.extend(body);
    block.resize(8 + padded, 0);
    block.extend(length);
    block
}

/// A pcapng file with all the blocks a reader must know.
fn pcapng(words: fn(u32) -> [u8; 4], halves: fn(u16) -> [u8; 2]) -> Vec<u8> {
    let number = |numbers: &[u32]| numbers.iter().flat_map(|&one| words(one)).collect::<Vec<_>>();
    let magic = [number(&[0x1a2b_3c4d]), halves(1).into(), halves(0).into(), vec![0xff; 8]];
    let resolution = [halves(9), halves(1)].concat();
    let link = [halves(1), halves(0)].concat();
    let interface = [link, number(&[0]), resolution, vec![9, 0, 0, 0], vec![0; 4]].concat();
    let mut file = block(0x0a0d_0d0a, &magic.concat(), words);
    file.extend(block(1, &interface, words));
    for (index, frame) in frames::all().iter().enumerate() {
        let length = frame.len() as u32;
        let head = number(&[0, 0, index as u32 * 1000, length, length]);
        file.extend(block(6, &[&head, frame.as_slice()].concat(), words));
        file.extend(block(3, &[&number(&[length]), frame.as_slice()].concat(), words));
    }
    file.extend(block(5, &number(&[0, 0, 0]), words));
    file
}

/// Both forms, both byte orders, both resolutions.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![
        pcap(u32::to_le_bytes, u16::to_le_bytes, false),
        pcap(u32::to_be_bytes, u16::to_be_bytes, true),
        pcapng(u32::to_le_bytes, u16::to_le_bytes),
        pcapng(u32::to_be_bytes, u16::to_be_bytes),
    ]
}
