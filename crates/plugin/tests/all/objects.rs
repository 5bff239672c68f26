//! Functions from shared objects: return values, life cycle, refusals.

use crate::common::Workshop;
use picnic_core::command::CommandError;
use picnic_core::direction::Direction;
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::time::Time;
use picnic_engine::trial::{Fate, Released, Trial};
use picnic_plugin::{Description, ENTRY, describe};
use serde_json::{Value, json};

/// Gives a function one packet.
fn give(trial: &mut Trial, function: &mut dyn Function, data: &[u8]) -> Released {
    let mut outcomes = trial.give(function, Time::ZERO, 0, data).unwrap();
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    outcomes.remove(0)
}

fn obeyed(function: &mut dyn Function, command: &str, arguments: &Value) -> Result<Value, String> {
    let entry = ENTRY.commands.iter().find(|entry| entry.name == command).unwrap();
    let mut order = entry.prepare(arguments, &Default::default()).unwrap();
    function.obey(&mut order, Time::ZERO);
    entry.reply(order).map_err(|error: CommandError| error.to_string())
}

fn call(function: &mut dyn Function, command: &str, arguments: Value) -> Result<Value, String> {
    let arguments = json!({ "command": command, "arguments": arguments });
    obeyed(function, "call", &arguments).map(|reply| reply["answer"].clone())
}

fn counted(function: &mut dyn Function) -> Result<Value, String> {
    obeyed(function, "get", &json!({}))
}

#[test]
fn every_number_returned_has_its_fate_on_rx_and_tx() {
    let Some(workshop) = Workshop::open("every_number_returned_has_its_fate") else { return };
    workshop.object("steer", &[]);
    for direction in Direction::ALL {
        let mut function = workshop.build("plugin = \"steer.so\"").unwrap();
        assert_eq!(function.name(), Some("steer"));
        let mut trial = Trial::new(&workshop.context(), direction).unwrap();
        let invalid = Fate::Dropped(DropReason::InvalidTarget);
        for (data, fate) in [
            (&b"next"[..], Fate::Next),
            (b"drop", Fate::Dropped(DropReason::Filtered)),
            (b"consume", Fate::Consumed),
            (b"q\x03", Fate::Queue(3)),
            (b"q\x04", Fate::Dropped(DropReason::NoSuchQueue)),
            (b"many queues", Fate::Dropped(DropReason::NoSuchQueue)),
            (b"w\x01", Fate::Wire(1)),
            (b"w\x02", Fate::Dropped(DropReason::NoSuchWire)),
            (b"x", invalid),
            (b"long", invalid),
            (b"Long by one", invalid),
            (b"pointer", invalid),
            (b"Null", invalid),
            (b"0 bytes", invalid),
        ] {
            let outcome = give(&mut trial, &mut *function, data);
            assert_eq!(outcome.fate, fate, "{}", data.escape_ascii());
            assert!(outcome.data.is_empty() || outcome.data == data);
            assert_eq!(outcome.mark, if outcome.data.is_empty() { 0 } else { 7 });
        }
        for (data, changed) in
            [(&b"<front"[..], &b"ab<front"[..]), (b">end", b">endyz"), (b"-both-", b"both")]
        {
            assert_eq!(give(&mut trial, &mut *function, data).data, changed);
        }
        assert_eq!(trial.end(&mut *function), Ok(vec![]));
    }
}

#[test]
fn packets_in_several_buffers_are_shown_and_may_not_grow_at_their_end() {
    let Some(workshop) = Workshop::open("packets_in_several_buffers_are_shown") else { return };
    workshop.object("steer", &[]);
    let mut function = workshop.build("plugin = \"steer.so\"").unwrap();
    let mut trial = Trial::new(&workshop.context(), Direction::Rx).unwrap();
    let mut data = vec![b'<'; 5000];
    let outcome = give(&mut trial, &mut *function, &data);
    assert_eq!((outcome.fate, outcome.data.len()), (Fate::Next, 5002));
    for first in [b'-', b'L', b'l'] {
        data[0] = first;
        let fate = give(&mut trial, &mut *function, &data).fate;
        assert_eq!(fate, Fate::Dropped(DropReason::InvalidTarget));
    }
}

