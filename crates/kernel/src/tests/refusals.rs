//! Settings that this engine cannot honour are refused by file, line and key.

use super::traffic::Bed;
use super::{FUNCTIONS, HANDOVERS, can_load, launch, parse};
use crate::object::{Object, check_built};
use crate::plan::{MOST_STEPS, MOST_WIRES, plan};
use crate::rules::room;
use picnic_filter::MOST_FILTERS;
use picnic_forms::Handover;

const CARD: &str = "[card]\nengine = \"kernel\"\n";
const WIRE: &str = "[[wire]]\nport = \"xdp\"\ninterface = \"k0\"\n";
const HOST: &str = "[host]\nattachment = \"stack\"\nhandover = \"cpumap\"\nqueues = 1\n";

fn refusal(text: &str) -> String {
    let card = parse(text);
    launch(&card).check().map(drop).unwrap_err().to_string()
}

#[test]
fn components_without_kernel_form_are_refused_with_alternatives() {
    let rx = "[[rx]]\nfunction = \"rss\"\n";
    for (text, message) in [
        (
            format!("{CARD}[[wire]]\nport = \"generator\"\n{rx}{HOST}"),
            "card:4: wire[0].port: found \"generator\", allowed with engine = \"kernel\": xdp",
        ),
        (
            format!("{CARD}{WIRE}{rx}[host]\nqueues = 1\n"),
            "host.attachment: found \"app\", allowed with engine = \"kernel\": stack",
        ),
        (
            format!(
                "{CARD}{WIRE}{rx}[host]\nqueues = 1\nattachment = \"vhost-user\"\n\
                 guest = [{{ socket = \"vm0.sock\" }}]\n"
            ),
            "host.attachment: found \"vhost-user\", allowed with engine = \"kernel\": stack",
        ),
        (
            format!("{CARD}{WIRE}[[rx]]\nfunction = \"lro\"\n{HOST}"),
            "rx[0].function: found \"lro\", allowed with engine = \"kernel\": ",
        ),
        (
            format!("{CARD}{WIRE}{rx}{rx}{HOST}"),
            "rx[1].function: found \"rss\" twice, allowed with engine = \"kernel\": once",
        ),
    ] {
        let found = refusal(&text);
        assert!(found.contains(message), "{found}");
    }
    let found = refusal(&format!("{CARD}{WIRE}[[rx]]\nfunction = \"lro\"\n{HOST}"));
    let with_a_form = FUNCTIONS.iter().filter(|entry| entry.has_kernel_form());
    let names: Vec<_> = with_a_form.map(|entry| entry.name).collect();
    assert!(names.contains(&"rss") && !names.contains(&"lro"), "{names:?}");
    assert!(found.contains(&names.join(", ")), "{found}");
}

