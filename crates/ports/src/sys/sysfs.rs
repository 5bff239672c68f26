//! Attributes of the interfaces of a network namespace, without mounting anything anywhere.
//!
//! `/sys/class/net` shows the interfaces of the namespace in which it was mounted, whatever
//! namespace a thread is in. So this one is mounted for whoever asks, and is in no folder: it is
//! gone with its descriptor.
//!
//! Source: sysfs(5), fsopen(2), linux/Documentation/networking/scaling.rst (RPS).

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read, write};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::OwnedFd;
use std::path::Path;

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

    /// Has the kernel spread what queue `queue` of an interface receives over these cores, flow by
    /// flow; none: what a core receives it processes itself.
    pub(crate) fn steer(&self, interface: &str, queue: u16, cores: &[usize]) -> Result<(), Errno> {
        let path = format!("class/net/{interface}/queues/rx-{queue}/rps_cpus");
        let wanted = mask(cores);
        let file = openat(&self.0, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = [0; PAGE];
        let length = read(&file, &mut text)?;
        let is_off = text[..length].iter().all(|byte| b"0,\n".contains(byte));
        if is_off && cores.is_empty() {
            return Ok(());
        }
        write(&file, wanted.as_bytes()).map(drop)
    }
}

/// The cores that are switched on, as the kernel lists them; none if it does not tell.
pub(crate) fn online() -> Option<String> {
    let file = openat(
        CWD,
        Path::new("/sys/devices/system/cpu/online"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let mut text = [0; PAGE];
    let length = read(file.ok()?, &mut text).ok()?;
    std::str::from_utf8(&text[..length]).ok().map(|text| text.trim().to_owned())
}

/// Cores as the kernel reads sets of them: hexadecimal, 32 in a group, the highest first.
fn mask(cores: &[usize]) -> String {
    let mut groups = vec![0_u32; cores.iter().max().map_or(1, |most| most / 32 + 1)];
    for core in cores {
        groups[core / 32] |= 1 << (core % 32);
    }
    groups.iter().rev().map(|group| format!("{group:08x}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_cores_is_in_groups_of_32() {
        assert_eq!(mask(&[]), "00000000");
        assert_eq!(mask(&[0, 3]), "00000009");
        assert_eq!(mask(&[1, 32, 69]), "00000020,00000001,00000002");
    }

    #[test]
    fn cores_that_are_online_are_told() {
        let online = online().unwrap();
        assert!(online.starts_with(|first: char| first.is_ascii_digit()), "{online}");
    }
}
