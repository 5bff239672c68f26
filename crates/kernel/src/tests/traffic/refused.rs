//! Wires, privileges, cores and kernels that a card cannot use: named by `check` and `run`, and the
//! machine left as found.

use super::*;
use crate::doctor::Facts;
use crate::object::Object;
use crate::plan::plan;
use aya::programs::XdpMode;

/// The reason why both `check` and `run` refuse a card.
fn refusal(text: &str) -> String {
    let found = launch(&parse(text)).start_alone().map(drop).unwrap_err().to_string();
    let checked = launch(&parse(text)).check().map(drop).unwrap_err().to_string();
    assert_eq!(checked, found);
    found
}

/// XDP loses packets whose checksums their sender leaves to a veth: this is reported with the fix,
/// before any is lost.
#[test]
fn partial_checksums_lost_by_xdp_are_reported() {
    let Some(bed) = Bed::new("partial_checksums_lost_by_xdp_are_reported") else {
        return;
    };
    let _machine = machine();
    let poll = "[[filter]]\naction = \"poll\"\nprotocol = \"udp\"\n";
    let told = |handover: &str| {
        let text = bed.card(handover, "[[rx]]\nfunction = \"rss\"\n");
        let text = if handover == "hybrid" { text + poll } else { text };
        let file = parse(&text);
        let checked = launch(&file).check().unwrap().placement.warnings;
        let running = start(&text);
        let report = running.stop().unwrap();
        let about = |all: &[String]| {
            let all = all.iter().filter(|warning| warning.contains("checksums"));
            all.cloned().collect::<Vec<_>>()
        };
        let found = about(&checked);
        assert_eq!(found, about(&report.notes), "by `check` as by `run`");
        found.join("\n")
    };
    let mend = format!("(ip netns exec {} ethtool -K f0 tx off)", bed.0.netns("far"));
    for (handover, is_told) in [("skb", false), ("cpumap", true), ("hybrid", true)] {
        bed.0.within("far", "ethtool -K f0 tx on").unwrap();
        let found = told(handover);
        let message = "card:6: wire[0].interface: found k0, a veth whose other end f0 leaves checksums \
                       to it: TCP and UDP packets that start there are lost after an XDP program; ";
        assert_eq!(found.starts_with(message), is_told, "{handover}: {found}");
        assert_eq!(found.contains(&mend), is_told, "{found}");
        let is_other_way = found.ends_with("or set host.handover = \"skb\"");
        assert_eq!(is_other_way, handover == "cpumap", "{found}");
        bed.0.within("far", "ethtool -K f0 tx off").unwrap();
        assert_eq!(told(handover), "", "{handover}");
    }
}

#[test]
fn unusable_wires_are_reported() {
    let Some(bed) = Bed::new("unusable_wires_are_reported") else { return };
    let _machine = machine();
    let before = bed.state();
    let text = bed.card("cpumap", "[[rx]]\nfunction = \"rss\"\n");
    let found = refusal(&text.replace("\"k0\"", "\"no-such\""));
    assert!(found.contains("wire[0].interface: found \"no-such\", but"), "{found}");
    let found = refusal(&text.replace(&bed.0.netns("card"), "no-such"));
    assert!(
        found.starts_with("card:")
            && found.contains("wire[0].namespace")
            && found.contains("no-such"),
        "{found}"
    );
    let running = start(&text);
    let found = launch(&parse(&text)).start_alone().map(drop).unwrap_err().to_string();
    assert!(
        found.contains("wire[0].interface") && found.contains("another card's wire"),
        "{found}"
    );
    assert!(found.starts_with("card:"), "with its line: {found}");
    // It continues as if nothing had happened.
    bed.send(64);
    check(&running.stop().unwrap(), 64);
    assert_eq!(bed.state(), before);
}