#[test]
fn unsupported_keys_are_refused() {
    let rx = "[[rx]]\nfunction = \"pass\"\n";
    for (wire, rx, rest, message) in [
        ("tx_ring = 64\n", rx, "", "card:6: wire[0].tx_ring: found 64, allowed with"),
        ("mode = \"generic\"\n", rx, "", "wire[0].mode: found \"generic\", allowed with"),
        ("namespace = \"/proc/1/ns/net\"\n", rx, "", "allowed with engine = \"kernel\": a name"),
        ("[wire.link]\n", rx, "", "wire[0].link: found a link, allowed with"),
        ("[wire.fault]\ndrop = 0.1\n", rx, "", "wire[0].fault: found a fault injector"),
        ("", "[[rx]]\nfunction = \"rss\"\ninner = true\n", "", "rx[0].inner: found true, allowed"),
        (
            "",
            "[[rx]]\nfunction = \"rss\"\nrebalance_usecs = 1000\n",
            "",
            "rx[0].rebalance_usecs: found 1000, allowed with engine = \"kernel\": no key",
        ),
        ("", "[[rx]]\nfunction = \"rss\"\ndefault_queue = 7\n", "", "found queue 7, allowed: 0"),
        ("", "[[rx]]\nfunction = \"sample\"\n", "", "rx[0].queue: found none, allowed with"),
        ("", "[[rx]]\nfunction = \"sample\"\nrandom = true\n", "", "rx[0].random: found true"),
        (
            "",
            "[[rx]]\nfunction = \"flow-director\"\nrules = [{ protocol = \"tcp\", mark = 1 }]\n",
            "",
            "rx[0].rules[0].mark: found 1, allowed: none with engine = \"kernel\"",
        ),
        (
            "",
            "[[rx]]\nfunction = \"flow-director\"\nrules = [{ protocol = \"tcp\", queue = 7 }]\n",
            "",
            "rx[0].rules[0].queue: found queue 7, allowed: 0 to 0",
        ),
        (
            "",
            "[[rx]]\nfunction = \"rate-limit\"\npackets_per_second = 1\naction = \"pace\"\n",
            "",
            "rx[0].action: found \"pace\", allowed with engine = \"kernel\": drop",
        ),
        (
            "",
            "[[rx]]\nfunction = \"rate-limit\"\npackets_per_second = 1\nper = \"flow\"\n",
            "",
            "rx[0].per: found another, allowed with engine = \"kernel\": all, wire",
        ),
        ("", "[[rx]]\nfunction = \"vlan\"\nstrip = true\n", "", "rx[0].strip: found true, allowed"),
        (
            "",
            "[[rx]]\nfunction = \"vlan\"\nallow = [0]\n",
            "",
            "rx[0].allow[0]: found 0, allowed: 1",
        ),
        (
            "",
            "[[rx]]\nfunction = \"vmdq\"\npools = [{ queues = [0] }]\nmac_anti_spoofing = false\n",
            "",
            "rx[0].mac_anti_spoofing: found false, allowed with engine = \"kernel\": no key",
        ),
        ("", &rx.repeat(9), "", "rx: found 9, allowed with engine = \"kernel\": 0 to 8"),
        (
            "",
            rx,
            "[interrupt]\nrx_usecs = 5\n",
            "card:13: interrupt.rx_usecs: found 5, allowed with engine = \"kernel\": only \
             wire_usecs and poll_usecs: a target is",
        ),
        (
            "",
            rx,
            "[interrupt]\nwire_usecs = 5\nwire_frames = 64\n",
            "card:14: interrupt.wire_frames: found 64, allowed with engine = \"kernel\": no key: a poll takes up to 64 packets, as the wire's driver has it",
        ),
        (
            "",
            rx,
            "[interrupt]\nrx_frames = 8\n",
            "card:13: interrupt.rx_frames: found 8, allowed with engine = \"kernel\": no key: a",
        ),
        (
            "",
            rx,
            "[interrupt]\npoll_usecs = 50\n",
            "card:13: interrupt.poll_usecs: found 50, allowed with engine = \"kernel\": 0, or with wire_usecs",
        ),
        ("", rx, "[interrupt]\nper_packet = true\n", "card:13: interrupt.per_packet: found true"),
        (
            "",
            rx,
            "[interrupt]\ngate = \"none\"\n",
            "card:13: interrupt.gate: found \"none\", allowed",
        ),
        (
            "",
            rx,
            "[interrupt]\nadaptive = true\n",
            "card:13: interrupt.adaptive: found true, allowed",
        ),
        ("", rx, "[pool]\nbuffers = 512\n", "pool.buffers: found 512, allowed with"),
        ("", rx, "[isolation]\napply = true\n", "isolation.apply: found true, allowed with"),
        (
            "",
            rx,
            "[[filter]]\nstart = 23\nvalues = [\"01\"]\n",
            "card:13: filter[0].start: found a pattern, allowed: a five-tuple, or every packet (engine",
        ),
        (
            "",
            rx,
            "[[filter]]\naction = \"mark\"\nmark = 1\n",
            "filter[0].action: found mark, allowed: drop, accept, steer, count (engine",
        ),
        ("", rx, "[[filter]]\ndirection = \"tx\"\n", "filter[0].direction: found tx, allowed: rx"),
        ("", rx, "[[filter]]\nplace = \"driver\"\n", "filter[0].place: found driver, allowed: nic"),
        (
            "",
            "[[filter]]\naction = \"steer\"\nqueue = 3\n",
            "",
            "filter[0].queue: found 3, allowed: 0",
        ),
        ("", rx, "[[tx]]\nfunction = \"pass\"\n", "allowed with engine = \"kernel\": no tx chain"),
    ] {
        let found = refusal(&format!("{CARD}{WIRE}{wire}{rx}{HOST}{rest}"));
        assert!(found.contains(message), "{found}\nin place of {message}");
    }
    let many = WIRE.repeat(9);
    let found = refusal(&format!("{CARD}{many}{rx}{HOST}"));
    assert!(found.contains("wire: found 9, allowed with engine = \"kernel\": 1 to 8"), "{found}");
    let found = refusal(&format!(
        "{CARD}{WIRE}{rx}[host]\nattachment = \"stack\"\nqueues = 2\ntarget_cores = [0, 0]\n"
    ));
    assert!(found.contains("host.queues: found 2 queues, of which 0 and 1 have core 0"), "{found}");
    let two = "[[rx]]\nfunction = \"vmdq\"\n\
               pools = [{ queues = [0] }, { vlans = [7], queues = [1] }]\n";
    let found = refusal(&format!("{CARD}{WIRE}{two}[host]\nattachment = \"stack\"\nqueues = 2\n"));
    let message = "rx[0].pools[1].broadcast: found true, allowed with engine = \"kernel\": false, since pool 0 also gets those of VLAN 7";
    assert!(found.contains(message), "{found}");
    let found = refusal(&format!("{CARD}{WIRE}{rx}{HOST}ring_size = 32768\n"));
    assert!(found.contains("host.ring_size: found 32768"), "{found}");
    let host = HOST.replace("cpumap", "mail");
    let found = refusal(&format!("{CARD}{WIRE}{rx}{host}"));
    assert!(found.contains("host.handover") && found.contains("cpumap"), "{found}");
}

