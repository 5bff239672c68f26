//! Requirements for every wire port and every host attachment in the registry.

#[path = "../../core/tests/shared/registry.rs"]
mod shared;

use picnic_core::attachment::{HostAttachment, QueueOut};
use picnic_core::command::Prepared;
use picnic_core::config::Section;
use picnic_core::ledger::Ledger;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::registry::{BuildContext, Entry};
use picnic_core::ring::spsc;
use picnic_core::stats::{TargetCounters, WireCounters};
use picnic_core::time::Time;
use picnic_ports::cable::Cables;
use picnic_ports::registry::{ATTACHMENTS, WIRES};
use std::collections::VecDeque;

/// Every wire that needs nothing of the machine, with the keys it must have, and with each of
/// these beside them that it knows.
fn wires() -> Vec<(String, Box<dyn WirePort>)> {
    let mut wires = Vec::new();
    let folder = tempfile::tempdir().unwrap();
    let context = BuildContext { directory: folder.path().into(), ..BuildContext::default() };
    for entry in WIRES {
        // Those that are interfaces of the kernel are tested in namespaces of their own.
        let Some(example) = entry.example(folder.path()) else { continue };
        for keys in ["", "rate_pps = 5000000", "size = \"imix\"", "packets = 1000"] {
            let text = format!("port = \"{}\"\n{example}\n{keys}", entry.name);
            let section = Section::from_text("port", &text).unwrap();
            match entry.build(&section, &context) {
                Ok(wire) => wires.push((text, wire)),
                Err(error) => {
                    assert!(!keys.is_empty(), "{text}: its example does not build: {error}");
                    let known = entry.keys().iter().any(|key| keys.starts_with(&key.name));
                    assert!(!known && !error.key.is_empty(), "{text}: {error}");
                }
            }
        }
    }
    wires
}

#[test]
fn entries_are_explained_and_unknown_keys_refused() {
    shared::entries_are_explained("port", WIRES);
    shared::entries_are_explained("attachment", ATTACHMENTS);
}

#[test]
fn commands_are_obeyed_as_they_are_declared() {
    let folder = tempfile::tempdir().unwrap();
    let context = BuildContext { directory: folder.path().into(), ..BuildContext::default() };
    let keys = |example: Option<String>| example.expect("commands are for what tests can build");
    let wire = |entry: &Entry<Box<dyn WirePort>>| {
        let keys = keys(entry.example(folder.path()));
        let text = format!("port = \"{}\"\n{keys}", entry.name);
        entry.build(&Section::from_text("port", &text).unwrap(), &context).unwrap()
    };
    shared::commands_are_obeyed(WIRES, &context, wire, |wire, order, now| wire.obey(order, now));
    let host = |entry: &Entry<Box<dyn HostAttachment>>| {
        let keys = keys(entry.example(folder.path()));
        let text = format!("attachment = \"{}\"\n{keys}", entry.name);
        entry.build(&Section::from_text("attachment", &text).unwrap(), &context).unwrap()
    };
    let obey =
        |host: &mut Box<dyn HostAttachment>, order: &mut Prepared, now| host.obey(order, now);
    shared::commands_are_obeyed(ATTACHMENTS, &context, host, obey);
}

