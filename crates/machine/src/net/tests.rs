//! Networks from card files, and made on this machine.

use super::*;
use crate::config::SECTIONS;
use picnic_core::config::{CardFile, Sections};
use std::path::Path;

fn card(text: &str) -> Result<CardFile, String> {
    let sections = Sections::core().with(SECTIONS);
    sections.parse(text, Some(Path::new("card.toml"))).map_err(|error| error.to_string())
}

fn network(text: &str) -> Result<Network, String> {
    Network::of(&card(text)?).map_err(|error| error.to_string())
}

#[test]
fn errors_have_key_and_line() {
    for (text, error) in [
        ("", "card.toml: net: missing, must be given: `picnic card` shows its keys"),
        (
            "[net]\nnamespaces = [\"a\", \"a\"]",
            "card.toml:2: net.namespaces[1]: found \"a\" twice, allowed: once",
        ),
        (
            "[net]\nnamespaces = [\"a/b\"]",
            "card.toml:2: net.namespaces[0]: found \"a/b\", allowed: a name of `ip netns`: 1 to \
             64 bytes without blanks and /",
        ),
        ("[net]\nlink = 3", "card.toml:2: net.link: found 3, allowed: a list"),
        (
            "[[net.link]]\npeers = \"c0\"",
            "card.toml:2: net.link[0].peers: found key \"peers\", allowed: interface, namespace, \
             addresses, mac, peer, peer_namespace, peer_addresses, peer_mac, mtu, queues, \
             offloads; did you mean \"peer\"?",
        ),
        (
            "[[net.link]]\npeer = \"a-name-of-16-bytes\"",
            "card.toml:2: net.link[0].peer: found \"a-name-of-16-bytes\", allowed: a name of 1 \
             to 15 bytes without blanks, /, : and %",
        ),
        ("[[net.link]]\nmtu = 20", "card.toml:2: net.link[0].mtu: found 20, allowed: 68 to 65535"),
        (
            "[[net.link]]\nmac = \"01:00:00:00:00:01\"",
            "card.toml:2: net.link[0].mac: found \"01:00:00:00:00:01\", allowed: six bytes such as 02:00:00:00:00:01, not multicast, not zero",
        ),
        (
            "[[net.link]]\npeer_addresses = [\"10.0.0.1/8\", \"10.0.0.1\"]",
            "card.toml:2: net.link[0].peer_addresses[1]: found \"10.0.0.1\", allowed: an address \
             such as 10.0.0.1/24 or fd00::1/64",
        ),
        (
            "[[net.link]]\noffloads = { txx = false }",
            "card.toml:2: net.link[0].offloads.txx: found key \"txx\", allowed: rx, tx, sg, tso, \
             gso, gro; did you mean \"tx\"?",
        ),
        (
            "[[net.link]]\n[[net.link]]\npeer = \"c1\"",
            "card.toml:2: net.link[1].interface: found \"wire0\", which another link has",
        ),
        (
            "[[net.link]]\npeer_namespace = \"card\"\npeer = \"wire0\"",
            "card.toml:3: net.link[0].peer: found \"wire0\", which is the other end's name",
        ),
    ] {
        assert_eq!(network(text).map(|_| ()), Err(error.into()), "{text}");
    }
}

#[test]
fn networks_become_commands() {
    let network = network(
        "[net]\nnamespaces = [\"client\"]\n\
         [[net.link]]\nnamespace = \"\"\ninterface = \"w0\"\npeer = \"c0\"\nmtu = 9000\n\
         peer_addresses = [\"10.1.0.2/24\", \"fd00::2/64\"]\npeer_mac = \"2:0:0:0:0:a\"\n\
         offloads = { tx = false, gro = true }\n",
    );
    let commands: Vec<_> =
        network.unwrap().commands().iter().map(|words| words.join(" ")).collect();
    assert_eq!(
        commands,
        [
            "ip netns add client".to_owned(),
            "ip -n client link set lo up".into(),
            "ip link add w0 mtu 9000 type veth peer name c0 address 02:00:00:00:00:0a mtu 9000 \
             netns client"
                .into(),
            "ethtool -K w0 tx off gro on".into(),
            "ip link set w0 up".into(),
            "ip -n client address add 10.1.0.2/24 dev c0".into(),
            "ip -n client address add fd00::2/64 dev c0 nodad".into(),
            "ip netns exec client ethtool -K c0 tx off gro on".into(),
            "ip -n client link set c0 up".into(),
            "ip netns exec client tc qdisc replace dev c0 root mq".into(),
        ]
    );
}

#[test]
fn journals_of_cards_have_distinct_names() {
    assert_eq!(purpose("web"), "net-web");
    assert_eq!(purpose("a/b-c"), "net-a%2fb%2dc");
    assert_ne!(purpose("a-b"), purpose("a_b"));
}

