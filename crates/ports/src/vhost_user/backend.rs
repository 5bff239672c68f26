//! What a front end may ask of its device, message by message.
//!
//! Each message that concerns a pair of rings takes the pair from its target core, changes it, and
//! gives it back if it can be used; so messages may come in any order, and at any time.
//!
//! A ring starts with its kick descriptor, not with the first kick: a back end that is restarted
//! would wait forever for a kick that its predecessor took.
//!
//! Guarantees: a message that is wrong changes nothing, and is an error of its connection. No
//! memory of the guest is mapped beyond the life of its connection.
//!
//! Source: QEMU, docs/interop/vhost-user.rst.

use super::config::MTU_LOW;
use super::dirty::Log;
use super::inflight::Inflight;
use super::memory::{GuestMemoryMmap, MAX_REGIONS, Memory, Range};
use super::pair::{Pair, Ring, Terms, bits};
use super::place;
use super::post::Post;
use super::ring::{BrokenRing, Layout, MAX_SIZE, Queue};
use super::state::{self, Negotiated};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlinkat};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

/// Features that every guest is offered, beside its offloads.
pub(super) const FEATURES: u64 = bits::MRG_RXBUF
    | bits::MTU
    | bits::STATUS
    | bits::CTRL_VQ
    | bits::GUEST_ANNOUNCE
    | bits::MQ
    | bits::RING_INDIRECT
    | bits::RING_EVENT_IDX
    | bits::LOG_ALL
    | bits::PROTOCOL_FEATURES
    | bits::VERSION_1
    | bits::IN_ORDER;

const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::RESET_DEVICE)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::LOG_SHMFD)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    .union(VhostUserProtocolFeatures::MTU)
    .union(VhostUserProtocolFeatures::STATUS)
    .union(VhostUserProtocolFeatures::RARP);

/// A ring as the front end has described it so far.
#[derive(Debug, Default)]
struct Vring {
    size: u16,
    /// Addresses in the front end's process: descriptors, available, used.
    addresses: Option<[u64; 3]>,
    /// Guest address under which writes to the used ring are logged.
    log: Option<u64>,
    /// Where it starts; if nothing is said, where new rings do.
    base: Option<u16>,
    kick: Option<Arc<File>>,
    call: Option<Arc<File>>,
    error: Option<Arc<File>>,
    /// It has a kick descriptor, or is to be polled.
    is_started: bool,
    is_enabled: bool,
    /// The in-flight area says where it goes on.
    resumes: bool,
    /// A target core had it, so its base is known.
    was_served: bool,
}

/// The device behind one socket.
#[derive(Debug)]
pub(super) struct Backend {
    offered: u64,
    /// Protocol features that the front end accepted.
    protocol: u64,
    /// With the features that were accepted.
    terms: Terms,
    memory: Memory,
    /// Rings when memory that the front end shares is taken away.
    bell: Arc<OwnedFd>,
    /// The dirty log, kept as long as the feature LOG_ALL is set.
    log: Option<Arc<Log>>,
    vrings: Vec<Vring>,
    inflight: Option<Arc<Inflight>>,
    /// The driver's progress, which the front end keeps here.
    status: u8,
    /// The highest MTU that the card file allows.
    highest_mtu: usize,
    /// The address of a guest that has moved here, until the first target core has told the network.
    moved: Option<[u8; 6]>,
    /// One for each pair of rings.
    posts: Vec<Arc<Post>>,
    /// Which target cores have a pair.
    given: Vec<bool>,
    /// A target core kept its pair: the card has stopped.
    is_over: bool,
    /// Why rings could not be used.
    faults: Vec<String>,
}

const NOT_OFFERED: Error = Error::InvalidOperation("this device does not offer it");

impl Backend {
    /// The device that these target cores serve; `terms` has the features to offer.
    pub(super) fn new(terms: Terms, posts: Vec<Arc<Post>>, bell: &Arc<OwnedFd>) -> Self {
        Backend {
            offered: terms.features,
            protocol: 0,
            terms: Terms { features: 0, ..terms },
            memory: Memory::new(bell.clone()),
            bell: bell.clone(),
            log: None,
            vrings: (0..2 * posts.len()).map(|_| Vring::default()).collect(),
            inflight: None,
            status: 0,
            highest_mtu: terms.mtu,
            moved: None,
            given: vec![false; posts.len()],
            is_over: false,
            posts,
            faults: Vec::new(),
        }
    }