#[test]
fn held_packets_are_flushed_in_order_when_due() {
    let Some(workshop) = Workshop::open("held_packets_are_flushed_when_due") else { return };
    workshop.object("steer", &[]);
    let mut function = workshop.build("plugin = \"steer.so\"").unwrap();
    let mut trial = Trial::new(&workshop.context(), Direction::Rx).unwrap();
    let mut held = |at, data: &[u8]| {
        let outcomes = trial.give(&mut *function, Time::from_nanos(at), 0, data).unwrap();
        let of = |outcome: Released| (outcome.number.unwrap(), outcome.fate);
        (
            function.held(),
            function.next_deadline(),
            outcomes.into_iter().map(of).collect::<Vec<_>>(),
        )
    };
    let due = |at| Some(Time::from_nanos(at));
    assert_eq!(held(0, b"h1first"), (1, due(1000), vec![]));
    assert_eq!(held(10, b"h0second"), (2, due(1010), vec![]));
    // The first packet is held again; no later one may leave before it.
    assert_eq!(held(1010, b"next"), (1, due(2010), vec![(1, Fate::Queue(2)), (2, Fate::Next)]));
    assert_eq!(held(2010, b"h9third"), (1, due(3010), vec![(0, Fate::Queue(2))]));
    // At the end no packet may stay held.
    let last = trial.end(&mut *function).unwrap();
    assert_eq!(last.len(), 1);
    assert_eq!(last[0].fate, Fate::Dropped(DropReason::InvalidTarget));
}

#[test]
fn held_packets_are_limited() {
    let Some(workshop) = Workshop::open("held_packets_are_limited") else { return };
    workshop.object("steer", &[]);
    let mut function = workshop.build("plugin = \"steer.so\"").unwrap();
    let mut trial = Trial::new(&workshop.context(), Direction::Rx).unwrap();
    let mut dropped = 0;
    for _ in 0..picnic_plugin::abi::HOLD_MAX + 10 {
        for outcome in trial.give(&mut *function, Time::ZERO, 0, b"h0").unwrap() {
            assert_eq!(outcome.fate, Fate::Dropped(DropReason::HoldFull));
            dropped += 1;
        }
    }
    assert_eq!((dropped, function.held()), (10, picnic_plugin::abi::HOLD_MAX));
    let numbers: Vec<_> =
        trial.end(&mut *function).unwrap().iter().map(|outcome| outcome.number.unwrap()).collect();
    assert_eq!(numbers.len(), picnic_plugin::abi::HOLD_MAX);
    assert!(numbers.is_sorted());
}

#[test]
fn instances_coexist_and_each_ends_once() {
    let Some(workshop) = Workshop::open("instances_coexist_and_each_ends_once") else { return };
    workshop.object("steer", &[]);
    std::fs::copy(workshop.path("steer.so"), workshop.path("same-name.so")).unwrap();
    let sections = [
        "plugin = \"steer.so\"\nlabel = 1",
        "plugin = \"steer.so\"\nlabel = 2",
        "plugin = \"same-name.so\"\nlabel = 3",
    ];
    let mut functions: Vec<_> =
        sections.iter().map(|section| workshop.build(section).unwrap()).collect();
    let mut trial = Trial::new(&workshop.context(), Direction::Rx).unwrap();
    for (number, function) in functions.iter_mut().enumerate() {
        for _ in 0..=number {
            let outcome = give(&mut trial, &mut **function, b"next");
            assert_eq!(outcome.mark as usize, number + 1);
        }
    }
    for (number, function) in functions.iter_mut().enumerate() {
        // Static variables too.
        let wanted = json!({ "packets": number + 1, "all": number + 1 });
        assert_eq!(call(&mut **function, "get", json!({})), Ok(wanted));
        let wanted = json!({ "seen_packets": number + 1, "label": number + 1 });
        assert_eq!(counted(&mut **function), Ok(wanted));
    }
    drop(functions);
    assert_eq!(workshop.log(), ["init 1", "init 2", "init 3", "exit 1", "exit 2", "exit 3"]);
}

