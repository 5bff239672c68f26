//! The commands of `rss` as the control thread has them: arguments, replies, texts; and its form
//! in the kernel.

use crate::common::frames::{Network, Spec, Upper};
use crate::common::{Card, Door, from_wire_0};
use picnic_core::command::{Command, CommandError, Order};
use picnic_core::config::in_range;
use picnic_core::function::Function;
use picnic_core::kernel::{Form, KernelCounts};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_forms::{ByHash, FlowHash, Hashed, HashedOver, KernelForm};
use picnic_functions::rss::{
    Config, Context, ContextInForce, Get, HashName, HashType, InForce, Moved, Refusal, Rss, Set,
    SetContext, Show, TableChange,
};
use picnic_hash::{IndirectionTable, Key, Toeplitz};

fn context(queues: u16) -> BuildContext {
    BuildContext { queues, ..BuildContext::default() }
}

fn rss(config: &Config) -> Rss {
    Rss::new(config, &context(4)).unwrap()
}

fn in_force(rss: &mut Rss) -> InForce {
    let mut show = Get {}.prepare(&context(4)).unwrap();
    assert!(show.apply(rss, Time::ZERO));
    Get::reply(show).unwrap()
}

fn prepared<C: Command>(arguments: &str) -> Result<C::Order, String> {
    let arguments = serde_json::from_str(arguments).unwrap();
    let command: C = in_range(&arguments).map_err(|error| error.to_string())?;
    command.prepare(&context(4)).map_err(|error| error.to_string())
}

#[test]
fn rss_state_is_shown_in_lines() {
    let table: Vec<_> = (0..18).map(|entry| if entry == 17 { 10 } else { entry % 4 }).collect();
    let mut reply = InForce {
        hash: HashName::Toeplitz,
        key: Some("6d:5a".into()),
        symmetric: true,
        jhash_init: None,
        queues: 11,
        table,
        contexts: vec![ContextInForce { mark: 7, table: vec![1, 2] }],
        unhashed: 3,
        moved_entries: 5,
        rebalanced_entries: 2,
    };
    let text = "rss at rx[0]: hash toeplitz\n\
                key 6d:5a (symmetric)\n\
                table of 18 entries, 11 queues\n    \
                0:  0  1  2  3  0  1  2  3  0  1  2  3  0  1  2  3\n   \
                16:  0 10\n\
                packets with mark 7: table of 2 entries\n    \
                0: 1 2\n\
                3 packets without a hash\n\
                5 entries moved, 2 by rebalancing\n";
    assert_eq!(Get::text(&reply, "rss at rx[0]"), text);
    reply.symmetric = false;
    assert!(Get::text(&reply, "rss").contains("\nkey 6d:5a\n"));
    (reply.hash, reply.key, reply.jhash_init) = (HashName::Lookup2, None, Some(9));
    let text = Get::text(&reply, "rss");
    assert!(text.starts_with("rss: hash lookup2\ninitial value 9\ntable of 18"), "{text}");
    let moved = Moved { moved_entries: 12 };
    assert_eq!(Set::text(&moved, "rss"), "12 entries of the table moved\n");
    assert_eq!(SetContext::text(&moved, "rss"), "12 entries of the table moved\n");
}

#[test]
fn unprocessed_orders_show_nothing() {
    let show = Show::default();
    assert!((show.init, show.queues, show.table()) == (0, 0, &[]));
    let reply = Get::reply(show).unwrap();
    assert_eq!((reply.unhashed, reply.moved_entries, reply.rebalanced_entries), (0, 0, 0));
    assert!(reply.contexts.is_empty());
}

