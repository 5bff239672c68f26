//! Filters and SCIRON by the command line: a card that runs, asked and changed.

use crate::common::{Running, folder, machine, stdout, wait_until};
use serde_json::Value;
use std::path::Path;

const CARD: &str = "[card]\nname = \"filtered\"\n[[wire]]\nport = \"generator\"\nrate_pps = 20000\n\
                    [host]\nqueues = 2\n[sciron]\nrules = \"a.rules\"\nplace = \"driver\"\n\
                    [[filter]]\nname = \"all\"\n[[filter]]\nname = \"ping\"\nprotocol = \"icmp\"\n\
                    action = \"drop\"\n";
const RULES: &str = "tcp any any any any accept\nudp any any any 5 drop\n";

/// The card that runs.
fn start() -> Running {
    let files = [("card.toml", CARD.as_bytes()), ("a.rules", RULES.as_bytes())];
    Running::start("filtered", folder(&files))
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn filters_of_a_running_card_are_listed_added_changed_removed_and_reloaded() {
    let _machine = machine();
    let card = start();
    let names = |list: &Value| {
        let filters = list["filters"].as_array().unwrap().iter();
        filters.map(|filter| filter["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // The card before the driver; SCIRON's default behind its rules.
    let list = card.json(&["filter"]);
    assert_eq!(names(&list), ["all", "ping", "rule", "rule", "default"]);
    let id = |list: &Value, name: &str| {
        let filters = list["filters"].as_array().unwrap();
        filters.iter().find(|filter| filter["name"] == name).unwrap()["id"].to_string()
    };
    let ping = id(&list, "ping");

    let added = card.json(&[
        "filter",
        "add",
        "name=web",
        "protocol=tcp",
        "destination_ports=80-443",
        "action=steer",
        "queue=1",
    ]);
    assert_eq!(added["destination_ports"], "80-443");
    let changed = card.json(&["filter", "change", &ping, "action=count", "priority=-2"]);
    assert_eq!((&changed["action"], &changed["priority"]), (&"count".into(), &(-2).into()));
    assert_eq!(names(&card.json(&["filter"]))[..3], ["ping", "all", "web"]);
    assert_eq!(card.json(&["filter", "show", "web"])["destination_ports"], "80-443");
    let (code, error) = card.bad(&["filter", "show", "wbe"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("did you mean \"web\"?"), "{error}");
    let (_, error) = card.bad(&["filter", "remove", "rule"]);
    assert!(error.contains("found \"rule\", use a number: "), "{error}");
    let renamed = card.json(&["filter", "change", "web", "name=www"]);
    assert_eq!(renamed["name"], "www");
    card.json(&["filter", "change", "www", "name=web"]);
    let removed = card.json(&["filter", "remove", "ping"]);
    assert_eq!(removed["name"], "ping");
    let (code, error) = card.bad(&["filter", "show", &ping]);
    assert_eq!(code, Some(1));
    assert!(error.contains(&format!("found no filter {ping}")), "{error}");

    // Filters that stay in the file keep their number and counts.
    let all = id(&card.json(&["filter"]), "all");
    write(
        card.folder(),
        "new.toml",
        "[[filter]]\nname = \"new\"\nsource = \"10.0.0.0/8\"\n[[filter]]\nname = \"all\"\n",
    );
    let done = card.json(&["filter", "reload", "new.toml"]);
    assert_eq!(
        (&done["kept"], &done["added"], &done["removed"]),
        (&1.into(), &1.into(), &1.into())
    );
    let list = card.json(&["filter", "list", "--group", "general"]);
    assert_eq!(id(&list, "all"), all);

    write(card.folder(), "b.rules", "udp any any any 5 drop\ntcp any any any any accept\n# \n");
    let done = card.json(&["sciron", "reload", "b.rules"]);
    assert_eq!((&done["kept"], &done["added"]), (&3.into(), &0.into()));
    let rules = card.json(&["sciron"]);
    let of = |key: &str| {
        rules["filters"].as_array().unwrap().iter().map(|f| f[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("protocol"), ["udp", "tcp", "any"]);
    assert_eq!(of("place"), ["driver"; 3]);
    // Packets flow, and somebody counts them.
    wait_until("a packet is counted", || card.json(&["filter", "show", &all])["packets"] != 0);
    let text = card.ctl(&["sciron"]);
    assert!(stdout(&text).contains(" rx driver  default  any"), "{}", stdout(&text));

    // Nothing that is wrong reaches the card.
    write(card.folder(), "bad.rules", "tcp any any any any allow\n");
    let (code, error) = card.bad(&["sciron", "reload", "bad.rules"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("bad.rules:1: action: found allow, allowed: accept or drop"));
    write(card.folder(), "bad.toml", "[[filter]]\n\nsource = \"10.0.0.1/8\"\n");
    let (code, error) = card.bad(&["filter", "reload", "bad.toml"]);
    assert_eq!(code, Some(2));
    assert!(error.starts_with("bad.toml:3: filter[0].source: found 10.0.0.1/8"), "{error}");
    for (words, message) in [
        (["acton=drop", ""], "acton: found key \"acton\", allowed: name, group"),
        (["action=steer", ""], "queue: found none, allowed: a queue"),
        (["action=drop", "source=x"], "source: found x, allowed: an address"),
    ] {
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let (code, error) = card.bad(&[&["filter", "add"], &*words].concat());
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(message), "{error}");
    }
    let (code, error) = card.bad(&["filter", "add", "action=steer", "queue=2"]);
    assert!(code != Some(0) && error.contains("queue: found 2, allowed: 0 to 1"), "{error}");
    card.stop();
}

#[test]
fn thousands_of_rules_are_reloaded_at_once() {
    let _machine = machine();
    let card = start();
    let rules: String = (0..4096_u32)
        .map(|n| format!("tcp 10.{}.{}.0/24 192.168.0.0/16 any 80 drop\n", n >> 8, n & 255))
        .collect();
    write(card.folder(), "many.rules", &rules);
    let done = card.json(&["sciron", "reload", "many.rules", "--place", "nic"]);
    assert_eq!(done["added"], 4097);
    assert_eq!(card.json(&["sciron"])["filters"].as_array().unwrap().len(), 4097);
    card.stop();
}