#[test]
fn earlier_functions_end_if_a_later_one_fails() {
    let Some(workshop) = Workshop::open("earlier_functions_end_if_a_later_one_fails") else {
        return;
    };
    workshop.object("steer", &[]);
    let file = workshop.path("card.toml");
    let text =
        "[[rx]]\nplugin = \"steer.so\"\nlabel = 1\n\n[[rx]]\nplugin = \"steer.so\"\nlabel = 13\n";
    std::fs::write(&file, text).unwrap();
    let card = picnic_core::config::CardFile::parse(text, Some(&file)).unwrap();
    let components = picnic_engine::build::Components {
        functions: &[ENTRY],
        wires: &[],
        attachments: &[],
        middleware: |port, _, _| Ok(port),
    };
    let context = picnic_engine::build::context(&card);
    let hooks = picnic_core::hook::Hooks::none();
    let built = picnic_engine::build::links(&card.rx, Direction::Rx, &components, &context, &hooks);
    let error = built.err().unwrap().to_string();
    let folder = workshop.folder().display();
    assert_eq!(
        error,
        format!(
            "{folder}/card.toml:6: rx[1].plugin: {folder}/steer.so: its init failed (-1): 13 is \
             unlucky in a card of 4 queues"
        )
    );
    assert_eq!(workshop.log(), ["init 1", "exit 1"]);
    // The names distinguish both from other functions.
    let links =
        picnic_engine::build::links(&card.rx[..1], Direction::Rx, &components, &context, &hooks)
            .unwrap();
    assert_eq!(links[0].name, "plugin:steer");
}

#[test]
fn replaced_files_are_reloaded() {
    let Some(workshop) = Workshop::open("replaced_files_are_reloaded") else { return };
    workshop.object("steer", &[]);
    let old = workshop.build("plugin = \"steer.so\"").unwrap();
    workshop.object("steer", &["-DNAME=\"other\""]);
    let new = workshop.build("plugin = \"steer.so\"").unwrap();
    assert_eq!((old.name(), new.name()), (Some("steer"), Some("other")));
    // No copy remains. Another test of this process may be making one at this moment.
    let own = format!("picnic-{}-", std::process::id());
    picnic_testing::wait_until("no copies", || {
        let left = std::fs::read_dir(std::env::temp_dir()).unwrap().filter_map(Result::ok);
        !left.map(|file| file.file_name()).any(|name| name.to_string_lossy().starts_with(&own))
    });
}

#[test]
fn commands_are_obeyed_refused_and_their_answers_checked() {
    let Some(workshop) = Workshop::open("commands_are_obeyed_refused_and_checked") else { return };
    workshop.object("steer", &[]);
    workshop.object("random", &[]);
    let mut function = workshop.build("plugin = \"steer.so\"").unwrap();
    assert_eq!(call(&mut *function, "label", json!({ "to": 9 })), Ok(json!({})));
    let mut trial = Trial::new(&workshop.context(), Direction::Rx).unwrap();
    assert_eq!(give(&mut trial, &mut *function, b"next").mark, 9);
    let refused = |text: &str| Err(text.to_owned());
    assert_eq!(call(&mut *function, "jump", json!({})), refused("no command jump"));
    let babble = call(&mut *function, "babble", json!({}));
    assert_eq!(babble, refused("the plugin's answer is not a JSON object"));
    let mut silent = workshop.build("plugin = \"random.so\"").unwrap();
    assert_eq!(call(&mut *silent, "get", json!({})), refused("the plugin has no commands"));
}

/// `struct picnic_function` as it was before it had counters.
const BEFORE_COUNTERS: &str = r#"
struct before {
    uint32_t abi_version, size, packet_size, flags;
    const char *name, *help, *config_schema;
    int (*init)(const struct picnic_context *, const char *, void **, char *, size_t);
    int32_t (*process_packet)(void *, uint64_t, struct picnic_packet *);
    void (*others[4])(void);
    void (*exit)(void *);
};
"#;

