//! Cost profiles: the cost of one operation of each class, with the machine and the
//! measurement.
//!
//! A profile is a TOML file, written by `picnic wcet calibrate`. Costs are integers
//! in picoseconds; all else in the file says where they come from.
//!
//! ```
//! use picnic_wcet::{Class, CostProfile};
//! let profile = CostProfile::built_in();
//! let again = CostProfile::parse(&profile.to_toml(), None).unwrap();
//! assert_eq!(profile.cost_ps(Class::Divide), again.cost_ps(Class::Divide));
//! ```

use crate::class::Class;
use picnic_core::error::ConfigError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use toml::Spanned;

/// Size limit of a profile, in bytes.
const LONGEST_FILE: u64 = 1 << 20;
/// Highest cost of an operation: a millisecond.
const DEAREST_PS: u64 = 1_000_000_000;
/// Required value of `format`.
const FORMAT: u32 = 1;

/// Costs of operations.
#[derive(Clone, Debug, PartialEq)]
pub struct CostProfile {
    /// Its name in reports: the file's path, or "built-in".
    pub name: String,
    /// The measured machine; none for the built-in figures.
    pub machine: Option<Machine>,
    /// How it was measured.
    pub method: Option<Method>,
    /// Measurements, by class.
    pub measured: BTreeMap<Class, Measured>,
    /// Costs of the packet path; none in profiles without them.
    pub path: Option<PathCosts>,
    /// Interruptions of a core; none in profiles without them.
    pub interruptions: Option<Interruptions>,
    /// Picoseconds, in the order of [`Class::ALL`].
    cost_ps: [u64; Class::ALL.len()],
}

/// Costs of a card's packet path, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathCosts {
    /// A turn without packets.
    pub turn_ps: u64,
    /// A packet of the shortest frame, from a wire through `rss` to a target ring, with its share
    /// of the turn.
    pub packet_ps: u64,
    /// Waking a target core that sleeps, which a turn may do once for each queue: the longest.
    pub doorbell_ps: u64,
    /// The same for many doorbells, few of which take that long; none in a profile that does not
    /// distinguish them apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub typical_doorbell_ps: Option<u64>,
}

impl PathCosts {
    /// Nanoseconds of a turn, its packets and doorbells aside.
    pub fn turn_ns(&self) -> u64 {
        self.turn_ps.div_ceil(1_000)
    }

    /// Nanoseconds of a doorbell among many.
    pub fn doorbell_ns(&self) -> u64 {
        self.typical_doorbell_ps.unwrap_or(self.doorbell_ps).div_ceil(1_000)
    }

    /// Nanoseconds of the longest doorbell.
    pub fn longest_doorbell_ns(&self) -> u64 {
        self.doorbell_ps.div_ceil(1_000)
    }

    /// Nanoseconds per packet.
    pub fn packet_ns(&self) -> u64 {
        self.packet_ps.div_ceil(1_000)
    }

    /// Figures that no machine gave: a doorbell as on a virtual machine, where waking a core leaves
    /// the guest.
    pub const BUILT_IN: PathCosts = PathCosts {
        turn_ps: 1_000_000,
        packet_ps: 250_000,
        doorbell_ps: 30_000_000,
        typical_doorbell_ps: Some(8_000_000),
    };
}

/// Number and length of preemptions of a thread that never yielded its core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interruptions {
    /// Nanoseconds of observation.
    pub watched_ns: u64,
    /// Nanoseconds of the shortest interruption that is counted.
    pub shortest_ns: u64,
    /// Interruptions.
    pub times: u64,
    /// Nanoseconds of all of them.
    pub total_ns: u64,
    /// Nanoseconds of the longest.
    pub longest_ns: u64,
}

impl Interruptions {
    /// Interruptions in a second.
    pub fn per_second(&self) -> f64 {
        self.times as f64 * 1e9 / self.watched_ns.max(1) as f64
    }
}

/// The machine on which a profile was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// The kernel's name and release.
    pub kernel: String,
    /// The day, UTC: `2025-01-31`.
    pub date: String,
    /// Build profile of the measuring code: `release` or `debug`.
    pub build: String,
}

