//! Commands of functions, and filters, under load: changes apply completely, and nothing is lost.

use super::*;
use picnic_filter::PortRange;

#[test]
fn key_and_table_change_while_packets_flow() {
    let Some(bed) = Bed::new("key_and_table_change_while_packets_flow") else { return };
    let _machine = machine();
    HANDOVERS.into_iter().for_each(|handover| change_key_and_table(&bed, handover));
}

fn change_key_and_table(bed: &Bed, handover: &str) {
    let types = vec![HashType::Ipv4, HashType::UdpIpv4];
    let rx = "[[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"rss\"\n\
              types = [\"ipv4\", \"udp-ipv4\"]\n";
    let mut running = start(&bed.card(handover, rx));
    let mut access = running.control().unwrap();
    // All components have exactly the commands that work in the kernel.
    let rss = access.registries.functions.iter().find(|entry| entry.name == "rss").unwrap();
    assert_eq!(rss.commands.iter().map(|command| command.name).collect::<Vec<_>>(), ["get", "set"]);
    let count = |running: &dyn Running| {
        let report = running.monitor().report();
        report.queues.iter().map(|queue| queue.packets).collect::<Vec<_>>()
    };
    let all = u64::from(FLOWS);
    let mut wanted = vec![0; CORES];
    let symmetric = Config { symmetric: true, types: types.clone(), ..Config::default() };
    let one =
        Config { table: Some(vec![1]), symmetric: true, types: types.clone(), ..Config::default() };
    for (arguments, config) in [
        (json!({}), Config { types: types.clone(), ..Config::default() }),
        (json!({ "key": "symmetric" }), symmetric),
        (json!({ "table": [1] }), one.clone()),
        (json!({ "table": [1, 0, 0] }), Config { table: Some(vec![1, 0, 0]), ..one }),
    ] {
        if arguments != json!({}) {
            assert!(tell(&mut access, "set", arguments)["moved_entries"].as_u64() > Some(0));
        }
        bed.send(usize::from(FLOWS));
        queues(&config).into_iter().for_each(|queue| wanted[queue] += 1);
        wait_until("all have been counted", || {
            count(&*running).iter().sum::<u64>() == wanted.iter().sum::<u64>()
        });
        assert_eq!(count(&*running), wanted, "{config:?}");
    }
    let state = tell(&mut access, "get", json!({}));
    assert_eq!((&state["table"], &state["symmetric"]), (&json!([1, 0, 0]), &json!(true)));
    // Under load, changes lose nothing.
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| bed.send(20 * usize::from(FLOWS)));
        let mut turn = 0;
        while !traffic.is_finished() {
            turn += 1;
            let table: Vec<_> = (0..1 + turn % 100).map(|entry| (entry + turn) % 2).collect();
            tell(&mut access, "set", json!({ "table": table, "key": "symmetric" }));
        }
    });
    let report = running.stop().unwrap();
    check(&report, 24 * all as usize);
}

/// Rules, VLANs and rates change as in the poll engine, without loss.
#[test]
fn rules_vlans_and_rates_change_while_packets_flow() {
    let Some(bed) = Bed::new("rules_vlans_and_rates_change_while_packets_flow") else {
        return;
    };
    let _machine = machine();
    HANDOVERS.into_iter().for_each(|handover| change_rules_vlans_and_rates(&bed, handover));
}

