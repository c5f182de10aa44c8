//! A disk with a write cache: the bytes and names that a power loss can leave.
//!
//! The rules are those of POSIX, and weaker than those of any journaling file system:
//! - Bytes of a file survive once the file was synced. Before, any of their sectors may.
//! - A name survives once its folder was synced. Before, any combination of name changes may
//!   survive.
//! - A sync that failed makes nothing durable, and neither does a later one of the same bytes.

use std::collections::BTreeMap;
use std::path::Path;

use crate::image::{Content, Image};
use crate::random::Random;
use crate::trace::Event;

const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Self::Write(at, data) => content.write(*at, data),
            Self::Length(length) => content.set_length(*length),
        }
    }
}

#[derive(Clone, Debug)]
enum NameChange {
    Add(String, usize),
    Remove(String),
    Rename(String, String, usize),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Add(name, node) => drop(names.insert(name.clone(), *node)),
            Self::Remove(name) => drop(names.remove(name)),
            Self::Rename(from, to, node) => {
                names.remove(from);
                names.insert(to.clone(), *node);
            }
        }
    }
}

/// A change, and its time.
type Pending<T> = Vec<(usize, T)>;

#[derive(Clone, Debug)]
enum Node {
    File {
        durable: Content,
        current: Content,
        pending: Pending<Change>,
    },
    Folder {
        durable: BTreeMap<String, usize>,
        current: BTreeMap<String, usize>,
        pending: Pending<NameChange>,
    },
}

/// The part of unsynced changes that a power loss loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Everything.
    All,
    /// Nothing: the process was killed, and the machine went on.
    None,
    /// The bytes, but not the names.
    Bytes,
    /// The names, but not the bytes.
    Names,
    /// Everything after some moment, and a part of the write at that moment.
    After,
    /// Any sectors and any names.
    Scattered,
}

impl Loss {
    pub(crate) const EVERY: [Self; 6] =
        [Self::All, Self::None, Self::Bytes, Self::Names, Self::After, Self::Scattered];
}

/// The syncs that the disk obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syncs {
    All,
    OfFilesOnly,
    OfFoldersOnly,
    None,
}

/// The disk, as the trace describes it up to some moment.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    nodes: Vec<Node>,
    now: usize,
    syncs: Syncs,
}

impl Disk {
    /// An empty folder.
    pub(crate) fn new(syncs: Syncs) -> Self {
        Self { nodes: vec![folder()], now: 0, syncs }
    }

    /// A folder whose whole content is durable.
    pub(crate) fn with(image: &Image) -> Self {
        let mut disk = Self::new(Syncs::All);
        for (path, content) in image {
            let node = disk.nodes.len();
            disk.nodes.push(match content {
                None => folder(),
                Some(content) => Node::File {
                    durable: content.clone(),
                    current: content.clone(),
                    pending: Vec::new(),
                },
            });
            disk.rename_in(path, |name| NameChange::Add(name, node));
        }
        for node in &mut disk.nodes {
            sync(node);
        }
        disk
    }

    fn find(&self, path: &Path) -> Option<usize> {
        path.iter().try_fold(0, |at, name| match &self.nodes[at] {
            Node::Folder { current, .. } => current.get(name.to_str().unwrap()).copied(),
            Node::File { .. } => None,
        })
    }

    /// Changes a name in the folder of `path`.
    fn rename_in(&mut self, path: &Path, change: impl FnOnce(String) -> NameChange) {
        let parent = self.find(path.parent().unwrap()).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let now = self.now;
        let Node::Folder { current, pending, .. } = &mut self.nodes[parent] else {
            panic!("{} is not in a folder", path.display());
        };
        let change = change(name);
        change.apply(current);
        pending.push((now, change));
    }

    fn change(&mut self, path: &Path, change: Change) {
        // A file that was deleted while it was open is ignored.
        let Some(node) = self.find(path) else {
            assert!(path.to_string_lossy().ends_with(" (deleted)"), "{}", path.display());
            return;
        };
        let Node::File { current, pending, .. } = &mut self.nodes[node] else {
            panic!("{} is not a file", path.display());
        };
        change.apply(current);
        pending.push((self.now, change));
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        self.now += 1;
        let node = self.nodes.len();
        match event {
            Event::Create(path) => {
                let (durable, current) = (Content::default(), Content::default());
                self.nodes.push(Node::File { durable, current, pending: Vec::new() });
                self.rename_in(path, |name| NameChange::Add(name, node));
            }
            Event::CreateFolder(path) => {
                self.nodes.push(folder());
                self.rename_in(path, |name| NameChange::Add(name, node));
            }
            Event::Write(path, at, data) => self.change(path, Change::Write(*at, data.clone())),
            Event::SetLength(path, length) => self.change(path, Change::Length(*length)),
            Event::Sync(path, worked) => {
                if let Some(node) = self.find(path) {
                    self.sync(node, *worked);
                }
            }
            Event::Rename(from, to) => {
                let node = self.find(from).unwrap();
                if from.parent() == to.parent() {
                    let to = to.file_name().unwrap().to_str().unwrap().to_owned();
                    self.rename_in(from, |name| NameChange::Rename(name, to, node));
                } else {
                    self.rename_in(to, |name| NameChange::Add(name, node));
                    self.rename_in(from, NameChange::Remove);
                }
            }
            Event::Delete(path) => self.rename_in(path, NameChange::Remove),
            Event::Open(_) | Event::Read(_) | Event::Mark(_) | Event::Refused => {}
        }
    }

