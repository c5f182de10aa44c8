//! `[secrets]`: what only the operator knows. No message ever repeats a part of one.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

use super::error::{Fault, Origin, Problems};
use super::fields;
use super::reader::{Section, Value};
use super::tree::Kind;

/// The most secrets of one kind: the one in use, and those that it came after.
pub(super) const SECRETS_MAX: usize = 8;
/// The longest name of a secret.
pub(super) const ID_LENGTH_MAX: usize = 32;
/// The largest file that is taken for a secret, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// `[secrets]`: of each kind, the first signs or seals, and all verify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretsConfig {
    /// Seal fingerprints. None: one is made at first use and kept in the store.
    pub fingerprint: Vec<Secret>,
    /// Encrypt recordings. None: they are only compressed. The store's configuration has them too.
    pub encryption: Vec<Secret>,
    /// Sign issued keys. None: as for fingerprints.
    pub issued_keys: Vec<Secret>,
}

/// A secret and its name.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Its name, kept beside what it seals.
    pub id: String,
    /// 32 bytes.
    pub key: [u8; 32],
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.id)
    }
}

/// Variables of the process, by name.
pub(super) type Env = [(String, String)];

pub(super) fn read(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> SecretsConfig {
    let Some(table) = Section::open(value, &fields::SECRETS, "[secrets]", problems) else {
        return SecretsConfig::default();
    };
    let mut kind = |name| {
        let value = table.get(name);
        value.map(|value| read_kind(&value, env, problems)).unwrap_or_default()
    };
    SecretsConfig {
        fingerprint: kind("fingerprint"),
        encryption: kind("encryption"),
        issued_keys: kind("issued_keys"),
    }
}

fn read_kind(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Vec<Secret> {
    const EXAMPLE: &str = "[{ id = \"k1\", key = { env = \"ONETAKE_SECRET\" } }]";
    let elements = value.list(EXAMPLE, problems).unwrap_or_default();
    if elements.len() > SECRETS_MAX {
        let fix = format!("keep the newest, at most {SECRETS_MAX}");
        value.refuse(Fault::new("too many secrets", fix), problems);
    }
    let mut secrets: Vec<Secret> = Vec::new();
    for element in &elements {
        let Some(secret) = read_secret(element, env, problems) else { continue };
        if secrets.iter().any(|other| other.id == secret.id) {
            let fault = Fault::new("another secret has the same `id`", "give each its own");
            problems.add(&element.node.at, &format!("{}.id", element.path), None, fault);
        }
        secrets.push(secret);
    }
    secrets
}

fn read_secret(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<Secret> {
    let example = "{ id = \"k1\", key = { env = \"ONETAKE_SECRET\" } }";
    let table = Section::open(value, &fields::SECRET, example, problems)?;
    let needed = |name: &str, problems: &mut Problems<'_>| {
        let found = table.get(name);
        if found.is_none() && !table.has_faults() {
            let fault = Fault::new("it is missing", format!("write for example {example}"));
            problems.add(&value.node.at, &table.path_of(name), None, fault);
        }
        found
    };
    let id = needed("id", problems);
    let key = needed("key", problems);
    let id = id?.parse("\"k1\"", problems, |text| {
        let word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        match !text.is_empty() && text.len() <= ID_LENGTH_MAX && text.chars().all(word) {
            true => Ok(text.to_owned()),
            false => Err(Fault::new(
                "not a name",
                format!("write up to {ID_LENGTH_MAX} letters, digits and - _ ."),
            )),
        }
    });
    let key = read_key(&key?, env, problems);
    Some(Secret { id: id?, key: key? })
}

/// The key itself, or where it is.
fn read_key(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<[u8; 32]> {
    let Found { text, at, path } = match &value.node.kind {
        Kind::Text(text) => Found::here(text, value),
        _ => {
            let table = Section::open(value, &fields::SECRET_KEY, EXAMPLE, problems)?;
            elsewhere(&table, value, env, problems)?
        }
    };
    let decoded = [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD]
        .into_iter()
        .find_map(|alphabet| alphabet.decode(text.trim()).ok());
    let what = match decoded.map(<[u8; 32]>::try_from) {
        Some(Ok(key)) => return Some(key),
        Some(Err(bytes)) => format!("it is base64 of {} bytes, not of 32", bytes.len()),
        None => "it is not base64".to_owned(),
    };
    let fault = Fault::new(what, "make one with `openssl rand -base64 32`");
    problems.add(&at, &path, None, fault);
    None
}

const EXAMPLE: &str = "{ env = \"ONETAKE_SECRET\" }";

/// What is a key, and where messages say that it is.
pub(super) struct Found {
    pub(super) text: String,
    pub(super) at: Origin,
    pub(super) path: String,
}

impl Found {
    /// It stands in the file itself.
    pub(super) fn here(text: &str, value: &Value<'_>) -> Self {
        Self { text: text.to_owned(), at: value.node.at.clone(), path: value.path.clone() }
    }
}

/// `{ env = "NAME" }` or `{ file = "…" }`.
pub(super) fn elsewhere(
    table: &Section<'_>,
    value: &Value<'_>,
    env: &Env,
    problems: &mut Problems<'_>,
) -> Option<Found> {
    match (table.get("env"), table.get("file")) {
        (Some(variable), None) => {
            let name = variable.text("\"ONETAKE_SECRET\"", problems)?;
            let found = env.iter().find(|(known, _)| known == name);
            if found.is_none() {
                let fix = "set it for this process, or name another";
                variable.refuse(Fault::new("there is no such variable", fix), problems);
            }
            found.map(|(_, text)| Found::here(text, &variable))
        }
        (None, Some(file)) => {
            let name = file.text("\"/run/secrets/onetake\"", problems)?;
            match read_file(name) {
                Ok(text) => Some(Found::here(&text, &file)),
                Err(why) => {
                    let fix = "name a file that this process may read, with nothing but the key";
                    file.refuse(Fault::new(why, fix), problems);
                    None
                }
            }
        }
        _ => {
            if !table.has_faults() {
                let fix = format!("write the key itself, {EXAMPLE} or {{ file = \"…\" }}");
                value.refuse(Fault::new("names no key, or two", fix), problems);
            }
            None
        }
    }
}

fn read_file(name: &str) -> Result<String, String> {
    let about = std::fs::metadata(name).map_err(|error| format!("cannot be read: {error}"))?;
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        return Err(format!("no file of at most {FILE_BYTES_MAX} bytes"));
    }
    std::fs::read_to_string(name).map_err(|error| format!("cannot be read: {error}"))
}