/// How a profile was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// Description in words.
    pub description: String,
    /// Samples of each kernel.
    pub samples: u64,
    /// The percentile of the samples that becomes the cost, in percent.
    pub percentile: f64,
    /// Factor on the measured cost.
    pub margin: f64,
    /// Size of the memory that loads and stores access.
    pub working_set_bytes: u64,
}

/// Measurements of one class, in picoseconds per operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The median sample.
    pub median_ps: u64,
    /// The sample at the method's percentile, before the margin.
    pub percentile_ps: u64,
    /// The longest single run among the kept samples.
    pub worst_ps: u64,
    /// Number of kept samples.
    pub samples: u64,
    /// Number of samples discarded because the thread was switched out.
    pub discarded: u64,
}

impl CostProfile {
    /// A profile with these costs; a class that is not named costs one picosecond.
    pub fn of(name: impl Into<String>, costs: &[(Class, u64)]) -> Self {
        let mut profile = CostProfile {
            name: name.into(),
            machine: None,
            method: None,
            measured: BTreeMap::new(),
            path: None,
            interruptions: None,
            cost_ps: [1; Class::ALL.len()],
        };
        for &(class, cost_ps) in costs {
            profile.cost_ps[class as usize] = cost_ps;
        }
        profile
    }

    /// Conservative assumed figures: every load misses all caches, every branch is mispredicted, at
    /// about two gigahertz.
    pub fn built_in() -> Self {
        let profile = CostProfile::of(
            "built-in (conservative, measured on no machine)",
            &[
                (Class::Branch, 12_000),
                (Class::Arithmetic, 2_000),
                (Class::Bitwise, 1_000),
                (Class::Multiply, 5_000),
                (Class::Divide, 50_000),
                (Class::Load, 120_000),
                (Class::Store, 20_000),
                (Class::Call, 25_000),
                (Class::Service, 1_000_000),
                (Class::Segment, 1_000_000),
            ],
        );
        CostProfile { path: Some(PathCosts::BUILT_IN), ..profile }
    }

    /// Cost of one operation of a class, in picoseconds.
    pub fn cost_ps(&self, class: Class) -> u64 {
        self.cost_ps[class as usize]
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// The file cannot be read, or [`CostProfile::parse`] rejects its text.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let about =
            |message: String| ConfigError { file: Some(path.into()), message, ..<_>::default() };
        let mut text = String::new();
        let read = picnic_core::files::open(path)
            .and_then(|file| file.take(LONGEST_FILE + 1).read_to_string(&mut text));
        read.map_err(|error| about(format!("cannot be read: {error}")))?;
        if text.len() as u64 > LONGEST_FILE {
            let found =
                format!("found more than {LONGEST_FILE} bytes, allowed: up to {LONGEST_FILE}");
            return Err(about(found));
        }
        CostProfile::parse(&text, Some(path))
    }