fn change_rules_vlans_and_rates(bed: &Bed, handover: &str) {
    const VLAN: (usize, &str) = (0, "vlan");
    const LIMITER: (usize, &str) = (1, "rate-limit");
    const DIRECTOR: (usize, &str) = (2, "flow-director");
    let rx = "[[rx]]\nfunction = \"vlan\"\n[[rx]]\nfunction = \"rate-limit\"\n\
              [[rx]]\nfunction = \"flow-director\"\n\
              rules = [{ protocol = \"udp\", source_port = 9000, queue = 1 }]\n";
    let mut running = start(&bed.card(handover, rx));
    let mut access = running.control().unwrap();
    let udp = |port: u16| json!({ "protocol": "udp", "source_port": port, "queue": 1 });
    // Of each 64 packets one is of each flow: this many go to the second queue.
    let mut second = 0;
    let mut send = |more: u64| {
        bed.send(FLOWS.into());
        second += more;
        let count = |queue: usize| running.view().queues[queue].target.packets.get();
        wait_until("all have been counted", || (count(0) + count(1)) % u64::from(FLOWS) == 0);
        wait_until("the second queue's, too", || count(1) == second);
    };
    send(1);
    assert_eq!(tell_function(&mut access, DIRECTOR, "add", udp(9001))["number"], 2);
    send(2);
    let listed = tell_function(&mut access, DIRECTOR, "list", json!({}));
    let packets: Vec<_> =
        listed["rules"].as_array().unwrap().iter().map(|rule| &rule["packets"]).collect();
    assert_eq!(packets, [&json!(2), &json!(1)]);
    tell_function(&mut access, DIRECTOR, "remove", json!({ "number": 1 }));
    send(1);
    let all = json!({ "rules": [{ "protocol": "udp", "queue": 1 }, { "protocol": "tcp", "drop": true }] });
    tell_function(&mut access, DIRECTOR, "replace", all.clone());
    send(FLOWS.into());
    let listed = tell_function(&mut access, DIRECTOR, "list", json!({}));
    assert_eq!(listed["rules"][0]["packets"], FLOWS, "counted anew: {listed}");
    wait_until("it is told", || {
        let found = tell_function(&mut access, DIRECTOR, "get", json!({}));
        found["matched_packets"] == 68 && found["unmatched_packets"] == 256 - 68
    });

    // Under load, changes lose nothing.
    bed.under_load(|arrived| {
        for turn in 0..10_u64 {
            let wanted = arrived.load(Relaxed) + 50;
            let rules = if turn % 2 == 0 { json!({ "rules": [udp(9000)] }) } else { all.clone() };
            tell_function(&mut access, DIRECTOR, "replace", rules);
            tell_function(&mut access, VLAN, "set", json!({ "allow": [1 + turn] }));
            let rate = json!({ "packets_per_second": 1_000_000_000_u64 + turn });
            tell_function(&mut access, LIMITER, "set", rate);
            wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
        }
    });
    wait_until("all of it is told", || {
        let received = running.view().wires[0].counters.rx_packets.get();
        let found = tell_function(&mut access, VLAN, "get", json!({}));
        found["untagged"] == received && found["tagged"] == 0
    });
    let dropped = |function: usize| {
        running.view().functions.of(Direction::Rx)[function].counters.dropped.get()
    };
    assert_eq!((dropped(0), dropped(1), dropped(2)), (0, 0, 0));

    // And dropped packets stay dropped.
    let (_server, flows) = bed.sockets();
    let send = |packets: usize| {
        for flow in &flows[..packets] {
            flow.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
        }
    };
    tell_function(&mut access, VLAN, "set", json!({ "allow": [5], "untagged": false }));
    send(10);
    wait_until("no VLAN has dropped them", || dropped(0) == 10);
    assert_eq!(tell_function(&mut access, VLAN, "get", json!({}))["filtered"], 10);
    tell_function(&mut access, VLAN, "set", json!({ "allow": [] }));
    let limit = json!({ "packets_per_second": 1, "burst_packets": 5 });
    tell_function(&mut access, LIMITER, "set", limit);
    let before = running.view().wires[0].counters.rx_packets.get();
    send(60);
    // Each has one fate: the counters are not set at the same time.
    wait_until("all have been counted", || {
        let counters = running.view();
        let delivered: u64 = counters.queues.iter().map(|queue| queue.target.packets.get()).sum();
        counters.wires[0].counters.rx_packets.get() == before + 60
            && delivered + dropped(0) + dropped(1) == before + 60
    });
    // One more for each second that this takes.
    let over = dropped(1);
    assert!((40..=55).contains(&over), "{over}");
    let found = tell_function(&mut access, LIMITER, "get", json!({}));
    assert_eq!((&found["dropped_packets"], &found["burst_packets"]), (&json!(over), &json!(5)));
    let report = running.stop().unwrap();
    // The final report has the figures of the commands.
    let of = |place: usize| {
        let function = &report.functions[place];
        (&function.counters, &function.gauges)
    };
    assert_eq!((of(0).0["filtered"].as_u64(), of(0).1.len()), (Some(10), 0), "{report:?}");
    assert_eq!(of(1).0["dropped_packets"].as_u64(), Some(over), "{report:?}");
    assert_eq!((&of(1).1["burst_packets"], &of(2).1["rules"]), (&json!(5), &json!(2)));
    assert!(report.ledger.balanced() && report.ledger.in_flight == 0, "{report:?}");
    assert_eq!((report.drops["filtered"], report.drops["rate_limited"]), (10, over));
}

#[test]
fn pools_are_replaced_while_packets_flow() {
    let Some(bed) = Bed::new("pools_are_replaced_while_packets_flow") else {
        return;
    };
    let _machine = machine();
    HANDOVERS.into_iter().for_each(|handover| replace_pools(&bed, handover));
}

fn replace_pools(bed: &Bed, handover: &str) {
    const VMDQ: (usize, &str) = (0, "vmdq");
    let rx = "[[rx]]\nfunction = \"vmdq\"\npools = [{ queues = [0] }]\ndefault_pool = 0\n";
    let mut running = start(&bed.card(handover, rx));
    let mut access = running.control().unwrap();
    let count = |queue: usize| running.view().queues[queue].target.packets.get();
    let of = |queue: u16| json!({ "pools": [{ "queues": [queue] }] });
    bed.send(FLOWS.into());
    wait_until("the first queue has them", || count(0) >= FLOWS.into());
    assert_eq!(count(1), 0);
    tell_function(&mut access, VMDQ, "replace", of(1));
    let before = count(0);
    bed.send(FLOWS.into());
    wait_until("the second queue has them", || count(1) >= FLOWS.into());
    assert_eq!(count(0), before);
    bed.under_load(|arrived| {
        for turn in 0..10 {
            let wanted = arrived.load(Relaxed) + 50;
            tell_function(&mut access, VMDQ, "replace", of(turn % 2));
            wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
        }
    });
    wait_until("all of it is told", || {
        let received = running.view().wires[0].counters.rx_packets.get();
        let found = tell_function(&mut access, VMDQ, "get", json!({}));
        found["received_packets"] == received && count(0) + count(1) == received
    });
    let report = running.stop().unwrap();
    assert!(
        report.ledger.balanced() && report.drops.values().all(|&drops| drops == 0),
        "{report:?}"
    );
}

