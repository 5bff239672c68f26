//! Running tasks allocates nothing in steady state: checked by a counting allocator.
//!
//! One test only, so that no other thread of the process allocates meanwhile.

mod bench;

use bench::Bench;
use picnic_os::task::{TaskSpec, program};
use std::sync::{Arc, Mutex};

#[test]
fn tasks_run_without_an_allocation() {
    let mut bench = Bench::new();
    let spec = |name: &str| TaskSpec::new(name).wcet_ns(300);
    let beat = program(|nic| async move {
        let sender = nic.sender(0, |_| {});
        loop {
            let _ = nic.post(0, &[1; 60]);
            let _ = sender.post(&[2; 60]);
            let mut block = nic.allocate(64);
            if let Ok(block) = &mut block {
                let _ = block.with(|bytes| bytes[..8].fill(7));
            }
            nic.set_priority(nic.id(), 1);
            nic.yield_now().await;
            let _ = nic.send(0, &[3; 60]).await;
            nic.next_release().await;
        }
    });
    bench.os.create(spec("beat").periodic(10_000), beat).unwrap();
    let mailbox = Arc::new(Mutex::new(None));
    let theirs = mailbox.clone();
    let reader = program(move |nic| async move {
        let (sender, mut mailbox) = nic.mailbox(64).unwrap();
        *theirs.lock().unwrap() = Some(sender);
        while let Some(packet) = mailbox.receive().await {
            match packet.data()[0] % 2 {
                0 => packet.transmit(0),
                _ => packet.consume(),
            }
        }
    });
    bench.os.create(spec("reader"), reader).unwrap();
    for _ in 0..8 {
        let sleeper = program(|nic| async move {
            loop {
                nic.sleep_ns(7_000).await;
            }
        });
        bench.os.create(spec("sleeper"), sleeper).unwrap();
    }
    let round = |bench: &mut Bench| {
        for byte in 0..4 {
            if let Some(packet) = bench.doors.pool.packet(&[byte; 60])
                && let Some(sender) = mailbox.lock().unwrap().as_mut()
                && let Err(packet) = sender.push(packet)
            {
                bench.doors.pool.free(packet);
            }
        }
        bench.wire_takes_all(0);
        bench.run_until(bench.now + 10_000);
    };
    // The reader hands its mailbox out.
    bench.run_until(bench.now + 20_000);
    assert!(mailbox.lock().unwrap().is_some());
    for _ in 0..100 {
        round(&mut bench);
    }
    let rounds = || (0..1_000).for_each(|_| round(&mut bench));
    assert_eq!(allocation_counter::measure(rounds).count_total, 0, "in a thousand rounds");
    drop(mailbox);
    bench.end();
}
