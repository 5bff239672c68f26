//! State that commands change while the programs run. It is kept twice: one copy is in use,
//! the other is changed and then activated at once.

use crate::flows::{FlowMaps, Flows};
use crate::object::{refused, settle};
use crate::plan::{Action, Plan};
use crate::pools::{PoolMaps, PoolTables};
use aya::maps::{Array, Map, MapData, MapError};
use picnic_control::error::RunError;
use picnic_forms::{ByHash, FlowHash, KernelForm};

/// The longest input of Toeplitz; each byte has its own table.
pub(crate) const BYTES_HASHED: usize = 36;
/// Most entries of the indirection table.
const MOST_ENTRIES: usize = 4096;
/// Billionths in one, the unit of credit.
const ONE: u64 = 1_000_000_000;

/// Whether packets are handed over as socket buffers.
pub(crate) struct Switch(Array<MapData, u32>);

impl Switch {
    pub(crate) fn new(map: Array<MapData, u32>) -> Self {
        Switch(map)
    }

    pub(crate) fn set(&mut self, is_on: bool) -> Result<(), RunError> {
        self.0.set(0, u32::from(is_on), 0).map_err(|error| refused("switched", &error))
    }
}

/// State that commands change, kept twice: one copy is in use, the other is changed.
pub(crate) struct Tables {
    rss: RssTables,
    pub(crate) flows: Flows,
    pools: PoolTables,
    settings: SettingsTables,
}

impl Tables {
    /// The programs' maps, filled from the plan.
    pub(crate) fn new(
        plan: &Plan,
        mut take: impl FnMut(&str) -> Result<Map, RunError>,
    ) -> Result<Self, RunError> {
        let rss = take(".bss.rss")?;
        let (flows_now, masks, rules) =
            (take("FLOWS_NOW")?, take("FLOW_MASKS")?, take("FLOW_RULES")?);
        let (settings_now, settings) = (take("SETTINGS_NOW")?, take("SETTINGS")?);
        let pools = (take("POOLS_NOW")?, take("POOLS")?, take("STATIONS")?);
        let filled = |error: MapError| refused("filled", &error);
        let pools = PoolMaps {
            now: pools.0.try_into().map_err(filled)?,
            both: pools.1.try_into().map_err(filled)?,
            stations: pools.2.try_into().map_err(filled)?,
        };
        let flows = FlowMaps {
            now: flows_now.try_into().map_err(filled)?,
            masks: masks.try_into().map_err(filled)?,
            rules: rules.try_into().map_err(filled)?,
        };
        let mut tables = Tables {
            rss: RssTables {
                map: rss.try_into().map_err(filled)?,
                words: Box::new([0; 1 + 2 * RSS]),
            },
            flows: Flows::new(flows, plan.flow_room()),
            pools: PoolTables::new(pools),
            settings: SettingsTables {
                now: settings_now.try_into().map_err(filled)?,
                both: settings.try_into().map_err(filled)?,
                half: 1,
                settings: [0; SETTINGS],
            },
        };
        for step in &plan.steps {
            if let Action::Form(form) = &step.action {
                tables.put(form).map_err(filled)?;
            }
        }
        Ok(tables)
    }

    /// Activates the form of a function, whole and at once. Returns the hits of flow rules that
    /// stay, by number.
    pub(crate) fn set(&mut self, form: &KernelForm) -> Result<Vec<(u32, u64)>, MapError> {
        // Running programs may briefly still read the state before the last change.
        settle();
        self.put(form)
    }

    fn put(&mut self, form: &KernelForm) -> Result<Vec<(u32, u64)>, MapError> {
        match form {
            KernelForm::ByHash(by_hash) => self.rss.set(by_hash)?,
            KernelForm::ByPool(pools) => self.pools.set(pools)?,
            KernelForm::ByRules { rules, .. } => return self.flows.set(rules),
            KernelForm::Vlans { allowed, untagged } => {
                self.settings.set_vlans(allowed, *untagged)?;
            }
            KernelForm::Police { packets, bytes, .. } => {
                self.settings.set_limits(*packets, *bytes)?;
            }
            // These have no commands.
            _ => {}
        }
        Ok(Vec::new())
    }
}

/// Words of `struct rss`: number of entries, their mask, the queue of each, and each byte's
/// contribution by position.
const RSS: usize = 2 + MOST_ENTRIES + BYTES_HASHED * 256;

/// Key and indirection table.
struct RssTables {
    /// The copy in use, then both copies.
    map: Array<MapData, [u32; 1 + 2 * RSS]>,
    words: Box<[u32; 1 + 2 * RSS]>,
}

impl RssTables {
    /// Activates key and table, both at once.
    fn set(&mut self, by_hash: &ByHash) -> Result<(), MapError> {
        let half = self.words[0] ^ 1;
        let (_, both) = self.words.split_at_mut(1);
        let (entries, rest) = both[half as usize * RSS..][..RSS].split_at_mut(2);
        let (table, toeplitz) = rest.split_at_mut(MOST_ENTRIES);
        let count = by_hash.table.len() as u32;
        entries.copy_from_slice(&[count, if count.is_power_of_two() { count - 1 } else { 0 }]);
        table.iter_mut().zip(&by_hash.table).for_each(|(place, &queue)| *place = queue.into());
        if let FlowHash::Toeplitz(bytes) = &by_hash.hash {
            let words = bytes.as_flattened();
            toeplitz.iter_mut().zip(words).for_each(|(place, word)| *place = *word);
        }
        self.map.set(0, self.words.as_ref(), 0)?;
        // All but one byte is already present.
        self.words[0] = half;
        self.map.set(0, self.words.as_ref(), 0)
    }
}

/// Words of `struct settings`: VLANs, whether untagged packets pass, and two limits, each with
/// rate, highest credit and nanoseconds to reach it.
const SETTINGS: usize = 64 + 1 + 3 + 3;

/// Settings of `vlan` and `rate-limit`.
struct SettingsTables {
    now: Array<MapData, u32>,
    both: Array<MapData, [u64; SETTINGS]>,
    half: u32,
    settings: [u64; SETTINGS],
}

impl SettingsTables {
    fn set_vlans(&mut self, allowed: &[u64; 64], untagged: bool) -> Result<(), MapError> {
        self.settings[..64].copy_from_slice(allowed);
        self.settings[64] = untagged.into();
        self.write()
    }

    fn set_limits(&mut self, packets: [u64; 2], bytes: [u64; 2]) -> Result<(), MapError> {
        let limit = |[rate, burst]: [u64; 2]| {
            let most = burst.saturating_mul(ONE);
            [rate, most, most.div_ceil(rate.max(1))]
        };
        self.settings[65..68].copy_from_slice(&limit(packets));
        self.settings[68..].copy_from_slice(&limit(bytes));
        self.write()
    }

    fn write(&mut self) -> Result<(), MapError> {
        let half = self.half ^ 1;
        self.both.set(half, self.settings, 0)?;
        self.now.set(0, half, 0)?;
        self.half = half;
        Ok(())
    }
}
