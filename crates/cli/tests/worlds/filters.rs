//! Filters and SCIRON by the command line: a card that runs, asked and changed.

use crate::common::{command, folder, json, machine, stderr, stdout, wait_until};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

const CARD: &str = "[card]\nname = \"filtered\"\n[[wire]]\nport = \"generator\"\nrate_pps = 20000\n\
                    [host]\nqueues = 2\n[sciron]\nrules = \"a.rules\"\nplace = \"driver\"\n\
                    [[filter]]\nname = \"all\"\n[[filter]]\nname = \"ping\"\nprotocol = \"icmp\"\n\
                    action = \"drop\"\n";
const RULES: &str = "tcp any any any any accept\nudp any any any 5 drop\n";

struct Running {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn ctl(&self, arguments: &[&str]) -> Output {
        let mut ctl = command();
        ctl.args(["ctl", "--card", "filtered"]).args(arguments);
        ctl.current_dir(self.folder.path()).output().unwrap()
    }

    fn good(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        json(&output)
    }

    fn bad(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.ctl(arguments);
        (output.status.code(), stderr(&output).to_owned())
    }
}

fn start(folder: tempfile::TempDir) -> Running {
    let mut run = command();
    run.args(["run", "card.toml", "--duration", "60", "--quiet"]).current_dir(folder.path());
    let child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let running = Running { child, folder };
    wait_until("the card answers", || running.ctl(&["info"]).status.code() == Some(0));
    running
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn filters_of_a_running_card_are_listed_added_changed_removed_and_reloaded() {
    let _machine = machine();
    let card = start(folder(&[("card.toml", CARD.as_bytes()), ("a.rules", RULES.as_bytes())]));
    let names = |list: &Value| {
        let filters = list["filters"].as_array().unwrap().iter();
        filters.map(|filter| filter["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // The card before the driver; SCIRON's default behind its rules.
    let list = card.good(&["filter"]);
    assert_eq!(names(&list), ["all", "ping", "rule", "rule", "default"]);
    let id = |list: &Value, name: &str| {
        let filters = list["filters"].as_array().unwrap();
        filters.iter().find(|filter| filter["name"] == name).unwrap()["id"].to_string()
    };
    let ping = id(&list, "ping");

    let added = card.good(&[
        "filter",
        "add",
        "name=web",
        "protocol=tcp",
        "destination_ports=80-443",
        "action=steer",
        "queue=1",
    ]);
    assert_eq!(added["destination_ports"], "80-443");
    let changed = card.good(&["filter", "change", &ping, "action=count", "priority=-2"]);
    assert_eq!((&changed["action"], &changed["priority"]), (&"count".into(), &(-2).into()));
    assert_eq!(names(&card.good(&["filter"]))[..3], ["ping", "all", "web"]);
    assert_eq!(card.good(&["filter", "show", "web"])["destination_ports"], "80-443");
    let (code, error) = card.bad(&["filter", "show", "wbe"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("did you mean \"web\"?"), "{error}");
    let (_, error) = card.bad(&["filter", "remove", "rule"]);
    assert!(error.contains("found \"rule\", say which by number: "), "{error}");
    let renamed = card.good(&["filter", "change", "web", "name=www"]);
    assert_eq!(renamed["name"], "www");
    card.good(&["filter", "change", "www", "name=web"]);
    let removed = card.good(&["filter", "remove", "ping"]);
    assert_eq!(removed["name"], "ping");
    let (code, error) = card.bad(&["filter", "show", &ping]);
    assert_eq!(code, Some(1));
    assert!(error.contains(&format!("found no filter {ping}")), "{error}");

    // What stays in the file keeps its number and what it has counted.
    let all = id(&card.good(&["filter"]), "all");
    write(
        card.folder.path(),
        "new.toml",
        "[[filter]]\nname = \"new\"\nsource = \"10.0.0.0/8\"\n[[filter]]\nname = \"all\"\n",
    );
    let done = card.good(&["filter", "reload", "new.toml"]);
    assert_eq!(
        (&done["kept"], &done["added"], &done["removed"]),
        (&1.into(), &1.into(), &1.into())
    );
    let list = card.good(&["filter", "list", "--group", "general"]);
    assert_eq!(id(&list, "all"), all);

    write(
        card.folder.path(),
        "b.rules",
        "udp any any any 5 drop\ntcp any any any any accept\n# \n",
    );
    let done = card.good(&["sciron", "reload", "b.rules"]);
    assert_eq!((&done["kept"], &done["added"]), (&3.into(), &0.into()));
    let rules = card.good(&["sciron"]);
    let of = |key: &str| {
        rules["filters"].as_array().unwrap().iter().map(|f| f[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("protocol"), ["udp", "tcp", "any"]);
    assert_eq!(of("place"), ["driver"; 3]);
    // Packets flow, and somebody counts them.
    let give_up = Instant::now() + Duration::from_secs(10);
    while card.good(&["filter", "show", &all])["packets"] == 0 {
        assert!(Instant::now() < give_up);
    }
    let text = card.ctl(&["sciron"]);
    assert!(stdout(&text).contains(" rx driver  default  any"), "{}", stdout(&text));

    // Nothing that is wrong reaches the card.
    write(card.folder.path(), "bad.rules", "tcp any any any any allow\n");
    let (code, error) = card.bad(&["sciron", "reload", "bad.rules"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("bad.rules:1: action: found allow, allowed: accept or drop"));
    write(card.folder.path(), "bad.toml", "[[filter]]\n\nsource = \"10.0.0.1/8\"\n");
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
    assert_eq!(card.ctl(&["stop"]).status.code(), Some(0));
}

#[test]
fn thousands_of_rules_are_reloaded_at_once() {
    let _machine = machine();
    let card = start(folder(&[("card.toml", CARD.as_bytes()), ("a.rules", RULES.as_bytes())]));
    let rules: String = (0..4096_u32)
        .map(|n| format!("tcp 10.{}.{}.0/24 192.168.0.0/16 any 80 drop\n", n >> 8, n & 255))
        .collect();
    write(card.folder.path(), "many.rules", &rules);
    let done = card.good(&["sciron", "reload", "many.rules", "--place", "nic"]);
    assert_eq!(done["added"], 4097);
    assert_eq!(card.good(&["sciron"])["filters"].as_array().unwrap().len(), 4097);
    assert_eq!(card.ctl(&["stop"]).status.code(), Some(0));
}
