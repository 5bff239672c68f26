//! Lost packets: each is counted, with its reason.

use super::*;

/// Size of core 0's ring, which gets all packets.
const RING_SIZE: u64 = 64;

/// Sends packets, each taken from the wire before this returns, in addition to `before` earlier
/// ones: no more than a veth's ring holds.
fn send(bed: &Bed, running: &dyn Running, before: usize, packets: usize) {
    let socket = bed.socket("far", ([10, 77, 0, 2], 9000).into());
    for _ in 0..packets {
        socket.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
    }
    let taken = || running.monitor().report().wires[0].rx_packets;
    wait_until("they are taken", || taken() == (before + packets) as u64);
}

/// Attempts, since on a busy machine sending may take longer than a real-time thread may keep its core:
/// the kernel lets other threads run for a part of each second (`sched_rt_runtime_us`, and the fair
/// server since Linux 6.12).
const ATTEMPTS: usize = 20;

/// Sends more than the ring holds while a real-time program occupies the target core; returns how many
/// packets found it full, all counted.
fn overflow_the_ring(bed: &Bed, handover: &str, sent: usize) -> u64 {
    let card = bed.card(handover, "[[rx]]\nfunction = \"rss\"\ntable = [0]\n");
    let running = start(&format!("{card}ring_size = {RING_SIZE}\n"));
    assert_eq!(running.monitor().report().queues[0].ring_size, RING_SIZE, "{handover}");
    let urgent = ["chrt", "-f", "50", "bash", "-c", "echo; while :; do :; done"];
    let program = bed.0.start("card", &urgent, &[0]).unwrap();
    wait_until("the program has the core", || program.output().ends_with('\n'));
    send(bed, &*running, 0, sent);
    drop(program);
    let report = running.stop().unwrap();
    check(&report, sent);
    let (full, delivered) = (report.queues[0].ring_full, report.queues[0].packets);
    assert_eq!(full + delivered, sent as u64, "{handover}: {report:?}");
    assert_eq!(report.ledger.dropped, full, "{handover}: {report:?}");
    full
}

#[test]
fn packets_beyond_a_full_ring_are_counted() {
    let Some(bed) = Bed::new("packets_beyond_a_full_ring_are_counted") else { return };
    let _machine = machine();
    for handover in HANDOVERS {
        // At once: waiting for each batch would take longer than the core can be held.
        let sent = 7 * BATCH;
        // The ring's packets, and up to a batch that its thread had taken.
        let most = 2 * RING_SIZE;
        let has_filled =
            || (0..ATTEMPTS).any(|_| overflow_the_ring(&bed, handover, sent) + most >= sent as u64);
        assert!(has_filled(), "{handover}: the core was never held until all packets were sent");
    }
}

/// Between program and ring, packets belong to the kernel, which reports those it frees.
#[test]
fn packets_freed_by_the_kernel_are_counted() {
    let Some(bed) = Bed::new("packets_freed_by_the_kernel_are_counted") else { return };
    let _machine = machine();
    let running = start(&bed.card("skb", "[[rx]]\nfunction = \"rss\"\ntable = [0]\n"));
    let index = bed.0.within("card", "cat /sys/class/net/k0/ifindex").unwrap();
    let relay = format!("picnic-r{}", index.trim());
    bed.send(BATCH);
    bed.0.ip("card", &format!("link set {relay} down")).unwrap();
    let lost = 3 * BATCH + 1;
    send(&bed, &*running, BATCH, lost);
    wait_until("they are lost", || running.monitor().report().ledger.dropped == lost as u64);
    bed.0.ip("card", &format!("link set {relay} up")).unwrap();
    bed.send(BATCH);
    let report = running.stop().unwrap();
    check(&report, 2 * BATCH + lost);
    assert_eq!(report.ledger.dropped, lost as u64, "{:?}", report.ledger);
    assert_eq!(report.drops["host_refused"], lost as u64, "{:?}", report.drops);
    assert_eq!(report.queues[0].packets, 2 * BATCH as u64);
}
