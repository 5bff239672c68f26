//! Topologies of several kinds of machine, and the placement of cards on them.

use super::*;
use crate::config::{IsolationLevel, SECTIONS};
use crate::undo::fixture::{put, put_core, put_online};
use picnic_core::config::{CardFile, Sections};
use proptest::prelude::*;
use std::path::Path;
use tempfile::TempDir;

fn machine(build: impl FnOnce(&Path)) -> (TempDir, Topology) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    build(folder.path());
    let topology = Topology::read(folder.path());
    assert_eq!(topology.problems, Vec::<String>::new());
    (folder, topology)
}

fn place_on(topology: Topology, card: &str) -> Placement {
    let card = Sections::core().with(SECTIONS).parse(card, None).unwrap();
    let cores = topology.online.iter().collect();
    place(&card, &Available { cores, topology, isolated: None }).unwrap()
}

/// The target cores, each once; the level used; the excluded cores.
fn targets(topology: &Topology, level: &str) -> (String, IsolationLevel, String) {
    let card = format!("[host]\nqueues = 64\n[isolation]\nlevel = \"{level}\"\n");
    let placement = place_on(topology.clone(), &card);
    let targets = placement.target_cores.iter().copied().collect::<CoreSet>();
    let left_out: Vec<_> = placement
        .left_out
        .iter()
        .map(|LeftOut { core, shares }| format!("{core}:{shares}"))
        .collect();
    (targets.to_string(), placement.level, left_out.join(" "))
}

fn told(topology: &Topology, level: &str) -> Vec<String> {
    place_on(topology.clone(), &format!("[isolation]\nlevel = \"{level}\"\n")).warnings
}

fn answer(cores: &str, level: IsolationLevel, left_out: &str) -> (String, IsolationLevel, String) {
    (cores.into(), level, left_out.into())
}

use IsolationLevel::{L2, Llc, None as Nothing, Smt};

#[test]
fn two_cores_without_cache_information_are_borrowed_and_target() {
    let (_folder, topology) = machine(|sysfs| {
        put_online(sysfs, "0-1");
        put_core(sysfs, 0, "0", &[]);
        put_core(sysfs, 1, "1", &[]);
    });
    assert_eq!(targets(&topology, "l2"), answer("0", L2, ""));
    assert_eq!(targets(&topology, "smt"), answer("0", Smt, ""));
    assert_eq!(targets(&topology, "none"), answer("0", Nothing, ""));
    let unknown = "isolation level \"l2\": this machine does not report the L2 cache of core 1, \
                   so a target core may share it";
    assert_eq!(told(&topology, "l2"), [unknown]);
    assert!(told(&topology, "smt").is_empty());
    assert!(told(&topology, "none").is_empty());
}

#[test]
fn two_cores_with_a_common_last_level_cache_work_by_l2() {
    let (_folder, topology) = machine(|sysfs| {
        put_online(sysfs, "0-1");
        for core in 0..2 {
            let own = core.to_string();
            put_core(sysfs, core, &own, &[(2, "Unified", &own), (3, "Unified", "0-1")]);
        }
    });
    assert_eq!(targets(&topology, "l2"), answer("0", L2, ""));
    assert!(told(&topology, "l2").is_empty());
    assert_eq!(targets(&topology, "llc"), answer("0", L2, ""));
    assert_eq!(
        told(&topology, "llc"),
        ["isolation level \"llc\" leaves no target core (0 would be left out): using level \
          \"l2\", so target cores share caches with borrowed core 1"]
    );
}

/// A single core with two threads: every level is replaced, and the plain rule holds.
#[test]
fn two_siblings_alone_are_used() {
    let (_folder, topology) = machine(|sysfs| {
        put_online(sysfs, "0-1");
        for core in 0..2 {
            put_core(sysfs, core, "0-1", &[(2, "Unified", "0-1")]);
        }
    });
    for level in ["smt", "l2", "llc"] {
        assert_eq!(targets(&topology, level), answer("0", Nothing, ""));
        let told = told(&topology, level);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("using level \"none\""), "{told:?}");
    }
}

