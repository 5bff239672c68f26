//! Chains swapped while packets flow: none is lost, each follows one of the chains, and all counts
//! add up.

use super::super::objects::Objects;
use super::*;
use picnic_control::SwapRx;
use picnic_engine::build::context;

/// Replaces the rx chain with the chain of this text.
fn swap(access: &mut Access, rx: &str) -> Result<(), String> {
    let file = parse(rx);
    let swapper: &mut Box<dyn SwapRx> = access.swap_rx.as_mut().unwrap();
    let base = BuildContext { queues: CORES as u16, in_kernel: true, ..context(&file) };
    let swapped = swapper.swap(&file.rx, &base, &mut || Ok(()));
    swapped.map(drop).map_err(|error| error.to_string())
}

fn by_wire(queue: u16) -> String {
    format!("[[rx]]\nfunction = \"by-wire\"\nqueues = [{queue}]\n")
}

#[test]
fn chains_are_swapped_while_packets_flow() {
    let Some(bed) = Bed::new("chains_are_swapped_while_packets_flow") else { return };
    let _machine = machine();
    let objects = Objects::compile("swaps");
    for handover in HANDOVERS {
        let mut running = start(&bed.card(handover, &by_wire(0)));
        let mut access = running.control().unwrap();
        let names = |running: &dyn Running| {
            let functions = running.view().functions.of(Direction::Rx).into_iter();
            functions.map(|function| function.name).collect::<Vec<_>>()
        };
        let sent = bed.under_load(|arrived| {
            let more = || {
                let wanted = arrived.load(Relaxed) + 200;
                wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
            };
            more();
            for turn in 0..3 {
                let rss = "[[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"rss\"\n";
                swap(&mut access, rss).unwrap();
                assert_eq!(names(&*running), ["pass", "rss"]);
                more();
                if handover == "cpumap" && turn % 2 == 0 {
                    swap(&mut access, &(objects.section("guard.o", "") + &by_wire(1))).unwrap();
                    assert_eq!(names(&*running), ["object:guard", "by-wire"]);
                    more();
                }
                swap(&mut access, &by_wire(1)).unwrap();
                more();
            }
        });
        // The last chain is current, and its functions have their own counters.
        let packets = || running.view().queues.iter().map(|queue| queue.target.packets.get());
        let settled = |wanted: u64| {
            wait_until("all have been counted", || packets().sum::<u64>() >= wanted);
        };
        swap(&mut access, &by_wire(1)).unwrap();
        settled(sent);
        let before: Vec<_> = packets().collect();
        bed.send(100);
        settled(before.iter().sum::<u64>() + 100);
        assert_eq!(packets().collect::<Vec<_>>(), [before[0], before[1] + 100], "{handover}");
        // An impossible chain leaves the current one.
        let found = swap(&mut access, "[[rx]]\nfunction = \"lro\"\n").unwrap_err();
        assert!(found.contains("rx[0].function: found \"lro\", allowed with engine"), "{found}");
        let found = swap(&mut access, &by_wire(7)).unwrap_err();
        assert!(found.contains("rx[0].queues[0]: found queue 7, allowed: 0 to 1"), "{found}");
        swap(&mut access, "[[rx]]\nfunction = \"drop\"\n").unwrap();
        let to: SocketAddr = TO.into();
        let (server, client) =
            (bed.socket("card", to), bed.socket("far", ([10, 77, 0, 2], 9000).into()));
        client.send_to(b"picnic", to).unwrap();
        wait_until("it has been taken", || {
            running.view().wires[0].counters.rx_packets.get() == sent + 101
        });
        server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(server.recv(&mut [0; 64]).is_err());
        let report = running.stop().unwrap();
        let ledger = &report.ledger;
        assert!(ledger.balanced() && ledger.in_flight == 0, "{handover}: {ledger:?}");
        assert_eq!((ledger.dropped, report.drops["filtered"]), (1, 1), "{handover}: {ledger:?}");
        assert_eq!((report.functions[0].packets, report.functions[0].dropped), (1, 1));
        assert_eq!(ledger.r#in, ledger.delivered + 1);
    }
}

/// A swapped-in chain has its own commands.
#[test]
fn functions_of_a_swapped_chain_take_commands() {
    let Some(bed) = Bed::new("functions_of_a_swapped_chain_take_commands") else { return };
    let _machine = machine();
    for handover in HANDOVERS {
        let mut running = start(&bed.card(handover, &by_wire(0)));
        let mut access = running.control().unwrap();
        let rss = "[[rx]]\nfunction = \"rss\"\ntypes = [\"udp-ipv4\"]\ntable = [1]\n";
        swap(&mut access, rss).unwrap();
        bed.send(50);
        tell_function(&mut access, (0, "rss"), "set", json!({ "table": [0] }));
        bed.send(20);
        let report = running.stop().unwrap();
        check(&report, 70);
        let found: Vec<_> = report.queues.iter().map(|queue| queue.packets).collect();
        assert_eq!(found, [20, 50], "{handover}");
        assert!(report.queues.iter().all(|queue| queue.interrupts != 0), "{report:?}");
    }
}

/// If one wire cannot have the new chain, the others return to the old one, with its counts.
#[test]
fn failed_swaps_are_undone() {
    for handover in HANDOVERS {
        let Some(bed) = Bed::new("failed_swaps_are_undone") else { return };
        let _machine = machine();
        let wire = bed.second_wire();
        let chain = |queue| format!("[[rx]]\nfunction = \"by-wire\"\nqueues = [{queue}, 0]\n");
        let mut running = start(&bed.card(handover, &(wire + &chain(0))));
        let mut access = running.control().unwrap();
        bed.send(100);
        bed.0.ip("card", "link del k1").unwrap();
        let base = "[[wire]]\nport = \"xdp\"\n[[wire]]\nport = \"xdp\"\n";
        let found = swap(&mut access, &(base.to_owned() + &chain(1))).unwrap_err();
        assert!(found.contains("programs cannot be replaced"), "{handover}: {found}");
        bed.send(100);
        let report = running.stop().unwrap();
        check(&report, 200);
        let found: Vec<_> = report.queues.iter().map(|queue| queue.packets).collect();
        assert_eq!((found, report.functions[0].packets), (vec![200, 0], 200), "{handover}");
    }
}
