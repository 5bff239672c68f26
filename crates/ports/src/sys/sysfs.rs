//! Attributes of the interfaces of a network namespace, without a visible mount.
//!
//! `/sys/class/net` shows the interfaces of the namespace in which it was mounted, not those of the
//! thread's namespace. So each caller mounts a separate instance, outside any directory; it ends
//! with its descriptor.
//!
//! Source: sysfs(5), fsopen(2), linux/Documentation/networking/scaling.rst (RPS).

use picnic_core::cores::CoreSet;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, read, write};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::OwnedFd;

/// Bytes of the longest attribute.
const PAGE: usize = 4096;

/// The sysfs of a network namespace.
#[derive(Debug)]
pub(crate) struct Sysfs(OwnedFd);

impl Sysfs {
    /// That of the calling thread's namespace.
    pub(crate) fn open() -> Result<Self, Errno> {
        let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        fsmount(&context, flags, MountAttrFlags::empty()).map(Sysfs)
    }

    /// Makes the kernel spread the packets received by queue `queue` of an interface over these
    /// cores, flow by flow; with none, each core processes the packets that it receives.
    pub(crate) fn steer(&self, interface: &str, queue: u16, cores: &CoreSet) -> Result<(), Errno> {
        let path = format!("class/net/{interface}/queues/rx-{queue}/rps_cpus");
        let file = openat(&self.0, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = [0; PAGE];
        let length = read(&file, &mut text)?;
        let is_off = text[..length].iter().all(|byte| b"0,\n".contains(byte));
        if is_off && cores.is_empty() {
            return Ok(());
        }
        write(&file, cores.to_mask().as_bytes()).map(drop)
    }
}

/// The cores that are switched on; none if the kernel does not tell.
pub(crate) fn online() -> Option<CoreSet> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    CoreSet::parse_list(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn online_cores_are_listed() {
        assert!(!online().unwrap().is_empty());
    }
}