/// Settings that the kernel and the poll engine cannot share.
#[test]
fn unshareable_settings_are_refused() {
    let rx = "[[rx]]\nfunction = \"lro\"\n";
    let host = "[host]\nattachment = \"app\"\nqueues = 1\n";
    let poll = "[[filter]]\naction = \"poll\"\n";
    let wire = WIRE.replace("k0", "lo");
    // A card in the kernel alone has nowhere to send them.
    let found = refusal(&format!("{CARD}{wire}[[rx]]\nfunction = \"pass\"\n{HOST}{poll}"));
    let message = "card:13: filter[0].action: found poll, allowed: drop, accept, steer, count, or \
                   \"poll\" with engine = \"hybrid\" (engine = \"kernel\")";
    assert!(found.contains(message), "{found}");
    let card = CARD.replace("kernel", "hybrid");
    for (wire_keys, rx, host, rest, message) in [
        (
            "",
            rx,
            HOST.replace("handover = \"cpumap\"\n", ""),
            "",
            "card:9: host.attachment: found \"stack\", allowed with engine = \"hybrid\": the host of the \
          poll engine's packets (app, ",
        ),
        (
            "queues = 1\n",
            rx,
            host.into(),
            "",
            "wire[0].queues: found 1, allowed with engine = \"hybrid\": no key",
        ),
        ("promiscuous = true\n", rx, host.into(), "", "wire[0].promiscuous: found true, allowed"),
        (
            "",
            "[[rx]]\nfunction = \"rate-limit\"\npackets_per_second = 5\n",
            host.into(),
            "",
            "card:7: rx[0].function: found \"rate-limit\", allowed with engine = \"hybrid\": one without a rate",
        ),
        (
            "",
            "[[rx]]\nfunction = \"rss\"\ninner = true\n",
            host.into(),
            "",
            "rx[0].inner: found true, allowed with engine = \"hybrid\": ",
        ),
        (
            "",
            rx,
            host.into(),
            "[interrupt]\nwire_usecs = 5\n",
            "interrupt.wire_usecs: found 5, allowed with engine = \"hybrid\": 0",
        ),
        ("", rx, host.into(), "[isolation]\napply = true\n", "isolation.apply: found true"),
        (
            "",
            rx,
            host.into(),
            "[[filter]]\nplace = \"driver\"\n",
            "filter[0].place: found driver, allowed: nic (engine = \"hybrid\")",
        ),
        (
            "",
            rx,
            host.into(),
            "[[filter]]\naction = \"mark\"\nmark = 1\n",
            "filter[0].action: found mark, allowed: drop, accept, steer, count, poll (engine = \"hybrid\")",
        ),
        (
            "",
            rx,
            host.into(),
            "[[filter]]\naction = \"poll\"\ndirection = \"tx\"\n",
            "filter[0].direction: found tx, allowed: rx",
        ),
    ] {
        let text = format!("{card}{wire}{wire_keys}{rx}{host}{rest}");
        let found = refusal(&text);
        assert!(found.contains(message), "{found}\nin place of {message}");
    }
    let spin = format!("{card}idle = \"spin\"\n{wire}{rx}{host}{poll}");
    let message =
        "card:3: card.idle: found \"spin\", allowed with engine = \"hybrid\": \"adaptive\"";
    assert!(refusal(&spin).contains(message), "{}", refusal(&spin));
    // Everything of the poll engine works, including its tx chain.
    let rest = "[[tx]]\nfunction = \"pass\"\n[interrupt]\nrx_usecs = 5\n[pool]\nbuffers = 1024\n";
    let keys = "rx_ring = 128\ncopy_mode = \"copy\"\n";
    let Some(bed) = Bed::new("unshareable_settings_are_refused") else { return };
    let wire = format!("{WIRE}namespace = \"{}\"\n", bed.0.netns("card"));
    let file = parse(&format!("{card}idle = \"block\"\n{wire}{keys}{rx}{host}{rest}{poll}"));
    let warnings = launch(&file).check().unwrap().placement.warnings;
    assert!(warnings.iter().all(|warning| !warning.contains("poll")), "{warnings:?}");
    let file = parse(&format!("{card}{wire}{rx}{host}"));
    let warnings = launch(&file).check().unwrap().placement.warnings;
    let message = "no filter has action = \"poll\": all packets stay in the kernel";
    assert!(warnings.iter().any(|warning| warning.contains(message)), "{warnings:?}");
}

