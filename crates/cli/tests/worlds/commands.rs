//! `check`, the lists, `card` and `completions`.

use crate::common::*;
use serde_json::Value;

#[test]
fn check_shows_cores_and_parts() {
    let cores = picnic_machine::topology::cores();
    let (borrowed, target) = (cores[cores.len() - 1], cores[0]);
    let (_folder, path) = card(&format!(
        "[host]\nqueues = 3\ntarget_cores = [{target}, {target}, {target}]\n\
         [[wire]]\nname = \"left\"\n[[wire]]\nname = \"right\"\n\
         [[rx]]\nfunction = \"sample\"\n[[rx]]\nfunction = \"rss\"\n[interrupt]\nrx_usecs = 7\n\
         [isolation]\nlevel = \"none\"\n"
    ));
    let path = path.to_str().unwrap();
    let text = good(&["check", path]);
    for line in [
        format!("file          {path}"),
        "card          picnic0, engine poll, idle adaptive".into(),
        format!("borrowed core {borrowed}"),
        "isolation     level none".into(),
        "wire          left: generator".into(),
        "wire          right: generator".into(),
        "rx chain      sample -> rss; the rest to queue 0".into(),
        "tx chain      all to the packet's wire".into(),
        format!("target core   {target}: queues 0-2"),
        "interrupt     after 7 µs or 64 packets".into(),
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in:\n{text}");
    }
    let pool = text.lines().find(|line| line.starts_with("pool")).unwrap();
    assert!(pool.ends_with(" MiB"), "{pool}");
    let plan = good_json(&["check", path, "--json"]);
    assert_eq!(plan["borrowed_core"], borrowed);
    assert_eq!(plan["rx"], serde_json::json!(["sample", "rss"]));
    assert_eq!(plan["queues"][2], serde_json::json!({ "queue": 2, "core": target }));
    let pool = &plan["pool"];
    let least = pool["buffers"].as_u64().unwrap() * pool["buffer_size_bytes"].as_u64().unwrap();
    assert!(pool["mapped_bytes"].as_u64().unwrap() >= least, "{pool}");
}

#[test]
fn the_printed_card_checks_and_runs_as_the_built_in_one() {
    let (folder, _) = card("");
    let path = folder.path().join("printed.toml");
    let path = path.to_str().unwrap();
    std::fs::write(path, good(&["card"])).unwrap();
    let mut printed = good_json(&["check", path, "--json"]);
    let built_in = good_json(&["check", "--json"]);
    assert_eq!(printed["file"], path);
    printed["file"] = Value::Null;
    assert_eq!(printed, built_in);
    let report = good_json(&["run", path, "--duration=0.2", "--json"]);
    assert_balanced(&report);
}

