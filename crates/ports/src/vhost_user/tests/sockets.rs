//! The socket's file: who may connect, and what was there before.

use super::super::{VhostUser, VhostUserConfig};
use picnic_core::attachment::{HostAttachment, HostQueue};
use picnic_core::config::Section;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;

type Opened = (Box<dyn HostAttachment>, Box<dyn HostQueue>);

fn open(directory: &Path, keys: &str) -> Result<Opened, ConfigError> {
    open_queues(directory, keys, 1)
}

fn open_queues(directory: &Path, keys: &str, queues: u16) -> Result<Opened, ConfigError> {
    let directory = directory.to_owned();
    let context = BuildContext { directory, queues, ..BuildContext::default() };
    let text = format!("attachment = \"vhost-user\"\n[[guest]]\nsocket = \"vm\"\n{keys}");
    let section = Section::from_text("attachment", &text).unwrap();
    let config = section.parse::<VhostUserConfig>().unwrap();
    let mut attachment = VhostUser::build(config, &context)?;
    attachment.open_queue(0).map(|queue| (attachment, queue))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn sockets_left_over_are_replaced_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vm");
    drop(UnixListener::bind(&path).unwrap());
    let first = open(folder.path(), "").unwrap();
    let error = open(folder.path(), "").err().unwrap();
    assert_eq!(error.key, "guest[0].socket");
    assert!(error.message.contains("the socket of another program"), "{error}");
    drop(first);
    assert!(!path.exists());
    std::fs::write(&path, "text").unwrap();
    let error = open(folder.path(), "").err().unwrap();
    assert!(error.message.contains("no socket"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"text");
    let error = open(&folder.path().join("absent"), "").err().unwrap();
    assert_eq!(error.key, "guest[0].socket");
    assert!(error.message.contains("No such file"), "{error}");
}

#[test]
fn all_sockets_that_cannot_be_made_are_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("vm"), "text").unwrap();
    let others = "[[guest]]\nsocket = \"good\"\n[[guest]]\nsocket = \"absent/vm\"";
    let error = open_queues(folder.path(), others, 3).err().unwrap();
    let keys: Vec<_> = error.each().map(|error| error.key.as_str()).collect();
    assert_eq!(keys, ["guest[0].socket", "guest[2].socket"], "{error}");
    // The one between them has gone with the card.
    assert!(!folder.path().join("good").exists());
}

#[test]
fn a_socket_of_another_user_is_left_alone() {
    if !is_root() {
        return println!("it needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vm");
    drop(UnixListener::bind(&path).unwrap());
    chown(&path, Some(12_345), None).unwrap();
    let error = open(folder.path(), "").err().unwrap();
    assert_eq!(error.key, "guest[0].socket");
    assert!(error.message.contains("a socket of user 12345"), "{error}");
    assert!(path.exists());
    // That of a card that was killed, whose owner is the same.
    drop(open(folder.path(), "owner = \"12345\"").unwrap());
    assert!(!path.exists());
}

#[test]
fn the_socket_has_the_access_that_its_keys_say() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vm");
    let own = std::fs::metadata(folder.path()).unwrap();
    let mut cases = vec![("", own.uid(), own.gid(), 0o600)];
    cases.push(("permissions = \"660\"", own.uid(), own.gid(), 0o660));
    if is_root() {
        cases.push(("owner = \"12345\"", 12_345, own.gid(), 0o600));
        cases.push(("owner = \"root\"\ngroup = \"23456\"", 0, 23_456, 0o600));
        cases.push(("group = \"root\"\npermissions = \"0066\"", own.uid(), 0, 0o066));
    }
    for (keys, uid, gid, mode) in cases {
        let opened = open(folder.path(), keys).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        let seen = (found.uid(), found.gid(), found.permissions().mode() & 0o777);
        assert_eq!(seen, (uid, gid, mode), "{keys}");
        drop(opened);
        assert!(!path.exists(), "{keys}");
    }
}