    fn sync(&mut self, node: usize, worked: bool) {
        let node = &mut self.nodes[node];
        let is_file = matches!(node, Node::File { .. });
        let is_obeyed = match self.syncs {
            Syncs::All => true,
            Syncs::OfFilesOnly => is_file,
            Syncs::OfFoldersOnly => !is_file,
            Syncs::None => false,
        };
        match node {
            node if is_obeyed && worked => sync(node),
            // The operating system forgets data that it could not write.
            Node::File { pending, .. } if !worked => pending.clear(),
            _ => {}
        }
    }

    /// Returns what a power loss at this moment leaves.
    pub(crate) fn lose_power(&self, loss: Loss, random: &mut Random) -> Image {
        // Weighted towards the latest changes.
        let oldest = self.nodes.iter().filter_map(oldest_pending).min().unwrap_or(self.now);
        let cut = oldest + random.below(self.now + 1 - oldest);
        let mut image = Image::new();
        self.lose_below(0, Path::new(""), loss, cut, random, &mut image);
        image
    }

    fn lose_below(
        &self,
        node: usize,
        path: &Path,
        loss: Loss,
        cut: usize,
        random: &mut Random,
        image: &mut Image,
    ) {
        match &self.nodes[node] {
            Node::File { durable, current, pending } => {
                let content = match loss {
                    Loss::None => current.clone(),
                    Loss::All | Loss::Bytes => durable.clone(),
                    Loss::Names | Loss::After | Loss::Scattered => {
                        let mut content = durable.clone();
                        for (at, change) in pending {
                            leave(&mut content, change, loss, *at, cut, random);
                        }
                        content
                    }
                };
                image.insert(path.to_owned(), Some(content));
            }
            Node::Folder { durable, current, pending } => {
                if !path.as_os_str().is_empty() {
                    image.insert(path.to_owned(), None);
                }
                let names = match loss {
                    Loss::None | Loss::Bytes => current.clone(),
                    Loss::All | Loss::Names => durable.clone(),
                    Loss::After | Loss::Scattered => {
                        let mut names = durable.clone();
                        for (at, change) in pending {
                            if if loss == Loss::After { *at < cut } else { random.below(2) == 0 } {
                                change.apply(&mut names);
                            }
                        }
                        names
                    }
                };
                for (name, node) in names {
                    self.lose_below(node, &path.join(name), loss, cut, random, image);
                }
            }
        }
    }
}

/// Applies the remaining part of an unsynced change.
fn leave(
    content: &mut Content,
    change: &Change,
    loss: Loss,
    at: usize,
    cut: usize,
    random: &mut Random,
) {
    match (loss, change) {
        (Loss::After, _) if at > cut => {}
        (Loss::After, Change::Write(offset, data)) if at == cut => {
            content.write(*offset, &data[..random.below(data.len() + 1)]);
        }
        (Loss::Scattered, Change::Write(offset, data)) => {
            let mut from = 0;
            while from < data.len() {
                let inside = (*offset as usize + from) % SECTOR;
                let to = data.len().min(from + SECTOR - inside);
                if random.below(2) == 0 {
                    content.write(offset + from as u64, &data[from..to]);
                }
                from = to;
            }
        }
        (Loss::Scattered, Change::Length(_)) if random.below(2) == 0 => {}
        (_, change) => change.apply(content),
    }
}

fn folder() -> Node {
    let (durable, current) = (BTreeMap::new(), BTreeMap::new());
    Node::Folder { durable, current, pending: Vec::new() }
}

fn sync(node: &mut Node) {
    match node {
        Node::File { durable, pending, .. } => {
            pending.drain(..).for_each(|(_, change)| change.apply(durable));
        }
        Node::Folder { durable, pending, .. } => {
            pending.drain(..).for_each(|(_, change)| change.apply(durable));
        }
    }
}

fn oldest_pending(node: &Node) -> Option<usize> {
    match node {
        Node::File { pending, .. } => pending.first().map(|(at, _)| *at),
        Node::Folder { pending, .. } => pending.first().map(|(at, _)| *at),
    }
}
