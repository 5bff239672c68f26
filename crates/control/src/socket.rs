//! The control socket's place: found by the card's name, one card per name.
//!
//! Without a path in the card file, sockets are in the runtime folder: `$PICNIC_RUNTIME_DIR`, or
//! `/run/picnic` (root), or `$XDG_RUNTIME_DIR/picnic`, or `/tmp/picnic-UID`, which must belong to
//! the user alone.
//!
//! Guarantees: mode 0600 from the first moment. A socket without a listener is replaced, one with a
//! listener is not, and stale sockets of other names are removed. The folder is locked from the
//! check to the bind, so of two cards that start together one gets an error. The socket is removed
//! at the end if it still is this card's.
//!
//! Source: unix(7); Linux gives a socket's file the mode set with `fchmod` before `bind`
//! (net/unix/af_unix.c).

use crate::config::{ControlSection, ControlSocket};
use crate::folders::{Places, card_name, file_name, lock, make_and_lock, own};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, test_kill_process};
use std::fmt::Display;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;
/// Longest wait for the folder's lock: its holder may have no core for seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// The reason why a card gets no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A card of this name is running.
    #[error(
        "card {card} is already running (pid {pid}): give this one another name, such as \
         --set card.name={card}-2, or --set control.socket=off"
    )]
    Taken {
        /// The card's name.
        card: String,
        /// The process that listens.
        pid: i32,
    },
    /// It cannot be created there.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A listening socket; removed when dropped.
#[derive(Debug)]
pub struct Socket {
    /// Accepts clients; non-blocking.
    pub listener: UnixListener,
    /// Its path.
    pub path: PathBuf,
    folder: PathBuf,
    /// Device and inode, to recognise it.
    identity: (u64, u64),
    /// Whether to remove the folder if empty.
    folder_is_own: bool,
}

/// The place of a card's socket.
struct Site<'a> {
    file: &'a CardFile,
    folder: PathBuf,
    path: PathBuf,
    /// The mode of the runtime folder; none if the card file names a path.
    mode: Option<u32>,
    address: SocketAddrUnix,
}

impl<'a> Site<'a> {
    /// The place of the card file's socket; none if it is off.
    fn of(file: &'a CardFile, places: &Places) -> Result<Option<Self>, SocketError> {
        let (folder, path, mode) = match &file.section::<ControlSection>().socket {
            ControlSocket::Off => return Ok(None),
            ControlSocket::Auto => {
                let path = places.own.join(file_name(&file.card.name));
                (places.own.clone(), path, Some(places.mode))
            }
            ControlSocket::Path(path) => {
                let path = file.directory.join(path);
                let claimed = file.files().of("control").bind("socket", &path);
                claimed.map_err(|ConfigError { message, .. }| {
                    file.locate(ConfigError::new("control.socket", message))
                })?;
                let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
                (folder, path, None)
            }
        };
        let address = SocketAddrUnix::new(&path).map_err(|_| {
            let bytes = path.as_os_str().len();
            let found = format!("found a path of {bytes} bytes for the socket, allowed: 107");
            let (key, message) = match mode {
                Some(_) => ("card.name", format!("{found}: {}", path.display())),
                None => ("control.socket", format!("{}: {found}", path.display())),
            };
            SocketError::Config(file.locate(ConfigError::new(key, message)))
        })?;
        Ok(Some(Site { file, folder, path, mode, address }))
    }

    fn wrong(&self, message: impl Display) -> SocketError {
        let shown = self.path.display();
        let error = ConfigError::new("control.socket", format!("{shown}: {message}"));
        SocketError::Config(self.file.locate(error))
    }

    /// Checks for an object that must not be replaced; otherwise returns what to replace.
    fn look(&self) -> Result<Probe, SocketError> {
        match probe(&self.path) {
            Probe::Live(pid) => Err(SocketError::Taken { card: self.file.card.name.clone(), pid }),
            Probe::Denied => Err(self.wrong("belongs to another user's card")),
            Probe::Foreign => Err(self.wrong("already exists, and is not the socket of a card")),
            free => Ok(free),
        }
    }
}