#[test]
fn pairs_of_siblings_share_their_l2() {
    let (_folder, topology) = machine(|sysfs| {
        put_online(sysfs, "0-7");
        for core in 0..8 {
            let pair = format!("{}-{}", core / 2 * 2, core / 2 * 2 + 1);
            let l1 = [(1, "Data", pair.as_str()), (2, "Unified", &pair), (3, "Unified", "0-7")];
            put_core(sysfs, core, &pair, &l1);
        }
        put(&sysfs.join("devices/system/node/node0/cpulist"), "0-3");
        put(&sysfs.join("devices/system/node/node1/cpulist"), "4-7");
    });
    assert_eq!(targets(&topology, "none"), answer("0-6", Nothing, ""));
    assert_eq!(targets(&topology, "smt"), answer("0-5", Smt, "6:SMT"));
    assert_eq!(targets(&topology, "l2"), answer("0-5", L2, "6:SMT"));
    // All cores have one last-level cache.
    assert_eq!(targets(&topology, "llc"), answer("0-5", L2, "6:SMT"));
    assert_eq!((topology.node_of(3), topology.node_of(4)), (Some(0), Some(1)));
    let core = &topology.cores[&7];
    assert_eq!((core.package, core.caches.len()), (Some(0), 3));
    assert_eq!(core.caches[1].size_bytes, Some(1 << 20));
}

/// The paper's machine: no SMT, pairs with a common L2, which is the last level (PICNIC 4.3).
#[test]
fn clusters_of_cores_share_an_l2_without_being_siblings() {
    let (_folder, topology) = machine(|sysfs| {
        put_online(sysfs, "0-7");
        for core in 0..8 {
            let (own, pair) = (core.to_string(), format!("{},{}", core % 4, core % 4 + 4));
            put_core(sysfs, core, &own, &[(1, "Data", &own), (2, "Unified", &pair)]);
        }
    });
    assert_eq!(targets(&topology, "smt"), answer("0-6", Smt, ""));
    assert_eq!(targets(&topology, "l2"), answer("0-2,4-6", L2, "3:L2"));
    assert_eq!(targets(&topology, "llc"), answer("0-2,4-6", Llc, "3:L2"));
}

/// Complexes of four cores with two threads each, numbered as on large servers.
#[test]
fn a_last_level_complex_is_excluded() {
    let (_folder, topology) = machine(|sysfs| {
        put_online(sysfs, "0-31");
        for core in 0..32 {
            let pair = format!("{},{}", core % 16, core % 16 + 16);
            let first = core % 16 / 4 * 4;
            let complex = format!("{first}-{},{}-{}", first + 3, first + 16, first + 19);
            let caches =
                [(1, "Instruction", "0-31"), (2, "Unified", &*pair), (3, "Unified", &complex)];
            put_core(sysfs, core, &pair, &caches);
        }
    });
    assert_eq!(targets(&topology, "l2"), answer("0-14,16-30", L2, "15:SMT"));
    let (cores, level, left_out) = targets(&topology, "llc");
    assert_eq!((cores.as_str(), level), ("0-11,16-27", Llc));
    assert_eq!(left_out, "12:L3 13:L3 14:L3 15:SMT 28:L3 29:L3 30:L3");
}

#[test]
fn cores_that_are_offline_are_neither_borrowed_nor_targets() {
    let (_folder, topology) = machine(|sysfs| {
        put_online(sysfs, "0-2,4-5");
        for core in 0..8 {
            let pair = format!("{}-{}", core / 2 * 2, core / 2 * 2 + 1);
            put_core(sysfs, core, &pair, &[(2, "Unified", &pair)]);
        }
        // Left over from when it was online.
        std::fs::remove_dir_all(sysfs.join("devices/system/cpu/cpu7/cache")).unwrap();
    });
    assert_eq!(topology.offline.to_string(), "3,6-7");
    assert_eq!(targets(&topology, "l2"), answer("0-2", L2, "4:SMT"));
    assert!(!topology.cores.contains_key(&7));
}

#[test]
fn missing_or_wrong_facts_are_unknown() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Topology::read(folder.path()), Topology::default());
    let sysfs = folder.path();
    put_core(sysfs, 0, "0", &[(2, "Unified", "0")]);
    put_core(sysfs, 1, "one", &[(2, "Tepid", "1"), (77, "Data", "1"), (3, "Data", "1-x")]);
    put(&sysfs.join("devices/system/cpu/cpu1/topology/physical_package_id"), "-1");
    put(&sysfs.join("devices/system/cpu/cpufreq/policy"), "x");
    let topology = Topology::read(sysfs);
    // Without the list of online cores, all present ones are.
    assert_eq!(topology.online.to_string(), "0-1");
    assert_eq!(topology.cores[&1].package, None);
    let problems = topology.problems.join("\n");
    for part in ["siblings_list: found \"one\"", "found \"Tepid\"", "found \"77\"", "\"1-x\""] {
        assert!(problems.contains(part), "{part} in {problems}");
    }
    assert_eq!(topology.problems.len(), 4);
}