#[test]
fn a_wire_conserves_packets_with_buffers_and_without() {
    for (text, mut wire) in wires() {
        let (mut pool, _) =
            Pool::new(&PoolConfig { buffers: 100, ..PoolConfig::default() }, 0).unwrap();
        let (counters, ledger) = (WireCounters::default(), Ledger::new(0));
        let (mut burst, mut held) = (Burst::new(), Vec::new());
        let (mut handed, mut bytes, mut last) = (0, 0, Time::ZERO);
        wire.start(&mut pool).unwrap();
        // A cable brings the frames of its other end.
        let is_cable = text.contains("\"cable\"");
        let mut other_end = is_cable.then(|| Cables::default().plug_as_other("cable").unwrap());
        for round in 0..2_000_u64 {
            if let Some(end) = &mut other_end {
                end.send(&[0x55; 60]);
            }
            let now = Time::from_nanos(round * 1_000);
            let limit = (round % 64 + 1) as usize;
            let before = pool.available();
            let mut rx =
                Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, now, 1, limit);
            wire.receive(now, &mut rx);
            drop(rx);
            assert!(burst.len() <= limit && burst.len() <= before, "{text}");
            if wire.status().is_finished {
                assert_eq!(wire.status().next_deadline, None, "{text}");
            }
            for packet in burst.drain() {
                handed += 1;
                bytes += u64::from(packet.length());
                let stamp = packet.received_at();
                assert_eq!(packet.wire, 1, "{text}");
                match wire.describe().capabilities.arrival {
                    true => assert!((last..=now).contains(&stamp), "{text}: {stamp} at {now}"),
                    false => assert_eq!(stamp, now, "{text}"),
                }
                last = stamp;
                held.push(packet);
            }
            // Some rounds hold on until the pool is empty.
            if round % 10 < 5 {
                held.drain(..).for_each(|packet| pool.free(packet));
            }
        }
        held.drain(..).for_each(|packet| pool.free(packet));
        let totals = ledger.read();
        assert_eq!(totals.r#in, handed + totals.dropped, "{text}");
        // One rule for all wires: see `WireCounters`.
        assert_eq!(counters.rx_packets.get(), handed, "{text}");
        assert_eq!(counters.rx_shed.get(), totals.dropped, "{text}");
        assert_eq!(counters.rx_bytes.get(), bytes, "{text}");
        assert!(handed > 0, "{text}");
        assert!(
            !wire.describe().capabilities.patient || totals.dropped == 0,
            "{text}: a patient wire lost packets"
        );
        assert_eq!(pool.outstanding(), 0, "{text}");
    }
}

#[test]
fn a_wire_accounts_for_all_packets_to_send() {
    for (text, mut wire) in wires() {
        let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
        let (counters, ledger) = (WireCounters::default(), Ledger::new(0));
        let sizes = [0, 1, 13, 14, 60, 1514, 2048, 5000, 65_536];
        let mut queue: VecDeque<_> =
            sizes.iter().map(|&size| pool.packet(&vec![0x55; size]).unwrap()).collect();
        let mut tx = Transmitter::new(&mut pool, &mut queue, &counters, &ledger.card);
        wire.transmit(Time::ZERO, &mut tx);
        let fates = ledger.card.transmitted.get() + ledger.card.drops.total();
        assert_eq!(fates as usize + queue.len(), sizes.len(), "{text}");
        queue.drain(..).for_each(|packet| pool.free(packet));
        assert_eq!(pool.outstanding(), 0, "{text}");
    }
}

#[test]
fn attachments_conserve_all_packets() {
    let folder = tempfile::tempdir().unwrap();
    for entry in ATTACHMENTS {
        // Those that are interfaces of the kernel are tested in namespaces of their own.
        let Some(example) = entry.example(folder.path()) else { continue };
        for keys in ["", "mode = \"echo\""] {
            let text = format!("attachment = \"{}\"\n{example}\n{keys}", entry.name);
            let section = Section::from_text("attachment", &text).unwrap();
            let mut attachment = match entry.build(&section, &BuildContext::default()) {
                Ok(attachment) => attachment,
                Err(error) => {
                    let known = entry.keys().iter().any(|key| keys.starts_with(&key.name));
                    assert!(!keys.is_empty() && !known, "{text}: {error}");
                    continue;
                }
            };
            let mut queue = attachment.open_queue(0).unwrap();
            let (mut pool, mut returns) = Pool::new(&PoolConfig::default(), 1).unwrap();
            let (mut tx, mut sent) = spsc::channel(64);
            let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
            let mut given = 0;
            for round in 0..50 {
                let mut burst = Burst::new();
                for size in [0, 1, 14, 33, 60, 1514, 5000, 65_536] {
                    burst.push(pool.packet(&vec![round; size]).unwrap()).unwrap();
                    given += 1;
                }
                let mut out = QueueOut::new(&mut returns[0], &mut tx, &counters, &ledger.queues[0]);
                queue.deliver(Time::ZERO, &mut burst, &mut out);
                drop(out);
                assert!(burst.is_empty(), "{text}");
                if round % 20 == 0 {
                    sent.refresh();
                    while let Some(packet) = sent.pop() {
                        pool.free(packet);
                    }
                    sent.release();
                }
            }
            let part = &ledger.queues[0];
            let out = part.delivered.get() + part.submitted.get() + part.drops.total();
            assert_eq!(given + part.made.get(), out, "{text}");
            sent.refresh();
            while let Some(packet) = sent.pop() {
                pool.free(packet);
            }
            sent.release();
            assert_eq!(pool.outstanding(), 0, "{text}");
        }
    }
}