/// Checks whether [`open`] would open the card file's socket, without changing anything. A running
/// card of this name is no error: the file may be its own. Returns whether there is one.
///
/// # Errors
/// As [`open`].
pub fn check(file: &CardFile) -> Result<bool, SocketError> {
    check_at(file, &Places::of_this_process())
}

fn check_at(file: &CardFile, places: &Places) -> Result<bool, SocketError> {
    let Some(site) = Site::of(file, places)? else { return Ok(false) };
    let folder = match site.mode {
        Some(_) if !site.folder.exists() => return Ok(false),
        Some(_) => own(&site.folder),
        None => File::open(&site.folder)
            .map(drop)
            .map_err(|error| format!("folder {}: {error}", site.folder.display())),
    };
    folder.map_err(|message| site.wrong(message))?;
    match site.look() {
        Err(SocketError::Taken { .. }) => Ok(true),
        looked => looked.map(|_| false),
    }
}

/// Opens the card file's socket; none if it is off.
///
/// # Errors
/// A card of this name is running, or the socket cannot be created.
pub fn open(file: &CardFile) -> Result<Option<Socket>, SocketError> {
    open_at(file, &Places::of_this_process())
}

fn open_at(file: &CardFile, places: &Places) -> Result<Option<Socket>, SocketError> {
    let Some(site) = Site::of(file, places)? else { return Ok(None) };
    let Site { folder, path, mode, address, .. } = &site;
    let give_up = Instant::now() + PATIENCE;
    let lock = match *mode {
        Some(mode) => make_and_lock(folder, mode, give_up),
        None => lock(folder, give_up),
    };
    let _lock = lock.map_err(|message| site.wrong(message))?;
    if mode.is_some() {
        // Remains of killed cards, of any name.
        sweep(folder);
    }
    if let Probe::Stale = site.look()? {
        drop(std::fs::remove_file(path));
    }
    let listener =
        bind(address).map_err(|error| site.wrong(format!("cannot be created: {error}")))?;
    let identity =
        identity(path).ok_or_else(|| site.wrong("was removed as soon as it was made"))?;
    // Others have their files in /run/picnic.
    let folder_is_own = *mode == Some(0o700);
    let (folder, path) = (folder.clone(), path.clone());
    Ok(Some(Socket { listener, path, folder, identity, folder_is_own }))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn bind(address: &SocketAddrUnix) -> Result<UnixListener, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// The object at a path.
enum Probe {
    Absent,
    /// A socket that no process has open, or only the last command of a killed card.
    Stale,
    /// A process listens.
    Live(i32),
    /// A socket that this user may not use.
    Denied,
    /// Something else, such as another program's datagram socket.
    Foreign,
}

fn probe(path: &Path) -> Probe {
    match connect(path) {
        Ok(socket) => {
            let pid = net::sockopt::socket_peercred(&socket).map(|credentials| credentials.pid);
            match pid {
                Ok(pid) if test_kill_process(pid) == Err(Errno::SRCH) => Probe::Stale,
                pid => Probe::Live(pid.map_or(0, Pid::as_raw_pid)),
            }
        }
        // A full backlog means it is live.
        Err(Errno::AGAIN) => Probe::Live(0),
        Err(Errno::ACCESS | Errno::PERM) => Probe::Denied,
        Err(error) => match std::fs::symlink_metadata(path) {
            Err(_) => Probe::Absent,
            Ok(metadata) if is_socket(&metadata) && error == Errno::CONNREFUSED => Probe::Stale,
            Ok(_) => Probe::Foreign,
        },
    }
}

fn is_socket(metadata: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type())
}

/// Connects without ever waiting.
fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Removes the sockets of this user's killed cards from the runtime folder; returns them. The next
/// card that starts does so, too.
pub fn remove_stale() -> Vec<PathBuf> {
    remove_stale_at(&Places::of_this_process())
}

fn remove_stale_at(Places { own, mode, .. }: &Places) -> Vec<PathBuf> {
    let Ok(_lock) = lock(own, Instant::now() + PATIENCE) else { return Vec::new() };
    let removed = sweep(own);
    if *mode == 0o700 {
        // Fails if the folder is not empty, as it should.
        let _ = std::fs::remove_dir(own);
    }
    removed
}

