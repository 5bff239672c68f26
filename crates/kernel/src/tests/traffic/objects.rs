//! Users' own XDP objects under traffic: verdicts counted, maps read and written.

use super::super::objects::Objects;
use super::*;
use picnic_core::command::CommandError;

/// Sends a datagram to this port of the card, and checks whether it arrives.
#[track_caller]
fn sends(bed: &Bed, port: u16, arrives: bool) {
    let to: SocketAddr = ([10, 77, 0, 1], port).into();
    let server = bed.socket("card", to);
    let client = bed.socket("far", ([10, 77, 0, 2], 9000).into());
    let patience = if arrives { PATIENCE } else { Duration::from_millis(300) };
    server.set_read_timeout(Some(patience)).unwrap();
    client.send_to(b"picnic", to).unwrap();
    assert_eq!(server.recv(&mut [0; 64]).is_ok(), arrives, "to port {port}");
}

/// Packets received by the other end.
fn received(bed: &Bed) -> u64 {
    let count = bed.0.within("far", "cat /sys/class/net/f0/statistics/rx_packets").unwrap();
    count.trim().parse().unwrap()
}

#[test]
fn object_verdicts_are_obeyed_and_counted() {
    let Some(bed) = Bed::new("object_verdicts_are_obeyed_and_counted") else { return };
    let _machine = machine();
    let objects = Objects::compile("verdicts");
    // Without it, the other end of a veth refuses packets sent by XDP.
    bed.0.within("far", "ethtool -K f0 gro on").unwrap();
    let rx = objects.section("verdicts.o", "program = \"verdicts\"")
        + "[[rx]]\nfunction = \"by-wire\"\nqueues = [1]\n";
    let mut running = start(&bed.card("cpumap", &rx));
    let mut access = running.control().unwrap();
    // Redirected packets take the wire itself.
    let index = bed.0.within("card", "cat /sys/class/net/k0/ifindex").unwrap();
    let arguments = json!({ "map": "ways", "key": "0", "value": index.trim() });
    tell_function(&mut access, (0, "object"), "update", arguments);
    let before = received(&bed);
    // By number: aborted, dropped, passed, sent back, redirected, and unknown.
    for (port, arrives) in (PORT..).zip([false, false, true, false, false, false, true]) {
        sends(&bed, port, arrives);
    }
    wait_until("two have come back", || received(&bed) == before + 2);
    let report = running.stop().unwrap();
    let ledger = &report.ledger;
    assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger:?}");
    assert_eq!((ledger.r#in, ledger.delivered), (7, 2));
    assert_eq!((ledger.transmitted, ledger.consumed, ledger.dropped), (1, 1, 3));
    assert_eq!((report.drops["filtered"], report.drops["aborted"]), (1, 2));
    assert_eq!((report.wires[0].tx_packets, report.wires[0].tx_bytes), (1, 48));
    assert_eq!((report.queues[0].packets, report.queues[1].packets), (0, 2));
    let functions: Vec<_> =
        report.functions.iter().map(|found| (&*found.name, found.packets, found.dropped)).collect();
    assert_eq!(functions, [("object:verdicts", 7, 3), ("by-wire", 2, 0)]);
}

#[test]
fn maps_are_read_and_written_while_packets_flow() {
    let Some(bed) = Bed::new("maps_are_read_and_written_while_packets_flow") else { return };
    let _machine = machine();
    let objects = Objects::compile("maps");
    let rx = objects.section("guard.o", "") + "[[rx]]\nfunction = \"rss\"\n";
    let mut running = start(&bed.card("cpumap", &rx));
    let mut access = running.control().unwrap();
    let mut ask = |name, arguments| tell_function(&mut access, (0, "object"), name, arguments);
    let listed = ask("get", json!({}));
    assert_eq!(listed["program"], "guard");
    let maps = listed["maps"].as_array().unwrap();
    let find = |name: &str| maps.iter().find(|map| map["name"] == name).unwrap();
    assert_eq!(
        (&find("blocked")["type"], &find("blocked")["key_bytes"], &find("blocked")["value_bytes"]),
        (&json!("hash"), &json!(4), &json!(8))
    );
    assert_eq!(find("seen")["max_entries"], 256);
    bed.send(100);
    // 17 is UDP; by name and by number.
    let seen = ask("lookup", json!({ "map": find("seen")["id"].to_string(), "key": "17" }));
    let count = |value: &Value| {
        let bytes = value.as_str().unwrap().split(' ').rev().collect::<String>();
        u64::from_str_radix(&bytes, 16).unwrap()
    };
    let by_core: Vec<_> = seen["values"].as_array().unwrap().iter().map(count).collect();
    assert!(by_core.len() >= CORES);
    // All on the borrowed core.
    assert_eq!((by_core[1], by_core.iter().sum::<u64>()), (100, 100));
    let address = "10 77 0 2";
    let blocked = json!({ "map": "blocked", "key": address, "value": "5" });
    assert_eq!(ask("update", blocked.clone())["replaced"], json!([]));
    sends(&bed, PORT, false);
    wait_until("it has been taken", || running.view().wires[0].counters.rx_packets.get() == 101);
    let dumped = ask("dump", json!({ "map": "blocked" }));
    let entry = json!({ "key": "0a 4d 00 02", "values": ["06 00 00 00 00 00 00 00"] });
    assert_eq!(dumped, json!({ "entries": [entry], "more": false }));
    let dumped = ask("dump", json!({ "map": "seen", "most": 3 }));
    assert_eq!((dumped["entries"].as_array().unwrap().len(), &dumped["more"]), (3, &json!(true)));
    let deleted = ask("delete", json!({ "map": "blocked", "key": "hex 0a 4d 00 02" }));
    assert_eq!(deleted["replaced"], json!(["06 00 00 00 00 00 00 00"]));
    sends(&bed, PORT, true);
    for (name, arguments, message) in [
        ("lookup", json!({ "map": "blocked", "key": address }), "the map has no such entry"),
        ("delete", json!({ "map": "blocked", "key": address }), "the map has no such entry"),
        ("dump", json!({ "map": "no-such" }), "map: found \"no-such\", allowed: "),
        ("lookup", json!({ "map": "seen", "key": "1 2" }), "key: found \"1 2\", allowed: 4 bytes"),
        ("delete", json!({ "map": "seen", "key": "1" }), "Invalid argument"),
        (
            "update",
            json!({ "map": "blocked", "key": address, "value": "1", "when": "exist" }),
            "No such file",
        ),
    ] {
        let error = refused(&mut access, name, arguments).to_string();
        assert!(error.contains(message), "{name}: {error}");
    }
    let report = running.stop().unwrap();
    check(&report, 102);
    assert_eq!(report.drops["filtered"], 1);
}

/// The reason why a command of the first object is refused.
fn refused(access: &mut Access, name: &str, arguments: Value) -> CommandError {
    let command = crate::ENTRY.commands.iter().find(|command| command.name == name).unwrap();
    let order = command.prepare(&arguments, &BuildContext::default()).unwrap();
    assert!(access.controller.send(Order::Function(Direction::Rx, 0, order)).is_ok());
    let Answer { done, replaced } = wait_for("an answer", || access.controller.answer());
    let Order::Function(_, _, order) = replaced else { panic!("the answer to another command") };
    assert!(!done);
    command.reply(order).unwrap_err()
}

/// Metadata that an object writes before a packet: its queue, and the mark that the host sees.
#[test]
fn metadata_carries_queue_and_mark() {
    let Some(bed) = Bed::new("metadata_carries_queue_and_mark") else { return };
    let _machine = machine();
    let objects = Objects::compile("metadata");
    let rx = |keys: &str| {
        objects.section("verdicts.o", &format!("program = \"steers\"\n{keys}"))
            + "[[rx]]\nfunction = \"by-wire\"\nqueues = [1]\n"
    };
    // Packets with mark 6 go to no socket.
    for rule in
        ["rule add pref 5 fwmark 6 blackhole", "rule add pref 10 lookup local", "rule del pref 0"]
    {
        bed.0.ip("card", rule).unwrap();
    }
    let ports = [0, 1, 2, 9];
    for (keys, arrive, queues, lost) in [
        ("", [true; 4], [0, 4], 0),
        // A queue that the card lacks means a drop, and no queue means continue.
        ("metadata = true", [true, false, false, true], [1, 2], 1),
    ] {
        let running = start(&bed.card("cpumap", &rx(keys)));
        ports.iter().zip(arrive).for_each(|(port, arrives)| sends(&bed, PORT + port, arrives));
        let report = running.stop().unwrap();
        check(&report, 4);
        let found: Vec<_> = report.queues.iter().map(|queue| queue.packets).collect();
        assert_eq!((&found[..], report.ledger.dropped), (&queues[..], lost), "{keys}");
    }
}
