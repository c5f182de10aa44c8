//! A copy of the sources in which mutants are created, so that the sources themselves never change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Updates the copy and returns its folder. An unchanged file keeps its time, so that cargo
/// rebuilds only changes.
pub(crate) fn copy(root: &Path, name: &str) -> Result<PathBuf, String> {
    let tree = root.join("target/mutants").join(name);
    let files = listed(root)?;
    for file in &files {
        let (from, to) = (root.join(file), tree.join(file));
        let Ok(new) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        let made = to.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&to, new))
            .map_err(|error| format!("{} cannot be written: {error}", to.display()))?;
    }
    remove_others(&tree, &tree, &files)?;
    Ok(tree)
}

/// Returns every file that is under version control, or could be.
fn listed(root: &Path) -> Result<BTreeSet<String>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git could not be started: {error}"))?;
    if !listed.status.success() {
        return Err("git could not list the files".to_owned());
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    Ok(text
        .split('\0')
        .filter(|name| !name.is_empty() && root.join(name).is_file())
        .map(str::to_owned)
        .collect())
}

fn remove_others(tree: &Path, folder: &Path, files: &BTreeSet<String>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.strip_prefix(tree).ok().and_then(Path::to_str).unwrap_or_default();
        if path.is_dir() {
            remove_others(tree, &path, files)?;
        } else if !files.contains(name) {
            std::fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}