/// Removes sockets without a listener from a folder whose lock is held: a starting card does not
/// listen yet.
fn sweep(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_str().and_then(card_name).is_some());
    let stale = ours.map(|entry| entry.path()).filter(|path| matches!(probe(path), Probe::Stale));
    stale.filter(|path| std::fs::remove_file(path).is_ok()).collect()
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Ok(_lock) = lock(&self.folder, Instant::now() + PATIENCE) else { return };
        if identity(&self.path) == Some(self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
        if self.folder_is_own {
            // Fails while other cards have sockets there, as it should.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// A running card on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningCard {
    /// Its name.
    pub name: String,
    /// Its socket.
    pub path: PathBuf,
    /// Its process; 0 if unknown.
    pub pid: i32,
    /// Whether this user may use it.
    pub permitted: bool,
}

/// The running cards by name, if their sockets are in the runtime folders.
pub fn running() -> Vec<RunningCard> {
    running_at(&Places::of_this_process())
}

fn running_at(places: &Places) -> Vec<RunningCard> {
    let mut found = Vec::new();
    for folder in &places.all {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let Some(name) = entry.file_name().to_str().and_then(card_name) else { continue };
            let path = entry.path();
            match probe(&path) {
                Probe::Live(pid) => found.push(RunningCard { name, path, pid, permitted: true }),
                Probe::Denied => found.push(RunningCard { name, path, pid: 0, permitted: false }),
                Probe::Absent | Probe::Stale | Probe::Foreign => {}
            }
        }
    }
    found.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Uid;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixDatagram;

    fn card(socket: &Path) -> CardFile {
        let text = format!("[control]\nsocket = \"{}\"\n", socket.display());
        let sections = picnic_core::config::Sections::core().with(crate::config::SECTIONS);
        sections.parse(&text, None).unwrap()
    }

    #[test]
    fn only_stale_sockets_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["gone.sock", "other"] {
            drop(UnixListener::bind(path(name)).unwrap());
        }
        let _live = UnixListener::bind(path("live.sock")).unwrap();
        std::fs::write(path("file.sock"), "no socket").unwrap();
        assert_eq!(sweep(folder.path()), [path("gone.sock")]);
        assert_eq!(sweep(folder.path()), <[PathBuf; 0]>::default());
        for name in ["other", "live.sock", "file.sock"] {
            assert!(path(name).exists(), "{name}");
        }
        assert_eq!(sweep(&path("nowhere")), <[PathBuf; 0]>::default());
    }

    /// Runtime folders for a test: the one of this process, and another.
    fn places(folder: &Path, mode: u32) -> Places {
        let own = folder.join("own");
        Places { all: vec![own.clone(), folder.join("system")], own, mode }
    }

    fn named(name: &str) -> CardFile {
        let sections = picnic_core::config::Sections::core().with(crate::config::SECTIONS);
        sections.parse(&format!("card.name = \"{name}\""), None).unwrap()
    }

    #[test]
    fn socket_is_in_the_runtime_folder_by_card_name() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path(), 0o700);
        let (a, b) = (named("a"), named("b/c"));
        assert!(!check_at(&a, &places).unwrap(), "there is no folder yet, and none is made");
        assert!(!places.own.exists());
        let first = open_at(&a, &places).unwrap().unwrap();
        assert_eq!(first.path, places.own.join("a.sock"));
        assert_eq!(std::fs::metadata(&places.own).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(check_at(&a, &places).unwrap() && !check_at(&b, &places).unwrap());
        assert!(matches!(open_at(&a, &places), Err(SocketError::Taken { .. })));
        // Remains of a killed card are removed when the next one starts.
        drop(UnixListener::bind(places.own.join("killed.sock")).unwrap());
        let second = open_at(&b, &places).unwrap().unwrap();
        assert!(!places.own.join("killed.sock").exists());
        let other = places.own.with_file_name("system");
        std::fs::create_dir(&other).unwrap();
        let _theirs = UnixListener::bind(other.join("Z.sock")).unwrap();
        drop(UnixListener::bind(other.join("gone.sock")).unwrap());
        let pid = std::process::id() as i32;
        let found =
            |name: &str, path| RunningCard { name: name.into(), path, pid, permitted: true };
        assert_eq!(
            running_at(&places),
            [
                found("Z", other.join("Z.sock")),
                found("a", first.path.clone()),
                found("b/c", second.path.clone())
            ]
        );
        drop(first);
        assert!(places.own.exists(), "there is another card");
        drop(second);
        assert!(!places.own.exists(), "nobody needs it any more");
        std::fs::create_dir_all(&places.own).unwrap();
        std::fs::set_permissions(&places.own, PermissionsExt::from_mode(0o770)).unwrap();
        let errors = [open_at(&a, &places).err(), check_at(&a, &places).err()];
        for error in errors.map(|error| error.unwrap().to_string()) {
            assert!(error.contains("others can write to folder"), "{error}");
        }
    }

    #[test]
    fn remains_of_killed_cards_are_removed_with_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, stays) in [(0o700, false), (0o755, true)] {
            let places = places(folder.path(), mode);
            assert_eq!(remove_stale_at(&places), <[PathBuf; 0]>::default(), "there is no folder");
            let socket = open_at(&named("a"), &places).unwrap().unwrap();
            let stale = places.own.join("killed.sock");
            drop(UnixListener::bind(&stale).unwrap());
            assert_eq!(remove_stale_at(&places), [stale]);
            assert!(socket.path.exists());
            drop(socket);
            assert_eq!(places.own.exists(), stays, "the folder of all users stays");
            drop(make_and_lock(&places.own, mode, Instant::now()).unwrap());
            assert_eq!(remove_stale_at(&places), <[PathBuf; 0]>::default());
            assert_eq!(places.own.exists(), stays);
            let _ = std::fs::remove_dir(&places.own);
        }
    }

    /// The result of `act` while another, starting card briefly holds the folder's lock.
    fn beside_a_start<T: Send>(places: &Places, act: impl FnOnce() -> T + Send) -> T {
        let held = make_and_lock(&places.own, 0o700, Instant::now()).unwrap();
        std::thread::scope(|scope| {
            let actor = scope.spawn(act);
            // Time for it to find the lock held, and to give up if it does not wait.
            let looked = Instant::now();
            while !actor.is_finished() && looked.elapsed() < PATIENCE / 100 {
                std::thread::yield_now();
            }
            drop(held);
            actor.join().unwrap()
        })
    }

    #[test]
    fn sweeping_waits_for_starting_cards() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path(), 0o700);
        let socket = open_at(&named("a"), &places).unwrap().unwrap();
        let stale = places.own.join("killed.sock");
        drop(UnixListener::bind(&stale).unwrap());
        assert_eq!(beside_a_start(&places, || remove_stale_at(&places)), [stale]);
        let path = socket.path.clone();
        assert!(path.exists());
        beside_a_start(&places, || drop(socket));
        assert!(!path.exists());
    }

    /// Without the right to override permissions root is an ordinary user.
    #[test]
    fn cards_of_other_users_are_listed_only() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path(), 0o700);
        drop(make_and_lock(&places.own, 0o700, Instant::now()).unwrap());
        let path = places.own.join("a.sock");
        let theirs = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        if let Err(error) = rustix::fs::chown(&path, Some(Uid::from_raw(65_534)), None) {
            let reason = format!("a file is given to another user by root alone ({error})");
            return picnic_testing::skip("cards_of_other_users_are_listed_only", &reason);
        }
        let found =
            || RunningCard { name: "a".into(), path: path.clone(), pid: 0, permitted: false };
        let look = || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::DAC_OVERRIDE);
            set_capabilities(None, sets).unwrap();
            assert_eq!(running_at(&places), [found()]);
            let card = named("a");
            for error in [open_at(&card, &places).err(), check_at(&card, &places).err()] {
                let error = error.unwrap().to_string();
                assert!(error.ends_with("belongs to another user's card"), "{error}");
            }
            drop(theirs);
            assert_eq!(remove_stale_at(&places), <[PathBuf; 0]>::default());
            assert!(path.exists(), "whether it is stale is for its user to say");
        };
        std::thread::scope(|scope| scope.spawn(look).join()).unwrap();
    }

    #[test]
    fn a_live_socket_is_kept_and_a_stale_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let first = open(&card(&path)).unwrap().unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        match open(&card(&path)).unwrap_err() {
            SocketError::Taken { card, pid } => {
                assert_eq!((&*card, pid), ("picnic0", std::process::id() as i32));
            }
            other => panic!("{other}"),
        }
        assert!(check(&card(&path)).unwrap(), "the file may be its own");
        drop(first);
        assert!(!path.exists(), "removed at the end");
        // As after SIGKILL: the file exists, and no process listens.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let second = open(&card(&path)).unwrap().unwrap();
        assert!(matches!(probe(&path), Probe::Live(_)));
        // No longer ours: it stays.
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(second);
        assert!(path.exists());
        drop(other);
    }

    /// The backlog is full: connecting does not wait.
    #[test]
    fn cards_with_a_full_backlog_are_live() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let _listener = bind(&SocketAddrUnix::new(&path).unwrap()).unwrap();
        let mut waiting = Vec::new();
        while let Ok(client) = connect(&path) {
            waiting.push(client);
        }
        assert!(waiting.len() >= BACKLOG as usize);
        assert!(matches!(probe(&path), Probe::Live(0)));
    }

    #[test]
    fn cards_without_a_socket() {
        let sections = picnic_core::config::Sections::core().with(crate::config::SECTIONS);
        let file = sections.parse("[control]\nsocket = \"off\"\n", None).unwrap();
        assert!(!check(&file).unwrap() && open(&file).unwrap().is_none());
    }

    #[test]
    fn other_sockets_in_a_given_folder_stay() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("gone.sock");
        drop(UnixListener::bind(&other).unwrap());
        drop(open(&card(&folder.path().join("card.sock"))).unwrap());
        assert!(other.exists());
    }

    #[test]
    fn impossible_sockets_are_refused_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| open(&card(path)).unwrap_err().to_string();
        let file = folder.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        assert!(message(&file).contains("control.socket"), "{}", message(&file));
        assert!(message(&file).ends_with("already exists, and is not the socket of a card"));
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        // Nor is a link replaced, or another program's socket of any kind.
        let (link, datagrams) = (folder.path().join("link"), folder.path().join("datagrams"));
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let theirs = UnixDatagram::bind(&datagrams).unwrap();
        for path in [&link, &datagrams] {
            assert!(
                message(path).ends_with("and is not the socket of a card"),
                "{}",
                message(path)
            );
            assert_eq!(check(&card(path)).unwrap_err().to_string(), message(path));
        }
        UnixDatagram::unbound().unwrap().send_to(b"x", &datagrams).unwrap();
        drop(theirs);
        let slash = folder.path().join("new/");
        assert!(message(&slash).ends_with("found a folder, allowed: a file"));
        assert_eq!(check(&card(&slash)).unwrap_err().to_string(), message(&slash));
        let absent = folder.path().join("absent/card.sock");
        assert!(message(&absent).ends_with("its folder does not exist"), "{}", message(&absent));
        let long = folder.path().join("x".repeat(120));
        assert!(message(&long).contains("bytes for the socket, allowed: 107"));
        assert!(message(&long).starts_with("card:2: control.socket: "));
        // It is found without opening anything, too.
        for path in [&file, &absent, &long] {
            assert_eq!(check(&card(path)).unwrap_err().to_string(), message(path));
        }
    }

    #[test]
    fn simultaneous_starts_have_one_winner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        // A stale one in the way makes it harder.
        drop(UnixListener::bind(&path).unwrap());
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&card(&path)))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(winners, 1);
        let taken = |outcome: &Result<_, _>| matches!(outcome, Err(SocketError::Taken { .. }));
        assert_eq!(outcomes.iter().filter(|outcome| taken(outcome)).count(), 7);
        assert!(connect(&path).is_ok());
    }
}