/// Interfaces that no kernel thread polls are refused for any hand-over: the programs would not run
/// on the borrowed core.
#[test]
fn interfaces_without_polling_are_refused() {
    let Some(bed) = Bed::new("interfaces_without_polling_are_refused") else { return };
    let _machine = machine();
    bed.0.ip("card", "tuntap add k2 mode tap").unwrap();
    bed.0.ip("card", "link set k2 up").unwrap();
    bed.0.ip("card", "link set lo up").unwrap();
    let _ = bed.second_wire();
    bed.0.ip("card", "link set k1 down").unwrap();
    let up = format!("it is down (ip -n {} link set k1 up)", bed.0.netns("card"));
    let namespace = bed.0.netns("card");
    let state = || {
        let ask = "for of in k1 k2 lo; do ethtool -k $of; cat /sys/class/net/$of/threaded; done; \
                   ip -o link";
        let words = ["ip", "netns", "exec", &namespace, "sh", "-c", ask];
        picnic_machine::command::run(&words).unwrap()
    };
    for handover in [HANDOVERS[0], HANDOVERS[1], "hybrid"] {
        for (interface, why) in
            [("k2", "its driver (tun) has no NAPI"), ("lo", "it has no NAPI"), ("k1", &*up)]
        {
            let before = state();
            let text = bed.card(handover, "[[rx]]\nfunction = \"rss\"\n");
            let text = text.replace("\"k0\"", &format!("\"{interface}\""));
            let found = refusal(&text);
            let message = format!(
                "card:6: wire[0].interface: found \"{interface}\", but interface {interface} cannot be \
                 polled by a thread of the kernel: {why}"
            );
            assert_eq!(found, message, "{handover}");
            assert_eq!(state(), before, "{handover}, {interface}");
        }
    }
}

/// If a driver accepts no program, the error names wire and alternative: by `check` and `run`,
/// where it can be known.
#[test]
fn drivers_without_xdp_are_named() {
    let Some(bed) = Bed::new("drivers_without_xdp_are_named") else { return };
    let _machine = machine();
    // A veth refuses a program if its packets may exceed a page.
    for (namespace, link) in [("card", "k0"), ("far", "f0")] {
        bed.0.ip(namespace, &format!("link set {link} mtu 9000")).unwrap();
    }
    let before = bed.state();
    let text = bed.card("cpumap", "[[rx]]\nfunction = \"rss\"\n");
    let message = "card:6: wire[0].interface: found \"k0\", whose driver takes no XDP program: ";
    let or_skb = "; host.handover = \"skb\" needs none";
    for (handover, end) in [("cpumap", or_skb), ("hybrid", "")] {
        let found = refusal(&bed.card(handover, "[[rx]]\nfunction = \"rss\"\n"));
        let why = "the MTU of its other end f0 is 9000, more than ";
        assert!(found.starts_with(&format!("{message}{why}")), "{found}");
        assert!(found.ends_with(&format!("){end}")), "{found}");
        assert_eq!(bed.state(), before);
    }
    let running = start(&text.replace("cpumap", "skb"));
    bed.send(64);
    check(&running.stop().unwrap(), 64);
    assert_eq!(bed.state(), before);
}