/// `check` reports it too, if the card has no other error.
#[test]
fn builds_without_clang_name_the_package() {
    for engine in ["kernel", "hybrid"] {
        let file = parse(&CARD.replace("kernel", engine));
        let found = check_built(&file, false).unwrap_err().to_string();
        let message = format!(
            "card:2: card.engine: found \"{engine}\", but picnic was built without clang, which \
             compiles its programs: install it (apt-get install clang), then build picnic again"
        );
        assert_eq!(found, message);
        check_built(&file, true).unwrap();
    }
    assert!(crate::object::without_clang().to_string().contains("apt-get install clang"));
}

/// Any function, with any keys before its name; with hybrid, the poll engine has it.
#[test]
fn every_function_of_a_tx_chain_is_refused_by_name() {
    for entry in *FUNCTIONS {
        let keys = entry.example(&std::env::temp_dir()).unwrap_or_default();
        // An object is named by its file: it has the section's line.
        let (tx, line) = match entry.name {
            "object" => ("[[tx]]\nobject = \"guard.o\"\n".into(), 10),
            name => {
                let tx = format!("[[tx]]\n{keys}\nfunction = \"{name}\"\n");
                let line = 9 + tx.lines().count();
                (tx, line)
            }
        };
        let found = refusal(&format!("{CARD}{WIRE}{HOST}{tx}"));
        let message = format!(
            "card:{line}: tx[0].function: found \"{}\", allowed with engine = \"kernel\": no tx chain",
            entry.name
        );
        assert!(found.starts_with(&message), "{found}\nin place of {message}");
        let named = FUNCTIONS.iter().filter(|entry| entry.has_kernel_form());
        let named: Vec<_> = named.map(|entry| entry.name).collect();
        assert!(found.contains(&named.join(", ")), "{found}");

        let hybrid = CARD.replace("kernel", "hybrid");
        let host = "[host]\nattachment = \"app\"\nqueues = 1\n";
        let card = parse(&format!("{hybrid}{WIRE}{host}{tx}"));
        let planned = crate::plan::plan(&launch(&card)).map(drop);
        assert!(planned.is_ok(), "{}: {planned:?}", entry.name);
    }
    let found = refusal(&format!("{CARD}{WIRE}{HOST}[[tx]]\nfunction = \"no-such\"\n"));
    assert!(found.starts_with("card:11: tx[0].function: found \"no-such\", allowed: "), "{found}");
}