/// A machine with journals in this directory; without root none, and a message why.
fn this_machine(test: &str, state: &Path) -> Option<Machine> {
    if !rustix::process::geteuid().is_root() {
        picnic_testing::skip(test, "network namespaces need root");
        return None;
    }
    Some(Machine { state: state.into(), ..Machine::this() })
}

/// A card file with namespaces that no other test has.
fn text(test: &str, addresses: &str) -> String {
    let name = format!("pnt{}{test}", std::process::id());
    format!(
        "[card]\nname = \"{name}\"\n[net]\nnamespaces = [\"{name}-c\", \"{name}-k\"]\n\
         [[net.link]]\nnamespace = \"{name}-k\"\npeer_namespace = \"{name}-c\"\n\
         peer_addresses = [{addresses}]\nmac = \"02:00:00:00:00:07\"\nqueues = 2\n"
    )
}

#[test]
fn networks_are_made_changed_and_removed() {
    let state = tempfile::tempdir().unwrap();
    let Some(machine) = this_machine("net-up", state.path()) else { return };
    let first = network(&text("u", "\"10.1.0.2/24\"")).unwrap();
    let made = up(&machine, &first).unwrap();
    assert!(made.changed && made.interfaces.iter().all(|end| end.up));
    let [near, far] = &made.interfaces[..] else { panic!("{made:?}") };
    assert_eq!((near.mac.as_str(), near.peer.as_str()), ("02:00:00:00:00:07", "client0"));
    assert_eq!(far.addresses, ["10.1.0.2/24"]);
    assert!(is_up(&machine, &first.card).unwrap());
    // An identical network is left unchanged: it keeps its number in the kernel.
    let number = |network: &Network| look(&network.links[0].far).unwrap()["ifindex"].clone();
    let before = number(&first);
    let again = up(&machine, &first).unwrap();
    assert_eq!((again.changed, &again.interfaces), (false, &made.interfaces));
    assert_eq!(number(&first), before);
    // Another address: made anew. Also after an interface was removed by others.
    let other = network(&text("u", "\"10.1.0.3/24\", \"fd00::3/64\"")).unwrap();
    let changed = up(&machine, &other).unwrap();
    assert!(changed.changed);
    assert_eq!(changed.interfaces[1].addresses, ["10.1.0.3/24", "fd00::3/64"]);
    let namespace = other.links[0].near.namespace.clone().unwrap();
    command::run(&["ip", "-n", &namespace, "link", "del", "wire0"]).unwrap();
    assert!(up(&machine, &other).unwrap().changed);
    // Another card does not get this one's network, and does not remove it.
    let mut thief = other.clone();
    thief.card = "thief".into();
    let refused = up(&machine, &thief).unwrap_err().to_string();
    assert!(refused.ends_with("exists, but `picnic net up` did not create it for card thief"));
    assert!(down(&machine, Some("thief")).unwrap().is_empty());
    assert!(look(&other.links[0].near).is_some());
    let restored = down(&machine, Some(&other.card)).unwrap();
    assert!(restored.iter().all(|journal| journal.failed.is_empty()), "{restored:?}");
    assert!(look(&other.links[0].near).is_none());
    assert!(!machine.namespaces.join(&other.namespaces[0]).exists());
    assert!(down(&machine, None).unwrap().is_empty());
}

#[test]
fn failed_networks_leave_nothing() {
    let state = tempfile::tempdir().unwrap();
    let Some(machine) = this_machine("net-refused", state.path()) else { return };
    let mut wrong = network(&text("r", "")).unwrap();
    // Nobody makes this one, so the pair cannot be created.
    wrong.links[0].far.namespace = Some("pnt-nowhere".into());
    assert!(up(&machine, &wrong).is_err());
    assert!(!machine.namespaces.join(&wrong.namespaces[0]).exists());
    assert!(journals(&machine).unwrap().is_empty());
}

#[test]
fn killed_network_setups_are_cleaned_up() {
    let state = tempfile::tempdir().unwrap();
    let Some(machine) = this_machine("net-kill", state.path()) else { return };
    let network = network(&text("k", "")).unwrap();
    // As after a kill: recorded, partly made, never held, and the process ended.
    let mut journal = Journal::create(&machine, &purpose(&network.card)).unwrap();
    journal.record_all(changes(&network)).unwrap();
    for words in &network.commands()[..3] {
        journal.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    }
    drop(journal);
    let file = std::fs::read_dir(state.path()).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        path.extension().is_some_and(|end| end == "journal").then_some(path)
    });
    let file = file.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let (mut header, rest): (Value, _) = {
        let (first, rest) = text.split_once('\n').unwrap();
        (serde_json::from_str(first).unwrap(), rest)
    };
    header["start_time"] = 1.into();
    std::fs::write(&file, format!("{header}\n{rest}")).unwrap();
    let restored = restore_all(&machine, JournalSelection::Stale).unwrap();
    assert!(restored.iter().all(|journal| journal.failed.is_empty()), "{restored:?}");
    assert!(network.namespaces.iter().all(|name| !machine.namespaces.join(name).exists()));
    assert!(!file.exists());
}