/// An end in a namespace without a name cannot be examined: its driver refuses when the card
/// starts.
#[test]
fn refusing_drivers_are_named() {
    let Some(bed) = Bed::new("refusing_drivers_are_named") else { return };
    let _machine = machine();
    let mut elsewhere = Command::new("unshare")
        .args(["--net", "sh", "-c", "echo there; read _"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(elsewhere.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let process = elsewhere.id();
    bed.0.ip("far", &format!("link set f0 netns {process} mtu 9000")).unwrap();
    let there = format!("nsenter --net=/proc/{process}/ns/net ip link set f0 up");
    picnic_machine::command::run(&there.split(' ').collect::<Vec<_>>()).unwrap();
    bed.0.wait_for_carrier("card", "k0").unwrap();
    let before = bed.state();
    let text = bed.card("cpumap", "[[rx]]\nfunction = \"rss\"\n");
    assert!(launch(&parse(&text)).check().is_ok());
    let found = launch(&parse(&text)).start_alone().map(drop).unwrap_err().to_string();
    let message = "card:6: wire[0].interface: found \"k0\", whose driver takes no XDP program: ";
    assert!(found.starts_with(message), "{found}");
    let end = " (is its MTU too large?); host.handover = \"skb\" needs none";
    assert!(found.ends_with(end), "{found}");
    assert_eq!(bed.state(), before);
    drop(elsewhere.stdin.take());
    elsewhere.wait().unwrap();
}

/// Set for an unprivileged process: the card that it tries to start.
const POWERLESS: &str = "PICNIC_KERNEL_POWERLESS";

#[test]
fn missing_rights_are_named() {
    let test = "missing_rights_are_named";
    if let Ok(card) = std::env::var(POWERLESS) {
        let card = parse(&card);
        let started = launch(&card).start_alone().map(drop).unwrap_err();
        let checked = launch(&card).check().map(drop).unwrap_err();
        for error in [started, checked] {
            println!("\nrefused: {}", error.to_string().replace('\n', " "));
        }
        return;
    }
    if !can_load(test) {
        return;
    }
    for handover in HANDOVERS {
        let card = card(handover, "", "[[rx]]\nfunction = \"rss\"\n")
            .replace("\"k0\"", "\"lo\"")
            .replace("namespace = \"\"\n", "");
        // An unprivileged user, who can still read the test program.
        let output = Command::new("setpriv")
            .args(["--bounding-set=-all,+dac_override", "--inh-caps=-all"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", &format!("tests::traffic::refused::{test}")])
            .env(POWERLESS, card)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let refused = text.lines().filter(|line| line.starts_with("refused: "));
        let told = refused.filter(|line| line.contains("CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"));
        assert_eq!(told.count(), 2, "by `run` and by `check`: {text}");
    }
}

/// A missing core is named, and the machine is not changed.
#[test]
fn offline_cores_are_named() {
    let Some(bed) = Bed::new("offline_cores_are_named") else { return };
    let _machine = machine();
    let before = bed.state();
    for handover in HANDOVERS {
        let text = bed.card(handover, "[[rx]]\nfunction = \"rss\"\n");
        let text = text.replace("target_cores = [0, 1]", "target_cores = [0, 255]");
        let found = refusal(&text);
        assert!(found.contains("target_cores") && found.contains("255"), "{found}");
        assert_eq!(bed.state(), before);
    }
}

/// A missing kernel feature is named with the fix, and the machine is not changed.
#[test]
fn missing_handovers_are_reported() {
    let Some(bed) = Bed::new("missing_handovers_are_reported") else { return };
    let _machine = machine();
    let before = bed.state();
    let all = Facts { release: "6.18.0".into(), has_cpumap: true };
    let without_cpumap = Facts { has_cpumap: false, ..all.clone() };
    let old = Facts { release: "6.1.0".into(), ..all };
    let cpumap = "but this kernel has no cpumap: Linux 5.17 or newer with CONFIG_BPF_SYSCALL and \
                  CONFIG_NET";
    let skb = "but Linux 6.1.0 has no links of tc programs: Linux 6.6 or newer; or host.handover = \
               \"cpumap\"";
    for (handover, kernel, place, why) in [
        ("cpumap", &without_cpumap, "card:13: host.handover: found \"cpumap\"", cpumap),
        ("skb", &without_cpumap, "card:13: host.handover: found \"skb\"", cpumap),
        ("hybrid", &without_cpumap, "card:2: card.engine: found \"hybrid\"", cpumap),
        ("skb", &old, "card:13: host.handover: found \"skb\"", skb),
    ] {
        let card = parse(&bed.card(handover, "[[rx]]\nfunction = \"rss\"\n"));
        let found = crate::run::start("kernel", kernel, launch(&card)).map(drop).unwrap_err();
        assert_eq!(found.to_string(), format!("{place}, {why}"));
        assert_eq!(bed.state(), before, "{handover}");
    }
    // The other hand-over still works.
    let text = bed.card("cpumap", "[[rx]]\nfunction = \"rss\"\n");
    let running = crate::run::start("kernel", &old, launch(&parse(&text))).unwrap();
    bed.send(64);
    check(&running.stop().unwrap(), 64);
}

/// Another XDP program is named and left alone; the hand-over without XDP still works.
#[test]
fn another_program_on_the_wire_is_named() {
    let Some(bed) = Bed::new("another_program_on_the_wire_is_named") else { return };
    let _machine = machine();
    let before = bed.state();
    let rx = "[[rx]]\nfunction = \"rss\"\n";
    let text = bed.card("cpumap", rx);
    let (plan, placement) = plan(&launch(&parse(&text))).unwrap();
    let mut object = Object::load(&plan, &placement.target_cores, false).unwrap();
    let program = object.wire(0).unwrap();
    let attached =
        within(Some(&bed.0.netns("card")), || Object::attach(program, "k0", XdpMode::Driver));
    let other = attached.unwrap().unwrap();
    for (handover, has_other_way) in [("cpumap", true), ("hybrid", false)] {
        let found = refusal(&bed.card(handover, rx));
        let message =
            "card:6: wire[0].interface: found k0, whose driver runs another XDP program (id ";
        assert!(found.starts_with(message), "{found}");
        assert!(found.contains("detach that first"), "{found}");
        assert_eq!(found.ends_with("or set host.handover = \"skb\""), has_other_way, "{found}");
        assert_eq!(bed.state(), State { program: "cpumap", ..before.clone() }, "it is there still");
    }
    drop(other);
    wait_until("it has gone", || bed.state() == before);
    let running = start(&text);
    bed.send(64);
    check(&running.stop().unwrap(), 64);
}
