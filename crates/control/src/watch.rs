//! Hot reload: `picnic run --watch`.
//!
//! The control thread checks the card file and the files that its functions are loaded from. When
//! one has changed, and stays the same between two checks, its chain is rebuilt and swapped, as by
//! `picnic ctl swap`. Only the two chains of the card file are reloaded; the rest is read at the
//! next start.
//!
//! Guarantees: an invalid file changes nothing, and is reported once. A chain whose files and keys
//! are unchanged is left alone.

use crate::methods::Methods;
use picnic_core::config::{CardFile, Section};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use serde_json::{Map, Value};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between checks.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// Reads the card file again, with the command line's settings.
pub struct Watch(Box<dyn Fn() -> Result<CardFile, ConfigError> + Send>);

impl Watch {
    /// A card file that `load` reads.
    pub fn new(load: impl Fn() -> Result<CardFile, ConfigError> + Send + 'static) -> Self {
        Watch(Box::new(load))
    }
}

/// The identity of a file: device, inode, size and modification time; none if it is missing.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

/// A function's section, with the file that it is loaded from.
#[derive(Clone, PartialEq)]
struct WatchedFunction {
    name: String,
    keys: Map<String, Value>,
    file: Option<PathBuf>,
}

impl WatchedFunction {
    fn of(section: &Section, directory: &Path) -> Self {
        let keys: Map<String, Value> = section.parse().unwrap_or_default();
        // Such a function is named by the key with its path: `plugin = "my.so"`.
        let file = keys.get(section.name()).and_then(Value::as_str);
        let file = file.map(|path| directory.join(path));
        WatchedFunction { name: section.name().into(), file, keys }
    }
}

/// The functions of a chain.
fn chain(card: &CardFile, direction: Direction) -> Vec<WatchedFunction> {
    let sections = match direction {
        Direction::Rx => &card.rx,
        Direction::Tx => &card.tx,
    };
    sections.iter().map(|section| WatchedFunction::of(section, &card.directory)).collect()
}

/// The control thread's own state.
pub(crate) struct Watcher {
    watch: Watch,
    card: Option<PathBuf>,
    chains: [Vec<WatchedFunction>; 2],
    /// Stamps when last reloaded or refused: the card file, then the chains' files.
    taken: Stamps,
    /// Stamps at the last check, if different.
    seen: Option<Stamps>,
    next: Option<Instant>,
}

#[derive(Clone, PartialEq)]
struct Stamps {
    card: Stamp,
    chains: [Vec<Stamp>; 2],
}

impl Watcher {
    pub(crate) fn new(watch: Watch, file: &CardFile) -> Self {
        let card = file.path().map(Path::to_owned);
        let chains = Direction::ALL.map(|direction| chain(file, direction));
        let taken = stamps(card.as_deref(), &chains);
        Watcher { watch, card, chains, taken, seen: None, next: None }
    }

    /// Checks, if it is time, and reloads changed files; returns messages.
    pub(crate) fn turn(&mut self, now: Instant, methods: &mut Methods) -> Vec<String> {
        if self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next = Some(now + LOOK);
        let found = stamps(self.card.as_deref(), &self.chains);
        let seen = self.seen.take();
        if found == self.taken {
            return Vec::new();
        }
        // The writer may not be finished.
        if seen.as_ref() != Some(&found) {
            self.seen = Some(found);
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.taken, found);
        let card = match (self.watch.0)() {
            Ok(card) => card,
            Err(error) => return vec![format!("not reloaded: {error}")],
        };
        let mut said = Vec::new();
        for direction in Direction::ALL {
            let index = direction as usize;
            let wanted = chain(&card, direction);
            let is_same =
                wanted == self.chains[index] && before.chains[index] == self.taken.chains[index];
            if is_same {
                continue;
            }
            let name = direction.name();
            // Before loading: later changes are seen at the next check.
            self.taken.chains[index] = files(&wanted);
            said.push(match methods.swap_for(&card, direction) {
                Ok(swapped) => {
                    // By their own names.
                    let names = swapped["functions"].as_array().into_iter().flatten();
                    let names: Vec<_> = names.filter_map(Value::as_str).collect();
                    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
                    format!("{name} chain swapped, now: {names}")
                }
                Err(error) => format!("not reloaded: {}", error.message),
            });
            self.chains[index] = wanted;
        }
        said
    }
}

fn files(chain: &[WatchedFunction]) -> Vec<Stamp> {
    chain.iter().map(|wanted| wanted.file.as_deref().and_then(stamp)).collect()
}