#[test]
fn card_keys_lists_all_common_sections() {
    let text = good(&["card", "--keys"]);
    for part in ["[card]", "borrowed_core", "[pool]", "[host]", "[interrupt]", "rx_usecs"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let sections = good_json(&["card", "--json"]);
    let names: Vec<_> = sections["sections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|section| &section["section"])
        .collect();
    assert!(names.starts_with(&[&"card".into(), &"pool".into()]), "{names:?}");
    assert!(sections["card_toml"].as_str().unwrap().contains("[[wire]]"));
}

#[test]
fn each_list_names_all_and_shows_the_keys_of_each() {
    for (list, kind, header) in [
        ("functions", "function", "[[rx]]"),
        ("ports", "port", "[[wire]]"),
        ("attachments", "attachment", "[host]"),
    ] {
        let text = good(&[list]);
        let all = good_json(&[list, "--json"]);
        let entries = all[list].as_array().unwrap();
        assert!(!entries.is_empty());
        for entry in entries {
            let (name, help) = (entry["name"].as_str().unwrap(), entry["help"].as_str().unwrap());
            let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
            assert!(line.is_some_and(|line| line.ends_with(help)), "{name} in:\n{text}");
            let text = good(&[list, name, "--all"]);
            assert!(text.starts_with(&format!("{name}: {help}\n")), "{text}");
            let snippet = &text[text.find(header).unwrap()..];
            assert!(snippet.starts_with(&format!("{header}\n{kind} = \"{name}\"\n")), "{snippet}");
            let table: toml::Table = toml::from_str(snippet).unwrap();
            assert_eq!(table.len(), 1);
            for key in entry["keys"].as_array().unwrap() {
                let key_name = key["name"].as_str().unwrap();
                assert!(text.contains(&format!("\n {key_name} ")), "{key_name} in:\n{text}");
                assert_ne!(key["help"], "", "{name}.{key_name} has no help");
                assert!(snippet.contains(&format!("{key_name} = ")), "{key_name} in:\n{snippet}");
            }
            assert_eq!(good_json(&[list, name, "--json"]), *entry);
        }
    }
}

#[test]
fn the_snippets_of_functions_can_be_run() {
    let all = good_json(&["functions", "--json"]);
    for entry in all["functions"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        let text = good(&["functions", name]);
        let (_folder, path) = card(&text[text.find("[[rx]]").unwrap()..]);
        let output = picnic(&["check", path.to_str().unwrap()]);
        match name {
            // Required arguments are requested.
            "plugin" | "object" => {
                let key = format!("rx[0].{name}: ");
                assert!(stderr(&output).contains(&key), "{}", stderr(&output));
            }
            "mirror" => {
                let message = "rx[0].queue: missing, expected a queue or a wire";
                assert!(stderr(&output).contains(message), "{}", stderr(&output));
            }
            _ => assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output)),
        }
    }
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = good(&["completions", shell]);
        // The last two are from declarations of functions.
        for command in
            ["run", "check", "functions", "attachments", "completions", "table-size", "every"]
        {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    assert_eq!(good(&["--version"]), format!("picnic {}\n", env!("CARGO_PKG_VERSION")));
    let help = good(&["--help"]);
    for part in ["run", "check", "Examples:", "--json", "Exit codes"] {
        assert!(help.contains(part), "{help}");
    }
    for command in ["run", "check", "card", "functions", "bench", "completions"] {
        assert!(good(&[command, "--help"]).contains("Usage: picnic "), "{command}");
    }
}

#[test]
fn doctor_names_reason_and_fix() {
    let text = good(&["doctor"]);
    let findings = good_json(&["doctor", "--json"]);
    for finding in findings["findings"].as_array().unwrap() {
        let name = finding["name"].as_str().unwrap();
        assert!(text.contains(name), "no {name} in:\n{text}");
        assert!(finding["available"].is_boolean() && finding["reason"].is_string(), "{finding}");
        if let Some(mend) = finding["mend"].as_str() {
            assert!(text.contains(mend), "no {mend:?} in:\n{text}");
        }
    }
}

#[test]
fn doctor_draws_the_machine() {
    let (text, json) =
        (good(&["doctor", "--topology"]), good_json(&["doctor", "--topology", "--json"]));
    assert!(
        text.starts_with("package ") || json["topology"]["cores"] == serde_json::json!({}),
        "{text}"
    );
    for core in json["cores"].as_array().unwrap() {
        let at = core["core"].as_u64().unwrap();
        let online = json["cores"].as_array().unwrap().iter().map(|core| &core["core"]);
        let own =
            online.zip(core["distances"].as_array().unwrap()).find(|(other, _)| **other == at);
        assert_eq!(own.unwrap().1, "same", "{core}");
    }
}

#[test]
fn tasks_and_schedulers_are_listed_with_their_keys() {
    let tasks = good_json(&["tasks", "--json"]);
    let names: Vec<_> = tasks["tasks"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    for name in ["heartbeat", "ping-drop", "scrub", "busy"] {
        assert!(names.iter().any(|found| *found == name), "no {name} in {names:?}");
    }
    assert!(good(&["tasks", "busy"]).contains("segments_ns = [10000]"));
    assert!(good(&["schedulers"]).contains("edf-plus"));
    let text = good(&["schedulers", "edf-plus"]);
    assert!(text.contains("[os]\nscheduler = \"edf-plus\""), "{text}");
}

#[test]
fn runs_report_each_task() {
    let (_folder, path) = card(
        "[host]\nqueues = 1\n[[wire]]\nrate_pps = 10000\npackets = 5000\n[[task]]\n\
         task = \"heartbeat\"\nname = \"pulse\"\nperiod_us = 5000\n",
    );
    let path = path.to_str().unwrap();
    let report = good_json(&["run", path, "--until=wires", "--json"]);
    assert_balanced(&report);
    let task = &report["os"]["tasks"][0];
    assert_eq!(task["name"], "pulse");
    assert_eq!(task["period_ns"], 5_000_000);
    assert!(task["segments"].as_u64().unwrap() > 0, "{task}");
    assert!(task["response_ns"]["p99_ns"].is_u64(), "{task}");
    assert!(report["os"]["scheduler"] == "edf-plus");
    let text = good(&["run", path, "--duration=0.3", "-q"]);
    assert!(text.contains("pulse") && text.contains("NIC OS: edf-plus"), "{text}");
    let without = good_json(&["run", "--duration=0.2", "--json"]);
    assert!(without.get("os").is_none(), "only if there is one");
    let told = good(&["check", path]);
    assert!(told.lines().any(|line| line == "NIC OS        edf-plus, 1 task: pulse"), "{told}");
}

#[test]
fn check_shows_the_assumptions_of_admission() {
    let (_folder, path) = card(
        "[host]\nqueues = 1\n[[wire]]\nrate_pps = 200000\nbacklog = 512\n[[wire]]\n\
         [os]\npacket_ns = 77\n[[task]]\ntask = \"heartbeat\"\n",
    );
    let path = path.to_str().unwrap();
    let told = good(&["check", path]);
    for expected in [
        "line rate     wire0: 200,000 packets/s (rate_pps)",
        "receive room  wire0: 512 packets (backlog)",
        "line rate     wire1: not known: it waits until it is asked",
        "packet turn   1,000 ns (built-in (conservative, measured on no machine))",
        "packet        77 ns (os.packet_ns)",
        "doorbell      8,000 ns (built-in (conservative, measured on no machine))",
        // 77 ns, and a 64th of 1000 and of as many doorbells as a turn, 200,000 times a second.
        "packet path   6.9 % of the core, 1000 µs after a segment",
    ] {
        assert!(told.lines().any(|line| line == expected), "{expected}\n{told}");
    }
    let json = good_json(&["check", path, "--json"]);
    assert_eq!(json["os"]["path"]["wires"][0]["rate_pps"]["value"], 200_000);
    let stated = ["--set", "os.line_rate_pps=1000", "--set", "os.receive_room=7"];
    let told = good(&[&["check", path], &stated[..]].concat());
    assert!(told.contains("line rate     the wires: 1,000 packets/s (os.line_rate_pps)"), "{told}");
    assert!(told.contains("receive room  the wires: 7 packets (os.receive_room)"), "{told}");
    let output = picnic(&["check", path, "--set", "os.line_rate_pps=fast"]);
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("line_rate_pps") && error.contains("\"auto\" or a number"), "{error}");
}

#[test]
fn tcpdump_options_suggest_ours() {
    for command in [&["capture"][..], &["ctl", "capture", "start"]] {
        for option in [&["--output", "x.pcapng"][..], &["-o", "x.pcapng"]] {
            let output = picnic(&[command, option].concat());
            assert_eq!(output.status.code(), Some(2));
            let said = stderr(&output);
            assert!(said.contains("a similar argument exists: '--write'"), "{said}");
            assert!(
                !said.contains("-- -o")
                    && !good(&[command, &["--help"]].concat()).contains("--output")
            );
        }
    }
}

#[test]
fn words_of_reports_stay_whole_on_narrow_terminals() {
    let narrow = |arguments: &[&str]| {
        let output = command().args(arguments).env("COLUMNS", "60").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    let findings = good_json(&["doctor", "--json"]);
    let text = narrow(&["doctor"]);
    let words: Vec<_> = text.split_whitespace().collect();
    for finding in findings["findings"].as_array().unwrap() {
        for word in finding["reason"].as_str().unwrap().split_whitespace() {
            assert!(words.contains(&word), "{word} in:\n{text}");
        }
    }
    assert!(findings["findings"].as_array().unwrap().iter().any(|found| found["name"] == "nc"));
    let text = narrow(&["functions", "rss"]);
    for word in ["suite.", "fragment", "indirection", "tcp-ipv4"] {
        assert!(text.contains(word), "{word} in:\n{text}");
    }
    let text = narrow(&["check"]);
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
}

#[test]
fn check_and_run_enter_the_wires_namespace() {
    const TEST: &str = "check_and_run_enter_the_wires_namespace";
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "it needs root");
    }
    let id = std::process::id();
    let (inside, outside) = (format!("picnic-in-{id}"), format!("picnic-out-{id}"));
    let text = format!(
        "[card]\nname = \"within-{id}\"\n[net]\nnamespaces = [\"{inside}\", \"{outside}\"]\n\
         [[net.link]]\ninterface = \"w{id}\"\nnamespace = \"{inside}\"\npeer = \"c{id}\"\n\
         peer_namespace = \"{outside}\"\n[[wire]]\nport = \"packet\"\ninterface = \"w{id}\"\n"
    );
    let (_folder, path) = card(&text);
    let path = path.to_str().unwrap();
    let net = |action: &str| {
        let output = picnic(&["net", action, path]);
        assert_eq!(output.status.code(), Some(0), "{action}: {}", stderr(&output));
    };
    net("up");
    let results: Vec<_> = [&["check", path][..], &["run", path, "--duration", "0.2", "--json"]]
        .iter()
        .map(|arguments| picnic(arguments))
        .collect();
    net("down");
    for output in &results {
        assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
        let told = format!("picnic: in namespace {inside}, as [net] says");
        assert!(stderr(output).contains(&told), "{}", stderr(output));
    }
    assert_balanced(&json(&results[1]));
    // Without its network, the card has no interface, and the way to one is named.
    let output = picnic(&["check", path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(&format!("picnic net up {path}")), "{}", stderr(&output));
}

#[test]
fn net_qemu_prints_the_arguments_of_a_guest() {
    let (folder, path) = card(
        "[card]\nname = \"vm\"\n[host]\nattachment = \"vhost-user\"\nqueues = 4\n\
         [[host.guest]]\nsocket = \"vm0.sock\"\n\
         [[host.guest]]\nsocket = \"v,1\"\nmode = \"client\"\nmtu = 9000\npacked = true\n\
         [[rx]]\nfunction = \"vmdq\"\n\
         pools = [{ macs = [\"02:00:00:00:00:07\"], queues = [2, 3] }]\n",
    );
    let path = path.to_str().unwrap();
    let directory = std::fs::canonicalize(folder.path()).unwrap();
    let directory = directory.display();
    let first = good(&["net", "qemu", path]);
    for part in [
        "-accel kvm -m 1024M ".to_owned(),
        "memory-backend-memfd,id=memory,size=1024M,share=on -machine memory-backend=memory".into(),
        format!("-chardev socket,id=card,path={directory}/vm0.sock "),
        "-netdev vhost-user,id=net,chardev=card,queues=2 ".into(),
        ",mq=on,vectors=6\n".into(),
    ] {
        assert!(first.contains(&part), "no {part:?} in {first}");
    }
    let words = ["net", "qemu", path, "--guest", "1", "--memory", "64", "--emulated", "--json"];
    let second = json(&picnic(&words));
    let second: Vec<_> =
        second["arguments"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let device =
        "virtio-net-pci,netdev=net,mac=02:00:00:00:00:07,mq=on,vectors=0,packed=on,host_mtu=9000";
    assert_eq!(second.last(), Some(&device));
    assert!(
        second.contains(&&*format!("socket,id=card,path={directory}/v,,1,server=on")),
        "{second:?}"
    );
    assert!(second.contains(&"tcg") && second.contains(&"64M"), "{second:?}");
    for (words, message) in [
        (&["--guest", "2"][..], "--guest: found 2, allowed: 0 to 1"),
        (&["--set", "host.queues=3"], "found 3 for 2 guests, allowed: a multiple of the guests"),
        (&["--set", "host.guest[0].socket=a b"], "allowed here: a path without spaces"),
        (&["--set", "host.attachment=app"], "host"),
    ] {
        let output = picnic(&[&["net", "qemu", path], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(message), "{words:?}: {}", stderr(&output));
    }
    let output = picnic(&["net", "qemu"]);
    assert!(stderr(&output).contains("host.attachment: found \"app\", allowed: \"vhost-user\""));
}
