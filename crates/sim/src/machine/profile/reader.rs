//! Reads the text of a profile and collects its errors.

use super::{Cost, Costs, Figure, Interrupts, Profile, Routine, Source};
use crate::machine::scheduler::Placement;
use crate::machine::wake::WakeUps;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Reads a profile and collects errors.
pub(super) struct Reader<'t> {
    pub(super) file: &'t str,
    pub(super) text: &'t str,
    pub(super) errors: Vec<String>,
}

type Table<'t> = DeTable<'t>;

impl<'t> Reader<'t> {
    fn wrong(&mut self, at: usize, key: &str, message: &str) {
        let line = self.text.get(..at).unwrap_or(self.text).matches('\n').count() + 1;
        self.errors.push(format!("{}:{line}: {key}: {message}", self.file));
    }

    pub(super) fn profile(&mut self, name: &str) -> Option<Profile> {
        let table = match DeTable::parse(self.text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                self.wrong(at, "", &format!("not TOML: {}", error.message()));
                return None;
            }
        };
        let mut profile = Profile {
            name: name.into(),
            help: String::new(),
            packages: Vec::new(),
            threads_per_pipeline: 1,
            placement: Placement::Stay,
            steals: false,
            routine: Routine::Softirq,
            interrupts: Interrupts::QueueCore,
            costs: Costs::default(),
            wake_ups: WakeUps::default(),
            figures: Vec::new(),
        };
        for (key, value) in sorted(&table) {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("help", DeValue::String(help)) => profile.help = help.to_string(),
                ("topology", DeValue::Table(table)) => self.topology(at, table, &mut profile),
                ("policy", DeValue::Table(table)) => self.policies(table, &mut profile),
                ("costs", DeValue::Table(table)) => self.costs(table, &mut profile),
                (key @ ("help" | "topology" | "policy" | "costs"), found) => {
                    let wanted = if key == "help" { "a text" } else { "a set of keys" };
                    self.wrong(at, key, &format!("found {}, allowed: {wanted}", shown(found)));
                }
                (key, _) => {
                    self.wrong(at, key, "unknown key, allowed: help, topology, policy, costs");
                }
            }
        }
        if table.get("topology").is_none() {
            self.wrong(0, "topology", "missing, expected packages of caches of cores");
        }
        Some(profile)
    }

    fn topology(&mut self, at: usize, table: &Table<'_>, profile: &mut Profile) {
        for (key, value) in sorted(table) {
            let at = key.span().start;
            if key.get_ref() == "threads_per_pipeline" {
                match core(value).filter(|threads| (1..=64).contains(threads)) {
                    Some(threads) => profile.threads_per_pipeline = threads,
                    None => {
                        let message = format!("found {}, allowed: 1 to 64", shown(value.get_ref()));
                        self.wrong(at, "topology.threads_per_pipeline", &message);
                    }
                }
                continue;
            }
            if key.get_ref() != "packages" {
                self.wrong(
                    at,
                    &format!("topology.{}", key.get_ref()),
                    "unknown key, allowed: packages, threads_per_pipeline",
                );
                continue;
            }
            let packages = list(value).and_then(|packages| {
                let cores = |cache| list(cache)?.iter().map(core).collect();
                let caches = |package| list(package)?.iter().map(cores).collect();
                packages.iter().map(caches).collect::<Option<Vec<Vec<Vec<usize>>>>>()
            });
            match packages {
                Some(packages) => profile.packages = packages,
                None => self.wrong(
                    at,
                    "topology.packages",
                    "expected a list of packages, each a list of caches, each a list of cores",
                ),
            }
        }
        let mut cores: Vec<usize> = profile.packages.iter().flatten().flatten().copied().collect();
        if cores.is_empty() {
            return self.wrong(at, "topology.packages", "found no core, expected at least one");
        }
        if profile.packages.iter().flatten().any(Vec::is_empty) {
            self.wrong(at, "topology.packages", "found a cache without a core");
        }
        cores.sort_unstable();
        for core in 0..cores.len() {
            if cores.get(core..).and_then(|rest| rest.first()) != Some(&core) {
                let twice = cores.windows(2).find(|two| two[0] == two[1]).map(|two| two[0]);
                let message = match twice {
                    Some(core) => format!("found core {core} twice, expected each core once"),
                    None => {
                        format!("found no core {core}, expected each of 0 to {}", cores.len() - 1)
                    }
                };
                return self.wrong(at, "topology.packages", &message);
            }
        }
    }

    fn policies(&mut self, table: &Table<'_>, profile: &mut Profile) {
        let mut first_core_at = None;
        for (key, value) in sorted(table) {
            let name = format!("policy.{}", key.get_ref());
            let Some(figure) = self.figure(key.span().start, &name, value, "") else { continue };
            let at = key.span().start;
            let word = figure.value.clone();
            let mut choose = |allowed: &[&str]| {
                let found = allowed.iter().position(|allowed| *allowed == word);
                if found.is_none() {
                    let message = format!("found {word}, allowed: {}", allowed.join(", "));
                    self.wrong(at, &name, &message);
                }
                found
            };
            match key.get_ref().as_ref() {
                "placement" => {
                    if let Some(found) = choose(&["stay", "idle-first", "near-waker"]) {
                        profile.placement =
                            [Placement::Stay, Placement::IdleFirst, Placement::NearWaker][found];
                    }
                }
                "steals" => {
                    if let Some(found) = choose(&["false", "true"]) {
                        profile.steals = found == 1;
                    }
                }
                "routine" => {
                    if let Some(found) = choose(&["softirq", "thread"]) {
                        profile.routine = [Routine::Softirq, Routine::Thread][found];
                    }
                }
                "interrupts" => {
                    if let Some(found) = choose(&["queue-core", "first-core"]) {
                        profile.interrupts = [Interrupts::QueueCore, Interrupts::FirstCore][found];
                        first_core_at = (found == 1).then_some(at);
                    }
                }
                _ => {
                    let allowed = "placement, steals, routine, interrupts";
                    self.wrong(at, &name, &format!("unknown key, allowed: {allowed}"));
                    continue;
                }
            }
            profile.figures.push(Figure { key: name, ..figure });
        }
        if let (Some(at), Routine::Softirq) = (first_core_at, profile.routine) {
            let message = "found first-core with routine softirq, expected routine = thread";
            self.wrong(at, "policy.interrupts", message);
        }
    }

    fn costs(&mut self, table: &Table<'_>, profile: &mut Profile) {
        for (key, value) in sorted(table) {
            let at = key.span().start;
            let name = format!("costs.{}", key.get_ref());
            let Some(cost) = Cost::ALL.iter().find(|cost| cost.key() == key.get_ref()).copied()
            else {
                let keys = Cost::ALL.iter().map(|cost| cost.key());
                let message = picnic_core::error::not_among("", key.get_ref(), keys);
                self.wrong(at, &name, &message);
                continue;
            };
            let Some(mut figure) = self.figure(at, &name, value, cost.unit()) else { continue };
            if cost == Cost::InterruptWay
                && let Some(pairs) = pairs(value)
            {
                match pairs.and_then(WakeUps::new) {
                    Ok(ways) => {
                        (figure.key, figure.value) = (cost.key().into(), ways.to_string());
                        profile.costs.set(cost, ways.shortest_sleep_ns().unwrap_or(0.0));
                        profile.wake_ups = ways;
                        profile.figures.push(figure);
                    }
                    Err(message) => self.wrong(at, &name, &message),
                }
                continue;
            }
            match figure.value.parse::<f64>() {
                Ok(number) if (0.0..=cost.most()).contains(&number) => {
                    profile.costs.set(cost, number);
                    profile.figures.push(Figure { key: cost.key().into(), ..figure });
                }
                _ => {
                    let message = format!("found {}, allowed: 0 to {}", figure.value, cost.most());
                    self.wrong(at, &name, &message);
                }
            }
        }
    }

    /// A figure with its source; `unit` is the required one.
    fn figure(
        &mut self,
        at: usize,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        unit: &'static str,
    ) -> Option<Figure> {
        let DeValue::Table(table) = value.get_ref() else {
            let keys =
                if unit.is_empty() { "value, source, from" } else { "value, unit, source, from" };
            let found = shown(value.get_ref());
            self.wrong(at, name, &format!("found {found}, expected {{ {keys} }}"));
            return None;
        };
        let errors = self.errors.len();
        let text = |key: &str| table.get(key).map(|value| shown(value.get_ref()));
        for (key, _) in sorted(table) {
            if !["value", "unit", "source", "from", "point"].contains(&key.get_ref().as_ref()) {
                let message = format!(
                    "unknown key {}, allowed: value, unit, source, from, point",
                    key.get_ref()
                );
                self.wrong(at, name, &message);
            }
        }
        for key in ["value", "source", "from"] {
            if text(key).is_none_or(|text| text.trim().is_empty()) {
                self.wrong(at, name, &format!("{key} is missing"));
            }
        }
        if text("unit").unwrap_or_default() != unit {
            let found = text("unit").unwrap_or("none".into());
            self.wrong(at, name, &format!("found unit {found}, expected {unit}"));
        }
        let found = text("source").unwrap_or_default();
        let source = Source::ALL.iter().find(|(name, _)| *name == found).map(|(_, source)| *source);
        if source.is_none() && table.get("source").is_some() {
            let message = format!(
                "found source {found}, allowed: paper, datasheet, assumed, fitted, measured"
            );
            self.wrong(at, name, &message);
        }
        match (source, text("point")) {
            (Some(Source::Fitted), None) => {
                self.wrong(
                    at,
                    name,
                    "fitted without point, expected the paper's figure that it was fitted to",
                );
            }
            (Some(other), Some(_)) if other != Source::Fitted => {
                self.wrong(at, name, "found point, allowed only with source = \"fitted\"");
            }
            _ => {}
        }
        (self.errors.len() == errors).then(|| Figure {
            key: name.into(),
            value: text("value").unwrap_or_default(),
            unit,
            source: source.unwrap_or(Source::Assumed),
            from: text("from").unwrap_or_default(),
            point: text("point"),
        })
    }
}