    /// The state of the guest, as far as it is known here.
    pub(super) fn negotiated(&self) -> Negotiated {
        let is_used = |vring: &Vring| vring.is_started && vring.is_enabled;
        let pairs = self.vrings.chunks(2).zip(&self.given);
        let ready = pairs.filter(|(rings, given)| **given && rings.iter().all(is_used));
        Negotiated {
            features: self.terms.features,
            mtu: self.terms.mtu,
            ready_queues: ready.count() as u64,
            faults: self.faults.clone(),
        }
    }

    /// Whether the front end accepted these protocol features.
    pub(super) fn accepts(&self, features: VhostUserProtocolFeatures) -> bool {
        self.protocol & features.bits() == features.bits()
    }

    /// The end of a connection.
    pub(super) fn close(&mut self) {
        self.withdraw_all();
    }

    fn is_packed(&self) -> bool {
        self.terms.features & bits::RING_PACKED != 0
    }

    /// Where new rings start: packed ones with their wrap counter set.
    fn first_base(&self) -> u16 {
        if self.is_packed() { 1 << 15 } else { 0 }
    }

    fn note(&mut self, vring: usize, why: &str) {
        state::keep(&mut self.faults, state::of_ring(vring, why));
    }

    /// Takes a pair from its target core.
    fn withdraw(&mut self, pair: usize) {
        if !std::mem::take(&mut self.given[pair]) {
            return;
        }
        let post = self.posts[pair].clone();
        let returned = post.exchange(None);
        self.is_over |= returned.is_none();
        self.moved = returned.as_ref().and_then(|pair| pair.moved).or(self.moved);
        let rings = returned.map(|pair| [pair.rx, pair.tx]).into_iter().flatten();
        for (side, ring) in rings.enumerate() {
            let Some(ring) = ring else { continue };
            let vring = 2 * pair + side;
            self.vrings[vring].base = Some(ring.queue.base());
            self.vrings[vring].was_served = true;
            if let Some(kick) = ring.kick {
                post.unwatch(&kick);
            }
            if let Some(why) = ring.broken {
                self.note(vring, why.0);
            }
        }
    }

    fn withdraw_all(&mut self) {
        (0..self.posts.len()).for_each(|pair| self.withdraw(pair));
    }

    /// Gives a pair to its target core, if one of its rings has started.
    fn offer(&mut self, pair: usize) {
        let Some(map) = self.memory.map().cloned() else { return };
        let (rx, tx) = (self.ring(2 * pair, &map), self.ring(2 * pair + 1, &map));
        if rx.is_none() && tx.is_none() {
            return;
        }
        let kick = tx.as_ref().and_then(|ring| ring.kick.as_ref());
        if let Some(Err(error)) = kick.map(|kick| self.posts[pair].watch(kick)) {
            let why = format!("its kicks cannot be waited for: {error}");
            return self.note(2 * pair + 1, &why);
        }
        let mut given = Pair::new(self.terms, map, rx, tx);
        given.moved = self.moved.take();
        // What comes back is this pair itself, if the card has stopped.
        drop(self.posts[pair].exchange(Some(Box::new(given))));
        self.given[pair] = true;
    }

    fn offer_all(&mut self) {
        (0..self.posts.len()).for_each(|pair| self.offer(pair));
    }