#[test]
fn reply_matches_the_functions_state() {
    let contexts = vec![Context { mark: 7, table: Some(vec![2, 1]), ..Context::default() }];
    let config = Config { table: Some(vec![3, 0, 1]), contexts, ..Config::default() };
    let mut toeplitz = rss(&config);
    let arp = Spec::plain(Network::Arp, Upper::Tcp).build();
    Card::new(&context(4)).run(&mut toeplitz, &from_wire_0([arp.clone(), arp]));
    let reply = in_force(&mut toeplitz);
    assert_eq!(reply.key, Some(Key::MICROSOFT.to_string()));
    assert_eq!((reply.hash, reply.symmetric), (HashName::Toeplitz, false));
    assert_eq!((reply.jhash_init, reply.queues, reply.unhashed), (None, 4, 2));
    assert_eq!(reply.table, [3, 0, 1]);
    assert_eq!(reply.contexts.len(), 1);
    assert_eq!((reply.contexts[0].mark, &reply.contexts[0].table[..]), (7, &[2, 1][..]));
    let mut symmetric = rss(&Config { symmetric: true, ..Config::default() });
    assert!(in_force(&mut symmetric).symmetric);
    let jhash = Config { hash: HashName::Jhash, jhash_init: Some(9), ..Config::default() };
    let reply = in_force(&mut rss(&jhash));
    assert_eq!((reply.key, reply.symmetric, reply.jhash_init), (None, false, Some(9)));
    let mut show = Show::default();
    assert!(show.apply(&mut toeplitz, Time::ZERO));
    assert_eq!(show.init, 0);
}