fn stamps(card: Option<&Path>, chains: &[Vec<WatchedFunction>; 2]) -> Stamps {
    Stamps {
        card: card.and_then(stamp),
        chains: std::array::from_fn(|index| files(&chains[index])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, card_at};
    use std::fs::{File, FileTimes};
    use std::time::SystemTime;

    const SLOT: &str = "[[rx]]\nfunction = \"slot\"\n";

    /// A watched card file, and the times of the checks.
    struct Watched {
        bench: Bench,
        watcher: Watcher,
        path: PathBuf,
        start: Instant,
        _folder: tempfile::TempDir,
    }

    impl Watched {
        fn new(text: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("card.toml");
            std::fs::write(&path, text).unwrap();
            let card = card_at(text, Some(&path));
            let at = path.clone();
            let watch = Watch::new(move || {
                let text = std::fs::read_to_string(&at).unwrap();
                match text.as_str() {
                    "nonsense" => Err(ConfigError::new("card", "found nonsense")),
                    text => Ok(card_at(text, Some(&at))),
                }
            });
            let watcher = Watcher::new(watch, &card);
            let start = Instant::now();
            Watched { bench: Bench::new(&card), watcher, path, start, _folder: folder }
        }

        /// Writes the file in place, with a modification time.
        fn write(&self, text: &str, second: u64) {
            std::fs::write(&self.path, text).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            let file = File::options().write(true).open(&self.path).unwrap();
            file.set_times(FileTimes::new().set_modified(time)).unwrap();
        }

        /// Messages at `more` nanoseconds after the nth check.
        fn at(&mut self, look: u32, more: u64) -> Vec<String> {
            let now = self.start + look * LOOK + Duration::from_nanos(more);
            self.watcher.turn(now, self.bench.methods.as_mut().unwrap())
        }
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn settled_changes_are_reloaded_once() {
        let mut watched = Watched::new("");
        assert_eq!(watched.at(0, 0), NOTHING);
        watched.write(SLOT, 1);
        // Between checks, changes are not noticed.
        assert_eq!(watched.at(0, 9), NOTHING);
        assert_eq!(watched.at(1, 0), NOTHING, "it is seen");
        assert_eq!(watched.at(1, 1), NOTHING, "it is no time to look");
        assert_eq!(watched.at(2, 0), ["rx chain swapped, now: slot"]);
        assert_eq!(watched.at(3, 0), NOTHING);
        watched.write("# Another comment.\n", 2);
        assert_eq!(watched.at(4, 0), NOTHING);
        assert_eq!(watched.at(5, 0), ["rx chain swapped, now: none"]);
        // Other settings wait for the next start.
        watched.write("# Yet another comment.\n", 3);
        assert_eq!((watched.at(6, 0), watched.at(7, 0)), (vec![], vec![]));
    }

    #[test]
    fn changed_objects_are_reloaded() {
        let mut watched = Watched::new("[[rx]]\nfunction = \"other\"\nother = \"code\"\n");
        std::fs::write(watched.path.with_file_name("code"), "").unwrap();
        assert_eq!(watched.at(0, 0), NOTHING);
        assert_eq!(watched.at(1, 0), ["rx chain swapped, now: other"]);
        assert_eq!((watched.at(2, 0), watched.at(3, 0)), (vec![], vec![]));
    }

    #[test]
    fn invalid_files_are_reported_once_and_change_nothing() {
        let mut watched = Watched::new(SLOT);
        watched.write("nonsense", 1);
        assert_eq!(watched.at(0, 0), NOTHING);
        assert_eq!(watched.at(1, 0), ["not reloaded: card: card: found nonsense"]);
        assert_eq!((watched.at(2, 0), watched.at(3, 0)), (vec![], vec![]));
    }

    #[test]
    fn reverted_and_repeated_changes_are_seen() {
        let mut watched = Watched::new("");
        watched.write("", 1);
        assert_eq!((watched.at(0, 0), watched.at(1, 0)), (vec![], vec![]), "as it is from now on");
        watched.write(SLOT, 2);
        assert_eq!(watched.at(2, 0), NOTHING);
        watched.write("", 1);
        assert_eq!(watched.at(3, 0), NOTHING);
        watched.write(SLOT, 2);
        assert_eq!(watched.at(4, 0), NOTHING, "it may not be done");
        assert_eq!(watched.at(5, 0), ["rx chain swapped, now: slot"]);
    }

    #[test]
    fn undone_changes_are_changes() {
        let mut watched = Watched::new(SLOT);
        let other = SLOT.replace("slot", "other");
        let changes = [(SLOT.repeat(2), "slot, slot"), (SLOT.into(), "slot")];
        let changes = changes.into_iter().chain([(other, "other"), (SLOT.into(), "slot")]);
        for ((text, now), second) in changes.zip(1..) {
            watched.write(&text, second);
            let look = 2 * second as u32;
            assert_eq!(watched.at(look, 0), NOTHING);
            assert_eq!(watched.at(look + 1, 0), [format!("rx chain swapped, now: {now}")]);
        }
    }
}