    /// Reads a profile's text; `file` is for messages.
    ///
    /// # Errors
    /// Not TOML, an unknown or missing key, a wrong type, or a cost out of range; the error names
    /// the line.
    pub fn parse(text: &str, file: Option<&Path>) -> Result<Self, ConfigError> {
        let refuse = |span: Option<std::ops::Range<usize>>, key: String, message: String| {
            let file = Some(file.unwrap_or(Path::new("profile")).into());
            let line = span.map_or(0, |span| line_of(text, span.start));
            ConfigError { file, line, key, message, ..ConfigError::default() }
        };
        let read: File = toml::from_str(text).map_err(|error| {
            let key = error.span().map_or_else(String::new, |span| key_at(text, span.start));
            refuse(error.span(), key, error.message().replace('\n', ", "))
        })?;
        if *read.format.get_ref() != FORMAT {
            let message = format!("found {}, allowed: {FORMAT}", read.format.get_ref());
            return Err(refuse(Some(read.format.span()), "format".into(), message));
        }
        let name = file.map_or_else(|| "profile".into(), |file| file.display().to_string());
        let mut profile = CostProfile::of(name, &[]);
        for (class, cost) in Class::ALL.into_iter().zip(read.cost.in_order()) {
            let found = *cost.get_ref();
            if !(1..=DEAREST_PS).contains(&found) {
                let key = format!("cost.{}_ps", class.name());
                let message = format!("found {found}, allowed: 1 to {DEAREST_PS} picoseconds");
                return Err(refuse(Some(cost.span()), key, message));
            }
            profile.cost_ps[class as usize] = found;
        }
        if let Some(path) = &read.path {
            let costs = path.get_ref();
            let PathCosts { turn_ps, packet_ps, doorbell_ps, typical_doorbell_ps } = *costs;
            for (key, found) in [
                ("turn_ps", turn_ps),
                ("packet_ps", packet_ps),
                ("doorbell_ps", doorbell_ps),
                ("typical_doorbell_ps", typical_doorbell_ps.unwrap_or(doorbell_ps)),
            ] {
                if !(1..=DEAREST_PS).contains(&found) {
                    let message = format!("found {found}, allowed: 1 to {DEAREST_PS} picoseconds");
                    return Err(refuse(Some(path.span()), format!("path.{key}"), message));
                }
            }
            profile.path = Some(*costs);
        }
        profile.machine = read.machine;
        profile.interruptions = read.interruptions;
        profile.method = read.method;
        profile.measured = read.measured;
        Ok(profile)
    }