#[test]
fn arguments_of_a_change_are_checked() {
    let wrong = [
        (r#"{}"#, "params: found none, allowed: key, table, table_size, weights"),
        (r#"{"key": "6d5a"}"#, "key: hash key has 2 bytes, allowed: 40 to 64"),
        (
            r#"{"table": [0], "table_size": 1}"#,
            "table_size: found with table, allowed: one of them",
        ),
        (r#"{"table": [0], "weights": [1]}"#, "weights: found with table, allowed: one of them"),
    ];
    for (arguments, message) in wrong {
        assert_eq!(prepared::<Set>(arguments).unwrap_err(), message);
    }
    for (arguments, key) in [
        (r#"{"table": [4]}"#, "table: "),
        (r#"{"table_size": 0}"#, "table_size: "),
        (r#"{"weights": [1, 2]}"#, "weights: "),
    ] {
        let message = prepared::<Set>(arguments).unwrap_err();
        assert!(message.starts_with(key), "{message}");
    }
    let change = prepared::<Set>(r#"{"key": "symmetric", "table_size": 3}"#).unwrap();
    assert_eq!(*change.key.unwrap().key(), Key::symmetric());
    assert_eq!(change.table.unwrap().entries(), [0, 1, 2]);
    assert!(change.mark.is_none() && change.outcome.is_none());
    let change = prepared::<Set>(r#"{"table": [3, 1]}"#).unwrap();
    assert_eq!(change.table.unwrap().entries(), [3, 1]);
    assert!(change.key.is_none());
    let key = "0123456789abcdef".repeat(5);
    let change = prepared::<Set>(&format!("{{\"key\": \"{key}\"}}")).unwrap();
    assert_eq!(*change.key.unwrap().key(), key.parse().unwrap());
    assert!(change.table.is_none());
    // Weights without a size are parts of 128 entries.
    let change = prepared::<Set>(r#"{"weights": [0, 0, 1, 0]}"#).unwrap();
    assert_eq!(change.table.unwrap().entries(), [2; 128]);
    let change = prepared::<Set>(r#"{"weights": [0, 0, 1, 0], "table_size": 5}"#).unwrap();
    assert_eq!(change.table.unwrap().entries(), [2; 5]);
}

#[test]
fn arguments_of_a_context_are_checked() {
    let wrong = [
        (r#"{"mark": 0, "table": [1]}"#, "mark: found 0, allowed: 1 or more"),
        (r#"{"mark": 1}"#, "remove: allowed: remove, a table"),
        (r#"{"mark": 1, "table": [1], "remove": true}"#, "remove: allowed: remove, a table"),
    ];
    for (arguments, message) in wrong {
        assert_eq!(prepared::<SetContext>(arguments).unwrap_err(), message);
    }
    let change = prepared::<SetContext>(r#"{"mark": 1, "table": [3]}"#).unwrap();
    assert_eq!((change.mark, change.table.unwrap().entries()), (Some(1), &[3][..]));
    let change = prepared::<SetContext>(r#"{"mark": 9, "remove": true}"#).unwrap();
    assert!((change.mark, change.table.is_none(), change.key.is_none()) == (Some(9), true, true));
}

#[test]
fn change_results_are_reported() {
    let reply = |outcome| Set::reply(TableChange { outcome, ..TableChange::default() });
    assert_eq!(reply(Some(Ok(5))).unwrap().moved_entries, 5);
    let told = [
        (Refusal::NoKey, "key: found a key, allowed only with hash = \"toeplitz\""),
        (
            Refusal::Queues { found: 3, allowed: 4 },
            "table: found a table for 3 queues, allowed: a table for 4",
        ),
        (Refusal::NoContext { mark: 8 }, "mark: found 8, but no context has this mark"),
        (Refusal::Contexts, "mark: found one more context, allowed: 0 to 16"),
    ];
    for (refusal, message) in told {
        assert_eq!(reply(Some(Err(refusal))).unwrap_err().to_string(), message);
    }
    let unseen = CommandError::Refused("the function there is not rss".into());
    assert_eq!(reply(None).unwrap_err(), unseen);
    let change = TableChange { outcome: Some(Ok(2)), ..TableChange::default() };
    assert_eq!(SetContext::reply(change).unwrap().moved_entries, 2);
}

#[test]
fn a_new_key_moves_all_entries_unless_they_are_of_one_queue() {
    let moved = |entries: &[u16], table: Option<&[u16]>| {
        let mut rss = rss(&Config { table: Some(entries.to_vec()), ..Config::default() });
        let table = table.map(|t| Box::new(IndirectionTable::from_entries(t, 4).unwrap()));
        let mut change = TableChange { table, ..TableChange::key(&Key::symmetric()) };
        assert!(change.apply(&mut rss, Time::ZERO));
        let counters = rss.counters();
        let moved = change.outcome.unwrap().unwrap();
        assert_eq!(counters.moved_entries.get(), moved as u64);
        moved
    };
    assert_eq!(moved(&[2, 2, 2], None), 0);
    assert_eq!(moved(&[2], None), 0);
    assert_eq!(moved(&[0, 1], None), 2);
    assert_eq!(moved(&[2, 2, 1], None), 3);
    assert_eq!(moved(&[1, 2, 2], None), 3);
    // With a table, those that it moves beside.
    assert_eq!(moved(&[0, 1, 2, 3], Some(&[0, 1, 3, 2])), 2 + 4);
    assert_eq!(moved(&[0, 1, 2, 3], Some(&[3, 3, 3, 3])), 3);
}

#[test]
fn context_changes_are_counted() {
    let mut rss = rss(&Config { table: Some(vec![0]), ..Config::default() });
    let mut card = Card::new(&context(4));
    let counters = rss.counters();
    let frame = Spec::plain(Network::V4, Upper::Tcp).build();
    let doors = |rss: &mut Rss, card: &mut Card| {
        let packets = from_wire_0([frame.clone(), frame.clone()]);
        let seen = card.run_with(rss, &packets, |place, packet| packet.mark = place as u32);
        seen.into_iter().map(|packet| packet.door).collect::<Vec<_>>()
    };
    let table =
        |entries: &[u16]| Some(Box::new(IndirectionTable::from_entries(entries, 4).unwrap()));
    assert_eq!(doors(&mut rss, &mut card), [Door::Queue(0), Door::Queue(0)]);
    let mut change = TableChange { mark: Some(1), table: table(&[3, 3]), ..TableChange::default() };
    assert!(change.apply(&mut rss, Time::ZERO));
    assert_eq!((change.outcome, change.table.is_none()), (Some(Ok(2)), true));
    assert_eq!(doors(&mut rss, &mut card), [Door::Queue(0), Door::Queue(3)]);
    assert_eq!((counters.tables_replaced.get(), counters.moved_entries.get()), (1, 2));
    let mut change = TableChange { mark: Some(1), ..TableChange::default() };
    assert!(change.apply(&mut rss, Time::ZERO));
    assert_eq!(change.table.unwrap().entries(), [3, 3]);
    assert_eq!(doors(&mut rss, &mut card), [Door::Queue(0), Door::Queue(0)]);
    assert_eq!((counters.tables_replaced.get(), counters.moved_entries.get()), (2, 4));
}

#[test]
fn kernel_form_has_hash_types_and_table() {
    let form = |config: &Config| match rss(config).kernel_form().and_then(Form::open) {
        Some(KernelForm::ByHash(form)) => *form,
        other => panic!("{other:?}"),
    };
    let config = Config {
        table: Some(vec![3, 0, 1]),
        types: vec![HashType::Ipv4, HashType::TcpIpv4, HashType::UdpIpv6],
        default_queue: Some(2),
        ..Config::default()
    };
    let expected = ByHash {
        hash: FlowHash::Toeplitz(Toeplitz::new(&Key::MICROSOFT).contributions().to_vec()),
        ipv4: HashedOver { tcp: Hashed::Ports, udp: Hashed::Addresses, other: Hashed::Addresses },
        ipv6: HashedOver { tcp: Hashed::Nothing, udp: Hashed::Ports, other: Hashed::Nothing },
        table: vec![3, 0, 1],
        default_queue: Some(2),
    };
    assert_eq!(form(&config), expected);
    let config = Config { default_queue: None, ..config };
    assert_eq!(form(&config).default_queue, None);
    for (hash, name) in
        [(FlowHash::Lookup3(9), HashName::Jhash), (FlowHash::Lookup2(9), HashName::Lookup2)]
    {
        let config = Config { hash: name, jhash_init: Some(9), ..config.clone() };
        assert_eq!(form(&config).hash, hash);
    }
    let mut rss = rss(&config);
    rss.note_kernel(&KernelCounts { unhashed: 5, ..KernelCounts::default() });
    assert_eq!(rss.counters().unhashed.get(), 5);
}

#[test]
fn defaults_are_as_documented_and_limits_allowed() {
    let config = Config::default();
    assert_eq!((config.hash, config.table_size), (HashName::Toeplitz, 128));
    assert!(!config.symmetric && !config.inner && config.default_queue.is_none());
    let rebalance = |config: &Config| {
        (config.rebalance_usecs, config.rebalance_moves, config.rebalance_percent)
    };
    assert_eq!(rebalance(&config), (0, 4, 20));
    assert_eq!((Context::default().mark, Context::default().table_size), (0, 128));
    let built = |keys: &str| {
        let text = format!("function = \"rss\"\n{keys}");
        crate::common::build(&text, &context(4)).is_ok()
    };
    for (key, allowed, refused) in [
        ("rebalance_usecs", &["0", "1000", "4294967295"][..], &["1", "999"][..]),
        ("rebalance_moves", &["1", "64"], &["0", "65"]),
        ("rebalance_percent", &["1", "1000"], &["0", "1001"]),
        ("table", &["[0]", "[3]"], &["[]", "[4]"]),
        ("table_size", &["1", "4096"], &["0", "4097"]),
    ] {
        allowed.iter().for_each(|value| assert!(built(&format!("{key} = {value}")), "{key}"));
        refused.iter().for_each(|value| assert!(!built(&format!("{key} = {value}")), "{key}"));
    }
    for (count, is_allowed) in [(16, true), (17, false)] {
        let contexts: Vec<_> = (1..=count).map(|mark| format!("{{ mark = {mark} }}")).collect();
        assert_eq!(built(&format!("contexts = [{}]", contexts.join(", "))), is_allowed);
    }
}