/// The entries of a table in the order of the file.
fn sorted<'a, 't>(
    table: &'a Table<'t>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'t, str>>, &'a Spanned<DeValue<'t>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn list<'a, 't>(value: &'a Spanned<DeValue<'t>>) -> Option<&'a [Spanned<DeValue<'t>>]> {
    match value.get_ref() {
        DeValue::Array(items) => Some(items),
        _ => None,
    }
}

/// The pairs of numbers in a figure's value; none if it is no list.
fn pairs(figure: &Spanned<DeValue<'_>>) -> Option<Result<Vec<(f64, f64)>, String>> {
    let DeValue::Table(table) = figure.get_ref() else { return None };
    let number = |value: &Spanned<DeValue<'_>>| shown(value.get_ref()).parse::<f64>().ok();
    let pair = |value| match list(value)? {
        [slept, way] => Some((number(slept)?, number(way)?)),
        _ => None,
    };
    let pairs = list(table.get("value")?)?.iter().map(pair).collect::<Option<_>>();
    Some(pairs.ok_or_else(|| "expected a number, or a list of [SLEPT, WAY]".into()))
}

fn core(value: &Spanned<DeValue<'_>>) -> Option<usize> {
    match value.get_ref() {
        DeValue::Integer(number) => number.as_str().replace('_', "").parse().ok(),
        _ => None,
    }
}

fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().replace('_', ""),
        DeValue::Float(number) => number.as_str().replace('_', ""),
        DeValue::Boolean(is) => is.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a set of keys".into(),
    }
}