#[test]
fn objects_of_earlier_headers_load_without_counters() {
    let Some(workshop) = Workshop::open("an_object_of_an_earlier_header_is_loaded") else { return };
    // Bytes after the structure do not belong to it.
    let text = format!(
        "#define picnic_function picnic_function_of_now\n#include \"picnic_function.h\"\n\
         #undef picnic_function\n{BEFORE_COUNTERS}\
         static int32_t to_queue(void *s, uint64_t now_ns, struct picnic_packet *p)\n\
         {{ (void)s, (void)now_ns, (void)p; return 3; }}\n\
         const struct {{ struct before before; uint64_t behind[2]; }} picnic_function = {{\n\
         {{ .abi_version = 1, .size = sizeof(struct before),\n\
         .packet_size = sizeof(struct picnic_packet), .name = \"earlier\",\n\
         .process_packet = to_queue }}, {{ 1, 1 }} }};\n"
    );
    workshop.compile("earlier", &text, &[]);
    let mut function = workshop.build("plugin = \"earlier.so\"").unwrap();
    let mut trial = Trial::new(&workshop.context(), Direction::Rx).unwrap();
    assert_eq!(give(&mut trial, &mut *function, b"any").fate, Fate::Queue(3));
    let none = Err("the plugin has no counters".to_owned());
    assert_eq!(counted(&mut *function), none);
    assert_eq!(describe(&workshop.path("earlier.so")).unwrap().counters.len(), 0);
    // A size that the struct never had cannot be read.
    for size in ["sizeof(struct before) + 8", "sizeof(struct before) - 8", "4096"] {
        workshop.compile(
            "odd",
            &text.replace("= sizeof(struct before)", &format!("= {size}")),
            &[],
        );
        let refusal = workshop.refusal("plugin = \"odd.so\"");
        assert!(refusal.contains("found picnic_function.h version 1 ("), "{refusal}");
    }
}