#[test]
fn dropped_packets_are_counted() {
    let Some(bed) = Bed::new("dropped_packets_are_counted") else { return };
    let _machine = machine();
    let rx = "[[rx]]\nfunction = \"sample\"\nevery = 4\nqueue = 1\n[[rx]]\nfunction = \"drop\"\n";
    for handover in HANDOVERS {
        let running = start(&bed.card(handover, rx));
        let to: SocketAddr = ([10, 77, 0, 1], PORT).into();
        let (server, client) =
            (bed.socket("card", to), bed.socket("far", ([10, 77, 0, 2], 9000).into()));
        let mut buffer = [0; 64];
        for _ in 0..100 {
            for _ in 0..4 {
                client.send_to(b"picnic", to).unwrap();
            }
            assert_eq!(server.recv(&mut buffer).unwrap(), 6);
        }
        wait_until("all have been counted", || {
            running.view().wires[0].counters.rx_packets.get() == 400
        });
        let report = running.stop().unwrap();
        check(&report, 400);
        assert_eq!((report.ledger.dropped, report.drops["filtered"]), (300, 300));
        assert_eq!(report.drops_by_stage["filtered@rx"], 300);
        assert_eq!((report.queues[0].packets, report.queues[1].packets), (0, 100));
        assert_eq!(report.functions[1].dropped, 300);
    }
}

/// Filters before the chain, added, read and removed under load.
#[test]
fn filters_change_while_packets_flow_in_the_kernel() {
    let Some(bed) = Bed::new("filters_change_while_packets_flow_in_the_kernel") else { return };
    let _machine = machine();
    let port = |port| FiveTuple {
        protocol: Some(Protocol::UDP),
        source_ports: PortRange::one(port),
        ..FiveTuple::default()
    };
    for handover in HANDOVERS {
        let rx = "[[rx]]\nfunction = \"rss\"\n[[filter]]\nname = \"seen\"\n[[filter]]\n\
                  name = \"other\"\nprotocol = \"tcp\"\naction = \"drop\"\n";
        let running = start(&bed.card(handover, rx));
        bed.send(64);
        let filters = running.filters().clone();
        let seen = filters.list()[0].id;
        wait_until("all have been counted", || filters.get(seen).unwrap().packets == 64);
        // A filter that matches none of these packets is added and removed: none is lost.
        bed.under_load(|arrived| {
            let more = || {
                let wanted = arrived.load(Relaxed) + 200;
                wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
            };
            for _ in 0..5 {
                let id = filters.add(Filter::new("none", port(1), Action::Drop)).unwrap();
                more();
                filters.remove(id).unwrap();
                more();
            }
        });
        // One that matches: exactly its packets end there.
        let id = filters.add(Filter::new("one", port(9001), Action::Drop)).unwrap();
        let (server, flows) = bed.sockets();
        let (mut buffer, mut sent, mut passed) = ([0; 64], 0, 0);
        let dropped = || filters.get(id).unwrap().packets;
        server.set_nonblocking(true).unwrap();
        wait_until("the filter is in force", || {
            flows[1].send_to(b"picnic", SocketAddr::from(TO)).unwrap();
            sent += 1;
            dropped() != 0
        });
        wait_until("each has arrived or ended there", || {
            while server.recv(&mut buffer).is_ok() {
                passed += 1;
            }
            passed + dropped() == sent
        });
        server.set_nonblocking(false).unwrap();
        let before = dropped();
        for flow in &flows[..3] {
            flow.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
        }
        let mut from = [server.recv_from(&mut buffer), server.recv_from(&mut buffer)]
            .map(|found| found.unwrap().1.port());
        from.sort_unstable();
        assert_eq!(from, [9000, 9002]);
        wait_until("it is counted", || dropped() == before + 1);
        let listing = filters.remove(id).unwrap();
        assert_eq!(listing.bytes, listing.packets * 48);
        drop((server, flows));
        wait_until("it is out of force", || filters.is_taken());
        let report = running.stop().unwrap();
        let ledger = &report.ledger;
        assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger:?}");
        assert_eq!((ledger.dropped, report.drops["filtered"]), (listing.packets, listing.packets));
        assert_eq!(filters.get(seen).unwrap().packets, report.wires[0].rx_packets);
        assert_eq!(report.functions[0].packets, report.wires[0].rx_packets - listing.packets);
    }
}