    /// A ring, if it has started.
    fn ring(&mut self, index: usize, map: &GuestMemoryMmap) -> Option<Ring> {
        let vring = &self.vrings[index];
        let is_described = vring.is_started && vring.size != 0;
        let [descriptors, available, used] = vring.addresses.filter(|_| is_described)?;
        let guest = |user| self.memory.guest_address(user);
        let accepted = |feature: u64| self.terms.features & feature != 0;
        let layout = || {
            Some(Layout {
                is_packed: accepted(bits::RING_PACKED),
                size: vring.size,
                descriptors: guest(descriptors)?,
                available: guest(available)?,
                used: guest(used)?,
                base: vring.base.unwrap_or(self.first_base()),
                event_idx: accepted(bits::RING_EVENT_IDX),
                indirect: accepted(bits::RING_INDIRECT),
                in_order: accepted(bits::IN_ORDER),
            })
        };
        // All writes to guest memory are logged where they go, so another place would be wrong.
        if vring.log.is_some_and(|log| guest(used) != Some(log)) {
            self.note(index, "its log address is not that of its used ring");
            return None;
        }
        let outside = BrokenRing("its addresses are not in the guest's memory");
        let inflight = self.inflight.as_ref().filter(|_| vring.resumes);
        // Of other chains than Linux's, the descriptors tell no place.
        let are_single = accepted(bits::RING_INDIRECT) && !accepted(bits::IN_ORDER);
        let is_unknown = self.inflight.is_none() && !vring.was_served && are_single;
        let resumed = |layout: Layout| {
            let base = match inflight {
                Some(area) => area.resume(index, &layout, map)?,
                None if layout.is_packed && is_unknown => place::find(&layout, map),
                None => None,
            };
            Ok(Layout { base: base.unwrap_or(layout.base), ..layout })
        };
        let layout = layout().ok_or(outside).and_then(resumed);
        self.vrings[index].resumes &= layout.is_err();
        let vring = &self.vrings[index];
        let queue = layout.and_then(|layout| Queue::new(layout, map));
        let part = self.inflight.as_ref().and_then(|area| area.part(index));
        match queue.map(|queue| queue.recorded(part)) {
            Ok(queue) => Some(Ring {
                call: vring.call.clone(),
                kick: vring.kick.clone(),
                error: vring.error.clone(),
                ..Ring::new(queue, vring.is_enabled)
            }),
            Err(why) => {
                self.note(index, why.0);
                None
            }
        }
    }

    /// Changes a ring, while no target core uses it.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Vring)) -> Result<()> {
        let index = usize::try_from(index).map_err(|_| Error::InvalidParam)?;
        if index >= self.vrings.len() {
            return Err(Error::InvalidParam);
        }
        self.withdraw(index / 2);
        change(&mut self.vrings[index]);
        self.offer(index / 2);
        Ok(())
    }

    fn replace_memory(&mut self, memory: Memory) {
        self.withdraw_all();
        self.memory = memory;
        self.offer_all();
    }

    /// The log, if writes are to be logged.
    fn log_in_use(&self, features: u64) -> Option<Arc<Log>> {
        self.log.clone().filter(|_| features & bits::LOG_ALL != 0)
    }

    /// Keeps another log from now on.
    pub(super) fn keep_log(&mut self, log: Option<Arc<Log>>) -> Result<()> {
        let before = std::mem::replace(&mut self.log, log);
        match self.memory.logged(self.log_in_use(self.terms.features)) {
            Ok(memory) => self.replace_memory(memory),
            Err(error) => {
                self.log = before;
                return Err(error);
            }
        }
        Ok(())
    }

    /// The guest with this address has moved here: the card says so on its wire.
    pub(super) fn send_rarp(&mut self, address: u64) -> Result<()> {
        let [a, b, c, d, e, f, ..] = address.to_le_bytes();
        self.withdraw(0);
        self.moved = Some([a, b, c, d, e, f]);
        self.offer(0);
        Ok(())
    }

    pub(super) fn set_mtu(&mut self, mtu: u64) -> Result<()> {
        let mtu = usize::try_from(mtu).map_err(|_| Error::InvalidParam)?;
        if mtu < MTU_LOW as usize || mtu > self.highest_mtu {
            return Err(Error::InvalidOperation("the MTU is below 68, or above the card file's"));
        }
        self.withdraw_all();
        self.terms.mtu = mtu;
        self.offer_all();
        Ok(())
    }

    pub(super) fn status(&self) -> u64 {
        self.status.into()
    }

    /// Status 0 is a reset by the driver: all rings stop. The front end keeps its notifications.
    pub(super) fn set_status(&mut self, status: u64) -> Result<()> {
        self.status = u8::try_from(status).map_err(|_| Error::InvalidParam)?;
        if self.status == 0 {
            self.withdraw_all();
            // The rest stays until it is set again: QEMU 7.2 resets the status before it asks where
            // the rings after the first pair stopped.
            for vring in &mut self.vrings {
                (vring.kick, vring.is_started, vring.is_enabled) = (None, false, false);
            }
        }
        Ok(())
    }

    /// All rings stop.
    fn reset(&mut self) {
        self.withdraw_all();
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
        self.terms.features = 0;
        (self.log, self.inflight, self.status) = (None, None, 0);
    }
}