#[test]
fn keys_come_from_the_object() {
    let Some(workshop) = Workshop::open("keys_come_from_the_object") else { return };
    workshop.object("steer", &[]);
    let Description { name, help, keys, counters } = describe(&workshop.path("steer.so")).unwrap();
    let absent = workshop.path("absent.so");
    let refusal = describe(&absent).unwrap_err().to_string();
    assert!(refusal.starts_with(&format!("{}: cannot be read: ", absent.display())), "{refusal}");
    assert_eq!((&*name, &*help), ("steer", "do what the first byte says"));
    let counters: Vec<_> =
        counters.iter().map(|counter| (&*counter.name, &*counter.help)).collect();
    assert_eq!(
        counters,
        [("seen_packets", "Packets that it was shown."), ("label", "The mark that they get.")]
    );
    assert_eq!((&*keys[0].name, &*keys[0].r#type), ("label", "integer, 0 to 100"));
    let refusal = |keys: &str| workshop.refusal(&format!("plugin = \"steer.so\"\n{keys}"));
    assert_eq!(refusal("label = 101"), "card:2: label: found 101, allowed: 0 to 100");
    assert_eq!(refusal("label = \"x\""), "card:2: label: found \"x\", allowed: a whole number");
    assert_eq!(
        refusal("lable = 1"),
        "card:2: lable: found key \"lable\", allowed: label, plugin; did you mean \"label\"?"
    );
    assert_eq!(workshop.log(), Vec::<String>::new(), "none was started");
}

#[test]
fn load_errors_name_file_line_and_key() {
    let Some(workshop) = Workshop::open("load_errors") else { return };
    let refusal = |name: &str| workshop.refusal(&format!("\nplugin = \"{name}\""));
    let begins = |name: &str, start: &str| {
        let refusal = refusal(name);
        let start = format!("card:2: plugin: {name}: {start}");
        assert!(refusal.starts_with(&start), "{refusal}\nin place of\n{start}");
    };
    begins("missing.so", "cannot be read: No such file");
    std::fs::create_dir(workshop.path("folder.so")).unwrap();
    begins("folder.so", "cannot be read: found a folder");
    std::fs::write(workshop.path("text.so"), "#!/bin/sh\n").unwrap();
    begins("text.so", "found something other than an ELF file, allowed: a shared object");
    workshop.compile("empty", "extern int nothing;", &[]);
    begins("empty.so", "found no symbol picnic_function, which it must export");
    workshop.object("steer", &[]);
    let good = std::fs::read(workshop.path("steer.so")).unwrap();
    let mut other = good.clone();
    other[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    std::fs::write(workshop.path("other.so"), other).unwrap();
    begins("other.so", "found an object for ");
    std::fs::write(workshop.path("cut.so"), &good[..good.len() / 2]).unwrap();
    begins("cut.so", "found a truncated object");
    let object = |fields: &str| {
        format!(
            "#include \"picnic_function.h\"\nvoid missing_here(void *state);\n\
             int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *packet);\n\
             int32_t process_packet(void *state, uint64_t now_ns, struct picnic_packet *packet)\n\
             {{ (void)state, (void)now_ns, (void)packet; return PICNIC_NEXT; }}\n\
             const struct picnic_counter spaced[] = {{ {{ \"a b\", \"\" }}, {{ NULL, NULL }} }};\n\
             const struct picnic_counter placed[] = {{ {{ \"chain\", \"\" }}, {{ NULL, NULL }} }};\n\
             const struct picnic_counter twice[] =\n\
             {{ {{ \"a\", \"\" }}, {{ \"a\", \"\" }}, {{ NULL, NULL }} }};\n\
             void count(void *state, uint64_t *values);\n\
             void count(void *state, uint64_t *values) {{ (void)state, (void)values; }}\n\
             const struct picnic_function picnic_function = {{ {fields} }};\n"
        )
    };
    let one = ".process_packet = process_packet";
    for (name, fields, start) in [
        (
            "version",
            format!(".abi_version = 2, .size = 9, .name = \"a\", {one}"),
            "found picnic_function.h version 2 (9 and 0 bytes), allowed: 1 (",
        ),
        (
            "neither",
            "PICNIC_HANDSHAKE, .name = \"a\"".into(),
            "found neither of process_packet and process_burst",
        ),
        ("unnamed", format!("PICNIC_HANDSHAKE, {one}"), "found the name \"\", allowed: "),
        ("misnamed", format!("PICNIC_HANDSHAKE, .name = \"A B\", {one}"), "found the name \"A B\""),
        (
            "schema",
            format!("PICNIC_HANDSHAKE, .name = \"a\", .config_schema = \"x\", {one}"),
            "its config_schema is not JSON",
        ),
        (
            "uncounted",
            format!("PICNIC_HANDSHAKE, .name = \"a\", {one}, .counters = twice"),
            "found no count, allowed: both of counters and count, or neither",
        ),
        (
            "unlisted",
            format!("PICNIC_HANDSHAKE, .name = \"a\", {one}, .count = count"),
            "found no counters, allowed: both of counters and count, or neither",
        ),
        (
            "spaced",
            format!("PICNIC_HANDSHAKE, .name = \"a\", {one}, .counters = spaced, .count = count"),
            "found the counter \"a b\", allowed: 1 to 48 of a-z, 0-9 and _",
        ),
        (
            "placed",
            format!("PICNIC_HANDSHAKE, .name = \"a\", {one}, .counters = placed, .count = count"),
            "found the counter \"chain\", allowed: ",
        ),
        (
            "twice",
            format!("PICNIC_HANDSHAKE, .name = \"a\", {one}, .counters = twice, .count = count"),
            "found the counter \"a\" twice, allowed: once",
        ),
        (
            "undefined",
            format!("PICNIC_HANDSHAKE, .name = \"a\", {one}, .exit = missing_here"),
            "cannot be loaded: undefined symbol: missing_here",
        ),
    ] {
        workshop.compile(name, &object(&fields), &[]);
        begins(&format!("{name}.so"), start);
    }
    assert_eq!(
        workshop.refusal("plugin = 3"),
        "card:1: plugin: found 3, allowed: a path in quotes"
    );
    assert!(workshop.refusal("function = \"plugin\"").contains("plugin: missing, expected "));
}