#[test]
fn chosen_target_cores_are_kept_with_warnings() {
    let (_folder, topology) = machine(|sysfs| {
        put_online(sysfs, "0-7");
        for core in 0..8 {
            let pair = format!("{}-{}", core / 2 * 2, core / 2 * 2 + 1);
            let four = format!("{}-{}", core / 4 * 4, core / 4 * 4 + 3);
            put_core(sysfs, core, &pair, &[(2, "Unified", &pair), (3, "Unified", &four)]);
        }
    });
    let card = "[host]\nqueues = 3\ntarget_cores = [6, 0, 5]\n[isolation]\nlevel = \"llc\"\n";
    let placement = place_on(topology, card);
    assert_eq!(placement.target_cores, [6, 0, 5]);
    assert_eq!(
        placement.warnings,
        [
            "target core 5 shares its L3 with borrowed core 7",
            "target core 6 is an SMT sibling of borrowed core 7"
        ]
    );
    assert_eq!(placement.left_out.len(), 1);
    assert_eq!(placement.left_out[0].core, 4);
}

#[test]
fn auto_means_the_isolated_core() {
    let card = CardFile::parse("", None).unwrap();
    let mut available = Available { isolated: Some(2), ..Available::of(0..4) };
    assert_eq!(place(&card, &available).unwrap().borrowed_core, 2);
    available.isolated = Some(9);
    assert_eq!(place(&card, &available).unwrap().borrowed_core, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// On any machine: there is a target core if there is a second core, no target shares the
    /// resource of the level used, and the queues use all remaining cores in turn.
    #[test]
    fn placements_keep_their_level(
        groups in prop::collection::vec((0..3_usize, 0..3_usize, 0..2_usize), 1..12),
        level in prop::sample::select(vec!["none", "smt", "l2", "llc"]),
        queues in 1..20_u16,
    ) {
        // Core, L2 and L3 numbers of each core; sharing an inner one implies sharing the outer.
        let like = |core: usize, depth: usize| -> String {
            let id = |core: usize| {
                let (a, b, c) = groups[core];
                [vec![c, b, a], vec![c, b], vec![c]][depth].clone()
            };
            let same = (0..groups.len()).filter(|&other| id(other) == id(core));
            same.collect::<CoreSet>().to_string()
        };
        let list = |text: String| CoreSet::parse_list(&text).unwrap();
        let cache = |level, text| {
            Cache { level, kind: CacheKind::Unified, shared: list(text), size_bytes: None }
        };
        let core = |core| Core {
            package: None,
            siblings: list(like(core, 0)),
            caches: vec![cache(2, like(core, 1)), cache(3, like(core, 2))],
        };
        let topology = Topology {
            online: (0..groups.len()).collect(),
            cores: (0..groups.len()).map(|number| (number, core(number))).collect(),
            ..Topology::default()
        };
        let card = format!("[host]\nqueues = {queues}\n[isolation]\nlevel = \"{level}\"\n");
        let placement = place_on(topology.clone(), &card);
        let borrowed = placement.borrowed_core;
        prop_assert_eq!(borrowed, groups.len() - 1);
        prop_assert_eq!(placement.target_cores.len(), usize::from(queues));
        let targets: CoreSet = placement.target_cores.iter().copied().collect();
        if groups.len() > 1 {
            prop_assert!(!targets.contains(borrowed));
        }
        let left_out: CoreSet = placement.left_out.iter().map(|other| other.core).collect();
        prop_assert!(!left_out.meets(&targets));
        let depth = match placement.level {
            Nothing => None,
            Smt => Some(0),
            L2 => Some(1),
            Llc => Some(2),
        };
        let near = depth.map_or_else(String::new, |depth| like(borrowed, depth));
        let near = CoreSet::parse_list(&near).unwrap();
        let near = near.iter().filter(|&core| core != borrowed).collect::<CoreSet>();
        prop_assert_eq!(&left_out, &near);
        let all: CoreSet = (0..groups.len() - 1).collect();
        let rest = all.without(&left_out);
        if !rest.is_empty() {
            prop_assert_eq!(targets.len(), rest.len().min(usize::from(queues)));
        }
        let is_weaker = placement.level.to_string() != level;
        prop_assert_eq!(is_weaker && groups.len() > 1, !placement.warnings.is_empty() && groups.len() > 1);
    }
}