/// An event descriptor: a write to any other could block the target core.
fn event(file: Option<File>) -> Result<Option<Arc<File>>> {
    let Some(file) = file else { return Ok(None) };
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target = readlinkat(rustix::fs::CWD, link, Vec::new());
    if !target.is_ok_and(|target| target.as_bytes() == b"anon_inode:[eventfd]") {
        return Err(Error::InvalidOperation("a notification is no event descriptor"));
    }
    let flags = fcntl_getfl(&file).map_err(|error| Error::ReqHandlerError(error.into()))?;
    let set = fcntl_setfl(&file, flags | OFlags::NONBLOCK);
    set.map_err(|error| Error::ReqHandlerError(error.into()))?;
    Ok(Some(Arc::new(file)))
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered != 0 {
            return Err(Error::FeatureMismatch);
        }
        let memory = self.memory.logged(self.log_in_use(features))?;
        self.withdraw_all();
        (self.terms.features, self.memory) = (features, memory);
        if features & bits::PROTOCOL_FEATURES == 0 {
            self.vrings.iter_mut().for_each(|vring| vring.is_enabled = true);
        }
        self.offer_all();
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut memory = self.memory.emptied();
        for (region, file) in regions.iter().zip(files) {
            let range = Range {
                guest: region.guest_phys_addr,
                size: region.memory_size,
                user: region.user_addr,
                offset: region.mmap_offset,
            };
            memory = memory.with(range, Arc::new(file))?;
        }
        self.replace_memory(memory);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let is_packed = self.is_packed();
        let is_allowed = num.is_power_of_two() || (is_packed && num != 0);
        if !is_allowed || num > MAX_SIZE {
            return Err(Error::InvalidOperation("a ring's size is no power of two up to 32768"));
        }
        self.change(index, |vring| vring.size = num as u16)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let is_logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let log = is_logged.then_some(log);
        self.change(index, |vring| {
            (vring.addresses, vring.log) = (Some([descriptor, available, used]), log);
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        // Of a packed ring, the upper half is the used place: nothing is in flight when a ring
        // stops, so it is the same, or, from DPDK, 0.
        let base = if self.is_packed() { base & 0xffff } else { base };
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.change(index, |vring| vring.base = Some(base))
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let mut base = self.first_base();
        self.change(index, |vring| {
            base = vring.base.unwrap_or(base);
            let (kick, call, error) = Default::default();
            *vring = Vring { kick, call, error, is_started: false, ..std::mem::take(vring) };
        })?;
        if self.is_over {
            return Err(Error::BackendInternalError);
        }
        let used = if self.is_packed() { u32::from(base) << 16 } else { 0 };
        Ok(VhostUserVringState::new(index, used | u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = event(fd)?;
        self.change(index.into(), |vring| (vring.kick, vring.is_started) = (kick, true))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = event(fd)?;
        self.change(index.into(), |vring| vring.call = call)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = event(fd)?;
        self.change(index.into(), |vring| vring.error = error)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !PROTOCOL.bits() != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.posts.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |vring| vring.is_enabled = enable)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        if let Some(same) = self.memory.repeat(range(region), &fd) {
            self.memory = same;
            return Ok(None);
        }
        let memory = self.memory.with(range(region), Arc::new(fd))?;
        self.replace_memory(memory);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self.memory.without(range(region))?;
        self.replace_memory(memory);
        Ok(())
    }

    // What belongs to protocol features that are not offered.

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(NOT_OFFERED)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Inflight::make(asked, self.vrings.len(), self.is_packed())
    }

    fn set_inflight_fd(&mut self, area: &VhostUserInflight, file: File) -> Result<()> {
        let area = Inflight::new(area, file, self.vrings.len(), self.is_packed(), &self.bell)?;
        self.withdraw_all();
        self.inflight = Some(Arc::new(area));
        self.vrings.iter_mut().for_each(|vring| vring.resumes = true);
        self.offer_all();
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let log = Log::new(file, log.mmap_offset, log.mmap_size, &self.bell)?;
        self.keep_log(Some(Arc::new(log)))
    }
}

fn range(region: &VhostUserSingleMemoryRegion) -> Range {
    Range {
        guest: region.guest_phys_addr,
        size: region.memory_size,
        user: region.user_addr,
        offset: region.mmap_offset,
    }
}
