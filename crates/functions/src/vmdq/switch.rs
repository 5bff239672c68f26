//! Finds the pools of a frame by its destination and VLAN.
//!
//! A bit represents a pool. The pools of a MAC address, and the pools that admit a VLAN, are one
//! word each; a frame's pools are in both. Guarantees: a look-up takes a bounded number of steps
//! and allocates nothing.

use super::Pool;
use crate::settings::check_queue;
use picnic_core::error::ConfigError;
use picnic_core::kernel::refuse;
use picnic_core::packet::wire::MacAddress;
use picnic_core::registry::BuildContext;

/// Most pools: one bit each.
pub const MAX_POOLS: usize = 64;
/// Most MAC addresses of all pools together.
pub const MAX_MACS: usize = 4096;

/// Finds the pools of a frame.
pub(super) struct Switch {
    /// Address (never zero, which marks a free place) and pools; half of the places are free.
    macs: Box<[(u64, u64)]>,
    /// By VLAN; untagged frames are of VLAN 0.
    pub vlans: Box<[u64; 4096]>,
    /// Pools that get broadcasts and multicasts.
    pub groups: u64,
    /// The pool of each queue.
    pool_of: Box<[Option<u8>]>,
    pub pools: Box<[Queues]>,
}

/// The queues of a pool.
pub(super) struct Queues(pub(super) Box<[u16]>);

impl Queues {
    /// The queue for a hash: modulo the number of the pool's queues.
    #[inline]
    pub(super) fn of(&self, hash: u32) -> u16 {
        // The remainder of a hash, as in `rss`, without a division.
        let index =
            ((u64::from(hash.wrapping_mul(0x9e37_79b1)) * self.0.len() as u64) >> 32) as usize;
        self.0.get(index).copied().unwrap_or_default()
    }
}

/// An address as a number.
#[inline(always)]
pub(super) fn number_of(mac: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

impl Switch {
    /// The switch between these pools; otherwise the key of the first error.
    pub(super) fn new(pools: &[Pool], context: &BuildContext) -> Result<Switch, ConfigError> {
        if pools.len() > MAX_POOLS {
            let message = format!("found {} pools, allowed: 0 to {MAX_POOLS}", pools.len());
            return Err(ConfigError::new("pools", message));
        }
        let count: usize = pools.iter().map(|pool| pool.macs.len()).sum();
        if count > MAX_MACS {
            let message = format!("found {count} MAC addresses, allowed: 0 to {MAX_MACS}");
            return Err(ConfigError::new("pools", message));
        }
        let mut switch = Switch {
            macs: vec![(0, 0); (2 * count.max(1)).next_power_of_two()].into(),
            vlans: Box::new([0; 4096]),
            groups: 0,
            pool_of: vec![None; usize::from(context.queues)].into(),
            pools: pools.iter().map(|pool| Queues(pool.queues.clone().into())).collect(),
        };
        for (index, pool) in pools.iter().enumerate() {
            switch.enter(index, pool, context)?;
        }
        if context.in_kernel {
            switch.check_copies()?;
        }
        Ok(switch)
    }

    /// Refuses two pools that get the broadcasts of the same VLAN: the kernel's programs do not
    /// copy.
    fn check_copies(&self) -> Result<(), ConfigError> {
        for (vlan, pools) in self.vlans.iter().enumerate() {
            let first = pools & self.groups;
            let second = first & first.wrapping_sub(1);
            if second != 0 {
                let [first, second] = [first, second].map(u64::trailing_zeros);
                let allowed = format!(
                    "false, since pool {first} also gets those of VLAN {vlan}, and packets are not copied"
                );
                return Err(refuse(&format!("pools[{second}].broadcast"), true, allowed));
            }
        }
        Ok(())
    }

    /// Each address, with its pools.
    pub(super) fn stations(&self) -> impl Iterator<Item = ([u8; 6], u64)> {
        let taken = self.macs.iter().filter(|(address, _)| *address != 0);
        taken.map(|&(address, pools)| {
            let [a, b, c, d, e, f, ..] = address.to_le_bytes();
            ([a, b, c, d, e, f], pools)
        })
    }

    fn enter(
        &mut self,
        index: usize,
        pool: &Pool,
        context: &BuildContext,
    ) -> Result<(), ConfigError> {
        let bit = 1 << index;
        if pool.queues.is_empty() {
            let message = "missing, expected one or more queues";
            return Err(ConfigError::new(format!("pools[{index}].queues"), message));
        }
        for (place, &queue) in pool.queues.iter().enumerate() {
            let key = format!("pools[{index}].queues[{place}]");
            check_queue(&key, queue, context.queues)?;
            let pool_of = &mut self.pool_of[usize::from(queue)];
            if let Some(other) = pool_of.replace(index as u8) {
                let message = format!(
                    "found queue {queue}, which is that of pool {other}, \
                                       allowed: a queue that is named once"
                );
                return Err(ConfigError::new(key, message));
            }
        }
        match &pool.vlans {
            None => self.vlans.iter_mut().for_each(|pools| *pools |= bit),
            Some(vlans) => {
                for vlan in vlans {
                    self.vlans[usize::from(vlan & 0xfff)] |= bit;
                }
            }
        }
        for (place, text) in pool.macs.iter().enumerate() {
            let key = format!("pools[{index}].macs[{place}]");
            let address = text.parse::<MacAddress>().ok().filter(|mac| mac.is_assignable());
            let Some(address) = address else {
                let allowed = "the address of one station, such as \"02:00:00:00:00:01\"";
                let message = format!("found \"{text}\", allowed: {allowed}");
                return Err(ConfigError::new(key, message));
            };
            let at = self.seek(number_of(address));
            let others = self.macs[at].1;
            if let Some(vlan) =
                self.vlans.iter().position(|&pools| pools & bit != 0 && pools & others != 0)
            {
                let message = format!(
                    "found {text}, which another pool has on VLAN {vlan} too, \
                                       allowed: one pool for each address and VLAN"
                );
                return Err(ConfigError::new(key, message));
            }
            self.macs[at] = (number_of(address), others | bit);
        }
        if pool.broadcast {
            self.groups |= bit;
        }
        Ok(())
    }

    /// The place of an address, or the free one where it would be.
    #[inline(always)]
    fn seek(&self, address: u64) -> usize {
        let last = self.macs.len() - 1;
        let mut at = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & last;
        // Ends, since half of the places are free.
        while let Some(&(there, _)) = self.macs.get(at)
            && there != 0
            && there != address
        {
            at = (at + 1) & last;
        }
        at
    }

    /// The pools that have this address.
    #[inline(always)]
    pub(super) fn pools_of_mac(&self, mac: MacAddress) -> u64 {
        match self.macs.get(self.seek(number_of(mac))) {
            Some(&(there, pools)) if there != 0 => pools,
            _ => 0,
        }
    }

    /// The pools that admit this VLAN; 0 is untagged.
    #[inline(always)]
    pub(super) fn pools_of_vlan(&self, vlan: u16) -> u64 {
        self.vlans.get(usize::from(vlan)).copied().unwrap_or(0)
    }

    /// The pool of a queue.
    #[inline]
    pub(super) fn pool_of(&self, queue: u8) -> Option<u8> {
        self.pool_of.get(usize::from(queue)).copied().flatten()
    }
}
