//! Folders and files in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: usize = 4096;

/// The bytes of a file. Missing pages are zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) length: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
}

impl Content {
    pub(crate) fn write(&mut self, at: u64, mut data: &[u8]) {
        self.length = self.length.max(at + data.len() as u64);
        let mut at = at;
        while !data.is_empty() {
            let (page, inside) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let count = data.len().min(PAGE - inside);
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(bytes)[inside..inside + count].copy_from_slice(&data[..count]);
            data = &data[count..];
            at += count as u64;
        }
    }

    pub(crate) fn set_length(&mut self, length: u64) {
        if length < self.length {
            let last = length / PAGE as u64;
            self.pages.retain(|page, _| *page <= last);
            if let Some(bytes) = self.pages.get_mut(&last) {
                Arc::make_mut(bytes)[(length % PAGE as u64) as usize..].fill(0);
            }
        }
        self.length = length;
    }

    /// The end of the last page that was written to.
    pub(crate) fn written(&self) -> u64 {
        self.pages.keys().last().map_or(0, |page| ((page + 1) * PAGE as u64).min(self.length))
    }

    /// Inverts one bit.
    pub(crate) fn flip(&mut self, at: u64, bit: u8) {
        let page = self.pages.entry(at / PAGE as u64).or_insert_with(|| Arc::new([0; PAGE]));
        Arc::make_mut(page)[(at % PAGE as u64) as usize] ^= 1 << bit;
    }

    pub(crate) fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let mut content = Self { length: bytes.len() as u64, pages: BTreeMap::new() };
        for (at, page) in (0..).step_by(PAGE).zip(bytes.chunks(PAGE)) {
            if page.iter().any(|byte| *byte != 0) {
                content.write(at, page);
            }
        }
        content
    }

    /// Returns true if the bytes are the same.
    fn is_same(&self, other: &Self) -> bool {
        let is_zeros = |page: &Arc<[u8; PAGE]>| page.iter().all(|byte| *byte == 0);
        let full = |content: &Self| {
            let pages = content.pages.clone().into_iter();
            pages.filter(|(_, page)| !is_zeros(page)).collect::<BTreeMap<_, _>>()
        };
        self.length == other.length && full(self) == full(other)
    }

    fn store(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(self.length).unwrap();
        for (page, bytes) in &self.pages {
            let at = page * PAGE as u64;
            let count = (self.length.saturating_sub(at)).min(PAGE as u64) as usize;
            file.write_all_at(&bytes[..count], at).unwrap();
        }
    }
}

/// A folder as it is found after a power loss.
pub(crate) type Image = BTreeMap<PathBuf, Option<Content>>;

/// Returns true if two entries of a folder are the same.
pub(crate) fn is_same(one: &Option<Content>, other: &Option<Content>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.is_same(other),
        _ => false,
    }
}

/// Writes an image to an empty folder.
pub(crate) fn store(image: &Image, to: &Path) {
    for (path, content) in image {
        match content {
            None => fs::create_dir(to.join(path)).unwrap(),
            Some(content) => content.store(&to.join(path)),
        }
    }
}

/// Reads a folder.
pub(crate) fn read(folder: &Path) -> Image {
    let mut image = Image::new();
    read_into(folder, Path::new(""), &mut image);
    image
}

fn read_into(folder: &Path, below: &Path, image: &mut Image) {
    for entry in fs::read_dir(folder.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            image.insert(path.clone(), None);
            read_into(folder, &path, image);
        } else {
            image.insert(path, Some(Content::read(&entry.path())));
        }
    }
}