#[test]
fn tasks_and_functions_that_send_are_refused_by_name() {
    let rx = "[[rx]]\nfunction = \"pass\"\n";
    for (rest, message) in [
        (
            "[[tx]]\nfunction = \"tso\"\n",
            "card:14: tx[0].function: found \"tso\", allowed with engine = \"kernel\": no tx chain, as \
             these programs see no sent packets; engine = \"hybrid\" has one",
        ),
        (
            "[os]\nscheduler = \"wfq\"\n",
            "card:14: os.scheduler: found \"wfq\", allowed with engine = \"kernel\": no section: tasks run only with the poll engine",
        ),
        (
            "[[task]]\ntask = \"polymer\"\n",
            "card:14: task[0].task: found \"polymer\", allowed with engine = \"kernel\": no section: tasks run",
        ),
    ] {
        let found = refusal(&format!("{CARD}{WIRE}{rx}{HOST}\n{rest}"));
        assert!(found.starts_with(message), "{found}");
    }
}

/// The verifier takes at most a million steps: all functions in one chain, on the most wires, whose
/// interfaces share no program.
#[test]
fn the_longest_chain_on_the_most_wires_passes_the_verifier() {
    if !can_load("the_longest_chain_on_the_most_wires_passes_the_verifier") {
        return;
    }
    let rules = "[{ protocol = \"tcp\", queue = 0 }, { source = \"10.0.0.0/8\", queue = 0 }]";
    let rx = [
        "vlan\"\nallow = [7]",
        "rate-limit\"\npackets_per_second = 1000\nbytes_per_second = 100000\nper = \"wire\"",
        &format!("flow-director\"\ncapacity = 8192\nrules = {rules}"),
        "vmdq\"\npools = [{ queues = [0] }]",
        "sample\"\nevery = 3\nqueue = 0",
        "pass\"",
        "rss\"\ntypes = [\"ipv4\", \"tcp-ipv4\", \"udp-ipv4\", \"ipv6\", \"tcp-ipv6\", \"udp-ipv6\"]",
        &format!("by-wire\"\nqueues = {:?}", [0; MOST_WIRES]),
    ];
    let rx: String = rx.iter().map(|keys| format!("[[rx]]\nfunction = \"{keys}\n")).collect();
    for handover in HANDOVERS {
        let host = HOST.replace("cpumap", handover);
        let filter = "[[filter]]\naction = \"count\"\n";
        let card = parse(&format!("{CARD}{}{rx}{host}{filter}", WIRE.repeat(MOST_WIRES)));
        let (mut plan, placement) = plan(&launch(&card)).unwrap();
        assert_eq!((plan.steps.len(), plan.wires.len()), (MOST_STEPS, MOST_WIRES));
        assert_eq!(plan.programs(), std::array::from_fn(|wire| wire));
        plan.room = room(MOST_FILTERS);
        let mut object = Object::load(&plan, &placement.target_cores, false).unwrap();
        for wire in 0..MOST_WIRES {
            match plan.handover {
                Handover::Cpumap => object.wire(wire).map(drop).unwrap(),
                Handover::Skb => object.tc(&format!("steer_{wire}")).map(drop).unwrap(),
            }
        }
    }
}

#[test]
fn supported_cards_are_accepted() {
    let rx = "[[rx]]\nfunction = \"rss\"\nhash = \"jhash\"\njhash_init = 7\ntable_size = 100\n";
    let rest = "ring_size = 512\ntarget_cores = [0]\n[control]\nsocket = \"off\"\n\
                [isolation]\napply = false\nlevel = \"none\"\n[interrupt]\nwire_usecs = 50\npoll_usecs = 500\n";
    let Some(bed) = Bed::new("supported_cards_are_accepted") else { return };
    let wire = format!("{WIRE}namespace = \"{}\"\n", bed.0.netns("card"));
    let card =
        parse(&format!("{CARD}default_queue = 0\n{wire}mode = \"native\"\n{rx}{HOST}{rest}"));
    let checked = launch(&card).check().unwrap();
    assert_eq!(checked.placement.target_cores, [0]);
}
