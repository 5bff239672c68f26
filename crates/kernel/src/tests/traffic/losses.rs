//! What does not arrive: every packet is counted, with its reason.

use super::*;

/// All packets go to core 0, whose ring has this many places.
const RING_SIZE: u64 = 64;

/// Sends so many packets, each of which has been taken from the wire when this returns, as `before` have
/// been already.
fn send(bed: &Bed, running: &dyn Running, before: usize, packets: usize) {
    let socket = bed.socket("far", ([10, 77, 0, 2], 9000).into());
    for sent in 1..=packets {
        socket.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
        if sent % BATCH == 0 || sent == packets {
            let wanted = (before + sent) as u64;
            let taken = || running.monitor().report().wires[0].rx_packets;
            wait_until("they are taken", || taken() == wanted);
        }
    }
}

/// Nobody takes packets out of the ring for a while, as something more urgent has the target core.
#[test]
fn what_a_full_ring_has_no_room_for_is_counted() {
    let Some(bed) = Bed::new("what_a_full_ring_has_no_room_for_is_counted") else { return };
    let _machine = machine();
    for handover in HANDOVERS {
        let card = bed.card(handover, "[[rx]]\nfunction = \"rss\"\ntable = [0]\n");
        let running = start(&format!("{card}ring_size = {RING_SIZE}\n"));
        assert_eq!(running.monitor().report().queues[0].ring_size, RING_SIZE, "{handover}");
        // Not for as long as the scheduler would let others in between.
        let body = "end=$((${EPOCHREALTIME/./} + 300000)); while ((${EPOCHREALTIME/./} < end)); do :; done";
        let urgent = ["chrt", "-f", "50", "bash", "-c", body];
        let mut program = bed.0.start("card", &urgent, &[0]).unwrap();
        // Not before it has the core.
        std::thread::sleep(Duration::from_millis(50));
        let sent = 10 * BATCH;
        send(&bed, &*running, 0, sent);
        wait_until("it has ended", || program.ended().is_some());
        let report = running.stop().unwrap();
        let ledger = &report.ledger;
        check(&report, sent);
        let sent = sent as u64;
        let (full, delivered) = (report.queues[0].ring_full, report.queues[0].packets);
        assert_eq!(full + delivered, sent, "{handover}: {report:?}");
        assert_eq!(ledger.dropped, full, "{handover}: {ledger:?}");
        // What it holds, and up to a batch that its thread had taken.
        assert!(full >= sent - 2 * RING_SIZE, "{handover}: {full} of {sent}");
    }
}

/// Between program and ring packets are the kernel's: it tells of those that it frees there.
#[test]
fn what_the_kernel_frees_on_the_way_is_counted() {
    let Some(bed) = Bed::new("what_the_kernel_frees_on_the_way_is_counted") else { return };
    let _machine = machine();
    let running = start(&bed.card("skb", "[[rx]]\nfunction = \"rss\"\ntable = [0]\n"));
    let index = bed.0.within("card", "cat /sys/class/net/k0/ifindex").unwrap();
    let relay = format!("picnic-r{}", index.trim());
    bed.send(BATCH);
    bed.0.ip("card", &format!("link set {relay} down")).unwrap();
    let lost = 3 * BATCH + 1;
    send(&bed, &*running, BATCH, lost);
    bed.0.ip("card", &format!("link set {relay} up")).unwrap();
    bed.send(BATCH);
    let report = running.stop().unwrap();
    check(&report, 2 * BATCH + lost);
    assert_eq!(report.ledger.dropped, lost as u64, "{:?}", report.ledger);
    assert_eq!(report.drops["host_refused"], lost as u64, "{:?}", report.drops);
    assert_eq!(report.queues[0].packets, 2 * BATCH as u64);
}