    /// The profile as a file.
    pub fn to_toml(&self) -> String {
        let plain = |class: Class| Spanned::new(0..0, self.cost_ps(class));
        let file = File {
            format: Spanned::new(0..0, FORMAT),
            machine: self.machine.clone(),
            method: self.method.clone(),
            cost: Costs {
                branch_ps: plain(Class::Branch),
                arithmetic_ps: plain(Class::Arithmetic),
                bitwise_ps: Some(plain(Class::Bitwise)),
                multiply_ps: plain(Class::Multiply),
                divide_ps: plain(Class::Divide),
                load_ps: plain(Class::Load),
                store_ps: plain(Class::Store),
                call_ps: plain(Class::Call),
                service_ps: plain(Class::Service),
                segment_ps: plain(Class::Segment),
            },
            path: self.path.map(|path| Spanned::new(0..0, path)),
            interruptions: self.interruptions,
            measured: self.measured.clone(),
        };
        // Strings, integers and tables of them always have a TOML form.
        let body = toml::to_string_pretty(&file).unwrap_or_default();
        format!(
            "# The cost of one operation, in picoseconds. Bounds from it are bounds under this\n\
             # profile: they do not hold on a machine that is slower, or busy otherwise.\n{body}"
        )
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: Spanned<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    method: Option<Method>,
    cost: Costs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<Spanned<PathCosts>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interruptions: Option<Interruptions>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    measured: BTreeMap<Class, Measured>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Costs {
    branch_ps: Spanned<u64>,
    arithmetic_ps: Spanned<u64>,
    /// Older profiles lack this class; it then costs as much as arithmetic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bitwise_ps: Option<Spanned<u64>>,
    multiply_ps: Spanned<u64>,
    divide_ps: Spanned<u64>,
    load_ps: Spanned<u64>,
    store_ps: Spanned<u64>,
    call_ps: Spanned<u64>,
    service_ps: Spanned<u64>,
    segment_ps: Spanned<u64>,
}

impl Costs {
    /// In the order of [`Class::ALL`].
    fn in_order(&self) -> [&Spanned<u64>; Class::ALL.len()] {
        [
            &self.branch_ps,
            &self.arithmetic_ps,
            self.bitwise_ps.as_ref().unwrap_or(&self.arithmetic_ps),
            &self.multiply_ps,
            &self.divide_ps,
            &self.load_ps,
            &self.store_ps,
            &self.call_ps,
            &self.service_ps,
            &self.segment_ps,
        ]
    }
}

fn line_of(text: &str, position: usize) -> usize {
    let position = position.min(text.len());
    text.as_bytes()[..position].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The key at a position, by the lines before it: `cost.load_ps`.
fn key_at(text: &str, position: usize) -> String {
    let mut section = String::new();
    let mut key = String::new();
    for line in text.lines().take(line_of(text, position)) {
        let line = line.trim();
        key.clear();
        if let Some(header) = line.strip_prefix('[') {
            section = header.split(']').next().unwrap_or_default().trim().into();
        } else if let Some((name, _)) = line.split_once('=') {
            key = name.trim().into();
        }
    }
    match (section.is_empty(), key.is_empty()) {
        (true, _) => key,
        (false, true) => section,
        (false, false) => format!("{section}.{key}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        CostProfile::parse(text, Some(Path::new("p.toml"))).unwrap_err().to_string()
    }

    fn with(old: &str, new: &str) -> String {
        let text = CostProfile::built_in().to_toml();
        assert!(text.contains(old), "{old} in {text}");
        text.replace(old, new)
    }

    #[test]
    fn a_profile_survives_its_file() {
        let mut profile = CostProfile::built_in();
        profile.name = "profile".into();
        profile.machine = Some(Machine {
            cpu: "A \"quoted\" processor".into(),
            kernel: "Linux 6.1".into(),
            date: "2025-01-31".into(),
            build: "release".into(),
        });
        profile.method = Some(Method {
            description: "by hand".into(),
            samples: 10,
            percentile: 99.9,
            margin: 1.5,
            working_set_bytes: 4096,
        });
        let measured = Measured { median_ps: 1, percentile_ps: 2, worst_ps: 3, ..<_>::default() };
        profile.measured.insert(Class::Load, measured);
        let watched_ns = 4_000_000_000;
        let interruptions = Interruptions { watched_ns, times: 6, ..Interruptions::default() };
        assert_eq!(interruptions.per_second(), 1.5);
        profile.interruptions = Some(interruptions);
        assert_eq!(CostProfile::parse(&profile.to_toml(), None).unwrap(), profile);
    }

    #[test]
    fn a_profile_without_bitwise_charges_it_as_arithmetic() {
        let text = with("bitwise_ps = 1000\n", "");
        let profile = CostProfile::parse(&text, None).unwrap();
        assert_eq!(profile.cost_ps(Class::Bitwise), profile.cost_ps(Class::Arithmetic));
        let told = refused(&with("bitwise_ps = 1000", "bitwise_ps = 0"));
        assert!(told.contains("cost.bitwise_ps: found 0, allowed: 1 to"), "{told}");
    }

    #[test]
    fn profile_errors_name_file_line_and_key() {
        let line =
            |text: &str, part: &str| text.lines().position(|line| line.contains(part)).unwrap() + 1;
        let text = with("load_ps = 120000", "load_ps = 0");
        let at = line(&text, "load_ps");
        let wanted =
            format!("p.toml:{at}: cost.load_ps: found 0, allowed: 1 to 1000000000 picoseconds");
        assert_eq!(refused(&text), wanted);

        let text = with("load_ps = 120000", "load_ps = \"fast\"");
        let found = refused(&text);
        assert!(found.starts_with(&format!("p.toml:{at}: cost.load_ps: ")), "{found}");
        assert!(found.contains("string \"fast\"") && found.contains("u64"), "{found}");

        let text = with("load_ps = 120000", "lode_ps = 120000");
        let found = refused(&text);
        assert!(found.starts_with(&format!("p.toml:{at}: cost.lode_ps: ")), "{found}");
        assert!(found.contains("unknown field") && found.contains("load_ps"), "{found}");

        let found = refused(&with("load_ps = 120000\n", ""));
        assert!(found.contains("cost: missing field `load_ps`"), "{found}");
        let found = refused(&with("load_ps = 120000", "load_ps = 2000000000"));
        assert!(found.contains("found 2000000000, allowed: 1 to"), "{found}");
        let found = refused(&with("load_ps = 120000", "load_ps = -1"));
        assert!(found.contains("cost.load_ps") && found.contains("-1"), "{found}");
        let found = refused(&with("format = 1", "format = 2"));
        assert!(found.contains("format: found 2, allowed: 1"), "{found}");
        assert!(refused("[cost").starts_with("p.toml:1: "), "{}", refused("[cost"));
        let text = with("[cost]", "[machine]\ncpu = 3\n[cost]");
        assert!(refused(&text).contains("machine.cpu"), "{}", refused(&text));
        let text = CostProfile::built_in().to_toml() + "[measured.loud]\n";
        assert!(refused(&text).contains("measured.loud"), "{}", refused(&text));
    }

    #[test]
    fn the_path_costs_nanoseconds_rounded_up() {
        let path = |ps| PathCosts {
            turn_ps: ps,
            packet_ps: ps,
            doorbell_ps: ps,
            typical_doorbell_ps: None,
        };
        for (ps, ns) in [(1, 1), (1_000, 1), (1_001, 2), (u64::MAX, u64::MAX.div_ceil(1_000))] {
            let path = path(ps);
            let found =
                [path.turn_ns(), path.packet_ns(), path.doorbell_ns(), path.longest_doorbell_ns()];
            assert_eq!(found, [ns; 4]);
        }
        let path = PathCosts { typical_doorbell_ps: Some(500), ..path(7_000) };
        assert_eq!((path.doorbell_ns(), path.longest_doorbell_ns()), (1, 7));
    }

    #[test]
    fn costs_up_to_a_millisecond_are_allowed() {
        let is_read = |old: &str, new: &str| CostProfile::parse(&with(old, new), None).is_ok();
        for (key, value) in [
            ("load_ps", 120_000),
            ("bitwise_ps", 1_000),
            ("turn_ps", 1_000_000),
            ("packet_ps", 250_000),
            ("\ndoorbell_ps", 30_000_000),
            ("typical_doorbell_ps", 8_000_000),
        ] {
            let old = format!("{key} = {value}");
            for (found, is_allowed) in
                [(0, false), (1, true), (1_000_000_000, true), (1_000_000_001, false)]
            {
                // The key of a segment's class begins with another name, so that the line is the
                // key's.
                let new = format!("{key} = {found}");
                assert_eq!(is_read(&old, &new), is_allowed, "{new}");
            }
        }
        let path = CostProfile::parse(&with("packet_ps = 250000", "packet_ps = 7"), None).unwrap();
        assert_eq!(path.path, Some(PathCosts { packet_ps: 7, ..PathCosts::BUILT_IN }));
    }

    #[test]
    fn profiles_above_the_size_limit_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        let mut text = CostProfile::built_in().to_toml() + "#";
        text.extend(std::iter::repeat_n('x', LONGEST_FILE as usize - text.len()));
        std::fs::write(&path, &text).unwrap();
        let profile = CostProfile::load(&path).unwrap();
        assert_eq!(profile.name, path.display().to_string());
        std::fs::write(&path, text + "x").unwrap();
        let found = CostProfile::load(&path).unwrap_err().to_string();
        let expected = "found more than 1048576 bytes, allowed: up to 1048576";
        assert_eq!(found, format!("{}: {expected}", path.display()));
    }

    #[test]
    fn errors_find_the_key_of_their_line() {
        let text = "format = 1\n[cost]\nload_ps = 1\n# note\n[ measured . load ]\nsamples = 2\n";
        let key = |part: &str| key_at(text, text.find(part).unwrap());
        assert_eq!(key("format"), "format");
        assert_eq!(key("[cost]"), "cost");
        assert_eq!(key("load_ps"), "cost.load_ps");
        assert_eq!(key("# note"), "cost");
        assert_eq!(key("samples"), "measured . load.samples");
        assert_eq!([0, 10, 11, text.len()].map(|at| line_of(text, at)), [1, 1, 2, 7]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let found = CostProfile::load(Path::new("/nonexistent/p.toml")).unwrap_err().to_string();
        assert!(found.starts_with("/nonexistent/p.toml: cannot be read: "), "{found}");
    }
}
